"""Run the command, or a program, in new processes that have imported everything already: most of the time of a small run.

A server that has imported torch and fmapviz, and done nothing else, forks for each command. The rest is as in any process:
its own arguments, environment, working directory and streams. Another has imported torch alone, a third the command line
alone, and a fourth, for the process in which each of these commands decodes images, only what that needs.

    python warm.py SOCKET               # the server; the others' sockets are SOCKET.torch, SOCKET.cli and SOCKET.decoders
    python warm.py SOCKET run ARGS...   # `fmapviz ARGS...` by the server; `-c PROGRAM ARGS...` as Python itself
"""

import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
import weakref
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from threading import Lock
from types import SimpleNamespace

from waiting import PATIENCE

STREAMS = (0, 1, 2)
SEARCHED = (*sys.path,)
KIND = (socket.AF_UNIX, socket.SOCK_SEQPACKET)  # what is sent at once is received at once
# A shell that starts something in the background makes it deaf to Ctrl-C.
HEEDING = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from fmapviz.__main__ import main; main()"


def serve(path):
    from unittest.mock import patch  # not above: it takes longer to import than all that is there

    from fmapviz.images import decode_worker

    decode_worker._import_decoders()
    serve_beside(f"{path}.decoders")
    serve_beside(f"{path}.cli", prepare=partial(importlib.import_module, "fmapviz.cli.app"))

    import torch

    serve_beside(f"{path}.torch")

    import torch.fx.experimental.symbolic_shapes
    from PIL import Image
    from typer.main import get_command

    from fmapviz.cli import app
    from fmapviz.core import registry
    from fmapviz.images import decode_pool

    Image.init()
    with suppress(ModuleNotFoundError):  # an extra
        import pyarrow

        pyarrow.array([0])  # imports pandas
    for package in (registry.VIEWS, registry.WRITERS):
        for name in registry.names(package):
            registry.fetch(package, name)
    app.app = get_command(app.app)  # as each command would build it
    torch.set_num_threads(1)  # those that torch once had do not live on in a child, which would wait for them
    # The parser, too, imports some things late, and makes some when it first needs them.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), patch.object(decode_pool, "start"):
        app.app(["models", "alexnet"], standalone_mode=False)
        app.app(["shapesnet", "/nowhere.png", "--out", "/nowhere"], standalone_mode=False)
    for finalizer in [*weakref.finalize._registry]:  # torch takes its libraries apart when it ends, which nobody needs
        finalizer.atexit = False
    decode_pool.subprocess = SimpleNamespace(
        **vars(subprocess) | {"Popen": partial(start_decode_worker, f"{path}.decoders", os.environ.get("PYTHONPATH"))}
    )
    fork_for_each(listening(path))


def serve_beside(path, prepare=lambda: None):
    """Go on, while a process that has imported no more than this one by now, but for `prepare`, forks for each request."""
    place, (ours, theirs) = listening(path), socket.socketpair()
    if os.fork() == 0:
        ours.close()
        prepare()
        fork_for_each(place, until=theirs)
    place.close()
    theirs.close()
    ours.detach()  # closed when this process ends


def listening(path):
    place = socket.socket(*KIND)
    place.bind(path)
    place.listen()
    return place


def fork_for_each(server, until=None):
    """Start a process for each request, until the other side of a connection is gone."""
    gc.freeze()  # or each child would copy all there is when it collects garbage
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # since Python 3.12, of a fork beside threads
    own, running = [server, *filter(None, [until])], {}
    while True:
        for ready in select.select([*own, *running], [], [])[0]:
            if ready is server:
                connection, _ = server.accept()
                running[begin(connection, own, running)] = connection
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
        connection.sendall(str(child).encode())
    return os.pidfd_open(child)


def end(process, connection):
    """Tell how a command ended, if anybody still listens."""
    status = os.waitid(os.P_PIDFD, process, os.WEXITED)
    code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
    os.close(process)
    with connection, suppress(OSError):
        connection.sendall(str(code).encode())


def run(request, streams):
    if request["arguments"][:1] == ["decode"]:
        decode(streams, int(request["arguments"][1]))
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
    from fmapviz.cli.app import main

    main()


def start_decode_worker(path, modules, command, *, pass_fds, env, **options):
    """Do what `subprocess.Popen` does for the decode pool, unless a test wants other modules found."""
    if env.get("PYTHONPATH") != modules or {*sys.path} - {"", *SEARCHED} or command[0] != sys.executable:
        return subprocess.Popen(command, pass_fds=pass_fds, env=env, **options)
    return Process(path, ["decode", command[command.index("-c") + 5]], environment={}, streams=pass_fds)


def decode(streams, memory_bytes):
    from fmapviz.images.decode_worker import main

    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for own in STREAMS:
        os.dup2(nothing, own)
    main(*streams, os.getppid(), memory_bytes)


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
        self._lock = Lock()
        self._connection = socket.socket(*KIND)
        self._connection.connect(path)
        socket.send_fds(self._connection, [json.dumps(fields).encode()], streams)
        self.pid = int(self._connection.recv(99))
        self.returncode = None

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        with self._lock:
            if self.returncode is None:
                if not select.select([self._connection], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a command", timeout)
                self.returncode = int(self._connection.recv(99))
                self._connection.close()
            return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def ask(path, arguments, *, timeout=PATIENCE, **circumstances):
    """Have a command run by the server, and give its exit code."""
    return Process(path, arguments, **circumstances).wait(timeout)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[3:]))
    serve(sys.argv[1])
