"""Fixtures, and settings of a test session; tests/README.md describes them."""

import atexit
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest
from extras import needs, require
from json_lines import check_lines
from systems import lacking, lacking_to_import, source_of
from waiting import PATIENCE, wait_until
from warm import HEEDING, OFF, Process, ask, start_process

# Nothing else is imported here, for the process that only distributes tests: torch takes seconds.

gc.disable()  # until everything is imported and collected: a sixth of the time that this takes
if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers share the cores: threads of their own would only wait for each other, here and in child processes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent
WARM = "FMAPVIZ_TESTS_WARM"  # 0: no server of `warm.py`; otherwise the socket of the one that all workers share
os.environ["FMAPVIZ_CACHE"] = ""  # the user's own cache stays as it is; tests of it choose another
# Programs of this environment are found, such as tensorboard, whether it is active or not.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != WARM}  # before a test changes it
MEMORY = Path("/dev/shm")  # files here are in memory, on Linux
ROOM_BYTES = 6 * 2**30  # three times what all tests write
DURATIONS = ROOT / ".test_durations"  # written by pytest-split, at the end of `make test`


def pytest_configure(config):
    """Start the server of `warm.py` that all workers share, and put temporary files into memory if there is room.

    A disk is slow at creating and removing hundreds of thousands of files.
    """
    config.pluginmanager.register(Examples())
    with suppress(OSError, AttributeError):  # Windows has no statvfs
        may_execute = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        if may_execute and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if (
        sys.platform == "linux"
        and getattr(config.option, "numprocesses", None)
        and not {"PYTEST_XDIST_WORKER", WARM} & os.environ.keys()
    ):
        started = ExitStack()
        os.environ[WARM] = started.enter_context(started_server({**ENVIRONMENT, "OMP_NUM_THREADS": "1"}))
        config.add_cleanup(started.close)


class Examples:
    """Do not import modules without doctests: timm takes two seconds, and others need an extra."""

    def __init__(self):
        self.unimportable = {}  # test files that this system cannot import, and what they need

    def pytest_ignore_collect(self, collection_path):
        if sys.platform != "linux" and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
            if what := lacking_to_import(collection_path.read_text("utf-8")):
                self.unimportable[collection_path] = what
                return True
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path):
        """Look for examples only where there are some."""
        found = yield
        if file_path.suffix == ".py" and ">>>" not in file_path.read_text("utf-8"):
            return [each for each in found if type(each) is pytest.Module]
        return found

    def pytest_report_collectionfinish(self):
        """Name the files that are left out."""
        return [f"left out, needs {what}: {path.relative_to(ROOT)}" for path, what in sorted(self.unimportable.items())]

    def pytest_itemcollected(self, item):
        """Skip the example that needs an extra where that is missing."""
        if item.name == "fmapviz.config.execution.Engine.parse":
            item.add_marker(needs("ray", "ray"))


def pytest_collection_finish():
    """Exclude all imported modules from garbage collection: they are never freed."""
    gc.enable()
    gc.freeze()
    atexit.register(gc.unfreeze)  # some libraries warn about objects that are never freed


@pytest.hookimpl(tryfirst=True)  # before tests of one fixture are brought together
def pytest_collection_modifyitems(items):
    """Run the files first that took longest last time: otherwise one worker would still be busy when the others are done."""
    if sys.platform != "linux":
        for item in items:
            if hasattr(item, "function") and (what := lacking(source_of(item))):
                item.add_marker(pytest.mark.skip(reason=f"needs {what}"))
    seconds = Counter()
    recorded = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    for item in items:
        seconds[item.path] += recorded.get(item.nodeid, 0)
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(trylast=True)  # when the parameters are known
def pytest_generate_tests(metafunc):
    """Mark the cases of `sampled` tests that `make thorough` runs, and make no items of those that `-m` leaves out."""
    cases, thorough = metafunc._calls, metafunc.definition.get_closest_marker("thorough")
    if (mark := metafunc.definition.get_closest_marker("sampled")) and not thorough:
        mark_combinations([case for case in cases if not is_thorough(case)], *mark.args)
    if re.fullmatch(r"not thorough( and not \w+)*", metafunc.config.option.markexpr):
        # A test without cases would be one without parameters, and is left out later.
        cases[1:] = [case for case in cases[1:] if not (thorough or is_thorough(case))]


