"""The command line: parse, call, print. The only module that exits."""

from __future__ import annotations

import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fmapviz import __version__, grammar, registry
from fmapviz.console import REPORT, Console, layer_table, results_only, say, say_bytes, say_error, say_json, show_error
from fmapviz.desktop import open_page
from fmapviz.errors import FmapvizError, RefusedError, RequestError, printable, quote, suggest
from fmapviz.formats import check_shards
from fmapviz.grammar import split
from fmapviz.models import check_name, known_names
from fmapviz.options import COLORMAPS, Engine, InputOptions, Part, Style
from fmapviz.process import Interrupted, leave, loading, open_missing_streams, remove_staged, signals_heeded
from fmapviz.registry import VIEWS, WRITERS
from fmapviz.urls import is_unknown, is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

app = typer.Typer(
    name="fmapviz",
    cls=grammar.RunByDefault,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    subcommand_metavar="MODEL INPUT...",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CHOOSE, _LOOKS, _INPUT, _RUNNING = "Choosing what to see", "Looks", "Input preparation", "Running"
_Names = list[str] | None
_Text = str | None

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Such as alexnet or shapesnet, `fmapviz models` lists them; timm:NAME; my_net.py:build.",
        autocompletion=grammar.complete_models,
    ),
]
Layers = Annotated[
    _Names,
    typer.Option("--layers", metavar="GLOB", help="Only layers with such a dotted name: 'layer4.*'. Repeatable.",
                 show_default="all", rich_help_panel=_CHOOSE),
]  # fmt: skip
Exclude = Annotated[
    _Names, typer.Option("--exclude", metavar="GLOB", help="But not these. Repeatable.", rich_help_panel=_CHOOSE)
]
Types = Annotated[
    _Names,
    typer.Option("--types", metavar="NAME,...", help="Classes of layers, with their subclasses: Linear, ReLU, Block.",
                 show_default="Conv2d",
                 rich_help_panel=_CHOOSE),
]  # fmt: skip
Size = Annotated[
    _Text, typer.Option("--size", metavar="N|HxW", help="Pixels.", show_default="as trained", rich_help_panel=_INPUT)
]
Fit = Annotated[
    _Text,
    typer.Option("--fit", metavar="crop|squash|pad|none", help="How other shapes come to that size.",
                 show_default="as trained", rich_help_panel=_INPUT, autocompletion=grammar.complete_fits),
]  # fmt: skip
Mean = Annotated[
    _Text,
    typer.Option("--mean", metavar="N|R,G,B", help="Subtracted, on a 0..1 scale.", show_default="as trained",
                 rich_help_panel=_INPUT),
]  # fmt: skip
Std = Annotated[
    _Text,
    typer.Option("--std", metavar="N|R,G,B", help="Divided by, on a 0..1 scale.", show_default="as trained",
                 rich_help_panel=_INPUT),
]  # fmt: skip
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object per line on standard output; the last is the summary.",
                 rich_help_panel=_RUNNING),
]  # fmt: skip


@app.callback()
def fmapviz(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=lambda on: _version(on=on)),
    ] = False,
) -> None:
    """See what every layer of a vision network computes.

    `fmapviz MODEL INPUT...` draws the feature maps of a model for images or folders: the same as `fmapviz run`, whose
    options `fmapviz run --help` explains.
    """


