"""The README and the guide: commands and programs work as documented, and all options are documented.

`documents.py` says how blocks are written.
"""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from cases import often
from checkpoint_files import shapes_of
from documents import (
    DOCUMENTS,
    GUIDE,
    ROOT,
    Block,
    Command,
    anchors_of,
    blocks_of,
    code_of,
    commands_of,
    expected_prints,
    files,
    imported_by,
    is_printed,
    matches,
    prose_of,
    settings_before,
    text_of,
)
from extras import needs
from PIL import Image
from torchvision import models
from trees import difference, snapshot
from typer.main import get_command
from waiting import PATIENCE
from yolo import confident, saved

import fmapviz
from fmapviz.cli.app import app
from fmapviz.cli.commands import commands
from fmapviz.core import registry
from fmapviz.core.platforms import ENDING_SIGNALS
from fmapviz.errors import FmapvizError
from fmapviz.public_names import FORMER, HOMES

# Commands that are not run as they stand, with the reason and the test that does what they do.
ELSEWHERE = {
    "make test": ("this is it", "tests/whole/test_documentation.py::test_every_document_has_a_case"),
    "make demo": ("it installs", "tests/whole/test_documentation.py::test_make_demo_prints_the_path_of_its_results"),
    "pip install .": ("it installs", "tests/whole/test_documentation.py::test_the_wheel_holds_all_files_of_the_package"),
    "tensorboard --logdir runs/": (
        "it serves until it is stopped",
        "tests/whole/test_documentation.py::test_tensorboard_serves_the_written_pictures",
    ),
    "fmapviz completion --install": (
        "it changes the home directory",
        "tests/whole/test_documentation.py::test_completion_can_be_installed",
    ),
    "fmapviz shapesnet sample_images --shard 4 --to tar,stats --name ray --engine ray --workers 2": (
        "a cluster takes long to start",
        "tests/whole/test_ray.py::test_the_command_prints_the_lines_of_a_local_run",
    ),
}
RUNNABLE = [name for name in DOCUMENTS if any(block.kind in {"sh", "console", "python"} for block in blocks_of(name))]
OFTEN = {"README", "exit-codes"}  # what the others show, other tests check, too
NEEDED = {
    "many-images": [needs("pyarrow", "scale")],
    "films": [needs("av", "video")],
    "models": [needs("timm", "timm")],
    "remote-stores": [needs("pyarrow", "scale")],
}
MARKS = {name: [*NEEDED.get(name, []), *([] if name in OFTEN else [pytest.mark.thorough])] for name in RUNNABLE}
# Options of other programs that the documents name.
FOREIGN = {"--logdir", "--samples_per_plugin", "--array", "--gres", "--cpus-per-task", "--format", "--run", "--no-deps"}
# Runs a program with warnings as errors; at the end it reports the output of each line.
RECORDING = """
import json, sys, warnings
from io import StringIO
warnings.simplefilter("error")
sys.path.insert(0, "")
printed = {}
def record(*values, **options):
    text, line = StringIO(), sys._getframe(1).f_lineno
    print(*values, **{**options, "file": text})
    printed[line] = printed.get(line, "") + text.getvalue()
exec(compile(sys.argv[1], "<document>", "exec"), {"__name__": "__main__", "print": record})
print(json.dumps(printed))
"""


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Torch's directory of downloads, with files of equal weights in place of the published ones of two networks."""
    home = tmp_path_factory.mktemp("torch_home")
    place = home / "hub" / "checkpoints"
    place.mkdir(parents=True)
    for model in ("alexnet", "resnet18"):
        name = models.get_model_weights(model).DEFAULT.url.rpartition("/")[2]
        state = {key: torch.tensor(0.001).expand(values.shape) for key, values in shapes_of(model).items()}
        torch.save(state, place / name)  # each tensor expands one number: the file is small
    yield home
    shutil.rmtree(home)


