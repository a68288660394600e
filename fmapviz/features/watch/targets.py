"""Targets for the pictures of a training: the user's writer, or a run."""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image as PillowImage

from fmapviz.core.drawings import Histogram
from fmapviz.core.file_names import FILMSTRIP, FILMSTRIP_FILE, STEP, event_tag
from fmapviz.core.files import writing_to
from fmapviz.core.urls import expand_home, is_path, is_url
from fmapviz.data import Picture
from fmapviz.draw.histogram import bin_edges
from fmapviz.draw.png import encode
from fmapviz.errors import OutputError, RefusedError, RequestError, quote
from fmapviz.run.model_views import KIND as MODEL_KIND
from fmapviz.run.model_views import UNIT as MODEL_UNIT
from fmapviz.run.publish import Publisher
from fmapviz.run.units import write_unit
from fmapviz.store.remote.destination import LocalDestination
from fmapviz.store.run import marked
from fmapviz.store.unit_key import UnitKey, image_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fmapviz.features.watch.drawing import DrawnStep
    from fmapviz.features.watch.event_log import EventLog
    from fmapviz.run.session import Session

    class SummaryWriter(Protocol):
        """The methods that a watch calls of the `SummaryWriter` of PyTorch, tensorboardX or Lightning."""

        # Any: each has types of its own.
        def add_image(self, tag: str, img_tensor: Any, global_step: int, *, dataformats: str) -> Any:
            """Add a picture, uint8 `(H, W)` or `(H, W, 3)` as `dataformats` says."""

        def add_scalar(self, tag: str, scalar_value: Any, global_step: int) -> Any:
            """Add a number."""

    Film = tuple[str, str, NDArray[np.uint8]]  # number and name of the feature map, image, pixels

RUN = "fmapviz"
_STEP = STEP.partition("{")[0]


class WriterTarget:
    """Adds pictures to a `SummaryWriter`.

    Args:
        writer: It stays open at the end.
        name: Begins all tags; empty for none.

    Attributes:
        folder: Its directory, None if unknown.
    """

    def __init__(self, writer: SummaryWriter | EventLog, name: str = "") -> None:
        self._name = name
        found = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
        self.folder = Path(found) if isinstance(found, str | Path) and found and not is_url(str(found)) else None
        self._writer: Any = writer
        self._inputs: set[str] = set()  # that were added

    @property
    def filmstrip_file(self) -> Path | None:
        """The file of small maps."""
        name = f"{self._name}.{FILMSTRIP_FILE}" if self._name else FILMSTRIP_FILE
        return self.folder / name if self.folder and os.path.isdir(self.folder) else None

    @property
    def place(self) -> object:
        """The identity of the tags; two targets with equal places would overwrite each other."""
        return os.path.realpath(self.folder) if self.folder else id(self._writer), self._name

    def steps_of(self, _images: Sequence[str]) -> set[int]:
        """Return nothing: the pictures of an earlier training are not read."""
        return set()

    def renamed(self, name: str) -> WriterTarget:
        """Return the same writer under another name."""
        return WriterTarget(self._writer, name)

    def write(self, step: int, drawn: Sequence[DrawnStep], weights: Sequence[Picture], numbers: Mapping[str, float]) -> None:
        """Add the results of one step; an input is equal at all steps and added once."""
        for each in drawn:
            name = each.file.unit
            for picture in each.pictures:
                if picture.layer is None and picture.group == "input":
                    if name in self._inputs:
                        continue
                    self._inputs.add(name)
                self._add(tag_of(picture, name), picture, step)
        for picture in weights:
            self._add(tag_of(picture), picture, step)
        for tag, value in numbers.items():
            self._writer.add_scalar(self._tag(tag), value, step)

    def write_films(self, step: int, films: Sequence[Film]) -> None:
        """Add filmstrips."""
        for layer, image, pixels in films:
            height, width = pixels.shape
            self._add_png(f"film/{layer}/{image}", encode(pixels, _facts(layer)), (height, width), step)
        self.flush()

    def flush(self) -> None:
        """Write the added events."""
        if flush := getattr(self._writer, "flush", None):
            flush()

    def _tag(self, text: str) -> str:
        return event_tag(f"{self._name}/{text}" if self._name else text)

    def _add_png(self, tag: str, png: bytes, size: tuple[int, int], step: int) -> None:
        """Add a picture as an encoded file if the writer accepts one; `add_image` would encode it again."""
        tag = self._tag(tag)
        if add_summary := _takes_summaries(self._writer):
            from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415  as heavy as TensorBoard

            shown = Summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=png)
            add_summary(Summary(value=[Summary.Value(tag=tag, image=shown)]), step)
            return
        with PillowImage.open(io.BytesIO(png)) as image:
            pixels = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        self._writer.add_image(tag, pixels, step, dataformats="HW" if pixels.ndim == 2 else "HWC")

    def _add(self, tag: str, picture: Picture, step: int) -> None:
        self._add_png(tag, picture.png, (picture.height, picture.width), step)
        content = picture.drawing.content if picture.drawing else None
        add_histogram = getattr(self._writer, "add_histogram_raw", None)
        if isinstance(content, Histogram) and add_histogram and content.counts.sum():
            edges, counts = bin_edges(content), content.counts
            middles = (edges[1:] + edges[:-1]) / 2
            add_histogram(
                self._tag(f"values/{tag.partition('/')[2]}"),
                min=float(edges[0]),
                max=float(edges[-1]),
                num=int(counts.sum()),
                sum=float((middles * counts).sum()),
                sum_squares=float((middles**2 * counts).sum()),
                bucket_limits=edges[1:].tolist(),
                bucket_counts=counts.tolist(),
                global_step=step,
            )


