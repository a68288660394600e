"""Kill and interrupt the command at random moments, alone and beside others with the same output."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from extras import require
from image_files import paint
from trees import SAME_COMMAND, difference, problems, snapshot
from warm import HEEDING, OFF, start_process

from fmapviz.core.file_names import HIDDEN

NETWORK = """
import torch
from torch import nn


class Exact(nn.Sequential):  # the order of summation does not change sums of integers
    def forward(self, x):
        return super().forward((x * 255).round())


def build():
    numbers = torch.Generator().manual_seed(0)
    network = Exact(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3))
    for values in network.parameters():
        values.data = torch.randint(-2, 3, values.shape, generator=numbers).float()
    return network
"""
COMMON = (
    "net.py:build",
    "in",
    "--weights",
    "random",
    "--out",
    "out",
    "--json",
    "--fit",
    "none",
    "--mean",
    "0",
    "--std",
    "1",
)
FORKING = HEEDING.replace("from fmapviz", "from fmapviz.run import forks; forks.LAYERS = 0; from fmapviz")
ARGUMENTS = (*COMMON, "--to", "tensorboard,png,html,raw,stats")
SHARDS = (*COMMON, "--to", "tensorboard,tar,stats", "--shard", "5")


class Command:
    """The command, started in a directory.

    Args:
        place: Directory with the network, and with the images in `in`.
        server: Socket of `warm.py`.
        arguments: Arguments before the options.
    """

    def __init__(self, place, *options, server=OFF, arguments=ARGUMENTS):
        self.errors = place / f"errors-{random.getrandbits(40)}"
        arguments = ["-c", FORKING if server == OFF else HEEDING, *arguments, *options]  # the server has a single thread
        with self.errors.open("wb") as errors, Path(os.devnull).open("r+b") as nothing:
            streams = [nothing.fileno(), nothing.fileno(), errors.fileno()]
            self.process = start_process(server, arguments, directory=place, streams=streams)

    @property
    def code(self):
        return self.process.returncode

    @property
    def running(self):
        return self.process.poll() is None

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait()


class House:
    """A directory with a network, images, and the expected output."""

    def __init__(self, place, images, *, server=OFF, seed=0, arguments=ARGUMENTS):
        self.place, self.out, self.images = place, place / "out", images
        self.random = random.Random(seed)
        self._server, self._arguments = server, arguments
        if "--shard" in arguments:
            require("pyarrow", "scale")
        place.mkdir(parents=True, exist_ok=True)
        (place / "net.py").write_text(NETWORK)
        for number in range(images):
            paint(place / f"in/{number % 3}/{number}.png", number)
        (place / "in/damaged.png").write_bytes(b"no image")
        begun = time.monotonic()
        command = self.begin()
        assert self.wait_for_work(command) is not None
        self.seconds_before = time.monotonic() - begun
        assert command.wait() == 3, command.errors.read_text()
        self.seconds = time.monotonic() - begun
        self.expected = snapshot(self.out)
        shutil.rmtree(self.out)

    def begin(self, *options):
        return Command(self.place, *options, server=self._server, arguments=self._arguments)

    def wait_for_work(self, command):
        """Wait until something is written; return that time, or None if the command ended before."""
        before = self._names()
        while command.running:
            if self._names() != before:
                return time.monotonic()
            time.sleep(0.002)
        return None if self._names() == before else time.monotonic()

    def kill_one(self, *options):
        """Kill the command at a random moment; return whether it was running."""
        command = self.begin(*options)
        if self.random.random() < 0.8:
            self.wait_for_work(command)
            time.sleep(self.random.uniform(0, self.seconds - self.seconds_before))
        else:
            time.sleep(self.random.uniform(0, self.seconds_before))
        alive = command.running
        command.kill()
        command.wait()
        self.check_whole()
        if not alive:  # leave work for the next command
            shutil.rmtree(self.out)
        return alive and command.code == -signal.SIGKILL

    def kill_some(self, processes, killed, *options):
        """Start several commands at once and kill some of them; return all exit codes."""
        commands = [self.begin(*options) for _ in range(processes)]
        self.wait_for_work(commands[0])
        for command in self.random.sample(commands, killed):
            time.sleep(self.random.uniform(0, self.seconds / 4))
            command.kill()
        codes = sorted(command.wait() for command in commands)
        self.check_whole()
        return codes

    def interrupt(self, number, *options):
        """Send a signal at a random moment; return whether the command reported it.

        The command's last words decide which exit code is right. It says nothing about a signal that arrives before Python
        runs its handlers, and a signal that arrives after the last image changes nothing.
        """
        command = self.begin(*options)
        time.sleep(self.random.uniform(0, self.seconds))
        command.kill(number)
        code, errors = command.wait(), command.errors.read_text()
        last = errors.splitlines()[-1] if errors else ""
        interrupted = last.startswith("interrupted")
        if interrupted:
            assert code == 128 + number, errors
        elif last.startswith(f"{self.images + 1} images: "):
            assert code == 3, errors
        else:
            assert code == -number, errors
        assert "Traceback" not in errors or code == -number, errors  # Python itself was just starting
        assert "Exception ignored" not in errors, errors
        assert self.hidden() == []
        self.check_whole()
        return interrupted

    def finish(self):
        """Run the command again; compare the output with that of an undisturbed run."""
        command = self.begin()
        assert command.wait() == 3, command.errors.read_text()
        assert difference(snapshot(self.out), self.expected) == []
        assert problems(self.out) == []
        shutil.rmtree(self.out)

    def hidden(self):
        return [path for path in self.out.rglob("*") if path.name.startswith(HIDDEN)] if self.out.exists() else []

    def check_whole(self):
        if any(not path.parent.name.startswith(HIDDEN) for path in self.out.glob("*/run.json")):
            found = problems(self.out)
            assert {problem.remedy for problem in found} <= SAME_COMMAND, found

    def _names(self):
        with suppress(FileNotFoundError):
            return {path: path.stat().st_mtime_ns for path in (self.out, *self.out.iterdir())}
        return {}
