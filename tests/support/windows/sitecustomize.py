"""Make this process and those that it starts look like Windows to fmapviz, if this folder is in `PYTHONPATH`.

Honest: what Windows lacks is missing for all code; files that this process has open cannot be renamed, replaced or removed;
no directory can be opened, and none is replaced by a renamed one; files cannot get names that Windows refuses; text files
of fmapviz need an encoding. So the code for Windows runs, with processes, sockets and files.

Not honest: `sys.platform` is Windows for `fmapviz.core.platforms` only, since other packages are built for this system.
`stand_in` has the functions of Windows that this module calls. Paths have slashes, case counts, and only locks, and files
that this process has open, are in the way. The console, and the limit of 260 characters for a path, are not imitated.
"""

import errno
import os
import re
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from importlib.machinery import PathFinder, SourceFileLoader
from threading import local

import stand_in

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
LACKING = {
    os: """
        fork forkpty killpg getuid geteuid getgid getegid sysconf pread pwrite statvfs fstatvfs memfd_create fchmod mkfifo
        sched_getaffinity O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_TMPFILE
    """,
    signal: """
        SIGHUP SIGALRM SIGKILL SIGCHLD SIGUSR1 SIGUSR2 SIGTSTP SIGPIPE setitimer alarm pthread_kill pthread_sigmask sigwait
    """,
    select: "poll epoll",
    selectors: "PollSelector EpollSelector",
    socket: "AF_UNIX send_fds recv_fds",
}
REFUSED = re.compile(r'[\x00-\x1f"*:<>?|\\]|[. ]\Z|(?i:\A(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[1-9¹²³]) *(\.|\Z))')
_checking = local()


class Finder:
    """Finds none of the missing modules, and lets fmapviz ask for another platform."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name != "fmapviz.core.platforms":
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = Loader(name, spec.origin)
        return spec


class Loader(SourceFileLoader):
    def get_code(self, _name):
        source = self.get_data(self.path).decode()
        for module in ("sys", "_winapi", "msvcrt"):
            assert f"import {module}\n" in source
            source = source.replace(f"import {module}\n", f"import stand_in as {module}\n", 1)
        return compile(source, self.path, "exec", dont_inherit=True)


def refuse(event, arguments):
    """Raise what Windows would, on an audit event."""
    if getattr(_checking, "is_on", False):
        return
    _checking.is_on = True
    try:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path, mode, flags = os.fspath(arguments[0]), *arguments[1:]
            if mode is None and os.path.isdir(path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            if flags & os.O_CREAT:
                check_name(path)
        elif event == "os.mkdir":
            check_name(arguments[0])
        elif event in {"os.rename", "os.link"}:
            check_name(arguments[1])
            check_closed(*arguments[:2])
        elif event == "os.remove":
            check_closed(arguments[0])
    finally:
        _checking.is_on = False


def check_name(path):
    for part in os.fsdecode(path).split("/"):
        if part not in {"", ".", ".."} and (REFUSED.search(part) or len(part.encode("utf-16-le", "surrogatepass")) > 510):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)


def check_closed(*paths):
    """Refuse to move files that this process has open or mapped, and directories around them."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line}
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    for path in map(os.path.abspath, map(os.fsdecode, paths)):
        for each in found:
            if each == path or each.startswith(f"{path}/"):
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}: {each} is open", path)


def rename(source, target, *, rename=os.rename, **options):
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
    rename(source, target, **options)


def unlink(path, *, unlink=os.unlink, **options):
    """Remove a file, but no lock that another process has."""
    if not os.fsdecode(path).endswith(".lock"):
        return unlink(path, **options)
    check_closed(path)
    _checking.is_on = True
    file = os.open(path, os.O_RDWR)
    try:
        stand_in.locking(file, stand_in.LK_NBLCK, 1)
        return unlink(path, **options)
    finally:
        os.close(file)
        _checking.is_on = False


def kill(pid, number, *, kill=os.kill):
    if number == 0:
        raise AssertionError("on Windows, this ends the process")
    kill(pid, number)


stand_in.prepare()
sys.meta_path.insert(0, Finder)
for module, names in LACKING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in MODULES:
    sys.modules.pop(name, None)
os.rename, os.kill, os.unlink = rename, kill, unlink
shutil._use_fd_functions = False
tempfile.TemporaryFile = tempfile.NamedTemporaryFile
subprocess.CREATE_NEW_PROCESS_GROUP = subprocess.CREATE_NO_WINDOW = 0
subprocess.Popen.kill = lambda process: process.send_signal(9)
warnings.simplefilter("ignore", EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module=r"fmapviz\b")
sys.addaudithook(refuse)
