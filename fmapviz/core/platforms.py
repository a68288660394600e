"""What differs between Linux, macOS and Windows: the only module that uses what one of them lacks, except the Ray engine.

What a Python for POSIX may be built without, such as `fcntl`, may also be missing.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar, cast

if sys.platform == "win32":
    import _winapi
    import msvcrt
else:
    try:
        import fcntl
        import termios

        _HAS_FCNTL = True
    except ImportError:
        _HAS_FCNTL = False

if TYPE_CHECKING:
    import mmap
    import re
    import socket
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.process import BaseProcess
    from threading import Thread

Result = TypeVar("Result")
ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # flag of `os.open`: fail for a link; see `refuse_link`
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # do not wait for the writer of a pipe
SLASH = "/" if os.sep == "/" else r"[/\\]"  # in a pattern: what separates the parts of a path
_BUSY_SECONDS = 1.0  # in which a virus scanner or an indexer closes a file of Windows
_MOMENT_SECONDS = 0.02


def send_to_main_thread(number: int) -> None:
    """Send a signal to the main thread, from another thread."""
    if sys.platform != "win32" and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
        return
    import _thread

    _thread.interrupt_main(signal.Signals(number))  # unlike pthread_kill, it does not wake a thread that waits


def is_running(pid: int) -> bool:
    """Return True if a process of this number runs on this machine; a zombie has ended."""
    if sys.platform == "win32":  # os.kill would end it
        invalid_parameter, query_limited_information = 87, 0x1000
        try:
            process = _winapi.OpenProcess(query_limited_information, False, pid)
        except OSError as error:
            return error.winerror != invalid_parameter
        except OverflowError:
            return False
        try:
            return _winapi.GetExitCodeProcess(process) == _winapi.STILL_ACTIVE
        finally:
            _winapi.CloseHandle(process)
    else:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):
            return True
        return _status(pid)[:1] not in ([b"Z"], [b"X"])


def running_seconds(pid: int) -> float | None:
    """Return how long a process has been running; None if that is unknown, as on systems other than Linux."""
    if sys.platform != "win32":
        with suppress(OSError, ValueError, IndexError):
            ticks = int(_status(pid)[19])  # when it began, since the system was started
            return float(Path("/proc/uptime").read_bytes().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return None


def _status(pid: int) -> list[bytes]:
    """Return the fields of Linux's `/proc/PID/stat` from the third on, the state; none on other systems."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return []


