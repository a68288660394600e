"""Run batches of images through the network: on the CPU several at once, in copies of it; split if memory runs out.

On the CPU as many images are drawn at once as there are threads, each by its own copy of the network's modules and with its
share of the cores. That keeps the cores busier than one forward pass on all of them. On a GPU one thread draws, in batches,
while the others read and write.
"""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

import torch

from fmapviz.core import registry
from fmapviz.core.own import OwnName
from fmapviz.core.placement import InFile
from fmapviz.core.user_code import report_of
from fmapviz.core.words import counted
from fmapviz.data import Failure
from fmapviz.draw.records import remark_on_channels, remark_on_names
from fmapviz.errors import PositionError, RequestError, first_few, quote
from fmapviz.events import Advanced, Notice
from fmapviz.images.notices import NONFINITE, is_reported_once
from fmapviz.images.placement import find_placement
from fmapviz.images.seen import shown_range
from fmapviz.models.network import input_type
from fmapviz.models.onednn import with_onednn
from fmapviz.models.replicas import replicate
from fmapviz.observe.gradients import is_out_of_memory
from fmapviz.observe.hooks import evaluating
from fmapviz.observe.layers import call_of
from fmapviz.observe.outside_state import OutsideState
from fmapviz.observe.randomness import gate, python_states, seeded_by
from fmapviz.run.batch_results import NOTHING_FOR, MixedBatchError
from fmapviz.run.findings import findings_of
from fmapviz.run.forward_pass import Drawer, ForwardError
from fmapviz.run.pipeline.batching import is_mixed
from fmapviz.run.pipeline.scheduler import Limits, Processed
from fmapviz.run.places import FieldCache, PlaceCache
from fmapviz.store.shards.grouping import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from fmapviz.data import ImageResult, Prediction
    from fmapviz.run.kept_passes import Kept
    from fmapviz.run.pipeline.progress import Progress
    from fmapviz.run.pipeline.scheduler import Preprocessed, Result, Tell
    from fmapviz.run.session import PassDrawer, Session

_AT_OUTPUT = {"output", "gradient"}
_REPORT_SECONDS = 0.5
_MOST_NOTICES = 8  # about automatically chosen layers, one for each size of the input, and about the network


