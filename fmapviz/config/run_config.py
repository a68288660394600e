"""All options of a run: what to draw, and where and how to store and execute it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fmapviz.config.changes import Changes, changes_of
from fmapviz.config.checks import (
    SCORES,
    check_confidence,
    check_number,
    check_scores,
    check_types,
    check_weights,
    check_word,
)
from fmapviz.config.execution import Execution
from fmapviz.config.frame_range import parse_frames
from fmapviz.config.input_options import InputOptions
from fmapviz.config.options import CHOOSE, COMMON, INPUT, STORING, Option, option, options_of, split
from fmapviz.config.own import find_own
from fmapviz.config.style import Style
from fmapviz.core import registry
from fmapviz.core.urls import expand_home, is_path, is_url
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from fmapviz.core.members import View

_common = partial(option, panel=COMMON)
_choice = partial(option, panel=CHOOSE)
_input = partial(option, panel=INPUT)
_output = partial(option, panel=STORING)
_MODEL = "A name such as `alexnet`, a `nn.Module` that takes a batch `(N, C, H, W)`, or a `Model`."
_INPUTS = (
    "Files and folders, or their addresses; pictures of Pillow, NumPy arrays and tensors; or a list of these. A uint8 array "
    "`(H, W, C)` or tensor `(C, H, W)` is a picture, a tensor of floats `(N, C, H, W)` is prepared already."
)
_ITERATOR = (
    "An iterator is read as it yields, or at once if the norm `run` or the pca "
    "`shared` needs all images first. Views of the model alone need no input."
)
_DTYPES = ("float32", "float16")
_VIEWS = tuple(view.name for each in registry.contributions() for view in each.views if view.networks == 1)
_FORMATS = ("tensorboard", "png", "html", "mp4", "gif", "stats", "raw", "npz", "tar")
_LARGEST_SHARD = 100_000  # images; a killed run loses its unfinished shards


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What to draw and store: weights, layers, views, formats, classes, frames of films."""

    weights: Any = _common(  # Any: see `fmapviz.types.Weights`; that package builds on this one
        "default",
        "Weights to load: default, a published entry, random, random:SEED, a checkpoint; never falls back to others.",
        "In Python also a member of torchvision's enumerations, or a state dict. For models given by name only; see "
        "`fmapviz.load_model`.",
        metavar="NAME|FILE|URL",
        shown="default",
        parse=str,
        words=("default", "random"),
    )
    layers: Sequence[str] = _common(
        (),
        "Only layers whose name matches: layer4.1, 'layer4.*', or head of a detector.",
        "A name without wildcards is taken whatever its type is; head: the layers that a detector's head reads.",
        metavar="GLOB,...",
        shown="all",
        commas=True,
        recorded="layers",
    )
    exclude: Sequence[str] = _choice((), "Leave these layers out.", metavar="GLOB,...", commas=True, recorded="exclude")
    types: Sequence[str] = _common(
        (),
        "Classes of layers, with their subclasses: Linear, ReLU, Block.",
        metavar="NAME,...",
        shown="Conv2d, else Conv3d; blocks of transformers",
        commas=True,
        recorded="types",
    )
    views: Sequence[str] = _common(
        ("maps",),
        "What to draw; my_view.py:energy is a view of your own.",
        "In Python also the function or object itself, see the page own-views of the guide. Without `layers`, `exclude` and "
        "`types`, the layers of heat maps are chosen automatically. Without `types`, a glob that matches no layer of the "
        "default types may match any other.",
        flag="--view",
        metavar="NAME,...",
        shown="maps",
        words=_VIEWS,
        family="view",
        commas=True,
        recorded="views",
    )
    to: Sequence[str] = _common(
        ("tensorboard",),
        "Output formats; my_format.py:Csv is a format of your own.",
        "In Python also the class itself, as the page own-formats of the guide says.",
        metavar="NAME,...",
        shown="tensorboard",
        words=_FORMATS,
        family="format",
        commas=True,
        recorded="formats",
    )
    predictions: int | None = _choice(
        None,
        "Number of predicted classes to report per image.",
        "0 ends the forward pass after the last chosen layer.",
        metavar="N",
        shown="3 if class names are known; 0 with layers or exclude",
        recorded="predictions",
    )
    targets: str | int | Sequence[str | int] = _common(
        (),
        "Classes whose scores are differentiated: names, indices, or top3 for the three likeliest; also box1, dog@X,Y.",
        "Separated by commas in one text.",
        flag="--target",
        metavar="CLASS,...",
        shown="top1; top3 on a sheet",
        recorded="targets",
    )
    output: str | None = _choice(
        None,
        "Key or index of the class scores in the model's output.",
        metavar="KEY|INDEX",
        shown="its only tensor, out or logits",
        recorded="output",
    )
    scores: str | None = _choice(
        None,
        "Kind of the outputs: logits of exclusive classes (softmax), of independent ones or of two (sigmoid), of "
        "thresholds (ordinal), or quantities (value, value:UNIT).",
        metavar="KIND",
        shown="by the network, else softmax",
        words=SCORES,
        recorded="scores",
    )
    confidence: float | None = _choice(
        None,
        "Lowest score of a detector's boxes, from 0 to 1.",
        metavar="SCORE",
        shown="that of the network's own post-processing",
        recorded="confidence",
    )
    dtype: str = _choice(
        "float32", "Type of the values that the formats raw and npz store.", words=_DTYPES, recorded="dtype"
    )
    every: int = _input(1, "Take every N-th frame of each film.", metavar="N")
    frames: str | None = _input(
        None,
        "Take a part of each film: frames A:B, from A to before B; 0:100, 50:.",
        "With `every`, the first one is A.",
        metavar="A:B",
        shown="all",
    )


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where and how results are stored."""

    out: str | Path = option(
        "runs", "Directory of all runs; or its address, such as s3://BUCKET/DIR.", panel=COMMON, metavar="DIR"
    )
    name: str | None = _output(
        None,
        "Name of this run's directory.",
        "The default gets a number if a run with other settings has that name.",
        metavar="NAME",
        shown="the model's name",
    )
    single_file: bool = _output(False, "Put the pictures into the report: one file to mail, at most 18 MB.")
    fsync: bool = _output(False, "Wait until each image is on the disk, safe from a power failure.")
    shard: int | None = _output(
        None,
        "Images per directory, 1 to 100,000. Needs the extra scale.",
        metavar="N",
        shown="a directory for each image",
        recorded="shard",
    )


@dataclass(frozen=True, kw_only=True)
class RunConfig(Execution, Output, Changes, Selection):
    """All options of a run, which are the parameters of `fmapviz.visualize`.

    Lists accept any iterable or one text with commas, and are stored as tuples of strings.

    Raises:
        RequestError: An option is out of range, or names an unknown view or format.
    """

    # Any: a name, a `torch.nn.Module` or a `fmapviz.types.Model`; `fmapviz.types.Inputs`.
    model: Any = field(kw_only=False, metadata={"option": Option(help=_MODEL)})
    inputs: Any = field(default=(), kw_only=False, metadata={"option": Option(help=_INPUTS, details=_ITERATOR)})
    style: Style = option(Style(), "How pictures look.", recorded="style")
    preprocessing: InputOptions = option(InputOptions(), "Changes to the preprocessing of the weights.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", find_own("view", self.views))
        object.__setattr__(self, "to", find_own("format", self.to))
        check_types(self)
        check_weights(self.weights)
        for name in ("layers", "exclude", "types"):
            object.__setattr__(self, name, split(getattr(self, name)))
        object.__setattr__(self, "out", expand_home(self.out))
        if not is_path(str(self.out)):
            raise RequestError(f"no path can hold this: {quote(self.out)}", hint="a directory, such as 'runs'")
        targets = [self.targets] if isinstance(self.targets, str | int) else self.targets
        object.__setattr__(self, "targets", tuple(map(str, targets)))
        if not self.views:
            raise RequestError("no view given", hint=f"one of {', '.join(registry.offered_views())}")
        views = [registry.view(name) for name in self.views]
        pair = any(view.networks == 2 for view in views)
        if not self.to:
            raise RequestError("no format given", hint=f"one of {', '.join(registry.offered_formats(pair=pair))}")
        for name in self.to:
            registry.form(name, registry.offered_formats(pair=True) if pair else None)
        check_number("predictions", self.predictions, "at least 0", least=0)
        check_confidence(self.confidence)
        changes_of(self)
        check_number("batch size", self.batch_size)
        check_number("every", self.every)
        parse_frames(self.frames or ":")
        check_number("workers", self.workers)
        check_number("workers", self.workers, "at most 1024", most=1024)
        _check_shards(self.shard, self.to)
        check_word("dtype", self.dtype, _DTYPES)
        check_scores(self.scores)
        self._check_place()
        self._check_anchor(views)

    def _check_anchor(self, views: Sequence[View]) -> None:
        start = self.style.start
        for view in views:
            if view.anchor == "position" and (start is None or start.at is None):
                needed, other = "a position", "an image"
                hint = "Style(anchor='112,80'): row and column in the input; Style(anchor='a.jpg:112,80'): in one image"
            elif view.anchor == "image" and (start is None or not start.image):
                needed, other = "an image to compare with", "a position"
                hint = "Style(anchor='photo.jpg'): one of the inputs; Style(anchor='photo.jpg:112,80'): a position in it"
            else:
                continue
            typed = f", not only {other}: {quote(self.style.anchor)}" if start else ""
            raise RequestError(f"{view.name} needs {needed}{typed}", hint=hint)

    def _check_place(self) -> None:
        pages = registry.pages()
        if self.single_file and pages.keys().isdisjoint(self.to):
            raise RequestError("a single file needs a report", hint=f"to={next(iter(pages))!r}")
        if self.single_file and is_url(self.out):
            raise RequestError(
                "a single file needs a local directory", hint="out=DIR; the page of a remote run has its pictures beside it"
            )

        local = next((form for form in self.to if registry.form(form).local), None)
        if local and is_url(self.out):
            hint = "out=DIR; the pictures of a remote run are not kept here"
            raise RequestError(f"the format {quote(local)} needs a local directory", hint=hint)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets, as text."""
        return cast("tuple[str, ...]", self.targets)

    @property
    def frame_range(self) -> tuple[int, int | None]:
        """The numbers of the first frame of each film, and of the frame after the last one; None is the end of the film."""
        return parse_frames(self.frames or ":")

    @property
    def needs_images(self) -> bool:
        """True if a view needs images, and not only the model."""
        return any(registry.view(view).images for view in self.views)

    @property
    def settings(self) -> dict[str, Any]:
        """The options that change pictures, as plain values; `run.json` stores them."""
        recorded = {each.recorded: getattr(self, name) for name, each in options_of(RunConfig).items() if each.recorded}
        return {**recorded, "style": {name: getattr(self.style, name) for name in options_of(Style)}}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The identity of a run: two runs with the same fingerprint may share a directory.

    Attributes:
        model: Name of the model.
        weights: Source of its weights: `IMAGENET1K_V1`, `random weights, seed 0`, the name of a file.
        sha256: Checksum of the weights file; None for random weights.
        preparation: The preprocessing, in one line.
        config: The configuration, with defaults resolved.
        code: Checksums of the code of the user's own views and formats, by name.
        versions: Versions of fmapviz, Python and libraries; not part of the fingerprint.
        request: Further values that loading the same network and preprocessing need, as JSON values.
        against: The other network of a comparison, as JSON values; else empty.
        images: Checksums of the images that an option names, by option.
        settings: Everything that changes pictures, as JSON values.
        fingerprint: Sixteen hexadecimal digits that are equal if and only if the settings are.
        label: Model and weights, for people.
    """

    model: str
    weights: str
    sha256: str | None
    preparation: str
    config: RunConfig
    code: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    request: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    against: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)

    settings: dict[str, Any] = field(init=False, compare=False, repr=False)
    fingerprint: str = field(init=False, compare=False, repr=False)
    label: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        named = {"model": self.model, "weights": self.weights, "sha256": self.sha256, "preparation": self.preparation}
        settings = {**named, **({"against": dict(self.against)} if self.against else {}), **self.config.settings}
        settings |= {"code": dict(self.code)} if self.code else {}
        settings |= {"images": dict(self.images)} if self.images else {}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "settings", json.loads(json.dumps(settings)))  # equal to those that are read back
        object.__setattr__(self, "fingerprint", digest[:16])
        object.__setattr__(self, "label", f"{self.model} ({self.weights}){self._describe_other()}")

    def _describe_other(self) -> str:
        """Describe the other network of a comparison; empty if there is none."""
        other = self.against
        if not other:
            return ""
        if other.get("series"):
            return f" against the {other['reference']}"
        same = other.get("model") == self.model
        return f" against {other.get('weights')}" if same else f" against {other.get('model')} ({other.get('weights')})"


def _check_shards(shard: int | None, formats: Iterable[str]) -> None:
    if shard is None:
        return
    check_number("shard", shard, f"1 to {_LARGEST_SHARD} images", most=_LARGEST_SHARD)
    for form in map(registry.form, formats):
        if not form.many:
            together = ", ".join(name for name, each in registry.formats().items() if each.many)
            hint = f"shard= supports {together}{', and a class with many = True' if form.own else ''}"
            raise RequestError(f"the format {quote(form.name)} does not support shards", hint=hint)
    if find_spec("pyarrow") is None:
        raise RequestError("shards need the package pyarrow", hint="pip install 'fmapviz[scale]'")