def take_lock(path: Path) -> Callable[[], None] | None:
    """Lock a file or directory and return what releases it; None if another thread or process has the lock.

    It is released when the process ends, too. A file system or a system without locks grants a lock to all.

    Windows locks no directories, and refuses to remove or replace a file that is open: there, an empty file in the
    system's temporary directory stands for the path. It is removed with the lock, unless another process has it open.

    Raises:
        OSError: The path does not exist, for example.
    """
    if sys.platform != "win32":
        file = os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT | os.O_CLOEXEC)
        release = partial(os.close, file)
    else:
        import hashlib
        import tempfile

        name = hashlib.sha256(os.path.normcase(path.resolve(strict=True)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        stand_in = Path(tempfile.gettempdir(), f"fmapviz-{name}.lock")
        file = persist(lambda: os.open(stand_in, os.O_RDWR | os.O_CREAT, 0o666))  # refused while it is being removed
        release = partial(_close_and_remove, file, stand_in)
    if _try_lock(file) and (sys.platform != "win32" or os.fstat(file).st_nlink):  # a lock on a removed file is none
        return release
    os.close(file)
    return None


def _close_and_remove(file: int, path: Path) -> None:
    os.close(file)
    with suppress(OSError):
        path.unlink()


def _try_lock(file: int) -> bool:
    if sys.platform != "win32" and not _HAS_FCNTL:
        return True
    try:
        if sys.platform == "win32":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a network file system without locks
        return error.errno not in {errno.EACCES, errno.EDEADLK}
    return True


def persist(operation: Callable[[], Result]) -> Result:
    """Open, remove, rename or replace a file or directory; on Windows, wait a moment for another program that has it open.

    Raises:
        OSError: As the operation.
    """
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return operation()
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > until:
                raise
            time.sleep(_MOMENT_SECONDS)


def rename_replaces(target: Path) -> bool:
    """Return True if a directory that is renamed replaces this one if it is empty, which it does not on Windows."""
    return sys.platform != "win32" or not os.path.isdir(target)


def flags_to_sync(path: Path) -> int | None:
    """Return the flags with which a file or directory is opened for `os.fsync`; None if the system syncs no directories."""
    if sys.platform != "win32":
        return os.O_RDONLY
    return None if os.path.isdir(path) else os.O_RDWR


def refuse_link(path: str | Path) -> None:
    """Refuse a link where the system cannot refuse it as it opens the file.

    Raises:
        OSError: The path is a link.
    """
    if not NO_LINK and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def held(directory: Path) -> Iterator[os.stat_result]:
    """Keep an inode number from another directory until the block ends; return the status of the directory.

    Windows opens no directories; its file numbers are not used again soon.

    Raises:
        OSError: It does not exist, for example.
    """
    if sys.platform == "win32":
        yield directory.stat()
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        yield os.fstat(handle)
    finally:
        os.close(handle)


def appends_at_once() -> bool:
    """Return True if each write of a file opened with `O_APPEND` goes to its end, whatever other processes write."""
    return sys.platform != "win32"


def free_space(directory: Path) -> tuple[int, int | None]:
    """Return the free bytes and inodes of a file system; None if it has no fixed number of inodes.

    Raises:
        OSError: It cannot be asked.
    """
    if sys.platform == "win32":
        import shutil

        return shutil.disk_usage(directory).free, None
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None


def user_number() -> int | None:
    """Return the number of the user whose rights this process has; None on Windows, where files have no such owner."""
    return None if sys.platform == "win32" else os.geteuid()


def user_caches() -> Path:
    """Return the directory of the user in which fmapviz may keep what it can compute again.

    Raises:
        RuntimeError: The user has no home.
    """
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "fmapviz" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fmapviz"
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative path is ignored, as its specification says
    return (given if given.is_absolute() else Path.home() / ".cache") / "fmapviz"


def has_display() -> bool:
    """Return True if a browser can be shown: on a desktop, or by the program that BROWSER names, as in VS Code and WSL."""
    return sys.platform in {"win32", "darwin"} or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def interprets_escapes(terminal: TextIO) -> bool:
    """Return True if a terminal interprets escape sequences; the console of Windows does so once it was asked to."""
    if sys.platform == "win32":
        import ctypes

        processes_escapes, mode = 4, ctypes.c_uint32()
        kernel, handle = ctypes.windll.kernel32, msvcrt.get_osfhandle(terminal.fileno())
        if not kernel.GetConsoleMode(handle, ctypes.byref(mode)):
            return False
        return bool(kernel.SetConsoleMode(handle, mode.value | processes_escapes))
    return True


CONTROLS_TERMINALS = sys.platform != "win32" and _HAS_FCNTL
_MOST_BYTES = 65536  # of an answer


def terminal_size(descriptor: int) -> tuple[int, int, int, int] | None:
    """Return the rows and columns of a terminal, and its width and height in pixels, each 0 if unknown; None if all are."""
    if sys.platform != "win32" and _HAS_FCNTL:
        import struct

        with suppress(OSError):
            rows, columns, width, height = struct.unpack("HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8)))
            return rows, columns, width, height
    return None


def ask_terminal(descriptor: int, question: bytes, *, answered: re.Pattern[bytes], seconds: float) -> bytes | None:
    """Write a question to a terminal and return its answer, which may be incomplete; None if it cannot be asked.

    The terminal is as before afterwards, and no part of an answer that came in time is left for the next program.

    Args:
        descriptor: Of the terminal.
        question: Escape sequences.
        answered: What the end of the answer contains.
        seconds: How long to wait.
    """
    if sys.platform != "win32" and _HAS_FCNTL:
        import select

        with ExitStack() as stack, suppress(OSError, termios.error):  # not the terminal of this process, or it is gone
            # Standard output may be only for writing.
            terminal = os.open(os.ttyname(descriptor), os.O_RDWR | os.O_NOCTTY)
            stack.callback(os.close, terminal)
            if os.tcgetpgrp(terminal) != os.getpgrp():  # in the background, a process that changes the terminal is stopped
                return None
            before = termios.tcgetattr(terminal)
            asking = [*before]
            asking[3] &= ~(termios.ICANON | termios.ECHO)
            answer, is_clean = b"", False
            try:
                termios.tcsetattr(terminal, termios.TCSANOW, asking)
                if select.select([terminal], [], [], 0)[0]:
                    is_clean = True  # nothing was asked
                    return None
                os.write(terminal, question)
                end = time.monotonic() + seconds
                while not (is_clean := answered.search(answer) is not None) and len(answer) < _MOST_BYTES:
                    if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
                        break
                    if not (part := os.read(terminal, 1024)):
                        break
                    answer += part
                return answer
            finally:
                termios.tcsetattr(terminal, termios.TCSANOW if is_clean else termios.TCSAFLUSH, before)
    return None


def in_shell(*words: str) -> str:
    """Return words as they are typed in the system's shell.

    Example:
        >>> in_shell("fmapviz", "my network.py:build")
        "fmapviz 'my network.py:build'"
    """
    if sys.platform == "win32":
        import subprocess

        return subprocess.list2cmdline(words)
    import shlex

    return shlex.join(words)


def python_in_shell(*words: str) -> str:
    """Return how this Python is started with words in the system's shell: as `python`, or by its path if that is another.

    The environment of this Python may not be active, or made by pipx or `uv tool`.
    """
    import shutil

    found = shutil.which("python")
    is_same = found and Path(found).parent == Path(sys.executable).parent  # both may be links to one file
    return in_shell("python" if is_same else sys.executable, *words)


# Of the decode workers: `fmapviz.images.decode_pool` starts them, and `fmapviz.images.decode_worker` runs in them.

PASSES_FILES = sys.platform != "win32"  # open files, over a socket; workers share memory with the run, too


def program(python: str) -> tuple[str, dict[str, str], Mapping[str, Any]]:  # Any: of each option
    """Return the interpreter to start, its environment, and options of `subprocess.Popen` that keep Ctrl-C from it.

    In a virtual environment of Windows, `python.exe` starts the real interpreter as another process.
    """
    if sys.platform == "win32":
        import subprocess

        base: str = getattr(sys, "_base_executable", python)
        environment = {"__PYVENV_LAUNCHER__": python} if base != python else {}
        return base, environment, {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return python, {}, {"process_group": 0}  # Ctrl-Z is for the run, too


def share_connection(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Pass a connection to a process that inherits no files, over its standard input.

    Raises:
        OSError: The process has ended, for example.
    """
    if sys.platform == "win32":
        assert process.stdin
        with connection, process.stdin:
            process.stdin.write(connection.share(process.pid))


def adopt_connection(number: int) -> socket.socket:
    """Return the connection that this process inherited under a number, or reads from its standard input.

    Raises:
        OSError: There is none.
    """
    import socket

    if sys.platform == "win32":
        connection = socket.fromshare(sys.stdin.buffer.read())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    return socket.socket(fileno=number)


def confine(memory_bytes: int) -> None:
    """Keep this process from writing files and core dumps, bound its address space, and end it with its parent.

    Windows has no such limits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "win32":
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the run may be in a process that ignores or blocks signals
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with suppress(ImportError):
        import resource

        for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_AS, memory_bytes)):
            with suppress(OSError, ValueError):  # a lower limit is set already, or the system has no such limit
                resource.setrlimit(limit, (value, value))
    _die_with_parent()


def _die_with_parent() -> None:
    """End this process with its parent, even inside a decoder that hangs.

    That a connection is closed shows nothing: forks have it too.
    """
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


# Of the processes that draw: `fmapviz.run.forks`.

FORKS = sys.platform == "linux"  # elsewhere a fork beside threads is not safe, or there is none


def trim_memory() -> None:
    """Return the memory that is free in this process to the system; a fork would hold it too."""
    import ctypes

    with suppress(AttributeError):  # not the C library of GNU
        ctypes.CDLL(None).malloc_trim(0)


def wait_for_end(thread: Thread, until: float) -> None:
    """Wait until a thread has ended for the system too, or until some time, see `time.monotonic`.

    Before Python 3.13 `Thread.join` returns earlier, while MKL frees the memory of the thread under a lock. A fork that is
    made then waits for that lock forever.
    """
    thread.join(max(0.0, until - time.monotonic()))
    while FORKS and time.monotonic() < until and os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.001)


_OF_RUN = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a run, in this thread and in a process that it forks, until that calls `follow`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.Signals[name] for name in _OF_RUN])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow(parent: BaseProcess | None) -> None:
    """Leave the signals of a terminal to the process that forked this one, and end with it."""
    for name in _OF_RUN:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _die_with_parent()
    if parent and not parent.is_alive():
        sys.exit(1)


