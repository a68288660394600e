"""`fmapviz rerun`: draw a finished run again from its records."""

from __future__ import annotations

from typing import Annotated

import typer

from fmapviz.cli.printing import results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, QuietOption, VerboseOption, running_option
from fmapviz.errors import RefusedError, RequestError


def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The directory or address of a run, or a copy of its run.json.")],
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="Directory of all runs, or its address.")] = "runs",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the new run's directory.", show_default="RUN's, and -rerun")
    ] = None,
    allow_versions: Annotated[
        bool,
        typer.Option("--allow-versions", help="Go on although other versions drew RUN; rounding may differ."),
    ] = False,
    plan: Annotated[bool, running_option("--plan", help="Dry run: estimate size and time from a small sample.")] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> int:
    """Draw RUN again into another directory: the same network, weights, images and options. Say if the digest is the same.

    It is refused if the code, the weights, the images or the versions are others than those that drew RUN. The code that RUN
    names is run. A copy of run.json is enough where the inputs still are; then there is no digest to compare with.

    Exit codes: as `fmapviz run`; 3 also if the digest differs; 6 also if the code, weights, images or versions differ.
    """
    if out == "":
        raise RequestError("--out is empty", hint="--out . is the current directory")
    if not quiet:
        show_status(f"reading {run} ...")
    with importing():
        from fmapviz.cli.console import Console, show_estimate
        from fmapviz.run.rerun import plan_rerun, read_recorded
        from fmapviz.run.rerun import rerun as draw_again

    with results_only(), Console(verbosity=-1 if quiet else int(verbose), json=json) as console:
        recorded = read_recorded(run)
        if plan:
            expected = plan_rerun(recorded, out=out, name=name, allow_versions=allow_versions)
            show_estimate(expected, json=json)
            return 0 if expected.fits else RefusedError.exit_code
        summary = draw_again(recorded, out=out, name=name, allow_versions=allow_versions, on_event=console.show)
        console.show_summary(summary, out)
    return summary.exit_code