def is_thorough(case):
    return any(mark.name == "thorough" for mark in case.marks)


def mark_combinations(cases, most=None):
    """Mark the cases of a test as thorough, except for some in which each value of each parameter is met, or so many."""

    def values(case):
        return {(name, id(value)) for name, value in case.params.items()}

    missing = set().union(*map(values, cases))
    while missing and most != 0:
        chosen = max(cases, key=lambda case: len(missing & values(case)))
        cases.remove(chosen)
        missing -= values(chosen)
        most = most and most - 1
    for case in cases:
        case.marks.append(pytest.mark.thorough.mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Leave out the keywords of the test: nothing reads them, and each worker would send them with each report."""
    report = yield
    report.keywords = {}
    return report


def pytest_terminal_summary(terminalreporter):
    """Print at the end how often disk operations failed and commands were killed, and which tests could not run."""
    passed = [dict(report.user_properties) for report in terminalreporter.stats.get("passed", [])]
    if points := sum(each.get("points", 0) for each in passed):
        terminalreporter.write_line(f"Disk operations made to fail, one in each run: {points}")
    if kills := sum(each.get("kills", 0) for each in passed):
        terminalreporter.write_line(f"Commands killed at work: {kills}")
    skipped = terminalreporter.stats.get("skipped", [])
    if any("no browser" in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(
            "The browser tests did not run: there is no Chromium or Chrome here. `make browser` installs one.",
            yellow=True,
            bold=True,
        )
    if shells := {match[1] for report in skipped if (match := re.search(r"no shell (\w+)", str(report.longrepr)))}:
        terminalreporter.write_line(
            f"Completion was not tested in {' and '.join(sorted(shells))}: no such shell here.", yellow=True, bold=True
        )
    if any("no GNU parallel" in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(
            "The documents' commands with GNU parallel did not run: `make browser` installs it.", yellow=True, bold=True
        )


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Give torch one thread: with images as small as these, several only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def decoders():
    """Share the decode workers between all runs of this process: they are slow to start."""
    from fmapviz.images import decode_pool

    decode_pool.start()


def end_idle_workers():
    """End the decode workers that wait for a request."""
    from fmapviz.images import decode_pool

    while decode_pool._kept:
        decode_pool._kept.pop().end()


@pytest.fixture
def no_thread_is_left():
    """Wait after the test until the threads that it started have ended."""
    before = set(threading.enumerate())
    yield
    assert wait_until(lambda: set(threading.enumerate()) <= before), threading.enumerate()


@pytest.fixture(scope="session")
def samples():
    """The folder `sample_images`."""
    return ROOT / "sample_images"


@pytest.fixture(scope="session")
def _store():
    """An S3 server."""
    import stores

    require("obstore", "remote")
    require("moto", "oracles")
    server = stores.Server()
    yield server
    server.stop()


@pytest.fixture
def bucket(_store, monkeypatch):
    """An empty bucket, `s3://photos`, for this process and those that it starts."""
    import stores

    _store.reset()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**stores.ENVIRONMENT, "AWS_ENDPOINT_URL": _store.url}.items():
        monkeypatch.setenv(name, value)
    stores.forget()
    seen = stores.Bucket(_store)
    yield seen
    seen.close()
    stores.forget()


@pytest.fixture
def proxy(bucket, monkeypatch):
    """A proxy between this process and the bucket that a test can make fail."""
    import stores

    with stores.proxy_to(bucket.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        stores.forget()
        yield between


@pytest.fixture
def picture(tmp_path):
    """A small image of smooth colours, 60 pixels high and 80 wide."""
    from image_files import save_picture

    path = tmp_path / "picture.png"
    save_picture(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of three small images, one of them in a subfolder."""
    from image_files import save_picture

    for seed, name in enumerate(("img2.png", "img10.png", "sub/img1.png")):
        save_picture(tmp_path / "pictures" / name, seed)
    return tmp_path / "pictures"


@pytest.fixture(scope="session")
def warm():
    """The socket of a server of `warm.py`; `OFF` with FMAPVIZ_TESTS_WARM=0."""
    if os.environ.get(WARM) == "0" or sys.platform != "linux":
        yield OFF
        return
    with nullcontext(os.environ[WARM]) if WARM in os.environ else started_server(ENVIRONMENT) as path:
        failed = Path(f"{path}.failed")
        assert wait_until(lambda: Path(path).exists() or failed.exists())
        assert not failed.exists(), failed.read_text()
        yield path


@contextmanager
def started_server(environment):
    """Start a server of `warm.py`; return its socket, which exists some seconds later."""
    with tempfile.TemporaryDirectory() as place:  # a socket's path is at most 107 bytes long
        path = f"{place}/socket"
        server = subprocess.Popen([sys.executable, ROOT / "tests/support/warm.py", path], env=environment)
        try:
            yield path
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def torch_alone(warm, tmp_path):
    """Run a program in a new process that has imported torch, and nothing of fmapviz."""
    return running(f"{warm}.torch", tmp_path)


@pytest.fixture
def command_line_alone(warm, tmp_path):
    """Run a program in a new process that has imported the command line, and not torch."""
    return running(f"{warm}.cli", tmp_path)


@pytest.fixture
def run_python(command_line_alone):
    """Run a program in such a process; return its exit code, -9 if it was killed, and its output as text."""

    def run(program, *args):
        done = command_line_alone(program, *args)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


def running(server, directory):
    """Return a function that runs programs with a server of `warm.py`."""

    def run(program, *args, env=None, cwd=None, timeout=PATIENCE):
        environment = {**os.environ, **(env or {})}
        arguments = ["-c", program, *map(str, args)]
        return captured(server, arguments, environment=environment, directory=cwd or directory, timeout=timeout)

    return run


def captured(path, arguments, *, stdin=b"", **circumstances):
    """Run a command with a server of `warm.py`; return what `subprocess.run` returns."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = ask(path, arguments, streams=[stream.fileno() for stream in (given, out, err)], **circumstances)
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@dataclass
class Begun:
    """A running command, and the other ends of its standard streams."""

    process: Process | subprocess.Popen
    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO


@pytest.fixture
def begin(tmp_path, warm):
    """Start the command with pipes as its standard streams."""

    @contextmanager
    def begun(*args):
        (given, write), (out, told), (err, said) = os.pipe(), os.pipe(), os.pipe()
        import fcntl

        fcntl.fcntl(told, fcntl.F_SETPIPE_SZ, 4096)  # a command whose output is not read soon waits
        arguments = ["-c", HEEDING, *map(str, args)]
        process = start_process(warm, arguments, directory=tmp_path, streams=[given, told, said])
        for descriptor in (given, told, said):
            os.close(descriptor)
        with os.fdopen(write, "wb") as stdin, os.fdopen(out, "rb") as stdout, os.fdopen(err, "rb") as stderr:
            try:
                yield Begun(process, stdin, stdout, stderr)
            finally:
                process.kill()
                process.wait()

    return begun


@pytest.fixture
def fmapviz(tmp_path, warm):
    """Run the command in a new process, in a temporary directory. What `--json` prints must be as its schema says."""

    def run(*args, **circumstances):
        ended = start(*args, **circumstances)
        check_lines(args, ended.stdout, code=ended.returncode)
        return ended

    def start(*args, stdin=b"", env=None, cwd=None, timeout=PATIENCE):
        environment = {**os.environ, "TORCH_HOME": str(tmp_path / "torch_home"), **(env or {})}
        arguments = [str(arg) for arg in args]
        if env:  # may hold variables that Python reads when it starts
            command = [sys.executable, "-m", "fmapviz", *arguments]
            return subprocess.run(
                command, input=stdin, env=environment, cwd=cwd or tmp_path, timeout=timeout, capture_output=True, check=False
            )
        return captured(warm, arguments, stdin=stdin, environment=environment, directory=cwd or tmp_path, timeout=timeout)

    return run
