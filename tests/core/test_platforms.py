"""The package on a system like Windows; `support/windows/sitecustomize.py` says how far it is one."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from image_files import paint
from PIL import Image
from trees import difference, snapshot
from waiting import PATIENCE

from fmapviz.core import platforms
from fmapviz.core.file_names import folded
from fmapviz.run.loop import visualize

ROOT = Path(__file__).parents[2]
WINDOWS = {
    **os.environ,
    "PYTHONPATH": str(ROOT / "tests" / "support" / "windows"),
    "PYTHONIOENCODING": "cp1252",
    "PYTHONWARNDEFAULTENCODING": "1",
    "OMP_NUM_THREADS": "1",
}
PREPARE = """
import errno, os, sys, threading, time
from pathlib import Path
from fmapviz.core import files, platforms
here = Path.cwd()
"""
COMMANDS = """
import json, sys
from fmapviz.cli.app import app
for arguments in json.loads(sys.argv[1]):
    try:
        code = app(arguments, standalone_mode=False) or 0
    except SystemExit as stop:
        code = stop.code
    assert code == 0, (arguments, code)
"""


def python(program, *arguments, cwd, check=True):
    """Run a program as on Windows; return what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=WINDOWS,
        cwd=cwd,
        timeout=PATIENCE,
        capture_output=True,
        encoding="cp1252",
        check=False,
    )
    assert not check or ended.returncode == 0, ended.stderr
    return ended


def fmapviz(*commands, cwd, check=True):
    """Run commands in one process as on Windows."""
    return python(COMMANDS, json.dumps([list(map(str, command)) for command in commands]), cwd=cwd, check=check)


# --- the imitation itself


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import fcntl", "ModuleNotFoundError"),
        ("import os; os.fork()", "AttributeError"),
        ("import os; os.kill(os.getpid(), 0)", "AssertionError"),
        ("import os; os.open('.', os.O_RDONLY)", "PermissionError"),
        ("open('a:b', 'w', encoding='utf-8')", r"\[Errno 22\]"),
        ("import os; os.mkdir('con.x')", r"\[Errno 22\]"),
        (
            "from pathlib import Path; Path('a').mkdir(); f = open('a/b', 'w', encoding='utf-8'); Path('a').rename('c')",
            "is open",
        ),
        ("from pathlib import Path; f = open('a', 'w', encoding='utf-8'); Path('a').unlink()", "is open"),
        ("from pathlib import Path; [Path(each).mkdir() for each in 'ab']; Path('a').rename('b')", "FileExistsError"),
        ("print(chr(0x2603))", "UnicodeEncodeError"),
    ],
)
@pytest.mark.thorough
def test_what_windows_refuses_is_refused(program, error, tmp_path):
    ended = python(program, cwd=tmp_path, check=False)
    assert ended.returncode
    assert re.search(error, ended.stderr)


# --- files and processes


@pytest.mark.thorough
def test_files_are_handled_as_on_other_systems(tmp_path):
    """Compare what the same program prints here and there."""
    program = (
        PREPARE
        + """
def tried(function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]

for name in ("full", "empty", "new"):
    (here / name).mkdir()
(here / "full/x").write_bytes(b"1")
(here / "new/x").write_bytes(b"2")
print(tried(files.rename, here / "new", here / "full") in {"EEXIST", "ENOTEMPTY"})
print(tried(files.rename, here / "new", here / "empty"))
print(sorted(str(path.relative_to(here)) for path in here.rglob("*")))
with files.locked(here), files.locked(here / "full"):
    order = []
    def wait():
        with files.locked(here):
            order.append(2)
    other = threading.Thread(target=wait)
    other.start()
    time.sleep(0.1)
    order.append(1)
other.join()
print(order)
for number in range(3):
    files.append(here / "log", b"%d" % number)
print(files.read(here / "log"), files.read(here / "log", start=-2))
(here / "link").symlink_to("log")
print(tried(files.read, here / "link"), tried(files.append, here / "full", b"x") in {"EISDIR", "EACCES"})
files.sync_folders(here / "full", here)
files.write_over(here / "log", b"new", sync_too=True)
scratch = files.Scratch(here)
scratch.write(b"abc", 5); scratch.write(b"x", 6)
print(scratch.read(3, 5), files.read(here / "log")); scratch.close()
print([platforms.is_running(pid) for pid in (os.getpid(), os.getppid(), 2**22 + 1)], platforms.free_space(here)[0] > 0)
print(sorted(path.name for path in here.iterdir()))
"""
    )
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there = python(program, cwd=tmp_path / "there").stdout
    here = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "here", check=True, capture_output=True, encoding="utf-8"
    ).stdout
    assert there == here
    assert "[1, 2]" in here


