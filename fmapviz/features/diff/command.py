"""`fmapviz diff`: compare two networks, the checkpoints of a training, or two finished runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from fmapviz.cli.console import Console
from fmapviz.cli.next_step import is_first, show_next_step
from fmapviz.cli.options import OF_ONE, read_options, takes_options, word_option
from fmapviz.cli.printing import results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, QuietOption, ShowOption, VerboseOption  # noqa: TC001  Typer reads them
from fmapviz.config import COMMON, InputOptions, RunConfig, Style
from fmapviz.config.style import NORMS, check_norm
from fmapviz.core import registry

_DTYPES = ("bfloat16", "float16", "float32", "float64")
_OPTIONS = (
    *("weights", "layers", "exclude", "types", "to", "every", "frames", "out", "name", "single_file", "fsync"),
    *("norm", "columns", "padding", "channels", "scale", "colormap", "labels"),
    *("size", "fit", "mean", "std"),
    *("device", "workers", "strict", "repair", "force"),
)


@takes_options(only=_OPTIONS, pair=True)
def diff(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RUN", help="A model, as `fmapviz run` takes it; or the directory of a run.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...|RUN", help="Images and folders; or the directory of another run.", show_default=False
        ),
    ],
    *,
    against: Annotated[
        str | None,
        word_option(
            words=("default", "random", "model:", *(f"dtype:{name}" for name in _DTYPES)),
            metavar="NAME|FILE|...",
            help="Second network: other weights, as --weights accepts them; model:NAME, another network; "
            f"dtype:bfloat16, the same network in another type ({', '.join(_DTYPES)}).",
            rich_help_panel=COMMON,
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str | None,
        word_option(
            words=("first", "previous"),
            help="Checkpoint to compare each one with, if --weights names several, such as 'ckpt/epoch_*.pt'.",
            rich_help_panel=COMMON,
            show_default="first",
        ),
    ] = None,
    show: ShowOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    json: JsonOption = False,
    **options: Any,  # some fields of RunConfig
) -> int:
    """Compare two networks on the same images: A, B and B - A side by side, differences as numbers, and CKA.

    MODEL with --weights is A, and with --against B. With several files as --weights, quoted, such as 'ckpt/epoch_*.pt', each
    is compared with the first one. Two runs that keep values (--to npz) are compared without their networks. --channels
    top:16:change draws the channels that changed most.

    Exit codes are those of `fmapviz run`.
    """
    typed = read_options(options)
    given = typed[RunConfig]
    check_norm(typed[Style].get("norm", Style().norm), [norm for norm in NORMS if norm not in OF_ONE])
    view = next(name for name, view in registry.views().items() if view.networks == 2)
    if show and not (quiet or json):
        from fmapviz.cli.show import check_show

        check_show()
    if not quiet:
        show_status(f"loading {model} ...")
    with importing():
        from fmapviz.features.diff.run import run_diff

    config = RunConfig(
        model, inputs, views=(view,), style=Style(**typed[Style]), preprocessing=InputOptions(**typed[InputOptions]), **given
    )
    first = is_first(config.out)
    with results_only(), Console(verbosity=-1 if quiet else int(verbose), json=json) as console:
        summary = run_diff(replace(config, on_event=console.show), against=against, reference=reference)
        console.show_summary(summary, str(config.out))
    if show and not (quiet or json):
        from fmapviz.cli.show import show_pictures

        show_pictures(summary.units, summary.directory)
    if not (quiet or json):
        show_next_step(config, summary, first=first, predicted=False)
    return summary.exit_code
