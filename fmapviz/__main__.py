"""The command `fmapviz`, and `python -m fmapviz`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fmapviz.process import Interrupted, signals_heeded


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        with signals_heeded():
            from fmapviz import cli

            cli.main()
    except Interrupted as interruption:  # before anything has begun, or at the very end
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(128 + interruption.number)


if __name__ == "__main__":
    main()
