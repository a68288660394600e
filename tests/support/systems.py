"""What tests need of a system: on one that lacks it they are skipped, and say why.

A test needs what its source names, or the source of its fixtures and of the functions in its file. So no test has to be
marked, and a new one need not know about other systems.
"""

from __future__ import annotations

import inspect
import re
import sys

_NO_POSIX = {
    r"\bimport (?:fcntl|resource|termios|pty|pwd)\b|\b(?:fcntl|termios|pty)\.|resource\.[gs]etr": "a module of POSIX",
    r"\bos\.(fork|mkfifo|kill|killpg|getuid|geteuid|setpgid|wait\w*|pipe|uname|statvfs|sysconf)\b": "a function of POSIX",
    r"\bSIG[A-Z]{2,}|send_signal|pthread_|setitimer": "signals",
    r"symlink_to|os\.link\b|hardlink": "links, which not every user of Windows may make",
    r"chmod|umask": "permissions of POSIX",
    r"failing_disk|\bput_in\b|limited_files|killing": "a disk that fails, or commands that are killed",
    r"AF_UNIX|send_fds|recv_fds|pass_fds|preexec_fn|start_new_session": "open files that are passed on",
    r"\bbegin\b|HEEDING": "commands that are interrupted",
    r'"(?:bash|sh|zsh|fish|env|less|tmux|parallel|nohup)"|/bin/|shell=True': "a shell of POSIX",
    r"PosixPath|os\.fsencode|surrogateescape|udcff": "file names of any bytes",
}
_NO_LINUX = {
    r"/proc/|/dev/(?:shm|full)|memfd|pidfd|prctl": "Linux's /proc or /dev",
    r"\bunshare\b|\bcgroup|\bulimit\b|RLIMIT_": "limits of Linux",
    r"F_SETPIPE_SZ|\bbegin\b": "pipes of Linux",
}


def lacking(source, platform=sys.platform):
    """Return what code needs that a system does not have; None if there is nothing.

    Example:
        >>> lacking("os.kill(pid, signal.SIGSTOP)", "win32"), lacking("os.kill(pid, signal.SIGSTOP)", "darwin")
        ('a function of POSIX', None)
    """
    rules = {} if platform == "linux" else _NO_LINUX | (_NO_POSIX if platform == "win32" else {})
    return next((what for pattern, what in rules.items() if re.search(pattern, source)), None)


def source_of(item):
    """Return the source of a test, its fixtures, and the functions and classes of its file that these name."""
    found = [item.function]
    found += [each[-1].func for name, each in item._fixtureinfo.name2fixturedefs.items() if name in item.fixturenames]
    members = {
        name: each for name, each in vars(item.module).items() if getattr(each, "__module__", "") == item.module.__name__
    }
    source, left = "", [*found]
    while left:
        try:
            text = inspect.getsource(inspect.unwrap(left.pop()))
        except (OSError, TypeError):  # of a library
            continue
        source += text
        left += [members.pop(name) for name in {*re.findall(r"\w+", text)} & members.keys()]
    return source


def lacking_to_import(source, platform=sys.platform):
    """Return what a file's imports need that a system does not have; None if there is nothing."""
    return lacking("\n".join(re.findall(r"^(?:import|from) .*$", source, re.MULTILINE)), platform)