@pytest.mark.thorough
def test_lines_of_several_processes_are_all_there(tmp_path):
    program = PREPARE + "[files.append(here / 'log', sys.argv[1].encode() * 99) for _ in range(50)]"
    writers = [subprocess.Popen([sys.executable, "-c", program, letter], cwd=tmp_path, env=WINDOWS) for letter in ("a", "b")]
    assert [each.wait(PATIENCE) for each in writers] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == ["a" * 99] * 50 + ["b" * 99] * 50


@pytest.mark.thorough
def test_a_lock_is_for_one_of_several_processes_and_leaves_no_file(tmp_path):
    """Each process adds to a number, which is read and written apart; locks are removed all the time."""
    program = (
        PREPARE
        + """
for _ in range(100):
    with files.locked(here):
        number = int(Path("number").read_text(encoding="utf-8"))
        Path("number").write_text(str(number + 1), encoding="utf-8")
"""
    )
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "number").write_text("0")
    (tmp_path / "temporary").mkdir()
    environment = {**WINDOWS, "TMPDIR": str(tmp_path / "temporary")}
    writers = [subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path / "here", env=environment) for _ in range(3)]
    assert [each.wait(PATIENCE) for each in writers] == [0, 0, 0]
    assert (tmp_path / "here" / "number").read_text() == "300"
    assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.thorough
def test_a_lock_on_a_file_that_is_removed_before_it_is_locked_does_not_count(tmp_path):
    program = (
        PREPARE
        + """
import subprocess
locking = platforms.msvcrt.locking
def remove_and_lock(file, *how):
    subprocess.run(["rm", os.readlink(f"/proc/self/fd/{file}")], check=True)
    platforms.msvcrt.locking = locking
    locking(file, *how)
platforms.msvcrt.locking = remove_and_lock
print(platforms.take_lock(here))
release = platforms.take_lock(here)
print(platforms.take_lock(here), release())
"""
    )
    assert python(program, cwd=tmp_path).stdout == "None\nNone None\n"


