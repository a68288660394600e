"""A record runs no other code than recorded files, and calls nothing but what they define, and classes of networks."""

from __future__ import annotations

import inspect
import os
import py_compile
import shutil
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest
from cases import often, thorough
from recorded_runs import CODE, draw, furnish

from fmapviz.config.sample import SampleSize
from fmapviz.core import checksummed_json, recorded_code
from fmapviz.core.recorded_code import check_plain, only_recorded
from fmapviz.core.user_code import import_module_of, parse_reference
from fmapviz.errors import FmapvizError, RefusedError, RequestError, WeightsError
from fmapviz.models.weights.file import sha256_of
from fmapviz.run.finished_run import open_finished_run
from fmapviz.run.redraw import redraw
from fmapviz.run.rerun import plan_rerun, read_recorded, rerun
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.run import read_run
from fmapviz.store.verify import verify_copy

MORE = """
    import subprocess
    from functools import partial
    from subprocess import check_output

    import torchvision
    from helper import marker
    from torchvision.models import squeezenet1_1

    held = partial(subprocess.check_output)


    class Net(nn.Sequential):
        start = staticmethod(subprocess.check_output)
"""
MODULES = ("net", "helper", "far", "v", "torchvision_helper", "pkg", "pkg.net", "space", "space.net", "evilmod", "installed")


def redrawn(run, _out):
    with local_copy(run) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
        found = list(redraw(copy, digests, SampleSize.parse("1")))
    if reasons := [each.reason for each in found if each.status == "undrawn"]:
        raise RefusedError(reasons[0])


def opened(run, _out):
    with open_finished_run(run):
        pass


COMMANDS = {
    "rerun": lambda run, out: rerun(read_recorded(run), out=out),
    "rerun --plan": lambda run, out: plan_rerun(read_recorded(run), out=out),
    "verify --redraw": redrawn,
    "top": opened,
}
OFTEN = ("rerun", "verify --redraw")


def forget():
    """Forget the modules of a run, as another process does."""
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory with a network of several files, a view in another folder, and a run of them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    furnish(tmp_path)
    for folder in ("lib", "views"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lib/far.py").write_text("marker = 1\n")
    (tmp_path / "helper.py").write_text(f"import sys\nsys.path.append({str(tmp_path / 'lib')!r})\nfrom far import marker\n")
    (tmp_path / "net.py").write_text(textwrap.dedent(CODE) + textwrap.dedent(MORE))
    (tmp_path / "views/v.py").write_text("def energy(maps):\n    return maps.square().mean(1)\n")
    forget()
    run = draw(tmp_path, tmp_path / "out", to="png,stats", layers="0", views="maps,views/v.py:energy", name="first")
    forget()
    monkeypatch.chdir(tmp_path)
    yield tmp_path, run
    forget()


def change(run, model=None, **request):
    """Let the record of a run name something else; its checksum is right."""
    record = {name: value for name, value in read_run(run).items() if name != "sha256"}
    if model:
        record["settings"]["model"] = record["request"]["model"] = model
    if request.get("own") == {}:
        record["settings"]["views"] = ["maps"]
    record["request"] |= request
    (run / "run.json").write_bytes(checksummed_json.dumps(record))


def mark(place):
    """Return a line that leaves a file behind when it is run."""
    return f"open({str(place / 'mark')!r}, 'w').close()\n"


@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_unchanged_code_is_run(command, own):
    place, run = own
    COMMANDS[command](run, place / "again")
    assert read_run(run)["request"]["code"].keys() == {"net.py", "views/v.py"}
    assert read_run(run)["request"]["code"]["net.py"].keys() == {"net.py", "helper.py", "lib/far.py", "views/v.py"}


@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_changed_code_is_refused_before_anything_is_run(command, own):
    place, run = own
    for file in ("net.py", "helper.py", "lib/far.py", "views/v.py"):
        before = (place / file).read_text()
        (place / file).write_text(mark(place) + before)
        changed = f"was drawn with something else: .*{file.rpartition('/')[2]} has changed"
        with pytest.raises(FmapvizError, match=changed):
            COMMANDS[command](run, place / "again")
        assert not (place / "mark").exists()
        assert not {"net", "v"} & sys.modules.keys()
        (place / file).write_text(before)


@pytest.mark.thorough
@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_new_files_beside_the_code_are_not_run(command, own):
    place, run = own
    (place / "far").mkdir()  # found before lib/far.py
    (place / "far/__init__.py").write_text(mark(place))
    with pytest.raises(FmapvizError, match="would be run, and the record holds no checksum of it"):
        COMMANDS[command](run, place / "again")
    assert not (place / "mark").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["net", *thorough("helper")])
def test_compiled_files_are_not_run(name, own):
    place, run = own
    source = place / f"{name}.py"
    shutil.copy2(source, place / "copy")
    source.write_text(mark(place))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert list((place / "__pycache__").iterdir())
    shutil.copy2(place / "copy", source)
    rerun(read_recorded(run), out=place / "again")
    assert not (place / "mark").exists()


