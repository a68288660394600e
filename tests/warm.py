"""Run the command, or a program, in new processes that have imported everything already: most of the time of a small run.

A server that has imported torch and fmapviz, and done nothing else, forks for each command. The rest is as in any process:
its own arguments, environment, working directory and streams. Another has imported torch alone.

    python warm.py SOCKET               # the server; the other one's socket is SOCKET.torch
    python warm.py SOCKET run ARGS...   # `fmapviz ARGS...` by the server; `-c PROGRAM ARGS...` as Python itself
"""

import gc
import io
import json
import os
import select
import signal
import socket
import sys
import traceback
import weakref
from contextlib import redirect_stderr, redirect_stdout, suppress
from unittest.mock import patch

STREAMS = (0, 1, 2)
# A shell that starts something in the background makes it deaf to Ctrl-C.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from fmapviz.__main__ import main; main()"


def serve(path):
    import torch

    listen = socket.socket(socket.AF_UNIX)
    listen.bind(f"{path}.torch")
    listen.listen()
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        fork_for_each(listen, until=theirs)
    theirs.close()
    listen.close()

    import torch.fx.experimental.symbolic_shapes
    from typer.main import get_command

    import fmapviz.listing
    import fmapviz.pipeline
    import fmapviz.sources.python
    import fmapviz.sources.torchvision  # noqa: F401
    from fmapviz import cli, decoding, registry

    for package in (registry.VIEWS, registry.WRITERS):
        for name in registry.names(package):
            registry.fetch(package, name)
    cli.app = get_command(cli.app)  # as each command would build it
    torch.set_num_threads(1)  # those that torch once had do not live on in a child, which would wait for them
    # The parser, too, imports some things late, and makes some when it first needs them.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), patch.object(decoding, "start"):
        cli.app(["models", "alexnet"], standalone_mode=False)
        cli.app(["shapesnet", "/nowhere.png", "--out", "/nowhere"], standalone_mode=False)
    for finalizer in [*weakref.finalize._registry]:  # torch takes its libraries apart when it ends, which nobody needs
        finalizer.atexit = False
    gc.freeze()  # or each child would copy all of it when it collects garbage
    listen = socket.socket(socket.AF_UNIX)
    listen.bind(path)
    listen.listen()
    fork_for_each(listen, until=ours)


def fork_for_each(server, until):
    """Start a process for each request, until the other side of a connection is gone."""
    running = {}
    while True:
        for ready in select.select([server, until, *running], [], [])[0]:
            if ready is server:
                connection, _ = server.accept()
                running[begin(connection, [server, until], running)] = connection
            elif ready is until:
                os._exit(0)
            else:
                end(ready, running.pop(ready))


def begin(connection, own, running):
    """Start one command, and give a descriptor that is ready when it has ended."""
    request, streams, _, _ = socket.recv_fds(connection, 2**20, len(STREAMS))
    child = os.fork()
    if child == 0:
        for each in (connection, *own, *running.values()):
            each.close()
        for each in running:
            os.close(each)
        run(json.loads(request), streams)
    for stream in streams:
        os.close(stream)
    with suppress(OSError):
        connection.sendall(f"{child}\n".encode())
    return os.pidfd_open(child)


def end(process, connection):
    """Tell how a command ended, if anybody still listens."""
    status = os.waitid(os.P_PIDFD, process, os.WEXITED)
    code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
    os.close(process)
    with connection, suppress(OSError):
        connection.sendall(f"{code}\n".encode())


def run(request, streams):
    for given, own in zip(streams, STREAMS, strict=True):
        os.dup2(given, own)
        os.close(given)
    # Those of the server remember what they once led to.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if request["arguments"][:1] == ["-c"]:
        execute(*request["arguments"][1:])
    sys.argv = ["fmapviz", *request["arguments"]]
    from fmapviz.cli import main

    main()


def execute(program, *arguments):
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    code = 1
    try:
        exec(program, {"__name__": "__main__"})
        code = 0
    except BaseException:  # noqa: BLE001  told as Python itself tells it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


class Process:
    """A command that the server runs, to be used like one of `subprocess.Popen`."""

    def __init__(self, path, arguments, *, environment=None, directory=None, streams=STREAMS):
        fields = {
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "directory": str(directory or os.getcwd()),  # noqa: PTH109  pathlib is slow to import
        }
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(fields).encode()], streams)
        self._answers = connection.makefile("r")
        self._connection = connection
        self.pid = int(self._answers.readline())
        self.returncode = None

    def poll(self):
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def ask(path, arguments, *, timeout=120, **circumstances):
    """Have a command run by the server, and give its exit code."""
    return Process(path, arguments, **circumstances).wait(timeout)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[3:]))
    serve(sys.argv[1])
