"""`fmapviz top`: draw the images with the largest values of each channel of a finished run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fmapviz.cli.options import as_typed, formats_option, word_option
from fmapviz.cli.printing import print_json, print_line, print_message, results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, ShowOption  # noqa: TC001  Typer reads them
from fmapviz.config import split
from fmapviz.core import registry
from fmapviz.errors import printable

if TYPE_CHECKING:
    from fmapviz.events import Event


_CROPS = ("auto", "field", "whole")


def top(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The directory or address of a finished run that keeps statistics.")
    ],
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB,...", help="Only layers whose name matches.", show_default="all of the run"),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="GLOB,...", help="Leave these layers out.")] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", help="Images per channel; up to 16 for a run with shards.")] = 9,
    by: Annotated[
        str,
        word_option(words=("max", "mean", "min"), help="Rank images by the largest value, the mean or the smallest value."),
    ] = "max",
    crop: Annotated[
        str,
        word_option(
            words=_CROPS, help="Show the receptive field (field), the whole picture, or the field if it is small (auto)."
        ),
    ] = "auto",
    channels: Annotated[str, typer.Option(metavar="LIST", help="Channels to show, such as 0,3,8-15.")] = "all",
    inside: Annotated[
        bool,
        typer.Option("--inside", help="Only positions whose field lies within the picture; forwards all images again."),
    ] = False,
    to: Annotated[
        list[str] | None,
        formats_option(
            [*registry.page_formats()],
            help="Formats of the pages; html needs a run with a report.",
            show_default="those of the run, or png",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The weights, if the run does not record where they are from.")
    ] = None,
    device: Annotated[
        str,
        word_option(
            metavar="NAME",
            words=("auto", "cpu", "cuda", "mps"),
            help="Device to compute on: auto, cpu, cuda, cuda:1 or mps.",
        ),
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Images processed at once.", show_default="one per core, at most 8")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Redraw finished pages.")] = False,
    show: ShowOption = False,
    json: JsonOption = False,
) -> int:
    """Draw the images of RUN with the largest values of each channel, and their receptive fields.

    RUN keeps statistics: it was drawn by `fmapviz run --to stats`, or by `fmapviz run --view top`. Only the images that are
    shown go through the network again. The table is RUN/top.csv, the pages are in RUN/_top and in the report. They replace
    earlier top images of RUN: a run keeps those of the last command.

    Exit codes: as `fmapviz run`; 3 if some of these images can no longer be read, 4 if none can.
    """
    if show and not json:
        from fmapviz.cli.show import check_show

        check_show()
    show_status(f"reading {run} ...")
    with importing():
        from fmapviz.features.top.top_images import top_images

    with results_only():
        summary = top_images(
            run,
            layers=split(layers or ()),
            exclude=split(exclude or ()),
            k=k,
            by=by,  # type: ignore[arg-type]  # checked there
            crop=crop,  # type: ignore[arg-type]  # checked there
            channels=channels,
            inside=inside,
            to=split(to or ()),
            force=force,
            weights=weights,
            device=device,
            workers=workers,
            on_event=None if json else _show,
        )
    if json:
        print_json(
            {
                "event": "summary",
                "directory": str(summary.directory),
                "table": str(summary.table),
                "pages": str(summary.pages) if summary.pages else None,
                "pictures": summary.pictures,
                "images": summary.images,
                "lost": list(summary.lost),
                "notices": list(summary.notices),
                "exit_code": summary.exit_code,
            }
        )
    else:
        for path in filter(None, (summary.pages, summary.table)):
            print_line(printable(str(path)))
    if show and not json:
        from fmapviz.cli.show import show_pictures

        show_pictures([summary.pages] if summary.pages else [], summary.directory)
    return summary.exit_code


def _show(event: Event) -> None:
    message = getattr(event, "message", "")
    if message:
        print_message(f"notice: {printable(as_typed(message))}")