def end_process_in(seconds: float) -> None:
    """End this process after some time, even inside a decoder that hangs; 0: no more."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return
    import faulthandler

    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def create_shared_memory(size: int) -> BinaryIO:
    """Return a sparse file without a name, whose size is fixed where the system can fix it.

    Raises:
        OSError: The system has none, or limits the size of files.
    """
    import tempfile

    with ExitStack() as on_error:
        if sys.platform == "linux" and hasattr(os, "memfd_create") and _HAS_FCNTL:
            file: BinaryIO = os.fdopen(os.memfd_create("fmapviz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+b", buffering=0)
            on_error.enter_context(file).truncate(size)  # if a worker shortened the file, reading it would crash the run
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        else:
            file = cast("BinaryIO", tempfile.TemporaryFile(buffering=0))  # noqa: SIM115  closed by the stack
            on_error.enter_context(file).truncate(size)
        on_error.pop_all()
    return file


def release_pages(memory: mmap.mmap) -> None:
    """Return the pages of shared memory to the system, where it takes them."""
    if sys.platform == "linux":
        import mmap

        memory.madvise(mmap.MADV_REMOVE)


def send_file(connection: socket.socket, file: int, request: bytes) -> None:
    """Send an open file, and a request about it.

    Raises:
        OSError: The connection is closed, for example.
    """
    if sys.platform != "win32":
        import socket

        socket.send_fds(connection, [b"\0"], [file])
    connection.sendall(request)


def receive_file(connection: socket.socket) -> BinaryIO | None:
    """Return the open file that comes with a request; None: the connection is closed."""
    if sys.platform == "win32":
        return None
    import socket

    _, files, _, _ = socket.recv_fds(connection, 1, 1)
    return os.fdopen(files[0], "rb") if files else None