FOREIGN = [
    "subprocess:check_output(args=['touch', 'mark'])",
    "builtins:open(file='mark', mode='w')",
    "os.path:Any",
    "__main__:x(a=1)",
    "shutil:copyfile(src='net.py', dst='mark')",
    f"{shutil.__file__}:copyfile(src='net.py', dst='mark')",
    "torch:save(obj=1, f='mark')",
    "torchvision.models:squeezenet1_1()",
    "numpy:save(file='mark', arr=1)",
    "net.py:check_output(args=['touch', 'mark'])",
    "net.py:subprocess.check_output(args=['touch', 'mark'])",
    "net.py:Net.start(args=['touch', 'mark'])",
    "net.py:held(args=['touch', 'mark'])",
    "net.py:squeezenet1_1()",
    "net.py:torch.save(obj=1, f='mark')",
    "views/../other.py:build",
    "other:build",
    "PIL.__main__:X",
    "pip.__main__:main",
    "__hello__:main",
    "test.autotest:main",  # runs all tests of Python when it is imported
    f"{subprocess.__file__}:check_output(args=['touch', 'mark'])",
    "torchvision.models:SqueezeNet(version='net.py')",
    "torchvision.models:SqueezeNet(num_classes={'a': 1})",
    "resnet18(weights='../w.pt')",
    "timm:resnet18(checkpoint_path='/tmp/w.pth')",
    "timm:resnet18(pretrained_cfg={'file': '/tmp/w.pth'})",
    "hf:clip(vision_config={'_attn_implementation': 'owner/kernel'})",
    "ultralytics:yolo11n.yaml(ch='../x')",
    "hub:owner/repo:entry(path='w.pt;touch mark')",
]


@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_a_forged_model_is_neither_imported_nor_called(command, own):
    place, run = own
    (place / "other.py").write_text(mark(place))
    for model in FOREIGN:
        change(run, model)
        with pytest.raises(FmapvizError) as refused:
            COMMANDS[command](run, place / "again")
        assert "something else" not in str(refused.value), model
        assert not (place / "mark").exists(), model
        forget()


@pytest.mark.thorough
def test_a_forged_view_or_format_is_neither_imported_nor_called(own):
    place, run = own
    (place / "other.py").write_text(mark(place))
    for reference in ("os:system", "net.py:check_output", "other.py:energy", "torch:save"):
        for own_code in ({"energy": reference}, {"energy": "views/v.py:energy", "stats": reference}):
            change(run, own=own_code)
            with pytest.raises(FmapvizError):
                rerun(read_recorded(run), out=place / "again")
            assert not (place / "mark").exists(), reference


@pytest.mark.thorough
def test_a_lone_record_runs_no_command(own, tmp_path_factory, fmapviz):
    _, run = own
    alone = tmp_path_factory.mktemp("alone")
    change(run, f"subprocess:check_output(args=['touch', '{alone / 'mark'}'])", code={}, own={})
    shutil.copy(run / "run.json", alone / "evil.json")
    done = fmapviz("rerun", alone / "evil.json", "--out", alone / "runs")
    assert b"'subprocess' is of the standard library, which is not run for a record" in done.stderr, done.stderr
    assert (done.returncode, [path.name for path in alone.iterdir()]) == (6, ["evil.json"])


@pytest.mark.thorough
def test_a_class_of_networks_of_an_installed_package_is_called(tmp_path):
    furnish(tmp_path)
    run = draw(
        tmp_path, tmp_path / "out", model="torchvision.models:SqueezeNet(num_classes=3)", to="png", layers="features.0"
    )
    assert rerun(read_recorded(run), out=tmp_path).same