@pytest.fixture
def workplace(tmp_path, warm):
    """A directory as a reader of the documents has it: pictures, the files that they show, and the command."""
    run_file = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    for name, arguments in {"fmapviz": "", "python": f'-c "{run_file}"'}.items():
        command = tmp_path / ".bin" / name
        command.parent.mkdir(exist_ok=True)
        warm_run = f"'{sys.executable}' -S '{ROOT}/tests/support/warm.py' '{warm}' run"
        command.write_text(f'#!/bin/sh\nexec {warm_run} {arguments} "$@"\n')
        command.chmod(0o755)
    shutil.copytree(ROOT / "sample_images", tmp_path / "sample_images", ignore=shutil.ignore_patterns("*.py", "painting"))
    shutil.copy(ROOT / "sample_images" / "still_life.jpg", tmp_path / "photo.jpg")
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    if find_spec("av"):
        from films import write_film

        write_film(tmp_path / "clip.mp4", 48)
    return tmp_path


def shell(command, place, **environment):
    """Run a command of a document as in a terminal: for a user of bash whose home is the place, with one output."""
    path = os.pathsep.join([str(place / ".bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    user = {"HOME": str(place), "SHELL": "/bin/bash", "DISPLAY": ":0", "BROWSER": "true", "PATH": path}
    around = {name: value for name, value in os.environ.items() if name not in {"XDG_CONFIG_HOME", "ZDOTDIR"}}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=place, env={**around, **user, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def run_command(command, place):
    result = shell(command.line, place, TORCH_HOME=str(place / "torch_home"))
    fails = any(line.startswith("error: ") for line in command.output or ())
    assert (result.returncode != 0) == fails, (command.line, result.stdout)
    if command.output is not None:
        assert matches(result.stdout, command.output), (command.line, result.stdout)


@contextmanager
def present(texts, place):
    """Have files of some texts, by name, in a place."""
    for name, text in texts.items():
        (place / name).write_text(text)
    yield
    for name in texts:
        (place / name).unlink()


def run_program(program, place, fmapviz):
    result = fmapviz("-c", RECORDING, program, cwd=place)
    assert result.returncode == 0, (program, result.stderr.decode())
    printed = json.loads(result.stdout.splitlines()[-1])
    for line, comment in expected_prints(program).items():
        assert is_printed(comment, printed.get(str(line), "")), (program, comment, printed.get(str(line)))


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in RUNNABLE])
def test_each_documented_command_and_program_runs(name, workplace, fmapviz, request):
    commands, programs = commands_of(name), [block.text for block in blocks_of(name) if block.kind == "python"]
    if any(command.startswith("parallel ") for command in commands) and not shutil.which("parallel"):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no GNU parallel")
    if any(re.match(r"fmapviz alexnet (?!.*--weights)", command) for command in commands):
        (workplace / "torch_home").symlink_to(request.getfixturevalue("published"))
    if any("last.ckpt" in command for command in commands) and "python train.py" not in commands:
        assert shell("python train.py", workplace).returncode == 0
    if any("s3://" in command for command in commands):
        bucket = request.getfixturevalue("bucket")
        for path in (workplace / "sample_images").rglob("*.[jp][pn]g"):
            bucket.put(f"in/{path.relative_to(workplace / 'sample_images')}", path.read_bytes())
    missing = {package for text in programs for package in imported_by(text) if not is_installed(package, workplace)}
    for block, settings in settings_before(blocks_of(name)):
        with present(settings, workplace):
            for command in block.commands:
                if command.line not in ELSEWHERE:
                    run_command(command, workplace)
        if block.kind == "python" and not block.file and not imported_by(block.text) & missing:
            run_program(block.text, workplace, fmapviz)
    if check := RESULTS.get(name):
        check(workplace, *([bucket] if "bucket" in inspect.signature(check).parameters else []))
    if missing:
        pytest.skip(f"all but the programs that need {', '.join(missing)} were run")


# What a reader has done before the examples of a command, beside photos and a network of their own.
DONE_BEFORE = {
    "diff": [
        "fmapviz shapesnet photos --to npz --name one",
        "fmapviz shapesnet photos --to npz --name two --weights random",
    ],
    "report": ["fmapviz shapesnet photos --to html", *(f"fmapviz resnet18 photos --to html --scale {n}" for n in (1, 2))],
    "runs": [
        "fmapviz shapesnet photos --to png --out experiments",
        *(f"fmapviz resnet18 photos --to png --scale {n}" for n in (1, 2)),
    ],
    "verify": ["fmapviz resnet18 photos --to png"],
    "rerun": ["fmapviz resnet18 photos --to png", "cp -r runs/resnet18 their-run"],
}
RUN_OFTEN = ("boxes", "trust", "my_net.py")  # those of a run that no other test types; "run, more" are the others
CHECKPOINTS = """
import torch, my_net
for name in ("last.ckpt", "epoch_0.pt", "epoch_1.pt"):
    torch.save(my_net.build().state_dict(), name)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("command", often(["run", "help"], of=[*commands(), "run, more"]))
def test_each_example_of_help_runs_for_those_who_have_what_it_names(command, workplace, fmapviz, published):
    if command == "extract" and find_spec("pyarrow") is None:
        pytest.skip("shards need the extra scale")
    (workplace / "torch_home").symlink_to(published)
    (workplace / "photos").mkdir()
    for name in ("photo.jpg", "other.jpg"):
        with Image.open(workplace / "photo.jpg") as image:
            image.reduce(8).save(workplace / "photos" / name)
    assert fmapviz("-c", CHECKPOINTS, cwd=workplace).returncode == 0
    examples = [line for line, _ in commands()[command.partition(",")[0]].examples]
    if command.startswith("run"):
        examples = [line for line in examples if any(each in line for each in RUN_OFTEN) == (command == "run")]
    lines = [*DONE_BEFORE.get(command, ()), *examples]
    if any("best.pt" in line for line in lines):
        if find_spec("ultralytics"):
            saved(workplace, change=confident)
        else:
            lines = [line for line in lines if "best.pt" not in line]
    for line in lines:
        run_command(Command(line), workplace)


def is_installed(package, place):
    return find_spec(package) is not None or (place / f"{package}.py").exists()


def check_folders(place):
    pictures = [path.relative_to(place / "sample_images") for path in (place / "sample_images").rglob("*.[jp][pn]g")]
    assert unit_names(place / "runs" / "squeezenet1_1") == {path.as_posix() for path in pictures}
    assert unit_names(place / "runs" / "listed") == {path.name for path in pictures}


def check_shards(place):
    runs = place / "runs"
    assert len(list((runs / "shards").glob("shard-*/pictures.tar"))) == 3
    assert difference(snapshot(runs / "parts"), snapshot(runs / "shards")) == []
    assert (place / "shapes_star.jpg.00_features.0.conv.maps.png").read_bytes().startswith(b"\x89PNG")


def check_bucket(place, bucket):
    assert len([key for key in bucket.keys("runs/") if key.endswith("/pictures.tar")]) == 3
    assert (place / "star.png").read_bytes().startswith(b"\x89PNG")


def unit_names(run):
    return {path.parent.relative_to(run).as_posix() for path in run.rglob("unit.json")}


RESULTS = {"folders-and-scripts": check_folders, "many-images": check_shards, "remote-stores": check_bucket}


def test_documented_output_is_printed():
    session = Block("console", "$ fmapviz x\n...\n6 images in 0.3 s\nstar 9...%\n").commands
    (command,) = session
    assert command.line == "fmapviz x"
    for printed, same in (
        ("a\nb\n6 images in 12.5 s\nstar 99.9 %\n", True),
        ("6 images in 0.3 s\nstar 99.9 %  \n", True),
        ("7 images in 0.3 s\nstar 99.9 %\n", False),
        ("6 images in 0.3 s\nstar 99.9 %\nmore\n", False),
        ("6 images in 0.3 s\n", False),
    ):
        assert matches(printed, command.output) == same, printed
    assert matches("x/b.jpg: ring\nx/a.jpg: star\ndone\n", ["x/a.jpg: star", "...", "done"])
    assert not matches("x/b.jpg: ring\ndone\nx/a.jpg: star\n", ["x/a.jpg: star", "...", "done"])
    program = "print(1,\n      2)  # 1 2\nx = 3  # no print\nprint(x)\nprint(x)  # ...\n"
    assert expected_prints(program) == {1: "1 2", 5: "..."}
    assert is_printed("(1, 2)", "(1, 2)\n")
    assert is_printed("no such ...: 'x'", "no such model: 'x'\n")
    assert not is_printed("(1, 2)", "(1, 3)\n")
    assert not is_printed("(1, 2)", "")


def test_every_document_has_a_case():
    commands = {command for name in DOCUMENTS for command in commands_of(name)}
    assert len(commands - {*ELSEWHERE}) >= 30
    assert not {*ELSEWHERE} - commands
    assert {*RESULTS} <= {*RUNNABLE}
    for _, test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        defined = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
        assert name in defined, test


@pytest.mark.thorough
def test_tensorboard_serves_the_written_pictures(workplace):
    shell("fmapviz alexnet sample_images/still_life.jpg --weights random --out runs/", workplace)
    server = subprocess.Popen(
        [Path(sys.executable).parent / "tensorboard", "--logdir", "runs/", "--port", "0", "--host", "localhost"],
        cwd=workplace, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        address = next(match[0] for line in server.stderr if (match := re.search(r"http://localhost:\d+/", line)))
        tags = ""
        deadline = time.monotonic() + PATIENCE
        while "features.10" not in tags and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{address}data/plugin/images/tags") as answer:
                tags = answer.read().decode()
            time.sleep(0.5)
        assert '"alexnet/still_life.jpg"' in tags
        assert '"maps/04 features.10"' in tags
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()


@pytest.mark.thorough
@needs("pyarrow", "scale")
def test_the_array_of_jobs_divides_the_work(workplace):
    (script,) = (block.text for block in blocks_of("clusters") if block.kind == "bash")
    script = script.replace("resnet50 /data/images --shard 1000", "shapesnet sample_images --shard 5")
    for number in (1, 2):
        result = shell(script, workplace, SLURM_ARRAY_TASK_ID=str(number), SLURM_ARRAY_TASK_COUNT="2")
        assert result.returncode == 0, result.stdout
    summaries = [json.loads((workplace / f"part-{number}.json").read_bytes().splitlines()[-1]) for number in (1, 2)]
    assert [summary["done"] for summary in summaries] == [7, 5]


def test_make_demo_prints_the_path_of_its_results(workplace):
    command = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "/fmapviz shapesnet" in line)
    command = command.strip().replace("$(BIN)/", "").replace("--out runs", f"--out {workplace}/runs")
    result = shell(command, workplace)
    assert result.returncode == 0, result.stdout
    assert f"tensorboard --logdir {workplace}/runs" in result.stdout
    assert "star.jpg: star 9" in result.stdout
    assert len(list((workplace / "runs" / "shapesnet" / "star.jpg").glob("*.maps.png"))) == 8


def test_completion_can_be_installed(tmp_path):
    result = shell("fmapviz completion --install bash", tmp_path)
    assert result.returncode == 0, result.stdout
    assert "fmapviz" in (tmp_path / ".bashrc").read_text()


def test_the_former_option_installs_completion(workplace):
    result = shell("fmapviz --install-completion && true", workplace)
    assert result.returncode == 0, result.stdout
    assert "it works in new terminals" in result.stdout


@pytest.mark.thorough
@needs("hatchling", "dev")
def test_the_wheel_holds_all_files_of_the_package(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
        wheel.extractall(tmp_path / "site")
    kept = {
        path
        for path in (ROOT / "fmapviz").rglob("*")
        if path.suffix in {".py", ".md", ".js", ".css", ".jinja", ".json", ".safetensors", ".txt"} or path.name == "py.typed"
    }
    assert {path.relative_to(ROOT).as_posix() for path in kept} <= held
    assert {"fmapviz/py.typed", "fmapviz/models/shapesnet/shapesnet.safetensors"} <= held
    assert not [name for name in held if name.startswith(("tests/", "sample_images/"))]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "fmapviz", "guide", "weights"]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert shown == text_of("weights")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_pictures_of_documents_exist(name):
    path, text = DOCUMENTS[name], prose_of(name)
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r"""(?:src|href)="([^"]+)\"""", text)]:
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.is_file(), target
        assert not anchor or anchor in anchors_of(linked), target


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tests_targets_and_paths_in_documents_exist(name):
    code = code_of(name)
    tests = {path.name for path in (ROOT / "tests").rglob("*.py")}
    assert set(re.findall(r"\btest_\w+\.py\b", code)) - tests == set()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", code, re.MULTILINE)) - {*targets} == set()
    paths = re.findall(r"^((?:tests|fmapviz|sample_images|\.github|\.readme)/[\w./]+)$", code, re.MULTILINE)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def options():
    """Return the long options of all commands, those of a pair such as `--labels`, `--no-labels` together."""
    group = get_command(app)
    parameters = [each for command in (group, *group.commands.values()) for each in command.params if not each.hidden]
    names = [{name for name in (*each.opts, *each.secondary_opts) if name.startswith("--")} for each in parameters]
    return [*filter(None, names), {"--help"}]


def words_of(names):
    """Return the words that documents set as code."""
    return set(re.findall(r"[\w+-]+", "\n".join(map(code_of, names))))


PAGES = [name for name, path in DOCUMENTS.items() if path.parent == GUIDE]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_in_documents_exist(name):
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text_of(name)))
    assert named - set().union(*options()) - FOREIGN == set()


def test_all_options_are_in_the_guide():
    named = words_of(PAGES)
    assert [names for names in options() if not names & named] == []


def test_all_views_and_formats_are_in_the_guide():
    assert {*registry.views(), *registry.formats()} - words_of(PAGES) == set()


def test_all_public_names_are_in_the_guide():
    assert {*HOMES, *FORMER} - words_of(PAGES) == set()


def test_all_exit_codes_are_in_the_guide():
    kinds = [FmapvizError, *FmapvizError.__subclasses__()]
    codes = {0, 1, *(kind.exit_code for kind in kinds), *(128 + number for number in ENDING_SIGNALS)}
    rows = re.findall(r"^\| (\d[\d, ]*) \|", text_of("exit-codes"), re.MULTILINE)
    assert codes == {int(code) for row in rows for code in row.split(", ")}


def test_all_codes_of_failures_are_in_the_guide():
    used = {
        code for path in (ROOT / "fmapviz").rglob("*.py") for code in re.findall(r'"(E_[A-Z_]+)"', path.read_text("utf-8"))
    }
    assert used == set(re.findall(r"\bE_[A-Z_]+\b", text_of("exit-codes")))


def test_the_number_of_models_is_the_same_everywhere():
    of_torchvision = len(set(fmapviz.model_names()) & set(models.list_models()))
    texts = [*map(text_of, DOCUMENTS), (ROOT / "Makefile").read_text()]
    numbers = {
        int("".join(number))
        for text in texts
        for number in re.findall(r"\b(\d{3})(?= (?:torchvision )?(?:models|names))|\bN/(\d+)", text)
    }
    assert numbers == {of_torchvision}


def test_the_readme_is_short():
    assert len(text_of("README").splitlines()) <= 150
