"""TensorBoard's own server, started with a command that was printed, and what it shows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from waiting import PATIENCE, wait_until


@contextmanager
def serving(command, directory):
    """Run the command that was printed; return the server's address once it answers."""
    program, *arguments = shlex.split(command)
    server = subprocess.Popen(
        [Path(sys.executable).parent / program, *arguments, "--port", "0", "--host", "localhost"],
        cwd=directory, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield next(match[0] for line in server.stderr if (match := re.search(r"http://localhost:\d+/", line)))
    finally:
        server.terminate()
        server.wait(PATIENCE)
        server.stderr.close()


def images_of_tags(address):
    """Return the tags of images of each of TensorBoard's runs."""
    with urllib.request.urlopen(f"{address}data/plugin/images/tags", timeout=PATIENCE) as answer:
        return json.load(answer)


def steps_shown(address, tag):
    """Return the steps of an image that the page shows, once the server has read its files; the tag is of one run."""
    wait_until(lambda: images_of_tags(address))
    known = images_of_tags(address)
    (run,) = (name for name, tags in known.items() if tag in tags) if known else ()
    query = urllib.parse.urlencode({"run": run, "tag": tag})
    with urllib.request.urlopen(f"{address}data/plugin/images/images?{query}", timeout=PATIENCE) as answer:
        return [each["step"] for each in json.load(answer)]


def printed_line(text):
    """Return the only command for TensorBoard in what was printed."""
    (line,) = re.findall(r"tensorboard --logdir .*", text)
    return line
