"""A fork server: start commands and programs in processes that have already imported what they need.

Imports are most of the time of a small run. The server has imported torch and fmapviz, and forks once per command. The new
process has arguments, an environment, a working directory and streams of its own, as any process has. Three more servers
have imported less: one torch alone, one the command line alone, and one what a decode worker needs.

    python warm.py SOCKET               # the servers, at SOCKET, SOCKET.torch, SOCKET.cli and SOCKET.decoders
    python warm.py SOCKET run ARGS...   # let the server run `fmapviz ARGS...`, or `python -c PROGRAM ARGS...`

`OFF` in the place of a socket starts an ordinary process.
"""

import gc
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
import weakref
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

from waiting import PATIENCE

STREAMS = (0, 1, 2)
SEARCHED = (*sys.path,)
OFF = "off"  # no server; OFF.torch, OFF.cli and OFF.decoders are none either
KIND = (getattr(socket, "AF_UNIX", None), getattr(socket, "SOCK_SEQPACKET", None))  # keeps the boundaries of messages
# A process that a shell starts in the background ignores Ctrl-C, and below nohup the end of a terminal.
HEEDING = "import signal; [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)]; "
HEEDING += "from fmapviz.__main__ import main; main()"


def serve(path):
    from unittest.mock import patch  # slower to import than everything above together

    from fmapviz.images import decode_worker

    decode_worker._import_decoders()
    serve_beside(f"{path}.decoders")
    serve_beside(f"{path}.cli", prepare=build_commands)

    import torch

    serve_beside(f"{path}.torch")

    import torch.fx.experimental.symbolic_shapes
    from PIL import Image

    from fmapviz.core import registry
    from fmapviz.core.members import load
    from fmapviz.images import decode_pool

    Image.init()
    with suppress(ModuleNotFoundError):  # an extra
        import pyarrow

        pyarrow.array([0])  # imports pandas
    for member in (*registry.views().values(), *registry.formats().values()):
        for value in (getattr(member, field.name) for field in fields(member)):
            if isinstance(value, str) and re.fullmatch(r"fmapviz\.[\w.]+:\w+", value):
                with suppress(ModuleNotFoundError):  # an extra
                    load(value)
    torch.set_num_threads(1)  # threads do not survive a fork, and the child would wait for them
    app = build_commands()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), patch.object(decode_pool, "start"):
        app.app(["shapesnet", os.devnull, "--out", f"{path}.run"], standalone_mode=False)
    for finalizer in [*weakref.finalize._registry]:  # torch unloads its libraries at exit, which takes time
        finalizer.atexit = False
    decode_pool.subprocess = SimpleNamespace(
        **vars(subprocess) | {"Popen": partial(start_decode_worker, f"{path}.decoders", os.environ.get("PYTHONPATH"))}
    )
    fork_for_each(listening(path))


def build_commands():
    """Do once what each command would do: build the parser, which imports some modules late, and fill its caches."""
    from typer.main import get_command

    from fmapviz.cli import app

    app.app = get_command(app.app)
    dict(app.app.commands)
    with redirect_stdout(io.StringIO()):
        app.app(["models", "alexnet"], standalone_mode=False)
    return app


def serve_beside(path, prepare=lambda: None):
    """Start another server, which has imported what this process has imported so far and what `prepare` imports."""
    place, (ours, theirs) = listening(path), socket.socketpair()
    if os.fork() == 0:
        ours.close()
        prepare()
        fork_for_each(place, until=theirs)
    place.close()
    theirs.close()
    ours.detach()  # closes when this process ends, which ends the other server


def listening(path):
    place = socket.socket(*KIND)
    place.bind(path)
    place.listen()
    return place


def fork_for_each(server, until=None):
    """Start a process for each request, until the other end of `until` is closed."""
    gc.freeze()  # garbage collection in a child would copy all memory pages
    if work := sys.modules.get("fmapviz.run.pipeline.work"):
        work.FREEZING.is_by_others()  # counts them, once for all children
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
    """Start one command; return a descriptor that becomes readable when it ends."""
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
    """Send the exit code of a command, if its connection is still open."""
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
    # The server's stream objects have the properties of the server's own streams.
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
    """Replace `subprocess.Popen` for the decode pool, unless a test has changed the module search path."""
    if env.get("PYTHONPATH") != modules or {*sys.path} - {"", *SEARCHED} or command[0] != sys.executable:
        return subprocess.Popen(command, pass_fds=pass_fds, env=env, **options)
    return Process(path, {"arguments": ["decode", command[command.index("-c") + 5]]}, pass_fds)


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
    except BaseException:  # noqa: BLE001  printed as Python prints it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def start_process(path, arguments, *, environment=None, directory=None, streams=STREAMS):
    """Start `fmapviz`, or with `-c` as the first argument a program.

    Args:
        path: Socket of a server, or `OFF`.
        arguments: Command line.
        environment: Environment; None: that of this process.
        directory: Working directory; None: that of this process.
        streams: Descriptors of the standard streams.

    Returns:
        A `subprocess.Popen`, or a `Process`, which has the same methods.
    """
    environment = dict(os.environ if environment is None else environment)
    if is_off(path):
        command = [sys.executable, *([] if arguments[0] == "-c" else ["-m", "fmapviz"]), *arguments]
        given, out, err = streams
        return subprocess.Popen(command, env=environment, cwd=directory, stdin=given, stdout=out, stderr=err)
    directory = str(directory or os.getcwd())  # noqa: PTH109  pathlib is slow to import
    return Process(path, {"arguments": list(arguments), "environment": environment, "directory": directory}, streams)


def is_off(path):
    return path.partition(".")[0] == OFF


class Process:
    """A command that a server runs, with the methods of `subprocess.Popen`."""

    def __init__(self, path, request, streams):
        self._lock = Lock()
        self._connection = socket.socket(*KIND)
        self._connection.connect(path)
        socket.send_fds(self._connection, [json.dumps(request).encode()], streams)
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
    """Start a command as `start_process` does, wait for it and return its exit code."""
    process = start_process(path, arguments, **circumstances)
    try:
        return process.wait(timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[3:]))
    try:
        serve(sys.argv[1])
    except BaseException:
        Path(f"{sys.argv[1]}.failed").write_text(traceback.format_exc())
        raise