@app.command()
def run(
    model: Model,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", help="Images, folders, s3:// too; - reads paths from standard input as they arrive.",
                       show_default=False),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(metavar="default|NAME|random[:SEED]|FILE[#ENTRY]|URL", help="The parameters: these, or an error.",
                     rich_help_panel=_CHOOSE, autocompletion=grammar.complete_weights),
    ] = "default",
    layers: Layers = None,
    exclude: Exclude = None,
    types: Types = None,
    view: Annotated[
        _Names,
        typer.Option(metavar="NAME,...", help=f"What to draw. {grammar.members_help(VIEWS)}", show_default="maps",
                     rich_help_panel=_CHOOSE, autocompletion=grammar.complete_views),
    ] = None,
    to: Annotated[
        _Names,
        typer.Option(metavar="NAME,...", help=f"Where to. {grammar.members_help(WRITERS)}", show_default="tensorboard",
                     rich_help_panel=_CHOOSE, autocompletion=grammar.complete_formats),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many of the predicted classes to tell per image.",
                     show_default="3; 0 with --layers or --exclude", rich_help_panel=_CHOOSE),
    ] = None,
    target: Annotated[
        _Names,
        typer.Option(metavar="top1|topK|INT|NAME", help="Classes for gradients and heat maps. Repeatable, or with commas.",
                     show_default="top1; top3 on a sheet", rich_help_panel=_CHOOSE),
    ] = None,
    output: Annotated[
        _Text,
        typer.Option(metavar="KEY|INDEX", help="Where in a dict or tuple that the model returns the class scores are.",
                     show_default="its only tensor, out or logits", rich_help_panel=_CHOOSE),
    ] = None,
    norm: Annotated[
        str,
        typer.Option(metavar="channel|layer|run|signed|fixed:LO,HI",
                     help="What is stretched from black to white; run: all images alike; signed: zero in the middle.",
                     rich_help_panel=_LOOKS, autocompletion=grammar.complete_norms),
    ] = "channel",
    columns: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tiles per row.", show_default="square root of their number", rich_help_panel=_LOOKS),
    ] = None,
    padding: Annotated[int, typer.Option(metavar="N", help="Pixels between tiles.", rich_help_panel=_LOOKS)] = 2,
    channels: Annotated[
        str,
        typer.Option(metavar="all|0,3,8-15|top:K[:max|mean|std]", help="Which channels; top: each image's K strongest.",
                     rich_help_panel=_LOOKS),
    ] = "all",
    scale: Annotated[int, typer.Option(metavar="N", help="Each value becomes N x N pixels.", rich_help_panel=_LOOKS)] = 1,
    colormap: Annotated[
        _Text,
        typer.Option(metavar="|".join(COLORMAPS), help="Of grids and heat maps.",
                     show_default="gray; turbo for heat maps, coolwarm for --norm signed", rich_help_panel=_LOOKS,
                     autocompletion=grammar.complete_colormaps),
    ] = None,
    alpha: Annotated[
        float, typer.Option(metavar="0..1", help="How much a heat map covers the picture under it.", rich_help_panel=_LOOKS)
    ] = 0.5,
    labels: Annotated[
        bool | None,
        typer.Option("--labels/--no-labels", help="Channel numbers at the tiles, and a header.",
                     show_default="numbers only, with top:K", rich_help_panel=_LOOKS),
    ] = None,
    colorbar: Annotated[
        bool, typer.Option("--colorbar", help="Which values the colours stand for.", rich_help_panel=_LOOKS)
    ] = False,
    pca: Annotated[
        str,
        typer.Option(metavar="image|shared", help="Whose components --view pca shows; shared: of all images together.",
                     rich_help_panel=_LOOKS),
    ] = "image",
    dtype: Annotated[
        str,
        typer.Option(metavar="float32|float16", help="What --to raw and npz keep values as.", rich_help_panel=_CHOOSE),
    ] = "float32",
    size: Size = None,
    fit: Fit = None,
    mean: Mean = None,
    std: Std = None,
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="Where all runs lie; s3://BUCKET/DIR is one elsewhere.", rich_help_panel=_RUNNING),
    ] = "runs",
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This run's directory in it.", show_default="the model's name",
                     rich_help_panel=_RUNNING),
    ] = None,
    device: Annotated[
        str,
        typer.Option(metavar="auto|cpu|cuda|cuda:1|mps", help="Where to compute.", rich_help_panel=_RUNNING,
                     autocompletion=grammar.complete_devices),
    ] = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Images per forward pass.", show_default="1 or 4 on the CPU, 16 on a GPU",
                     rich_help_panel=_RUNNING),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Images in work at once.", show_default="one per core, at most 8",
                     rich_help_panel=_RUNNING),
    ] = None,
    null: Annotated[
        bool, typer.Option("-0", "--null", help="Paths on standard input end with NUL.", rich_help_panel=_RUNNING)
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="End at the first input that fails.", rich_help_panel=_RUNNING)
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Draw finished images again.", rich_help_panel=_RUNNING)] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Draw finished images again of which a file is missing or changed.",
                     rich_help_panel=_RUNNING),
    ] = False,
    fsync: Annotated[
        bool,
        typer.Option("--fsync", help="Call an image done when it would survive a power failure.", rich_help_panel=_RUNNING),
    ] = False,
    shard: Annotated[
        int | None,
        typer.Option(metavar="N", help="N images in one directory: --to tar, tensorboard, stats.",
                     show_default="a directory for each", rich_help_panel=_RUNNING),
    ] = None,
    part: Annotated[
        _Text,
        typer.Option(metavar="I/N", help="Only the I-th of N parts of the work; other commands do the others.",
                     show_default="all of it", rich_help_panel=_RUNNING),
    ] = None,
    engine: Annotated[
        _Text,
        typer.Option(metavar="ray[:ADDRESS]", help="Have Ray do the work, in --workers processes; auto, HOST:PORT.",
                     show_default="this process", rich_help_panel=_RUNNING),
    ] = None,
    worker_cpus: Annotated[
        int, typer.Option(metavar="N", help="Cores of each process of --engine ray.", rich_help_panel=_RUNNING)
    ] = 1,
    worker_gpus: Annotated[
        float, typer.Option(metavar="G", help="GPUs of each, also a part of one.", rich_help_panel=_RUNNING)
    ] = 0.0,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Draw a few images elsewhere, and say what all would take: bytes and time.",
                     rich_help_panel=_RUNNING),
    ] = False,
    open_report: Annotated[
        bool, typer.Option("--open", help="Write a report, and open it in the browser.", rich_help_panel=_RUNNING)
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.", rich_help_panel=_RUNNING)] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="A line per image.", rich_help_panel=_RUNNING)] = False,
    json: Json = False,
) -> int:  # fmt: skip
    """Draw the feature maps of MODEL for every INPUT; with --view its gradients and class activation maps too.

    The pictures of an image lie in a directory of their own, OUT/NAME/IMAGE. What is finished is skipped next time.

    Exit codes: 0 all done; 1 a bug; 2 the request is wrong; 3 some inputs failed; 4 no input gave anything; 5 the output
    could not be written; 6 refused, the place belongs to something else; 130, 143 interrupted.
    """
    _check_model(model)
    if not out:
        raise RequestError("--out is empty", hint="--out . is the current directory")
    style = Style(
        norm=norm, columns=columns, padding=padding, channels=channels, scale=scale, colormap=colormap, alpha=alpha,
        labels=labels, colorbar=colorbar, pca=pca,
    )  # fmt: skip
    prepared = InputOptions.parse(size=size, fit=fit, mean=mean, std=std)
    views = split(view or ["maps"])
    formats = split([*(to or ([] if open_report else ["tensorboard"])), *(["html"] if open_report else [])])
    for package, members in ((VIEWS, views), (WRITERS, formats)):
        for member in members:
            registry.check(package, member)
    check_shards(shard, formats)
    if open_report and is_url(out):
        raise RequestError("--open is for reports on this machine", hint="--to html writes one there, too")
    if out.lower().startswith("memory:"):
        raise RequestError("memory:// is gone when the command ends", hint="s3://..., or a directory")
    parsed = Part.parse(part) if part else None
    elsewhere = Engine.parse(engine, workers=workers, cpus=worker_cpus, gpus=worker_gpus) if engine else None
    paths = inputs or []
    if not paths and any(registry.constant(VIEWS, member, "NEEDS") != "kernels" for member in views):
        raise RequestError("missing argument 'INPUT'", hint="images or folders; only --view kernels needs none")

    with loading():
        from fmapviz import decoding

        decoding.start()  # beside the import of torch, which takes longer
        from fmapviz.estimation import forecast
        from fmapviz.pipeline import visualize

    verbosity = -1 if quiet else int(verbose)
    with results_only(), Console(verbosity=verbosity, json=json) as console:
        # Any: options are of all kinds.
        options: dict[str, Any] = {
            "weights": weights,
            "layers": layers or (),
            "exclude": exclude or (),
            "types": split(types or []),
            "views": views,
            "to": formats,
            "style": style,
            "dtype": dtype,
            "options": prepared,
            "device": device,
            "top": top,
            "targets": target or (),
            "output": output,
            "batch_size": batch_size,
            "workers": workers,
            "strict": strict,
            "fsync": fsync,
        }
        places: dict[str, Any] = {"out": out, "name": name, "shard": shard, "part": parsed, "force": force}
        listed = _paths(paths, null=null) if "-" in paths else paths
        if plan:
            found = forecast(model, listed, on_event=console.tell_briefly, **places, **options)
            console.show(found)
            return 0 if found.fits else RefusedError.exit_code
        summary = visualize(model, listed, repair=repair, engine=elsewhere, on_event=console.tell, **places, **options)
        console.finish(summary, out)
    if open_report and summary.exit_code in {0, 3} and not open_page(summary.directory / REPORT):
        say_error("notice: no browser could be opened here: the report's page is named above")
    return summary.exit_code