@pytest.mark.thorough
def test_a_decoder_that_crashes_or_hangs_costs_one_image_where_files_cannot_be_passed(tmp_path):
    paint(tmp_path / "a.png")
    frames = [Image.new("RGB", (8, 8), (20 * number, 0, 0)) for number in range(4)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    program = """
import io, os, shutil, signal, sys, tempfile
from fmapviz.errors import InputError
from fmapviz.images import decode_pool
from fmapviz.images.decode import decode
from fmapviz.images.decode_worker import Films

assert not decode_pool.platforms.PASSES_FILES
worker = decode_pool.start_worker()
worker.wait_until_ready()
with open("a.png", "rb") as stream, tempfile.TemporaryFile() as remote:
    expected = decode(stream, channels=3)
    shutil.copyfileobj(open("a.png", "rb"), remote)
    remote.flush()
    for each in (stream, remote, stream, remote):
        image = worker.decode(each, channels=3)
        assert image.pixels.tobytes() == expected.pixels.tobytes() and worker.is_idle()
    films = Films()
    with open("film.gif", "rb") as stream, tempfile.TemporaryFile() as remote:
        shutil.copyfileobj(stream, remote)
        remote.flush()
        for question, number in (("animated", 0), ("has", 4), ("has", 3), ("read", 3), ("read", 1)):
            expected = films.ask(stream, question, number)[0]
            for each in (stream, remote):
                found = worker.ask(each, question, number)[0]
                same = found.tobytes() == expected.convert("RGB").tobytes() if question == "read" else found == expected
                assert same, (question, number, each)
    for number, message in ((9, "crashed"), (signal.SIGSTOP, "did not finish within 0.5")):
        os.kill(worker._process.pid, number)
        decode_pool.TIMEOUT_SECONDS = 0.5
        try:
            with open("a.png", "rb") as stream:
                worker.decode(stream, channels=3)
        except InputError as error:
            assert error.code == "E_DECODE" and message in str(error), error
        assert not worker.is_usable
        worker = decode_pool.start_worker()
        worker.wait_until_ready()
print("done")
os._exit(0)
"""
    assert python(program, cwd=tmp_path).stdout == "done\n"


# --- a Python for POSIX that lacks modules

LACKING = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty"):
    sys.modules[name] = None
del os.fork, os.forkpty, os.killpg, signal.SIGHUP, signal.pthread_kill
"""


@pytest.mark.thorough
def test_modules_that_a_python_may_be_built_without_are_not_needed(samples, tmp_path):
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "sitecustomize.py").write_text(LACKING)
    environment = {**WINDOWS, "PYTHONPATH": str(tmp_path / "lacking")}
    draw = ["shapesnet", str(samples / "shapes" / "star.jpg"), "--to", "png,html", "--out", "there"]
    commands = json.dumps([draw, draw, ["verify", "there"], ["runs", "--out", "there"], ["report", "there/shapesnet"]])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, commands], env=environment, cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    visualize(*draw[:2], to=draw[3], out=tmp_path / "here")
    assert not difference(snapshot(tmp_path / "there"), snapshot(tmp_path / "here"))


@pytest.mark.parametrize("fakes", [WINDOWS["PYTHONPATH"], "lacking"])
def test_where_no_terminal_can_be_asked_variables_decide(fakes, tmp_path):
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "sitecustomize.py").write_text(LACKING)
    program = """
import sys
from fmapviz.cli.terminal import find_graphics, window_pixels
found = [find_graphics(1, environment=each) for each in ({"TERM": "xterm", "TERM_PROGRAM": "WezTerm"}, {"TERM": "xterm"})]
sys.exit(f"{found[0].protocol} {found[1]} {all(64 <= side <= 4096 for side in window_pixels(1))}")
"""
    ours, theirs = os.openpty()
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=WINDOWS | {"PYTHONPATH": fakes}, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(theirs)
    with pytest.raises(OSError, match="Input/output"):  # nothing was written
        os.read(ours, 1)
    os.close(ours)
    assert ended.stderr.splitlines()[-1] == "iterm2 None True"


# --- commands


@pytest.mark.thorough
def test_a_run_is_drawn_finished_and_verified(samples, tmp_path):
    layers = "features.[01].conv"
    draw = ("shapesnet", samples / "shapes", "--layers", layers, "--to", "png,html,stats", "--out", "there")
    fmapviz(draw, draw, ("verify", "there"), ("runs", "--out", "there"), cwd=tmp_path)
    visualize("shapesnet", samples / "shapes", layers=layers, to="png,html,stats", out=tmp_path / "here")
    assert not difference(snapshot(tmp_path / "there"), snapshot(tmp_path / "here"))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_is_continued(number, tmp_path):
    for seed in range(40):
        paint(tmp_path / "in" / f"{seed}.png", seed)
    draw = ("shapesnet", "in", "--to", "tensorboard,png,html", "--workers", "1", "--out")
    command = [sys.executable, "-m", "fmapviz", *draw, "there", "--json"]
    with subprocess.Popen(
        command, env=WINDOWS, cwd=tmp_path, stdout=subprocess.PIPE, pipesize=4096, encoding="cp1252"
    ) as process:
        while json.loads(process.stdout.readline()).get("status") != "done":
            pass  # no more is read: the run waits for its reader before its last images
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    fmapviz((*draw, "there"), ("verify", "there"), (*draw, "here"), cwd=tmp_path)
    assert not difference(snapshot(tmp_path / "there"), snapshot(tmp_path / "here"))
    assert not [*(tmp_path / "there").rglob(".fmapviz-*")]


@pytest.mark.thorough
def test_a_run_is_repaired_reported_and_removed(samples, tmp_path):
    draw = ("shapesnet", samples / "shapes", "--to", "tensorboard,png,html", "--out", "runs")
    fmapviz(draw, (*draw, "--seed", "1", "--name", "other"), cwd=tmp_path)
    before = snapshot(tmp_path / "runs" / "shapesnet")
    damaged = next((tmp_path / "runs" / "shapesnet").glob("ring*/*maps.png"))
    damaged.write_bytes(b"damaged")
    (damaged.parent.with_name("star.jpg") / "unit.json").unlink()
    fmapviz((*draw, "--repair"), ("verify", "runs"), (*draw, "--force"), cwd=tmp_path)
    assert not difference(snapshot(tmp_path / "runs" / "shapesnet"), before)
    commands = [
        ("report", "runs/shapesnet"),
        ("report", "runs/shapesnet", "runs/other"),
        ("runs", "--json", "--out", "runs"),
        ("runs", "remove", "shapesnet", "--yes", "--out", "runs"),
    ]
    fmapviz(*commands, cwd=tmp_path)
    assert not (tmp_path / "runs" / "shapesnet").exists()
    assert (tmp_path / "runs" / "shapesnet-other.html").stat().st_size > 1000


@pytest.mark.thorough
def test_features_work(samples, tmp_path):
    draw = ("shapesnet", samples / "shapes", "--out", "runs", "--to")
    commands = [
        ("layers", "shapesnet"),
        ("models", "alexnet"),
        ("guide", "reliability"),
        (*draw, "png,stats,html", "--view", "maps,gradcam,top"),
        ("top", "runs/shapesnet", "-k", "2", "--force"),
        (*draw, "html", "--layers", "features.0", "--single-file"),
        (*draw, "tar,stats", "--shard", "4", "--name", "shards"),
        ("diff", *draw, "png", "--against", "random"),
        ("verify", "runs"),
    ]
    fmapviz(*commands, cwd=tmp_path)
    program = """
import sys, torch
from torch import nn
from fmapviz import Watch
network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
with Watch(network, sys.argv[1], out="training", every=1) as watch:
    for step in range(3):
        watch(step)
"""
    python(program, str(samples / "shapes" / "ring.jpg"), cwd=tmp_path)
    fmapviz(("verify", "training"), cwd=tmp_path)


@pytest.mark.thorough
def test_names_that_windows_refuses_are_drawn_where_they_can_exist(tmp_path):
    """The inputs have names that only other systems allow; the run could be written on Windows."""
    names = ["a:b.png", "con.png", "nul. /x?.png", "dots....png", "A.PNG", "a.png", "snow\u2603.png"]
    names += ["COM\u00b9.png", "CON.png", "trail /a.png", "Trail/a.png", "\U0001f600.png"]
    names += ["e\u0301.png", "\u00e9.png", f"{'x' * 251}.png"]
    for seed, name in enumerate(names):
        paint(tmp_path / "in" / name, seed)
    found = fmapviz(("shapesnet", "in", "--to", "png,html,tensorboard", "--out", "runs"), ("verify", "runs"), cwd=tmp_path)
    assert "snow\\u2603.png" in found.stdout + found.stderr
    assert f"{len(names)} images done" in found.stdout + found.stderr
    inputs = [path for path in (tmp_path / "runs" / "shapesnet").rglob("input.png") if path.is_file()]
    assert len({path.read_bytes() for path in inputs}) == len(names)
    assert len({folded(str(path)) for path in inputs}) == len(names)


ODD_LAYERS = (
    "A", "a", "con", "CON", "a:b", "a_b", "COM\u00b9", "nul ", "trail ", "dots...", "e\u0301", "\u00e9", "\u00c9",
    "\U0001f600", "x" * 255, "a/b", "a\\b", "a\nb", "..",
    "-x", "~", "input", "unit.json", "K", "k", "\u212a", '"', "*", "?", "<b>", "%2F",
)  # fmt: skip
ODD_NETWORK = f"""
from torch import nn
class Net(nn.Sequential):
    pass
def build():
    network = Net()
    network._modules.update({{name: nn.Conv2d(3, 3, 1) for name in {ODD_LAYERS!a}}})
    return network
"""


@pytest.mark.thorough
def test_odd_names_of_layers_and_networks_are_the_same_on_windows(tmp_path):
    """Each layer has its own file, also where case and normalization of names are ignored."""
    paint(tmp_path / "in" / "a.png")
    (tmp_path / "Com1.py").write_text(ODD_NETWORK, encoding="utf-8")
    draw = ("Com1.py:build", "in", "--weights", "random", "--size", "16", "--to", "png,svg,channels,npz,html,tar")
    fmapviz((*draw, "--out", "there"), ("verify", "there"), cwd=tmp_path)
    subprocess.run([sys.executable, "-m", "fmapviz", *draw, "--out", "here"], cwd=tmp_path, check=True, capture_output=True)
    names = {str(path.relative_to(tmp_path / "here")) for path in (tmp_path / "here").rglob("*")}
    assert names == {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*")}
    assert len(names) == len({*map(folded, names)})
    assert sum(name.endswith(".maps.png") for name in names) == len(ODD_LAYERS)


def test_python_is_named_as_the_shell_finds_it(tmp_path, monkeypatch):
    (tmp_path / "python").symlink_to(sys.executable)  # of another environment, made by the same Python
    own = Path(sys.executable).parent
    for path, called in {
        f"{own}{os.pathsep}{tmp_path}": "python",
        str(tmp_path): sys.executable,
        "": sys.executable,
    }.items():
        monkeypatch.setenv("PATH", path)
        assert platforms.python_in_shell("-c", "1 + 1") == f"{called} -c '1 + 1'"
