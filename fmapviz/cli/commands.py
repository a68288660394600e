"""The commands, without their code: what `fmapviz -h` lists and where each one is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from fmapviz.core import registry
from fmapviz.core.members import Subcommand

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETING = "_FMAPVIZ_COMPLETE"  # an environment variable: the shell whose script asks for values

_RUN = Subcommand(
    name="run",
    help="Draw the layers of a model; `fmapviz MODEL INPUT...` is short for it.",
    function="fmapviz.cli.run:run",
    examples=(
        ("fmapviz shapesnet photo.jpg --open", "a first report; this network needs no download"),
        ("fmapviz resnet18 photos --layers 'layer4.*' --to png", "PNG files of some layers, for all photos"),
        ("fmapviz my_net.py:build photos --weights last.ckpt --plan", "your own network: estimate size and time"),
    ),
)
_ABOUT_MODELS = (
    Subcommand(
        name="layers",
        help="List the layers of a model, with shapes; needs no image and no weights.",
        function="fmapviz.cli.layers:list_layers",
        examples=(
            ("fmapviz layers resnet18", "its convolutions, in the order of execution"),
            ("fmapviz layers vit_b_16 --types Linear", "layers of another type"),
            ("fmapviz layers my_net.py:build --size 96", "your own network, with inputs of 96 x 96 pixels"),
            ("fmapviz layers resnet18 --receptive-field", "the input pixels that a position depends on"),
        ),
    ),
    Subcommand(
        name="models",
        help="List the names of models.",
        function="fmapviz.cli.models:list_models",
        examples=(
            ("fmapviz models", "all names that need no prefix"),
            ("fmapviz models resnet", "those that contain a word"),
            ("fmapviz models 'vgg*_bn'", "those that match a glob"),
        ),
    ),
)
_ABOUT_RUNS = (
    Subcommand(
        name="report",
        help="Find the report of a run, or write a page of two runs.",
        function="fmapviz.cli.report:report",
        examples=(
            ("fmapviz report runs/shapesnet --open", "the report of a run, in the browser"),
            ("fmapviz report runs/resnet18 runs/resnet18-2 --open", "two runs beside each other"),
        ),
    ),
    Subcommand(
        name="runs",
        help="List the runs of a directory, or remove some.",
        function="fmapviz.cli.runs:runs",
        examples=(
            ("fmapviz runs", "the runs in ./runs: sizes, states, settings"),
            ("fmapviz runs experiments", "those of another directory"),
            ("fmapviz runs remove resnet18-2 --yes", "remove one, without asking"),
        ),
    ),
    Subcommand(
        name="verify",
        help="Check that the files of runs are complete and unchanged, or drawn right.",
        function="fmapviz.cli.verify:verify",
        examples=(
            ("fmapviz verify runs", "all runs of a directory, by their checksums"),
            ("fmapviz verify runs/resnet18 --no-hash", "one run, by the sizes of its files: fast"),
            ("fmapviz verify runs/resnet18 --redraw 1%", "draw a sample of the images again, and compare"),
            ("fmapviz verify runs/resnet18 -q", "its digest, one line to cite it by"),
        ),
    ),
    Subcommand(
        name="rerun",
        help="Draw a run again from its records, and compare the digests.",
        function="fmapviz.cli.rerun:rerun",
        examples=(
            ("fmapviz rerun runs/resnet18", "the same images again, into runs/resnet18-rerun"),
            ("fmapviz rerun their-run/run.json --plan", "what a record asks for: size and time"),
        ),
    ),
    Subcommand(
        name="extract",
        help="Write one picture of a run with shards to a file.",
        function="fmapviz.cli.verify:extract",
        examples=(
            ("fmapviz shapesnet photos --shard 100 --to tar --name packed", "first: pack images, 100 per archive"),
            ("fmapviz extract runs/packed --image photo.jpg --layer features.0.conv", "one picture of it, as PNG"),
        ),
    ),
)
_ABOUT_FMAPVIZ = (
    Subcommand(
        name="guide",
        help="List the pages of the guide, or show one.",
        function="fmapviz.cli.guide:guide",
        examples=(
            ("fmapviz guide", "all pages, with a sentence each"),
            ("fmapviz guide weights", "one page"),
            ("fmapviz guide E_DECODE", "the code of a failed input"),
            ("fmapviz guide --layers", "an option"),
        ),
    ),
    Subcommand(
        name="help",
        help="Show all options of a command, or a page of the guide.",
        function="fmapviz.cli.guide:show_help",
        examples=(
            ("fmapviz help", "all commands"),
            ("fmapviz help run", "all options of a run"),
        ),
    ),
    Subcommand(
        name="completion",
        help="Complete commands, options, models and layers in the shell.",
        function="fmapviz.cli.completion:completion",
        examples=(
            ("fmapviz completion --install", "install it for the current shell"),
            ("fmapviz completion zsh", "print the script of a shell"),
        ),
    ),
)


@cache
def commands() -> Mapping[str, Subcommand]:
    """Return all commands by their names, in the order in which help lists them."""
    of_features = [example for each in registry.contributions() for example in each.examples]
    run = replace(_RUN, examples=(*_RUN.examples, *of_features))
    return {each.name: each for each in (run, *_ABOUT_MODELS, *registry.commands().values(), *_ABOUT_RUNS, *_ABOUT_FMAPVIZ)}