@app.command("layers")
def list_layers(
    model: Model,
    layers: Layers = None,
    exclude: Exclude = None,
    types: Types = None,
    size: Size = None,
    fit: Fit = None,
    json: Json = False,
) -> None:
    """List MODEL's layers in the order of execution, with shapes; no image and no weights are needed."""
    check_name(model)
    options = InputOptions.parse(size=size, fit=fit, mean=None, std=None)

    with loading():
        from fmapviz import listing, vision

    vision.never_compile()
    with results_only():
        rows = listing.list_layers(
            model, layers=layers or (), exclude=exclude or (), types=split(types or []), options=options
        )
    if not types and all(row.type.startswith("Conv3") for row in rows):
        say_error("notice: the model has no Conv2d layer: these are its Conv3d layers")
    if json:
        for row in rows:
            say_json({"event": "layer", **{field: getattr(row, field) for field in type(row).__slots__}})
        executed = sum(row.index is not None for row in rows)
        say_json({"event": "summary", "model": model, "layers": len(rows), "executed": executed, "exit_code": 0})
    else:
        say("\n".join(layer_table(rows)))


@app.command("models")
def list_models(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Part of a name, or a glob.", show_default=False)] = "",
) -> None:
    """List the names that can be given as MODEL."""
    names = known_names(pattern)
    if not names:
        raise RequestError(f"no model's name matches {quote(pattern)}", hint=suggest(pattern, known_names()))
    say("\n".join(names))


