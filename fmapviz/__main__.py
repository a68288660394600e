"""The command `fmapviz`, and `python -m fmapviz`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from fmapviz.cli.process import Interrupted, handle_signals, interruption_behind


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        handle_signals()
        from fmapviz.cli import app

        app.main()
    except (Interrupted, Exception) as error:
        interruption = interruption_behind(error)  # before the command starts, or after it ended
        if interruption is None:
            raise
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(128 + interruption.number)


if __name__ == "__main__":
    main()
