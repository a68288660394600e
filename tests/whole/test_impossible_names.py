"""Names that no file can have: longer than the system allows, in circles of links, or with a NUL byte."""

import re
from pathlib import Path

import pytest
from cases import often, thorough
from image_files import paint
from typer.main import get_command

import fmapviz
from fmapviz.cli.app import app
from fmapviz.cli.commands import commands
from fmapviz.errors import FmapvizError

WORDS = {  # what a command needs besides the argument in question
    "run": ["shapesnet", "x.png", "--layers", "features.0.conv"],
    "diff": ["shapesnet", "x.png", "--against", "random", "--layers", "features.0.conv"],
    "extract": ["runs/shapesnet", "--image", "x.png", "--layer", "features.0.conv"],
    "layers": ["shapesnet"],
    "models": [],
    "guide": [],
    "help": [],
    "runs": [],
    "completion": ["bash"],
}
TO_FILES = {"--against", "--image", "--model", "--name", "--out", "--to", "--view", "--weights"}
OF_A_RUN = ["runs/shapesnet"]
MISSING = re.compile(r"no such (file|directory|run)|no run of fmapviz|no such weights file|cannot (read|write)|not? be read")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The working directory: an image, a run, and links that form a circle."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paint(Path("x.png"), size=(32, 32))
    fmapviz.visualize("shapesnet", "x.png", layers=["features.0.conv"])
    Path("loop.py").symlink_to("loop")
    Path("loop").symlink_to("loop.py")
    return tmp_path


def call(words, capsys):
    """Run a command in this process; return its exit code and what it reports."""
    try:
        code = app(words, standalone_mode=False) or 0
    except FmapvizError as error:
        return error.exit_code, f"{error}\n{error.hint}"
    except SystemExit as stop:
        code = stop.code
    except Exception as error:
        if type(error).__module__.startswith(("typer", "click")):  # the parser refuses it
            return 2, ""
        raise AssertionError(words) from error
    return code, "".join(capsys.readouterr())


def calls_with(command, name, *, every):
    """Yield command lines with a name as each argument and option, alone and as part of other forms."""
    words = WORDS.get(command, OF_A_RUN)
    for parameter in get_command(app).commands[command].params:
        option = parameter.opts[0]
        if option.startswith("-") and not getattr(parameter, "is_flag", False) and (every or option in TO_FILES):
            for value in (name, *((f"{name}.py:x", f"{name}.pth") if option in TO_FILES else ())):
                yield [command, *words, option, value]
    for value in (name, f"{name}.png", f"{name}/x.png", f"{name}.py:x", f"hf:{name}", f"{name}/../x", f"../{name}"):
        yield [command, value, *words[1:]]
        yield [command, *words, value]


@pytest.mark.thorough
@pytest.mark.parametrize("command", often(["layers", "verify"], of=commands()))
@pytest.mark.parametrize(
    "name", ["a" * 256, *thorough("a/" * 2500 + "a", "loop", "é" * 128)], ids=["long", "path", "links", "bytes"]
)
def test_a_command_refuses_a_name_that_no_file_has(command, name, directory, capsys):
    is_long = name != "loop"
    for words in calls_with(command, name, every=name != "a" * 256):
        code, report = call(words, capsys)
        assert code in {0, 2, 3, 4, 5, 6}, (words, report)
        is_named = name in report and f"{name}/.." not in report  # the folder above such a name exists
        if is_long and is_named and MISSING.search(report):
            assert "File name too long" in report, (words, report)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["a" * 256, "a/" * 2500, "a\0b", "loop", "\ud800"], ids=["long", "path", "NUL", "links", "surrogate"]
)
def test_a_function_refuses_a_name_that_no_file_has(name, directory):
    model = fmapviz.load_model("shapesnet")
    calls = {
        "model": lambda: fmapviz.visualize(name, ["x.png"]),
        "code": lambda: fmapviz.visualize(f"{name}.py:x", ["x.png"]),
        "image": lambda: fmapviz.visualize(model, [f"{name}.png"]),
        "folder": lambda: fmapviz.visualize(model, [f"{name}/x.png"]),
        "path": lambda: fmapviz.visualize(model, Path(name)),
        "out": lambda: fmapviz.visualize(model, ["x.png"], out=name),
        "weights": lambda: fmapviz.visualize("shapesnet", ["x.png"], weights=f"{name}.pth"),
        "view": lambda: fmapviz.visualize(model, ["x.png"], views=[f"{name}.py:x"]),
        "to": lambda: fmapviz.visualize(model, ["x.png"], to=[f"{name}.py:x"]),
        "load_model": lambda: fmapviz.load_model(f"{name}.py:x"),
        "load_image": lambda: fmapviz.load_image(f"{name}.png", model),
        "diff": lambda: fmapviz.diff(model, ["x.png"], against=name),
        "series": lambda: fmapviz.diff("shapesnet", ["x.png"], weights=f"{name}*.pt"),
        "runs": lambda: fmapviz.diff(name, name),
        "top": lambda: fmapviz.top_images(name),
        "watch": lambda: fmapviz.Watch(model, ["x.png"], out=name, layers=["features.0.conv"]).__enter__(),
    }
    reported = {}
    for called, call in calls.items():
        try:
            failures = call().failures
        except FmapvizError as error:
            reported[called] = error.hint or "too long" in str(error)
        else:
            reported[called] = [each.code for each in failures] == ["E_READ"]
    assert all(reported.values()), reported