class RunTarget:
    """Writes a run with a report and a TensorBoard event file; its units are the images at each step.

    Args:
        out: The directory of all runs of the training.
        session: What is drawn.
        name: Name of the run.

    Raises:
        OutputError: It cannot be written.
        RefusedError: There is a run with other settings.
    """

    def __init__(self, out: str | Path, session: Session, name: str = RUN) -> None:
        if is_url(str(out)):
            raise RequestError(f"no local directory: {quote(out)}", hint="a path, or a SummaryWriter that writes there")
        if not is_path(str(out)):
            raise RequestError(f"no path can hold this: {quote(out)}", hint="a directory, such as out='runs/mine'")
        destination = LocalDestination(Path(expand_home(out)).absolute())  # the training may change its directory
        try:
            destination.check()
            self.folder = destination.open_run(session.info, name=name, sync=False)
        except (OutputError, RefusedError) as error:
            raise type(error)(str(error), hint="another directory, out='runs/other'") from error
        self._session = replace(session, output=destination, directory=self.folder)
        self.place: object = os.path.realpath(self.folder)
        self._events: WriterTarget | None = None

    @property
    def filmstrip_file(self) -> Path:
        """The file of small maps."""
        return self.folder / FILMSTRIP_FILE

    def steps_of(self, images: Sequence[str]) -> set[int]:
        """Return the steps at which images were drawn."""
        units = (unit for image in images for unit in (self.folder / image).glob(f"{_STEP}*"))
        return {int(unit.name.removeprefix(_STEP)) for unit in units if unit.name.removeprefix(_STEP).isdecimal()}

    def renamed(self, name: str) -> RunTarget:
        """Open another run beside this one; this one stays unless it is empty.

        Raises:
            OutputError: It cannot be written.
            RefusedError: There is a run with other settings.
        """
        return RunTarget(self.folder.parent, self._session, name)

    def write(self, step: int, drawn: Sequence[DrawnStep], weights: Sequence[Picture], numbers: Mapping[str, float]) -> None:
        """Write the results of one step.

        Raises:
            OutputError: It could not be written.
        """
        with marked(self.folder), writing_to(self.folder), self._events_open() as events:
            events.write(step, drawn, weights, numbers)
            for each in drawn:
                file = each.file
                file = replace(file, unit=_at(file.unit, step), version={**file.version, "step": step})
                write_unit(self._session, image_key(file), each.pictures, image=each.image)
            if weights:
                path = f"model:{self._session.info.label}"
                write_unit(self._session, UnitKey(MODEL_KIND, path, _at(MODEL_UNIT, step), {"step": step}), weights)

    def write_films(self, step: int, films: Sequence[Film]) -> None:
        """Write filmstrips into a unit beside the steps of each image, and write the report.

        Raises:
            OutputError: They could not be written.
        """
        with marked(self.folder), writing_to(self.folder), self._events_open() as events:
            events.write_films(step, films)
            for image in dict.fromkeys(image for _, image, _ in films):
                shown = [_as_picture(layer, pixels) for layer, of, pixels in films if of == image]
                key = UnitKey(FILMSTRIP, f"{FILMSTRIP}:{image}", f"{image}/_{FILMSTRIP}", {"last_step": step})
                write_unit(self._session, key, shown)
        Publisher(self._session).publish()

    @contextmanager
    def _events_open(self) -> Iterator[WriterTarget]:
        """Open the event file at first use; after a failure, which may have left half an event, open another."""
        try:
            if self._events is None:
                from fmapviz.features.watch.event_log import EventLog  # noqa: PLC0415  imports TensorBoard

                self._events = WriterTarget(EventLog(self.folder))
            yield self._events
            self._events.flush()
        except BaseException:
            self._events = None
            raise


def place_of(out: str | Path, name: str | None) -> str:
    """Return the `place` of a `RunTarget`."""
    return os.path.realpath(Path(expand_home(out)) / (name or RUN))


def _takes_summaries(writer: Any) -> Callable[[Any, int], None] | None:
    """Return the method that adds a summary to an `EventLog` or PyTorch's `SummaryWriter`; None for other writers."""
    own: Callable[[Any, int], None] | None = getattr(writer, "add_summary", None)
    if own:
        return own
    module = sys.modules.get("torch.utils.tensorboard.writer")
    known: Any = getattr(module, "SummaryWriter", None)
    if known is None or not isinstance(writer, known) or type(writer).add_image is not known.add_image:
        return None
    add: Callable[[Any, int], None] | None = getattr(getattr(writer, "file_writer", None), "add_summary", None)
    return add


def tag_of(picture: Picture, image: str = "") -> str:
    """Return the tag of a picture in TensorBoard: view, layer with its number, and image.

    Example:
        >>> from fmapviz.data import Picture
        >>> tag_of(Picture("input", "input", b"", 1, 1, {}), "cat.png")
        'input/cat.png'
    """
    layer = picture.name if picture.layer else ""
    return "/".join(filter(None, (picture.group, layer, image)))


def _at(name: str, step: int) -> str:
    return f"{name}/{STEP.format(step)}"


def _as_picture(layer: str, pixels: NDArray[np.uint8]) -> Picture:
    (height, width), facts = pixels.shape[:2], _facts(layer)
    return Picture(FILMSTRIP, layer, encode(pixels, facts), width, height, facts)


def _facts(layer: str) -> dict[str, str]:
    return {"Shows": "a filmstrip of the training", "Layer": layer.partition(" ")[2]}
