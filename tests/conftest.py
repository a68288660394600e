"""What the tests share."""

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest
import stores
import torch
from image_files import save_picture
from waiting import PATIENCE, wait_until
from warm import HEEDING, Process, ask

from fmapviz.core import lazy_torchvision
from fmapviz.images import decode_pool

if "PYTEST_XDIST_WORKER" in os.environ:
    # Several workers share the cores: threads of their own would only wait for each other, here and in child processes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent
WARM = "FMAPVIZ_TESTS_WARM"  # where a server of `warm.py` listens that all workers share
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != WARM}  # before any test changed it
MEMORY = Path("/dev/shm")  # where Linux keeps files in memory
ROOM_BYTES = 6 * 2**30  # what one run of all tests writes, three times

# Files that take longest come first, or one worker would still be at the last of them when the other has nothing left.
LONG = (
    "test_ray.py",  # first, so that one worker has all of it: there is one cluster
    "test_report_page.py",
    "test_remote.py",
    "test_app.py",
    "test_documentation.py",
    "test_cam_runs.py",
    "test_unit_writer.py",
    "test_lazy_torchvision.py",
    "test_torchvision.py",
    "test_failing_threads.py",
    "test_weights.py",
    "test_faults.py",
    "test_catalogue.py",
    "test_fuzz.py",
    "test_hostile_records.py",
    "test_decode_pool.py",
    "test_limits.py",
    "test_killed.py",
    "test_benchmarks.py",
)


def pytest_configure(config):
    """Let all workers have one server of `warm.py`, and write to memory if there is room.

    A disk takes its time with hundreds of thousands of files that come and go.
    """
    config.pluginmanager.register(Examples())
    with suppress(OSError):
        may_execute = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        if may_execute and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if getattr(config.option, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        started = ExitStack()
        os.environ[WARM] = started.enter_context(started_server({**ENVIRONMENT, "OMP_NUM_THREADS": "1"}))
        config.add_cleanup(started.close)


class Examples:
    """Import no module to look for examples where there are none: timm takes two seconds, others belong to an extra."""

    def pytest_ignore_collect(self, collection_path):
        is_ours = any(collection_path.is_relative_to(ROOT / folder) for folder in ("fmapviz", "tests/support"))
        has_none = is_ours and collection_path.suffix == ".py" and ">>>" not in collection_path.read_text()
        return True if has_none else None


def pytest_collection_finish():
    """Let nobody look for garbage among what has been imported, which stays to the end."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # some libraries complain of what is never collected


def pytest_collection_modifyitems(items):
    """Sort by file only; within a file, and among the others, the order stays."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_terminal_summary(terminalreporter):
    """Say at the end, where nobody overlooks it, what was tried how often, and what could not be tested here."""
    passed = [dict(report.user_properties) for report in terminalreporter.stats.get("passed", [])]
    if points := sum(each.get("points", 0) for each in passed):
        terminalreporter.write_line(f"Operations on the disk that were made to fail, one in each run: {points}")
    if kills := sum(each.get("kills", 0) for each in passed):
        terminalreporter.write_line(f"Commands that were killed at work: {kills}")
    skipped = terminalreporter.stats.get("skipped", [])
    if any("no browser" in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(
            "The browser tests did not run: there is no Chromium or Chrome here.", yellow=True, bold=True
        )


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Let torch use one thread: more of them only wait for each other on pictures as small as these."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def compiler():
    """Let no command that runs in this process promise for all other tests that nothing will be compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_torchvision, "never_compile", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def decoders():
    """Share the decode workers between all runs of this process, because they take a while to start."""
    decode_pool.start()


def end_idle_workers():
    """End the decode workers that wait for a request."""
    while decode_pool._kept:
        decode_pool._kept.pop().end()


@pytest.fixture(scope="session")
def samples():
    """The pictures that come with the repository."""
    return ROOT / "sample_images"


@pytest.fixture(scope="session")
def _store():
    """A server that speaks S3."""
    pytest.importorskip("obstore", reason="needs the extra remote")
    pytest.importorskip("moto", reason="needs the extra oracles")
    server = stores.Server()
    yield server
    server.stop()


@pytest.fixture
def bucket(_store, monkeypatch):
    """An empty bucket, `s3://photos`, for this process and those that it starts."""
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
    """What is between this process and the bucket, and may fail."""
    with stores.proxy_to(bucket.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        stores.forget()
        yield between


@pytest.fixture
def picture(tmp_path):
    """A small picture of smooth colours, 60 pixels high and 80 wide."""
    path = tmp_path / "picture.png"
    save_picture(path)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three small pictures, one of them in a subfolder."""
    for seed, name in enumerate(("img2.png", "img10.png", "sub/img1.png")):
        save_picture(tmp_path / "pictures" / name, seed)
    return tmp_path / "pictures"


@pytest.fixture(scope="session")
def warm():
    """Where the server of `warm.py` listens."""
    with nullcontext(os.environ[WARM]) if WARM in os.environ else started_server(ENVIRONMENT) as path:
        assert wait_until(Path(path).exists)
        yield path


@contextmanager
def started_server(environment):
    """Start the server of `warm.py`, which takes some seconds, and give where it will listen."""
    with tempfile.TemporaryDirectory() as place:  # the path of a socket must be short
        path = f"{place}/socket"
        server = subprocess.Popen([sys.executable, ROOT / "tests/support/warm.py", path], env=environment)
        try:
            yield path
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def torch_alone(warm, tmp_path):
    """Run a program in a process of its own that has imported torch, and nothing of ours."""
    return running(f"{warm}.torch", tmp_path)


@pytest.fixture
def command_line_alone(warm, tmp_path):
    """Run a program in a process of its own that has imported the command line, and nothing else of ours."""
    return running(f"{warm}.cli", tmp_path)


def running(server, directory):
    """Return what runs a program by a server of `warm.py`."""

    def run(program, *args, env=None, cwd=None, timeout=PATIENCE):
        environment = {**os.environ, **(env or {})}
        arguments = ["-c", program, *map(str, args)]
        return captured(server, arguments, environment=environment, directory=cwd or directory, timeout=timeout)

    return run


def captured(path, arguments, *, stdin=b"", **circumstances):
    """Have a command run by a server of `warm.py`; what it said is returned as by `subprocess.run`."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = ask(path, arguments, streams=[stream.fileno() for stream in (given, out, err)], **circumstances)
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@dataclass
class Begun:
    """A command that goes on, and the other ends of its streams."""

    process: Process
    stdin: BinaryIO
    stdout: BinaryIO
    stderr: BinaryIO


@pytest.fixture
def begin(tmp_path, warm):
    """Begin the command in a process of its own, with pipes."""

    @contextmanager
    def begun(*args):
        (given, write), (out, told), (err, said) = os.pipe(), os.pipe(), os.pipe()
        arguments = ["-c", HEEDING, *map(str, args)]
        process = Process(warm, arguments, directory=tmp_path, streams=[given, told, said])
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
    """Run the command in a process of its own, in a directory of its own."""

    def run(*args, stdin=b"", env=None, cwd=None, timeout=PATIENCE):
        environment = {**os.environ, "TORCH_HOME": str(tmp_path / "torch_home"), **(env or {})}
        arguments = [str(arg) for arg in args]
        if env:  # may say how Python itself is to start
            command = [sys.executable, "-m", "fmapviz", *arguments]
            return subprocess.run(
                command, input=stdin, env=environment, cwd=cwd or tmp_path, timeout=timeout, capture_output=True, check=False
            )
        return captured(warm, arguments, stdin=stdin, environment=environment, directory=cwd or tmp_path, timeout=timeout)

    return run