@app.command()
def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory of runs, a run, or one image's.")],
    hashed: Annotated[
        bool, typer.Option("--hash/--no-hash", help="Read every file, or compare sizes only.", rich_help_panel=_RUNNING)
    ] = True,
    json: Json = False,
) -> int:
    """Check that everything DIR claims to hold is there and whole, and nothing else; say what repairs it."""
    from fmapviz.verification import REMEDIES
    from fmapviz.verification import verify as look_through

    units = files = damaged = hidden = 0
    needed = set()
    for place in look_through(directory, hashed=hashed):
        units, files, damaged = units + 1, files + place.files, damaged + bool(place.problems)
        hidden += place.hidden
        for problem in place.problems:
            needed.add(problem.remedy)
            if json:
                fields = {"path": str(problem.path), "message": problem.message, "remedy": problem.remedy}
                say_json({"event": "problem", **fields})
            else:
                say(f"{printable(str(problem.path))}: {problem.message}")
    code = 3 if damaged else 0
    if json:
        counts = {"directories": units, "files": files, "damaged": damaged, "hidden": hidden}
        say_json({"event": "summary", **counts, "exit_code": code})
    elif damaged:
        say_error(f"{damaged} of {units} directories are not as they were made")
        for remedy, hint in REMEDIES.items():
            if remedy in needed:
                say_error(f"hint: {hint}")
    else:
        say(f"{units} directories, {files} files: all there and whole")
    if hidden and not json:
        say_error(
            f"notice: {hidden} hidden, of commands that still run or were killed: the next into the run removes the latter"
        )
    return code