class BatchRunner:
    """Runs batches through a network that has hooks until `close`; `draw` may be called by several threads at once.

    Args:
        session: The network and its plan.
        progress: Updated with what the results show.
        check: Called now and then; raises if the run has ended.

    Attributes:
        limits: The number and size of batches that may be drawn at once; the runner reduces them.
    """

    def __init__(self, session: Session, progress: Progress, *, check: Callable[[], object]) -> None:
        self._session = session
        self._progress = progress
        self._check = check
        self._hooks = ExitStack()
        self._is_random = self._remembers = self._depends = self._is_single = False
        self._checking = Lock()
        module, workers, on_cpu = session.model.module, session.workers, session.device.type == "cpu"
        self._dtype = input_type(module)
        self._hooks.enter_context(evaluating(module))  # once: copies share changes of weights by its eval()
        self._outside = OutsideState(module)
        self._pattern = replicate(module) if on_cpu and workers > 1 else None
        # The same for a single image as for one of many: another number may round otherwise.
        self._cores = max(1, torch.get_num_threads() // (workers if self._pattern else 1))
        self._fields = FieldCache(session.model, [layer.name for layer in session.layers]) if session.plan.fields else None
        self._places = (
            PlaceCache(session.model, findings_of(session.model).fields)
            if session.plan.placed or session.plan.located
            else None
        )
        self._placement = lru_cache(64)(find_placement)
        self._idle: list[PassDrawer] = [self._attach(module)]
        self._is_checked = False
        self.limits = Limits(
            threads=workers,
            drawing=workers if self._pattern else 1,
            batch_size=session.batch_size,
            drawn_ahead=0 if on_cpu else workers,
        )

    def close(self) -> None:
        """Remove all hooks."""
        self._hooks.close()

    def draw(self, batch: list[Preprocessed], tell: Tell) -> tuple[list[Preprocessed], list[Result]]:
        """Run a batch; if it fails, run its parts, down to the single image that causes the failure.

        Returns:
            Images to be drawn again later, and the results.
        """
        begun = time.monotonic()
        torch.set_num_threads(self._cores)
        drawer = self._take_drawer()
        results: list[Result] = []
        kept = self._find_kept(batch)
        new = [image for image in batch if id(image) not in kept]
        together = 1 if self._is_random or self._is_single else len(new)
        parts, back = [new[:together]] if new else [], new[together:]
        parts += [[image] for image in batch if id(image) in kept]
        while parts:
            part = parts.pop()
            again = kept.pop(id(part[0]), None)
            try:
                images = self._stack([image.values for image in part])
                drawn = [drawer.draw_kept(images, again)] if again else self._draw(drawer, images, part, tell)
            except Exception as error:
                memory = is_out_of_memory(error)
                # A wrong request shows at the first image; with a later one it is that image's own failure.
                known = (ForwardError, MixedBatchError, *([RequestError] if self._progress.accepted else []))
                if not memory and not isinstance(error, known):
                    raise
                if memory and self.limits.drawing > 1:
                    self.limits.drawing = 1
                    tell(Notice("out of memory with several images at once: continuing with one"))
                    parts.append(part)
                    break
                if len(part) == 1:
                    results.append(self._failed(part[0], error))
                else:
                    parts += self._split(part, tell, memory=memory)
            else:
                results += [self._accept(image, each, begun, tell) for image, each in zip(part, drawn, strict=True)]
        self._idle.append(drawer)
        return [*back, *chain.from_iterable(parts)], results

    def _draw(self, drawer: PassDrawer, images: Tensor, part: Sequence[Preprocessed], tell: Tell) -> list[ImageResult]:
        """Run a batch; if the network draws random numbers, run each image alone, seeded by its name."""
        passes = _Passes(part[0].member.file.path, tell)
        if isinstance(drawer, Drawer):
            drawer.report = passes.report
        try:
            return self._draw_part(drawer, images, part, tell)
        finally:
            passes.end()

    def _draw_part(self, drawer: PassDrawer, images: Tensor, part: Sequence[Preprocessed], tell: Tell) -> list[ImageResult]:
        several, files = len(part) > 1, self._files_of(part)
        if several and self._is_single:
            raise MixedBatchError
        if not self._is_random:
            with gate.together():
                before = python_states()
                keep = self._session.kept if self._is_checked or not several else None
                drawn = drawer.draw(images, keep=keep, files=files)
                drawn_numbers = drawer.numbers.drawn or before != python_states()
            self._outside.learn(images.shape)
            self._note_changes(drawer, tell)
            if not drawn_numbers:
                if several:
                    self._check_batch(drawer, images, drawn[0], tell, files=files)
                return drawn
            if not self._is_random:
                self._is_random = True
                self.limits.drawing = self.limits.batch_size = 1
                tell(Notice("the network draws random numbers when it runs: they are seeded for each image by its name"))
        if several:
            raise MixedBatchError
        with gate.alone(), seeded_by(part[0].member.file.unit, self._session.device):
            drawn = drawer.draw(images, keep=self._session.kept, files=files)
        self._outside.learn(images.shape)
        self._note_changes(drawer, tell)
        return drawn

    def _check_batch(
        self, drawer: PassDrawer, images: Tensor, first: ImageResult, tell: Tell, *, files: Sequence[InFile | None]
    ) -> None:
        """Find out from the first batch whether images may share a forward pass.

        Raises:
            MixedBatchError: They may not.
        """
        with self._checking:
            if not (self._is_checked or self._is_single):
                self._is_checked = True
                try:
                    with gate.together():
                        mixed = is_mixed(images, first, partial(drawer.draw, files=files))
                except (ForwardError, MixedBatchError):  # not known
                    self._is_single = True
                else:
                    self._outside.learn(images.shape)
                    self._note_changes(drawer, tell)  # its state may show at the second pass only
                    if mixed and not self._is_single:
                        self._is_single = True
                        tell(Notice("the network mixes the images of a batch: each image is passed through it alone"))
        if self._is_single:
            self.limits.batch_size = 1
            raise MixedBatchError

    def _note_changes(self, drawer: PassDrawer, tell: Tell) -> None:
        """Report state that the network keeps, once; if it changes buffers, which copies share, run one batch at a time."""
        if any(each.of_buffers for each in drawer.lasting):
            self.limits.drawing = 1
        kept = [name for each in drawer.lasting if each.remembers for name in each.changes]
        if kept and not self._remembers:
            self._remembers = self._is_single = True
            self.limits.batch_size = 1
            how = "each image is drawn alone, from the state of the start"
            tell(Notice(f"the network keeps {first_few(kept)} from one image to the next: {how}"))
        if self._outside.changes and not self._depends:
            self._depends = self._is_single = True
            self.limits.drawing = self.limits.batch_size = 1
            names = first_few(self._outside.changes)
            tell(Notice(f"the network's code changes {names} when it runs: an image may depend on those before it"))

    def _find_kept(self, batch: list[Preprocessed]) -> dict[int, Kept]:
        """Return the stored passes by the identity of the images."""
        passes = self._session.kept
        found = ((image, image.kept or (passes.find(image.values) if passes else None)) for image in batch)
        return {id(image): each for image, each in found if each}

    def _take_drawer(self) -> PassDrawer:
        with suppress(IndexError):  # several threads may ask at once
            return self._idle.pop()
        copied = replicate(self._pattern) if self._pattern else None
        assert copied  # a copy of a copy: what can be copied once can be copied again
        self._check()
        return self._attach(copied)

    def _attach(self, module: nn.Module) -> PassDrawer:
        """Add hooks to the network, or to a copy of it."""
        session, copied = self._session, dict(module.named_modules())
        if session.device.type == "cpu":
            self._hooks.enter_context(with_onednn(module))
        if session.attach:
            return self._hooks.enter_context(session.attach(session, module, self._check))
        return self._hooks.enter_context(
            Drawer(
                replace(session.model, module=module),
                [replace(layer, module=copied[layer.name]) for layer in session.layers],
                session.plan,
                session.info.config.style,
                predictions=session.predictions,
                early_stop=session.early_stop,
                reader=session.reader,
                layouts=session.layouts,
                check=self._check,
                places=self._places,
            )
        )

    def _stack(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack([*images]).to(self._session.device, self._dtype)

    def _failed(self, image: Preprocessed, error: Exception) -> Failed:
        path = image.member.file.path
        code, reason = ("E_MEMORY", "out of memory") if is_out_of_memory(error) else ("E_MODEL", str(error))
        code = "E_CLASS" if isinstance(error, RequestError) else code
        code = "E_POSITION" if isinstance(error, PositionError) else code
        report = report_of(error.__cause__) if self._session.model.own and error.__cause__ else None
        hint = getattr(error, "hint", None)
        return Failed(image.member, Failure(path, code, f"{reason}: {quote(path)}", hint=hint, report=report))

    def _split(self, batch: list[Preprocessed], tell: Tell, *, memory: bool) -> list[list[Preprocessed]]:
        """Return the parts of a batch that failed, the first one last."""
        half = 1 if self._is_single else len(batch) // 2
        if memory and self.limits.batch_size > half:
            self.limits.batch_size = half
            tell(Notice(f"out of memory with {counted(len(batch), 'image')} at once: continuing with {half}"))
        return [batch[start : start + half] for start in reversed(range(0, len(batch), half))]

    def _accept(self, image: Preprocessed, drawn: ImageResult, begun: float, tell: Tell) -> Result:
        """Update the progress, and report remarks on the network once."""
        progress = self._progress
        if not drawn.layers:
            path = image.member.file.path
            reasons = {**dict.fromkeys(drawn.not_executed, "not executed"), **drawn.undrawn}
            absent = () if reasons else tuple(notice for notice in drawn.notices if notice.startswith(NOTHING_FOR))
            listed = (
                [f"{quote(name)}: {why}" for name, why in reasons.items()] or absent or drawn.notices or ["none is chosen"]
            )
            of_views = bool(reasons) and reasons.keys() <= {*self._session.config.views}
            what = "nothing" if of_views else "none of the chosen layers"
            reason = _why_absent(absent) if absent else f"{what} could be drawn: {listed[-1].partition(_THRESHOLD)[0]}"
            message = f"{reason}: {quote(path)}"
            own = [view for view in self._session.config.views if isinstance(view, OwnName)]
            if own and all(name.startswith(tuple(f"{view} of " for view in own)) for name in reasons):
                hint: str | None = f"correct the code of {', '.join(map(quote, own))}"
            else:
                hint = None if of_views else _remedy(absent or listed[-1:])  # other layers would not help
            return Failed(image.member, Failure(path, "E_NOTHING", message, hint=hint))
        progress.layers.update(call_of(layer.layer) for layer in drawn.layers if layer.layer)
        progress.accepted = True
        progress.not_executed.update(drawn.not_executed)
        progress.undrawn.update(drawn.undrawn)
        if where := _nonfinite_from(drawn, image, self._session):
            progress.nonfinite[where] += 1
            drawn = replace(drawn, notices=(*drawn.notices, f"{NONFINITE}, {where}"))
        drawn = replace(drawn, predictions=tuple(self._in_file(each, image) for each in drawn.predictions))
        of_many = (notice for notice in image.notices if is_reported_once(notice))
        of_channels = remark_on_channels(drawn.layers, self._session.config.style)
        of_input = self._remark_on_input(image)
        has_pictures = any("pictures" in registry.form(form).needs for form in self._session.config.to)
        of_names = remark_on_names(drawn.layers) if has_pictures else ""
        for remark in (*of_many, *drawn.remarks, _chosen(drawn), of_channels, of_names, of_input):
            if remark not in progress.reported and len(progress.reported) < _MOST_NOTICES:
                progress.reported.add(remark)
                tell(Notice(remark))
        return Processed(image, self._add_fields(drawn, image) if self._fields else drawn, begun)

    def _in_file(self, prediction: Prediction, image: Preprocessed) -> Prediction:
        """Return a prediction whose box is in pixels of the file, if it is known where the input lies there."""
        if prediction.box is None or image.as_given:
            return prediction
        return replace(prediction, box=self._file_of(image).to_file(prediction.box))

    def _files_of(self, part: Sequence[Preprocessed]) -> list[InFile | None]:
        """Return the files of a batch, if targets are given by their places."""
        if not self._session.plan.located:
            return []
        return [None if image.as_given else self._file_of(image) for image in part]

    def _file_of(self, image: Preprocessed) -> InFile:
        return InFile(self._placement(self._session.model.preparation, image.size), image.size)

    def _remark_on_input(self, image: Preprocessed) -> str:
        """Return a remark if an input is shown in its own range, because its normalisation is unknown."""
        preparation = self._session.preparation_of(image.values, as_given=image.as_given)
        if not self._session.plan.drawn or shown_range(image.values, preparation) in {None, (0.0, 1.0)}:
            return ""
        return "the input is shown from its smallest value, black, to its largest, white: its normalisation is not known"

    def _add_fields(self, drawn: ImageResult, image: Preprocessed) -> ImageResult:
        """Add the receptive field of each layer, unless it is unknown and stands for the whole picture."""
        assert self._fields
        layers = []
        for layer in drawn.layers:
            field = self._fields.shown(layer.layer, image.values.shape) if layer.of in _AT_OUTPUT else None
            layers.append(replace(layer, sees=(field.rows, field.columns)) if field else layer)
        return replace(drawn, layers=tuple(layers))


class _Passes:
    """Reports how many of the passes of an image are done, a few times a second."""

    def __init__(self, path: str, tell: Tell) -> None:
        self._path, self._last = path, time.monotonic()
        self._tell: Tell | None = tell

    def report(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._tell and now - self._last >= _REPORT_SECONDS:
            self._last = now
            self._tell(Advanced(self._path, done, total))

    def end(self) -> None:
        """Forget where to report: observers that keep `report` would keep the run, and its images in memory."""
        self._tell = None


def _nonfinite_from(drawn: ImageResult, image: Preprocessed, session: Session) -> str:
    """Return the first layer with non-finite values and their likely source; empty if all drawn values are finite."""
    layers = [each for each in drawn.layers if each.of == "output" and each.statistics and each.statistics.nonfinite]
    if not layers:
        return ""
    first = min(layers, key=lambda layer: layer.index)
    assert first.statistics
    where = f"first in the layer {quote(first.layer)}"
    where += ", of which no value is finite" if first.statistics.minimum is None else ""
    if not image.values.isfinite().all():
        return f"{where}; the preprocessed input holds some already"
    for whose, network in (session.measured or {"the network": session.model.module}).items():
        for name, values in network.named_parameters():
            if values.is_floating_point() and not values.isfinite().all():
                return f"{where}; the weights of {whose} hold some: {quote(name)}"
    return where


_THRESHOLD = "; confidence="  # behind the reason why an image does not have a box
_REMEDIES = (  # by what the reason says
    ("none of those chosen", "channels='all' draws all channels, channels='top:16' the strongest"),
    ("scores are not finite", "views='maps' draws the layers, and names the first one with such values"),
    ("no such box|finds only", "targets='top1' takes the best box of the image, if there is one"),
    (
        "no pixel is predicted",
        "targets='top1' takes the class of the most pixels, if there is one; views='maps' draws the layers",
    ),
    (
        rf"{NOTHING_FOR} (box:|[^:]*@\d)",
        "places are in pixels of the upright picture, from the upper left: box:LEFT,TOP,RIGHT,BOTTOM or CLASS@X,Y",
    ),
    ("", "layers= and types= choose other layers; fmapviz.list_layers(model) lists them"),
)


def _why_absent(notices: Sequence[str]) -> str:
    """Join the notices about the targets that an image does not have, without the thresholds that would show them."""
    first, *others = (notice.partition(_THRESHOLD)[0] for notice in notices)
    return "; ".join([first, *(other.replace(NOTHING_FOR, "for", 1) for other in others)])


def _remedy(reasons: Sequence[str]) -> str:
    """Return a hint for an image without a drawn layer, by the reasons; of several thresholds the highest."""
    advice = [reason.partition(_THRESHOLD)[2] for reason in reasons if _THRESHOLD in reason]
    if not advice:
        return next(remedy for pattern, remedy in _REMEDIES if re.search(pattern, "; ".join(reasons)))
    shown = max(advice, key=lambda words: float(words.split()[0]))
    return f"confidence={shown if len(reasons) == 1 else f'{shown.split()[0]} shows one of them'}"


def _chosen(drawn: ImageResult) -> str:
    """Return a notice about the layers that were chosen automatically; empty if there are none."""
    layers: dict[str, dict[str, None]] = {}
    for layer, view, _ in drawn.heat_maps:
        if layer.automatic:
            layers.setdefault(view, {})[layer.layer] = None
    views: dict[str, list[str]] = {}
    for view, names in layers.items():
        views.setdefault(", ".join(map(quote, names)), []).append(view)
    listed = "; ".join(f"{', '.join(names)} of {chosen}" for chosen, names in views.items())
    return f"chosen automatically: {listed}; layers= chooses other layers" if listed else ""
