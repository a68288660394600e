"""`fmapviz report`: find the report of a run, or write a page of two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fmapviz.cli.printing import print_line, print_message, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import open_page
from fmapviz.errors import RequestError, printable


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN]", help="The directory of a run, or of each of two runs.")],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Where to write the page of two runs.",
            show_default="a name from both, in their common directory",
        ),
    ] = None,
    open_report: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Print the path of the report of RUN, or write a page that shows two runs beside each other.

    The page has the pictures of the first run at the left and those of the second one at the right, of the same image, view
    and layer. It shows the files of both runs, which it does not copy or change: it moves with the directory around them.

    Exit codes: 0 all done; 2 one of them is no run, or has no report; 5 the page could not be written; 6 refused, a file of
    its name exists that fmapviz did not make.
    """
    if len(runs) > 2:
        raise RequestError(f"a page shows two runs, not {len(runs)}", hint="`fmapviz report RUN RUN`")
    if len(runs) == 1 and out is not None:
        raise RequestError("--out is for a page of two runs", hint="`fmapviz report RUN RUN --out FILE`")
    show_status(f"reading {' and '.join(runs)} ...")
    with importing():
        from fmapviz.formats.html.two_runs import find_report, write_two_runs

    page = write_two_runs(runs, out) if len(runs) == 2 else find_report(runs[0])
    print_line(printable(str(page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page)))
    if open_report and not open_page(page):
        print_message("notice: cannot open a browser here; the path of the report is printed above")