@app.command()
def extract(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run made with --shard, or one of its shards.")],
    image: Annotated[str, typer.Option(metavar="NAME", help="The image: its name, path, or number.")],
    layer: Annotated[str, typer.Option(metavar="NAME", help="The layer; input is what the network was given.")],
    view: Annotated[_Text, typer.Option(metavar="NAME", help="Which view of it.", show_default="the only one")] = None,
    target: Annotated[
        _Text, typer.Option(metavar="top1|INT|NAME", help="Of which class.", show_default="the only one")
    ] = None,
    out: Annotated[
        _Text,
        typer.Option(metavar="FILE", help="Where to; - is standard output.", show_default="a name that tells, here"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
) -> None:
    """Get one picture back out of a shard, and say where it is now."""
    if find_spec("pyarrow") is None:
        raise RequestError("this needs one more package, pyarrow", hint="pip install 'fmapviz[scale]'")
    if out and (is_url(out) or is_unknown(out)):
        raise RequestError(f"a picture is written to this machine, not to {quote(out)}", hint="--out FILE, or - for a pipe")
    from fmapviz.extraction import extract as find
    from fmapviz.extraction import put

    found = find(directory, image=image, layer=layer, view=view, target=target)
    if out == "-":
        say_bytes(found.png)
        return
    path = Path(out or found.name)
    put(path, found.png, force=force)
    say(printable(str(path)))


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    leave(_main())


def _main() -> int:
    open_missing_streams()
    with signals_heeded(_part):
        try:
            return int(app(standalone_mode=False) or 0)
        except FmapvizError as error:
            show_error(error)
            return _summarize(error.exit_code, error)
        except typer.TyperException as error:
            wrong = _usage_error(error)
            show_error(wrong)
            return _summarize(2, wrong)
        except SystemExit as stop:  # the parser's own way out, with 1 where nobody listens to its help any more
            return 0 if stop.code in {None, 0, 1} else 2
        except Interrupted as interruption:
            return _end_with(interruption)
        except Exception as error:  # noqa: BLE001  a bug: shown whole, and --json still ends with a summary
            return _end_with(error)


def _end_with(error: BaseException) -> int:
    """End because of a signal, or of a bug."""
    for reason in (error, error.__cause__):  # what happens while a class is made, Python 3.11 wraps
        if isinstance(reason, Interrupted):
            remove_staged()
            return _part(reason)
    traceback.print_exception(error)
    return _summarize(1, error)


def _part(interruption: Interrupted) -> int:
    say_error("interrupted: what is finished stays, and the same command continues")
    return _summarize(128 + interruption.number, interruption)


def _summarize(code: int, error: BaseException) -> int:
    """End the output of `--json` as promised, also after an error."""
    if "--json" in sys.argv[1:]:
        hint = getattr(error, "hint", None)
        say_json({"event": "summary", "exit_code": code, "error": str(error) or type(error).__name__, "hint": hint})
    return code


def _usage_error(error: typer.TyperException) -> RequestError:
    """Say in our own form what the parser found wrong."""
    context = getattr(error, "ctx", None)
    command = context.info_name if context and context.parent else "run"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        near = ", ".join(error.possibilities or ())
        return RequestError(
            f"no such option: {quote(option)}",
            hint=f"did you mean {near}?" if near else f"fmapviz {command} --help lists them",
        )
    message = error.format_message().partition(", unable to parse")[0].rstrip(".")
    return RequestError(message[:1].lower() + message[1:], hint=f"fmapviz {command} --help")


def _check_model(spec: str) -> None:
    """Make sure that there is such a model, and think of a misspelt command where there is none."""
    try:
        check_name(spec)
    except RequestError as error:
        near = suggest(spec, ("layers", "models", "verify", "extract", "run"))
        if near:
            error.hint = f"{near} {error.hint or ''}".strip()
        raise


def _version(*, on: bool) -> None:
    if on:
        say(f"fmapviz {__version__}")
        raise typer.Exit


def _paths(inputs: Iterable[str], *, null: bool) -> Iterator[str]:
    """Give the paths typed, and in place of `-` those on standard input."""
    from fmapviz.inputs import read_list

    for path in inputs:
        if path != "-":
            yield path
            continue
        try:
            with open(0, "rb", closefd=False) as stream:
                yield from read_list(stream, null=null)
        except OSError as error:
            raise RequestError(f"cannot read paths from standard input: {error.strerror}") from error