INSTALLED = """
    from pathlib import Path

    from torch import nn


    class Net(nn.Sequential):
        def __init__(self, act="nn", width=4, file="default.txt", more=None):
            eval(act)
            if Path(file).is_file():
                exec(Path(file).read_text())
            super().__init__(nn.Conv2d(3, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_an_installed_class_is_called_with_numbers_and_plain_words_only(command, own, tmp_path_factory, monkeypatch):
    place, run = own
    site = tmp_path_factory.mktemp("lib") / "site-packages"
    site.mkdir()
    (site / "installed.py").write_text(textwrap.dedent(INSTALLED))
    monkeypatch.syspath_prepend(site)
    for name in ("_SITES", "_INSTALLED"):
        monkeypatch.setattr(recorded_code, name, (*getattr(recorded_code, name), f"{site}{os.sep}"))
    (place / "evil.txt").write_text(mark(place))
    (place / "evil").write_text(mark(place))
    for argument in (
        f"act={mark(place).strip()!r}",
        "act='nn.Conv2d'",
        "act='nn '",
        "act=''",
        f"act='{'n' * 65}'",
        f"file={str(place / 'evil.txt')!r}",
        "file='evil.txt'",
        "file='evil'",
        "more={'act': 'nn'}",
        "more=[1, ('nn', ['a b'])]",
        "more=b'nn'",
    ):
        change(run, f"installed:Net(width=3, {argument})", own={})
        with pytest.raises(RefusedError, match=r"'installed:Net' is not called with .*: for a record, code of installed"):
            COMMANDS[command](run, place / "again")
        assert not (place / "mark").exists(), argument
        assert "installed" not in sys.modules
    shutil.copy(place / "evil", place / "default.txt")
    plain = "installed:Net(act='nn', width=3, more=[1, (2.5, None, True, 'silu-x_1')])"
    drawn = draw(place, place / "out", model=plain, to="png", layers="0", views="maps", name="plain")
    assert (place / "mark").exists()  # typed, it reads its file
    (place / "mark").unlink()
    sys.path[:] = [path for path in sys.path if path != str(place)]
    COMMANDS[command](drawn, place / "again")
    assert not (place / "mark").exists()
    assert str(place) not in sys.path  # what packages import later is not found there


def test_arguments_of_named_models_may_be_nested_but_neither_code_nor_paths():
    plain = {"num_classes": 5, "act_layer": "silu", "sizes": [1, (2.5, -1)], "vision_config": {"hidden_size": 8}}
    check_plain("timm:resnet18", plain, nested=True)
    for value in (
        "a/b",
        "x.pth",
        "__import__('os')",
        "a b",
        "~",
        "..",
        "https://a",
        "é",
        "$(touch mark)",
        {"a/b": 1},
        {1: {"a": "./w"}},
    ):
        with pytest.raises(RefusedError, match="timm:resnet18"):
            check_plain("timm:resnet18", plain | {"more": value}, nested=True)


FILES = {
    "net.py:build": ("net.py", "net.py"),
    "pkg.net:build": ("pkg/__init__.py", "pkg/net.py"),
    "pkg/net.py:build": ("pkg/__init__.py", "pkg/net.py"),
    "space.net:build": ("space/net.py", "space/net.py"),
}


@pytest.mark.parametrize("reference", FILES)
def test_the_bytes_whose_checksum_was_compared_are_run(reference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    for name in FILES[reference]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def build():\n    return 1\n")
    parsed = parse_reference(reference)
    files = {name: sha256_of(tmp_path / name) for name in FILES[reference]}
    with only_recorded({parsed.module: files}) as changed:
        assert not changed
        for name in files:
            (tmp_path / name).write_text(mark(tmp_path) + "def build():\n    return 2\n")
            py_compile.compile(name, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        home = import_module_of(parsed)
        assert home.build() == 1
        assert inspect.getsource(home.build) == "def build():\n    return 1\n"
    assert not (tmp_path / "mark").exists()
    forget()


@pytest.mark.thorough
def test_compiled_modules_are_not_run(own):
    place, run = own
    (place / "helper.py").unlink()
    (place / "far.py").write_text(mark(place))
    py_compile.compile(str(place / "far.py"), cfile=str(place / "helper.pyc"))
    code = read_run(run)["request"]["code"]
    del code["net.py"]["helper.py"]
    code["net.py"]["helper.pyc"] = sha256_of(place / "helper.pyc")
    change(run, code=code)
    with pytest.raises(FmapvizError, match=r"helper\.pyc' is compiled, and may change after its checksum was compared"):
        rerun(read_recorded(run), out=place / "again")
    assert not (place / "mark").exists()


@pytest.mark.parametrize("folder", ["site-packages", *thorough("dist-packages/a", "standard")])
def test_code_in_folders_that_look_installed_needs_a_checksum_and_has_none(folder, own, tmp_path_factory):
    place, run = own
    there = tmp_path_factory.mktemp("elsewhere") / folder
    there.mkdir(parents=True)
    for name in ("evilmod", "os", "subprocess"):
        (there / f"{name}.py").write_text(mark(place) + "def build(): pass\n")
    digest = sha256_of(there / "evilmod.py")
    for model in ("evilmod:build", f"{there / 'evilmod.py'}:build"):
        module = model.rpartition(":")[0]
        for code in ({}, {module: {"evilmod.py": digest}}):
            change(run, model, own={}, code=code, directory=str(there), weights="evilmod.py")
            with pytest.raises(RefusedError, match=r"holds no checksum of the code of .*evilmod"):
                rerun(read_recorded(run), out=place / "again")
            assert not (place / "mark").exists(), (model, code)


@pytest.mark.thorough
def test_records_are_followed_in_several_contexts_at_once(own):
    place, run = own
    code = read_run(run)["request"]["code"]
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(only_recorded(code))
        (place / "new.py").write_text(mark(place))
        with pytest.raises(RefusedError, match=r"new\.py' would be run"):
            __import__("new")
    assert not (place / "mark").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_a_record_with_names_that_no_file_has_is_refused(command, own):
    place, run = own
    long = "a" * 300
    names = (
        long,
        f"{long}.py:build",
        f"{long}:build",
        f"net.py:{long}",
        "a/" * 3000,
    )
    for model in (*names, "a" * 100_000, f"net.py:build(a='{long * 1000}')"):
        change(run, model, own={}, weights=f"{long}.pth", directory=str(place))
        with pytest.raises((RequestError, WeightsError, RefusedError)) as refused:
            COMMANDS[command](run, place / "again")
        assert len(model) < 2**15 or "are not those of a run" in str(refused.value), model[:20]
        forget()
