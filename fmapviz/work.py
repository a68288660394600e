"""Take each image through reading, drawing and writing, several at a time.

On the CPU as many images are drawn at once as there are threads, each by its own copy of the network's modules and with its
share of the cores: that keeps the cores busier than one forward pass spread over all of them. On a GPU one thread draws, in
batches, while the others read and write.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fmapviz.automatic import Choices
from fmapviz.channels import input_type
from fmapviz.decoding import Decoding
from fmapviz.drawing import ForwardError, attach
from fmapviz.errors import InputError, RequestError, quote
from fmapviz.forecast import size_of
from fmapviz.grouping import Ending, Grouping, Lost, There, of_part
from fmapviz.heat_pictures import heat_records, zero_notices
from fmapviz.keeping import overflow_notices
from fmapviz.memory import is_out_of_memory
from fmapviz.naming import Naming, distinction
from fmapviz.outputs import Disk
from fmapviz.pages import make_page
from fmapviz.pictures import layer_records, make_pictures
from fmapviz.preparation import as_seen
from fmapviz.randomness import undisturbed
from fmapviz.replicas import replicate
from fmapviz.runs import writing_to
from fmapviz.schedule import Limits, Schedule, StoppedError
from fmapviz.shards import Member
from fmapviz.sharing import Sharing
from fmapviz.sketches import MixedBatchError
from fmapviz.staging import stage
from fmapviz.tracebacks import report_of
from fmapviz.units import commit, find_done
from fmapviz.values import Drawn, Failure, ImageFile, Notice, Outcome, Staged, Unit
from fmapviz.verification import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from fmapviz.drawing import Drawer
    from fmapviz.foresight import Foresight
    from fmapviz.grouping import Item
    from fmapviz.options import Part
    from fmapviz.outputs import Output
    from fmapviz.plan import Plan
    from fmapviz.shard_work import ShardsAtWork
    from fmapviz.values import Layer, Model, Picture, RunInfo

    OpenWriter = Callable[[Path, Unit], AbstractContextManager[Callable[[Picture], None]]]
    Tell = Callable[[Outcome | Notice | Staged], None]


_TOLD = 8  # choices of layers, one for each size of the input, and remarks


@dataclass(slots=True, eq=False)
class Job:
    """What every step needs to know, and what they find out together.

    Attributes:
        batch_size: Images in one forward pass; None: as many as changes nothing in what is drawn, see `fmapviz.sharing`.
        workers: Threads.
        force: Whether to draw finished images again.
        repair: Whether to draw those again of which a file is not as it was written.
        sync: Whether to wait until what is written would survive a power failure.
        several: Whether more than one image is expected.
        output: Where all runs are.
        part: Which part of it all is wanted; None: all of it.
        foresight: See `fmapviz.drawing.attach`.
        on_begun: Given each image before it is read.
        on_drawn: Given what is drawn of each image, which is then not written; None: it is written.
        sharing: What was found out about images that share a forward pass, where the same network is given work several
            times; None: each time anew.
        found: Inputs listed so far.
        last_drawn: Feature maps drawn of the last image.
        accepted: Whether something was drawn of some image.
        unclear: Whether it was said that the model's output tells no classes.
        told: What was said of the network and of layers that were chosen automatically.
    """

    model: Model
    layers: Sequence[Layer]
    plan: Plan
    writers: Mapping[str, OpenWriter]
    info: RunInfo
    directory: Path
    device: torch.device
    batch_size: int | None
    workers: int
    force: bool = False
    repair: bool = False
    sync: bool = False
    several: bool = True
    output: Output = field(default_factory=lambda: Disk(Path()))
    part: Part | None = None
    foresight: Foresight | None = None
    on_begun: Callable[[ImageFile], None] | None = None
    on_drawn: Callable[[ImageFile, Drawn], None] | None = None
    choices: Choices = field(default_factory=Choices)
    sharing: Sharing | None = None
    found: int = 0
    last_drawn: int = 0
    accepted: bool = False
    unclear: bool = False
    told: set[str] = field(default_factory=lambda: {""})
    not_executed: set[str] = field(default_factory=set)
    undrawn: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """An image as the network is given it."""

    file: ImageFile
    notices: tuple[str, ...]
    values: Tensor
    anew: bool  # in the place of what is there, though that is of the same file
    member: Member | None = None  # of a shard

    @property
    def bytes(self) -> int:
        return self.values.nbytes

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


@dataclass(frozen=True, slots=True, eq=False)
class _Sketched:
    """An image whose pictures are not yet encoded and written."""

    prepared: _Prepared
    drawn: Drawn
    begun: float

    @property
    def bytes(self) -> int:
        return self.drawn.bytes


def work(job: Job, items: Iterable[Item]) -> Generator[Outcome | Notice | Staged, None, None]:
    """Do all of it, and tell of each input how it ended, in no certain order.

    Args:
        job: What every step needs to know.
        items: What is to be done with each input, as `sort_out` says.

    Raises:
        OutputError: The output could not be written.
    """
    cores = torch.get_num_threads()
    try:
        with undisturbed(), ExitStack() as hooks, Decoding() as decoding:
            steps = _Steps(job, hooks, decoding, cores)
            with closing(steps), closing(steps.schedule.run(items)) as events:
                yield from events
    finally:
        torch.set_num_threads(cores)  # what a step sets for its thread holds for every new one as well


def sort_out(job: Job, found: Iterable[ImageFile | Failure]) -> Iterable[Item]:
    """Say of each input of a run what is to be done with it; nothing of what other parts do."""
    if job.info.shard:
        grouping = Grouping(
            job.directory,
            job.info.fingerprint,
            job.info.shard,
            part=job.part,
            force=job.force,
            repair=job.output.is_sound if job.repair else None,
        )
        return grouping.items(found)
    return of_part(found, job.part) if job.part else found


class _Steps:
    """What is done with each image, see `fmapviz.schedule.Steps`."""

    def __init__(self, job: Job, hooks: ExitStack, decoding: Decoding, cores: int) -> None:
        self._job = job
        self._hooks = hooks
        self._decoding = decoding
        self._naming = Naming(job.directory)
        on_cpu = job.device.type == "cpu"
        self._pattern = replicate(job.model.module) if on_cpu and job.workers > 1 else None
        # The same for a single image as for one of many: another number may round otherwise.
        self._cores_each = max(1, cores // (job.workers if self._pattern else 1))
        self._cores_to_read = max(1, cores // job.workers)
        self._idle = [self._attach(job.model.module)]
        shareable = job.batch_size is None and job.several and not job.plan.of_classes
        self._sharing = (job.sharing or Sharing(job.model.module)) if shareable else None
        if self._sharing:
            self._sharing.begin()
        self.limits = Limits(
            threads=job.workers,
            drawing=job.workers if self._pattern else 1,
            batch_size=job.batch_size or (self._sharing.images if self._sharing else 1),
            drawn_ahead=0 if on_cpu else job.workers,
        )
        self.schedule = Schedule(self)
        self._shards: ShardsAtWork | None = None
        if job.info.shard and not job.on_drawn:
            # Only here: it needs a package that nothing else does.
            self._shards = import_module("fmapviz.shard_work").ShardsAtWork(
                job.directory, job.info, force=job.force, repair=job.repair, sync=job.sync, deliver=job.output.deliver
            )

    def close(self) -> None:
        """Remove what will not be finished."""
        if self._shards:
            self._shards.close()

    @property
    def held(self) -> int:
        """How many bytes wait for the turn of their image in a shard."""
        return self._shards.held if self._shards else 0

    def listed(self, item: Item) -> Item:
        """Let the first of several sources with one name have it, whichever of them is written first."""
        if isinstance(item, Ending):
            return item
        self._job.found += not (isinstance(item, Member) and item.position in item.shard.told)
        if self._job.on_drawn:
            return item
        return self._naming.claim(item)

    def read(self, item: Item, tell: Tell) -> _Prepared | None:
        """Read one image, unless it is finished already or cannot be read."""
        if isinstance(item, Failure):
            tell(Outcome(item.path, "failed", failure=item))
        elif isinstance(item, There):
            tell(Outcome(item.file.path, "skipped", unit=item.place))
        elif isinstance(item, Ending):
            assert self._shards
            self._shards.end(item.shard, tell)
        elif isinstance(item, Lost):
            self._fail(item.failure, item.item if isinstance(item.item, Member) else None, tell)
        elif isinstance(item, Member):
            return self._decode(item.file, tell, anew=False, member=item)
        else:
            return self._read_single(item, tell)
        return None

    def _read_single(self, item: ImageFile, tell: Tell) -> _Prepared | None:
        """Read an image that has a directory of its own."""
        job = self._job
        anew = job.force or (
            job.repair and not is_whole(job.directory, item, job.info.fingerprint, is_sound=job.output.is_sound)
        )
        done = None if anew or job.on_drawn else find_done(job.directory, item, job.info.fingerprint)
        if done is not None:
            self._naming.release(item)
            tell(Outcome(item.path, "skipped", unit=done))
            return None
        return self._decode(item, tell, anew=anew, member=None)

    def _decode(self, file: ImageFile, tell: Tell, *, anew: bool, member: Member | None) -> _Prepared | None:
        torch.set_num_threads(self._cores_to_read)
        if self._job.on_begun:
            self._job.on_begun(file)
        try:
            image = self._decoding.read(file, channels=self._job.model.preparation.channels, tell=tell)
            return _Prepared(file, image.notices, self._job.model.preparation.apply(image.pixels), anew, member)
        except InputError as error:
            report = report_of(error.__cause__) if error.code == "E_PREPARE" and error.__cause__ else None
            self._fail(Failure(file.path, error.code, str(error), error.hint, report), member, tell)
            return None

    def _fail(self, failure: Failure, member: Member | None, tell: Tell) -> None:
        """Say that an image failed, to its shard too if it is in one."""
        if member is None:
            tell(Outcome(failure.path, "failed", failure=failure))
            return
        assert self._shards
        if member.position not in member.shard.told:
            tell(Outcome(failure.path, "failed", failure=failure))
        self._shards.put(member, failure, tell)

    def draw(self, batch: list[_Prepared], tell: Tell) -> tuple[list[_Sketched], list[_Prepared]]:
        """Draw a batch; where it fails, its parts, down to the single image that is to blame."""
        begun = time.monotonic()
        torch.set_num_threads(self._cores_each)
        drawer = self._take_drawer()
        sketched: list[_Sketched] = []
        together = len(batch) if self._may_share(batch, drawer) else 1
        parts, back = [batch[:together]], batch[together:]
        while parts:
            part = parts.pop()
            try:
                drawn = drawer.draw(self._stack([prepared.values for prepared in part]))
            except Exception as error:
                memory = is_out_of_memory(error)
                # What is wrong with the request shows at the first image; of a later one it is that image's own failure.
                known = (ForwardError, MixedBatchError, *([RequestError] if self._job.accepted else []))
                if not memory and not isinstance(error, known):
                    raise
                if memory and self.limits.drawing > 1:
                    self.limits.drawing = 1
                    tell(Notice("out of memory with several images at once: going on with one"))
                    parts.append(part)
                    break
                parts += self._split(part, error, tell)
            else:
                sketched += self._accept(part, drawn, begun, tell)
                if self._sharing and len(part) == 1:
                    self._sharing.note(part[0].values, drawn[0])
        if drawer.numbers.drawn:
            self.limits.drawing = 1  # the numbers are drawn from one sequence
        self._idle.append(drawer)
        return sketched, [*(prepared for part in reversed(parts) for prepared in part), *back]

    def write(self, sketched: _Sketched, tell: Tell) -> None:
        """Encode and write one image's pictures, and commit its directory."""
        if self._job.on_drawn:
            self._job.on_drawn(sketched.prepared.file, sketched.drawn)
            return
        job, prepared, drawn, pictures = self._job, sketched.prepared, sketched.drawn, 0
        seen = as_seen(prepared.values, job.model.preparation)
        notices = [*prepared.notices, *drawn.notices, *zero_notices(drawn), *overflow_notices(drawn.kept)]
        if prepared.member and self._shards:
            unit = Unit(prepared.file, drawn, tuple(notices), job.info)
            made = self._make_pictures(unit, seen)
            seconds = time.monotonic() - sketched.begun
            self._shards.put(prepared.member, make_page(unit, made, seconds=seconds), tell)
            return
        titled = replace(prepared.file, unit=prepared.file.unit.removesuffix(distinction(prepared.file)))
        with writing_to(job.directory), stage(job.directory) as staging:
            with ExitStack() as writers:
                unit = Unit(titled, drawn, tuple(notices), job.info)
                writes = [writers.enter_context(open_writer(staging, unit)) for open_writer in job.writers.values()]
                for picture in self._make_pictures(unit, seen):
                    for write in writes:
                        write(picture)
                    pictures += 1
            record = {
                "run": job.info.fingerprint,
                "model": job.info.label,
                "weights": job.info.weights,
                "notices": notices,
                "layers": layer_records(drawn),
                **({"heat_maps": heat_records(drawn)} if drawn.heats else {}),
                "not_executed": list(drawn.not_executed),
                "undrawn": dict(drawn.undrawn),
                **({"predictions": [each.record for each in drawn.predictions]} if job.info.top else {}),
            }
            taken = size_of(staging)
            place = commit(staging, job.directory, prepared.file, record, force=prepared.anew, sync=job.sync)
            place = job.output.deliver(place)
        self._naming.release(prepared.file)
        tell(
            Outcome(
                prepared.file.path,
                "done",
                unit=place,
                notices=tuple(notices),
                pictures=pictures,
                seconds=time.monotonic() - sketched.begun,
                predictions=drawn.predictions,
                bytes=taken,
            )
        )

    def _make_pictures(self, unit: Unit, seen: NDArray[np.uint8]) -> Iterator[Picture]:
        for picture in make_pictures(unit.drawn, seen, unit.file, unit.info) if self._job.plan.drawn else ():
            self._check()
            yield picture

    def _may_share(self, batch: list[_Prepared], drawer: Drawer) -> bool:
        """Tell whether to draw a batch as one; the first thread that asks finds out if images may share a forward pass."""
        if self._sharing is None:
            return True
        if shared := self._sharing.try_out(lambda images: drawer.draw(self._stack(images))):
            self.limits.batch_size = shared
        return self._sharing.allows([prepared.values for prepared in batch])

    def _take_drawer(self) -> Drawer:
        with suppress(IndexError):  # several threads may ask at once
            return self._idle.pop()
        copied = replicate(self._pattern) if self._pattern else None
        assert copied  # a copy of a copy: what can be copied once can be copied again
        self._check()
        return self._attach(copied)

    def _attach(self, module: nn.Module) -> Drawer:
        """Hang hooks into the network, or into a copy of it, until the run ends."""
        job = self._job
        copied = dict(module.named_modules())
        layers = [replace(layer, module=copied[layer.name]) for layer in job.layers]
        model = replace(job.model, module=module)
        return self._hooks.enter_context(
            attach(
                model,
                layers,
                job.plan,
                job.info.style,
                top=job.info.top,
                foresight=job.foresight,
                choices=job.choices,
                check=self._check,
            )
        )

    def _check(self) -> None:
        if self.schedule.stopped:
            raise StoppedError

    def _stack(self, images: Sequence[Tensor]) -> Tensor:
        return torch.stack([*images]).to(self._job.device, input_type(self._job.model.module))

    def _split(self, batch: list[_Prepared], error: Exception, tell: Tell) -> list[list[_Prepared]]:
        """Give the parts of a batch that failed, the first at the end; of a single image say that it failed."""
        memory = is_out_of_memory(error)
        if len(batch) == 1:
            path = batch[0].file.path
            member = batch[0].member
            code, reason = ("E_MEMORY", "out of memory") if memory else ("E_MODEL", str(error))
            code = "E_CLASS" if isinstance(error, RequestError) else code
            report = report_of(error.__cause__) if self._job.model.own and error.__cause__ else None
            self._fail(Failure(path, code, f"{reason}: {quote(path)}", report=report), member, tell)
            return []
        half = 1 if self._sharing else len(batch) // 2  # what may share a pass is proven of a whole batch only
        if memory and self.limits.batch_size > half:
            self.limits.batch_size = half
            tell(Notice(f"out of memory with {len(batch)} images at once: going on with {half}"))
        return [batch[start : start + half] for start in reversed(range(0, len(batch), half))]

    def _accept(self, batch: list[_Prepared], drawn: list[Drawn], begun: float, tell: Tell) -> list[_Sketched]:
        """Note what was seen of the network, and pass on the images of which something was drawn."""
        sketched = []
        for prepared, each in zip(batch, drawn, strict=True):
            if each.empty:
                self._fail(_nothing_drawn(prepared, each), prepared.member, tell)
                continue
            names = (
                [one.layer for one in each.drawings] + [one.layer for one in each.kept] + [one.layer for one in each.heats]
            )
            self._job.last_drawn = len(set(names) - {""})
            self._job.accepted = True
            self._job.not_executed.update(each.not_executed)
            self._job.undrawn.update(each.undrawn)
            if self._job.info.top and not each.predictions and not self._job.unclear:
                self._job.unclear = True
                tell(Notice(_unclear(self._job.model)))
            for remark in (*each.remarks, _chosen(each)):
                if remark not in self._job.told and len(self._job.told) < _TOLD:
                    self._job.told.add(remark)
                    tell(Notice(remark))
            sketched.append(_Sketched(prepared, each, begun))
        return sketched


def _unclear(model: Model) -> str:
    count = len(model.classes)
    return f"no predictions: the output of {model.label} is no finite number for each of its {count} classes"


def _nothing_drawn(prepared: _Prepared, drawn: Drawn) -> Failure:
    """Say why no chosen layer gave a picture, by an example."""
    path = prepared.file.path
    reasons = {**dict.fromkeys(drawn.not_executed, "not executed"), **drawn.undrawn}
    said = [f"{quote(name)}: {reason}" for name, reason in reasons.items()] or list(drawn.notices)
    return Failure(path, "E_NOTHING", f"no layer gave a picture: {said[-1] if said else 'none is chosen'}: {quote(path)}")


def _chosen(drawn: Drawn) -> str:
    """Say which layers were chosen automatically."""
    layers: dict[str, dict[str, None]] = {}
    for heat in drawn.heats:
        if heat.automatic:
            layers.setdefault(heat.view, {})[heat.layer] = None
    views: dict[str, list[str]] = {}
    for view, names in layers.items():
        views.setdefault(", ".join(map(quote, names)), []).append(view)
    said = "; ".join(f"{', '.join(names)} of {chosen}" for chosen, names in views.items())
    return f"chosen automatically: {said}; --layers chooses other layers" if said else ""
