"""The nouns of a run: frozen values that travel from room to room."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image as PillowImage
    from torch import Tensor, nn

    from fmapviz.histograms import Histogram
    from fmapviz.options import Style
    from fmapviz.pixels import Bands
    from fmapviz.tiles import Tiles

Status = Literal["done", "skipped", "failed"]
Of = Literal["output", "input", "gradient", "input gradient", "weights"]


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An input as it was found, before anything is read.

    Attributes:
        path: Where it lies, absolute.
        unit: The name of its output directory, relative to the run directory, parts separated by `/`.
        size: Bytes.
        mtime_ns: Time of last modification, nanoseconds.
    """

    path: str
    unit: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that gave nothing, and why.

    Attributes:
        path: As found; may hold characters that no terminal should see.
        code: A stable word for scripts: `E_DECODE`, `E_MISSING`, ...
        message: One sentence.
        hint: What to do about it, or None.
        report: Where code of the user's own failed: its traceback; else None.
    """

    path: str
    code: str
    message: str
    hint: str | None = None
    report: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A module of a network under its dotted name.

    Attributes:
        name: The first path that `named_modules()` gives it.
        type: The name of its class.
        aliases: Other paths to the same module.
    """

    name: str
    type: str
    module: nn.Module
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One row of `fmapviz layers`.

    Attributes:
        index: Position of its first call in the order of execution, None if it did not run.
        shape: Of its first output, without the batch; None if it did not run.
        parameters: How many numbers it has learnt, those of its children included.
        calls: How often it ran in one forward pass.
        aliases: Other paths to the same module.
    """

    index: int | None
    name: str
    type: str
    shape: tuple[int, ...] | None
    parameters: int
    calls: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FeatureMap:
    """What one call of one layer returned.

    Attributes:
        layer: Which layer.
        call: Which call of it within the forward pass, from 1.
        index: Position in the order of execution among the hooked layers, from 0.
        part: Which tensor of a tuple or dict output: empty, `[0]`, `['out']`, ...
        values: The tensor the layer returned, `(N, C, H, W)` for a convolution, any range, on the model's device.
        passed_on: Whether that is what the layer was given, or a view of it.
        gradient: Of some score with respect to `values`, of the same shape; None if nobody asked for it, or the score does
            not depend on them.
    """

    layer: Layer
    call: int
    index: int
    part: str
    values: Tensor
    passed_on: bool = False
    gradient: Tensor | None = None

    @property
    def name(self) -> str:
        """The layer's name, with `#2` for its second call and the part of its output."""
        return f"{self.layer.name}{f'#{self.call}' if self.call > 1 else ''}{self.part}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `values`."""
        return tuple(self.values.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """How a picture becomes what the network is given.

    Attributes:
        apply: Turns a picture of so many channels into a float32 tensor `(C, H, W)`, or `(C, T, H, W)` for a clip.
        mean: What was subtracted, on a 0..1 scale: a number for each channel or one for all; empty if that is not known.
        std: What it was divided by, in the same form.
        description: One line for run.json and for people; equal lines mean equal preparation.
        channels: C, what the network takes.
    """

    apply: Callable[[PillowImage.Image | Bands], Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    description: str
    channels: int = 3


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A network, ready to run.

    Attributes:
        name: As the user asked for it.
        module: In whatever mode it came; capturing never changes it.
        weights: Where its weights come from: `IMAGENET1K_V1`, `random, seed 0`, a file's name.
        sha256: Of the weights file, None for random weights.
        preparation: What the weights were trained with.
        forward: Feeds the module a batch `(N, ...)` of prepared images in the form it expects.
        batches: Whether several images may go through in one forward pass.
        straight: Whether it is known that no convolution runs more than once in a forward pass.
        classes: What its outputs mean, in their order; empty if nobody knows.
        own: Whether it is code of the user's own, who wants to see where it fails.
        notices: What had to be decided while loading it, for the person to know.
    """

    name: str
    module: nn.Module
    weights: str
    sha256: str | None
    preparation: Preparation
    forward: Callable[[nn.Module, Tensor], object]
    batches: bool = True
    straight: bool = False
    classes: tuple[str, ...] = ()
    own: bool = False
    notices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and weights in one phrase, for every place where the model is named."""
        return f"{self.name} ({self.weights})"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class that a network sees in an image.

    Attributes:
        index: Its number among the classes.
        name: Its name.
        score: 0..1: its probability; of a segmentation the share of pixels; of a detector the score of its best box.
        of: What the score is, for people: empty for a probability, `of the pixels`, `in 2 boxes`.
    """

    index: int
    name: str
    score: float
    of: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """What `unit.json` and `--json` say of it."""
        return {"index": self.index, "class": self.name, "score": round(self.score, 4)}

    def __str__(self) -> str:
        """Say it in a few words.

        Example:
            >>> str(Prediction(3, "star", 0.9871)), str(Prediction(0, "sky", 0.25, "of the pixels"))
            ('star 98.7 %', 'sky 25.0 % of the pixels')
        """
        return f"{self.name} {self.score:.1%}".replace("%", " %") + f"{self.of and ' '}{self.of}"


@dataclass(frozen=True, slots=True)
class Target:
    """The class that a gradient or a heat map of one image is about.

    Attributes:
        label: What it was asked for as, the same for all images: `top1`, `class3`, `star`.
        index: Its number among the classes.
        name: Its name, empty if nobody knows.
        score: What is differentiated, before any softmax: a classifier's logit; of a segmentation the mean of the class's
            logits over the pixels where it wins; of a detector the score of its best box.
    """

    label: str
    index: int
    name: str
    score: float

    @property
    def title(self) -> str:
        """What to call the class in front of people."""
        return self.name or f"class {self.index}"

    @property
    def record(self) -> dict[str, Any]:
        """What `unit.json` says of it."""
        score = self.score if isfinite(self.score) else None
        return {"target": self.label, "class": self.index, "class_name": self.name or None, "score": score}


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the values of one feature map of one image are like, before anything is scaled.

    Attributes:
        minimum: Smallest finite value, None if there is none.
        maximum: Largest finite value, None if there is none.
        mean: Of the finite values, None if there is none.
        constant: Channels whose values are all the same; empty for maps of a single pixel.
        nonfinite: How many values are NaN or infinite.
    """

    minimum: float | None
    maximum: float | None
    mean: float | None
    constant: tuple[int, ...]
    nonfinite: int


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """What the values of each channel of one feature map of one image are like; of all its samples, if there are several.

    Attributes:
        values: How many there are in each channel.
        low: Smallest finite value of each channel, float32 `(C)`; NaN where there is none.
        high: Largest finite value, likewise.
        mean: Of the finite values, likewise.
        std: Their standard deviation, divided by their number, likewise.
        zeros: How many are exactly zero, integers `(C)`.
        nonfinite: How many are NaN or infinite, integers `(C)`.
    """

    values: int
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    zeros: NDArray[np.int64]
    nonfinite: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The values of one feature map of one image, as the layer has them.

    Attributes:
        layer: The feature map's name.
        type: The layer's class.
        call: Which call of the layer, from 1.
        index: Position in the order of execution.
        of: What they are of the layer.
        values: float32 or float16, of any shape, without the batch if that was one.
        dtype: What they were: `float32`, `bfloat16`, ...
        target: Of a gradient the class whose score was differentiated, else None.
        overflows: How many finite values were too large for float16, and are infinite now.
    """

    layer: str
    type: str
    call: int
    index: int
    of: Of
    values: NDArray[Any]
    dtype: str
    target: Target | None = None
    overflows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """What one view made of one feature map of one image.

    Attributes:
        view: Its name.
        layer: The feature map's name, `layer1.0.relu#2`; `.t03` at the end for a frame of a clip.
        type: The layer's class.
        call: Which call of the layer, from 1.
        index: Position in the order of execution.
        shape: What the layer returned for one image, without the batch.
        pixels: uint8 `(H, W)` or `(H, W, 3)`; without any if nothing was to be drawn, or it is a histogram.
        channels: The channels shown, in the order of the tiles; None for all.
        samples: How many samples the layer saw for this one image, such as regions of a detector; the first is drawn.
        of: What is drawn of the layer.
        target: Of a gradient the class whose score was differentiated, else None.
        tiles: Where its tiles lie, None if it has none.
        measures: What its channels are like, all of them, if that was asked for.
        histogram: How often which values occur, if that is what the view shows.
        limits: What the ends of the scale stand for; None where each channel has its own, or no value is finite.
        everything: All channels of the layer, float32 `(N, C, h, w)` of N samples, if that was asked for.
        vector: Whether it is one number per channel, drawn as bars.
        broken: Of all channels in the colours of their principal components, places with a value that is NaN or infinite;
            None for every other drawing.
    """

    view: str
    layer: str
    type: str
    call: int
    index: int
    shape: tuple[int, ...]
    pixels: NDArray[np.uint8]
    statistics: Statistics
    channels: tuple[int, ...] | None = None
    samples: int = 1
    of: Of = "output"
    target: Target | None = None
    tiles: Tiles | None = None
    measures: Measures | None = None
    histogram: Histogram | None = None
    limits: tuple[float, float] | None = None
    everything: NDArray[np.float32] | None = None
    vector: bool = False
    broken: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Where in one image something speaks for a class, or all channels of a layer put together.

    Attributes:
        view: The view that it belongs to.
        layer: The feature map's name; empty if the map is of the network's input itself.
        type: The layer's class.
        index: Position in the order of execution among the layers looked at.
        shape: What the layer returned for one image, without the batch.
        target: Which class; None for a view that knows no classes.
        raw: float32 `(h, w)`, signed, at the layer's resolution.
        pixels: uint8 `(H, W)`, at the input's resolution: the positive part of `raw`, from its minimum to its maximum; of
            channels put together all of it.
        automatic: Whether the layer was chosen automatically.
        over: Whether it is to be laid over the input.
        reduced: Whether it is all channels of a layer put together.
        limits: Of those, what the ends of the scale stand for; NaN if no value is finite.
        nonfinite: Of those, how many of their values are NaN or infinite, and were left out.
    """

    view: str
    layer: str
    type: str
    index: int
    shape: tuple[int, ...]
    target: Target | None
    raw: NDArray[np.float32]
    pixels: NDArray[np.uint8]
    automatic: bool = False
    over: bool = True
    reduced: bool = False
    limits: tuple[float, float] | None = None
    nonfinite: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see: no positive value, or the same one everywhere."""
        return not bool(self.pixels.any())


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Everything that was drawn of one image.

    Attributes:
        drawings: In the order of execution.
        not_executed: Chosen layers that did not run.
        undrawn: Layers that ran but gave no picture, with the reason.
        predictions: What the network sees in the image, the likeliest class first; empty if that was not asked.
        heats: Heat maps; those of one sheet in the order of its rows.
        notices: What a person should know to read the pictures.
        remarks: What is true of the network, and so of every image.
        kept: The values themselves, if those were asked for.
    """

    drawings: tuple[Drawing, ...]
    not_executed: tuple[str, ...]
    undrawn: Mapping[str, str]
    predictions: tuple[Prediction, ...] = ()
    heats: tuple[HeatMap, ...] = ()
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing came of it."""
        return not (self.drawings or self.heats or self.kept)

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        pixels = sum(drawing.pixels.nbytes for drawing in self.drawings) + sum(heat.pixels.nbytes for heat in self.heats)
        whole = sum(drawing.everything.nbytes for drawing in self.drawings if drawing.everything is not None)
        return pixels + whole + sum(each.values.nbytes for each in self.kept)


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An encoded picture and what it shows.

    Attributes:
        group: The view that drew it, or `input`.
        name: Index and layer, `00 features.0`; sorts in the order of execution.
        png: The file, complete.
        width: Pixels.
        height: Pixels.
        facts: What it shows, in words: layer, type, shape, range, scaling, model, weights.
        title: What people are told it is, where that is more than `name`.
        source: What it was made of; None for the input and for sheets.
        tiles: Where its tiles lie, None if it has none.
    """

    group: str
    name: str
    png: bytes
    width: int
    height: int
    facts: Mapping[str, str]
    title: str = ""
    source: Drawing | HeatMap | None = None
    tiles: Tiles | None = None

    @property
    def tag(self) -> str:
        """Its name in TensorBoard: `maps/00 features.0`."""
        return f"{self.group}/{self.name}"

    @property
    def file_name(self) -> str:
        """Its name as a file: `00_features.0.maps.png`, safe whatever the layer is called.

        Example:
            >>> Picture("maps", "03 ../a b", b"", 1, 1, {}).file_name
            '03_..%2Fa%20b.maps.png'
        """
        number, _, layer = self.name.partition(" ")
        stem = "".join(ch if ch.isascii() and (ch.isalnum() or ch in "._-#[]'") else _percent(ch) for ch in layer)
        if len(stem) > 180:  # file systems allow 255 bytes
            stem = f"{stem[:160]}~{hashlib.sha256(layer.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
        return f"{number}_{stem}.{self.group}.png" if stem else f"{number}.png"

    def _repr_png_(self) -> bytes:
        """Show itself in a notebook."""
        return self.png


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is to be written of one image.

    Attributes:
        file: Which image.
        drawn: Everything that was drawn of it.
        notices: What a person should know about it.
        info: The run's settings.
    """

    file: ImageFile
    drawn: Drawn
    notices: tuple[str, ...]
    info: RunInfo


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What was asked for: everything that decides how the pictures look, and what is said of them.

    Two runs with the same fingerprint may share a directory.

    Attributes:
        top: How many classes are predicted per image.
        targets: The classes that gradients are asked of, as the user wrote them; empty: each view's own.
        output: Which part of what the network returns holds the class scores; None: whichever it must be.
        dtype: What values are kept as, `float32` or `float16`.
        shard: How many images share a directory; None: each has its own.
    """

    model: str
    weights: str
    sha256: str | None
    preparation: str
    types: tuple[str, ...]
    layers: tuple[str, ...]
    exclude: tuple[str, ...]
    views: tuple[str, ...]
    formats: tuple[str, ...]
    style: Style
    top: int = 0
    targets: tuple[str, ...] = ()
    output: str | None = None
    dtype: str = "float32"
    shard: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """Name and weights in one phrase, for every place where the model is named."""
        return f"{self.model} ({self.weights})"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; versions are not among them."""
        settings = asdict(self)
        del settings["versions"]
        return settings

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that are equal exactly when the settings are."""
        canonical = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Started:
    """Event: the run directory is there and images are about to be read."""

    directory: Path
    info: RunInfo


@dataclass(frozen=True, slots=True)
class Outcome:
    """Event: one input is accounted for.

    Attributes:
        unit: Its output directory, None if it failed.
        failure: Why it failed, else None.
        notices: What had to be decided about it.
        pictures: How many were written.
        seconds: From the beginning of the forward pass to the finished directory.
        predictions: What the network sees in it, the likeliest class first.
        bytes: How much was written of it.
    """

    path: str
    status: Status
    unit: Path | None = None
    failure: Failure | None = None
    notices: tuple[str, ...] = ()
    pictures: int = 0
    seconds: float = 0.0
    predictions: tuple[Prediction, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Event: something about the whole run that the person should know."""

    message: str


@dataclass(frozen=True, slots=True)
class Staged:
    """Event: an image is drawn and written, and done as soon as its whole shard is.

    Attributes:
        path: Which image.
        bytes: How much was written of it.
    """

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Event: it is known how many inputs there are.

    Attributes:
        images: How many, of all parts together divided by their number.
    """

    images: int


Event = Started | Counted | Outcome | Notice | Staged


@dataclass(frozen=True, slots=True)
class RunSummary:
    """How a run ended; `done + skipped + failed == found`.

    Attributes:
        directory: The run directory.
        pictures: How many were written in this run.
        layers: Feature maps drawn per image, as seen on the last image.
        not_executed: Chosen layers that no image reached.
        undrawn: Layers that ran but gave no picture, with the reason.
        failures: The inputs that failed.
        seconds: From the first image to the last.
        complete: Whether there is something even if there is no image.
        stopped: Whether `strict` ended the run at a failure, so that nobody knows of the others.
        dead: With the format `stats`, of each feature map how many channels never vary, how many are constant on every
            image, those among them, and how many there are.
        left_out: Directories of images that are in no statistics, because what they keep is damaged.
    """

    directory: Path
    found: int
    done: int
    skipped: int
    failed: int
    pictures: int
    layers: int
    not_executed: tuple[str, ...]
    undrawn: Mapping[str, str]
    failures: tuple[Failure, ...]
    seconds: float
    complete: bool = False
    stopped: bool = False
    dead: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    left_out: tuple[Path, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when everything is there, 3 when some inputs failed or were left out, 4 when there is nothing."""
        if not self.done + self.skipped:
            return 0 if self.complete else 3 if self.stopped else 4
        return 3 if self.failed or self.left_out else 0


def _percent(ch: str) -> str:
    return "".join(f"%{byte:02X}" for byte in ch.encode("utf-8", "surrogatepass"))
