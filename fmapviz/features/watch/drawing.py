"""Draw the images and the weights of a network at one step of its training."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.data import Model
from fmapviz.errors import RequestError, quote
from fmapviz.features.watch.probes import read_probes
from fmapviz.features.watch.undisturbed import training_undisturbed
from fmapviz.observe.layers import unwrap
from fmapviz.run.batch import describe_given
from fmapviz.run.forward_pass import ForwardError
from fmapviz.run.load import load_session
from fmapviz.run.model_views import draw_weights
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.scheduler import Processed
from fmapviz.run.pipeline.work import work
from fmapviz.run.units import describe_result, draw_pictures
from fmapviz.store.run import IN_TRAINING, is_surveyed
from fmapviz.store.shards.grouping import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fmapviz.config import RunConfig
    from fmapviz.data import ImageFile, Inputs, Picture, UnitImage
    from fmapviz.run.pipeline.scheduler import Result
    from fmapviz.run.session import Session

    Network = nn.Module | Model | Callable[[], nn.Module]

_NOTHING = "E_NOTHING"  # of an image without a drawn layer


@dataclass(frozen=True, slots=True, eq=False)
class DrawnStep:
    """The results of one image at one step.

    Attributes:
        file: The image.
        image: Its results, as a format's writer gets them.
        pictures: Its pictures.
    """

    file: ImageFile
    image: UnitImage
    pictures: Sequence[Picture]


class StepDrawer:
    """Draws the same images at any step of a training.

    Args:
        network: The network, a wrapper of it, or a function that returns it.
        images: The images.
        config: The configuration; its model is ignored.

    Raises:
        RequestError: The network cannot be drawn while it is trained, or there is no such layer or view.
        InputError: An image cannot be read.

    Attributes:
        session: The loaded session.
        notices: Remarks on the network and its layers.
        assumption: The assumption about the preprocessing of the images; empty if it is known.
        remarks: Assumptions about the network's outputs, after a step is drawn.
        probes: The images.
    """

    def __init__(self, network: Network, images: Inputs, config: RunConfig) -> None:
        self._network = network
        self._config = config
        module = self._module()
        model = (
            network if isinstance(network, Model) else describe_given(module, preprocessing=config.preprocessing, code=None)
        )
        # A resumed training continues its run with any weights.
        self.session, notices = self._load(
            module, replace(model, module=module, weights=IN_TRAINING, sha256=_structure_of(module))
        )
        self.remarks: list[str] = []
        self.probes, self.assumption = read_probes(images, model)
        self.notices = [each for each in notices if each != model.assumption]

    def _module(self) -> nn.Module:
        """Return the current network without its wrappers.

        Raises:
            RequestError: It is no network, or its parameters are divided among processes.
        """
        given = self._network.module if isinstance(self._network, Model) else self._network
        if callable(given) and not isinstance(given, nn.Module | type):
            given = _ask(given)
        module = unwrap(given)  # type: ignore[arg-type]  # it refuses other types
        _check_undivided(module)
        return module

    def _load(self, module: nn.Module, model: Model) -> tuple[Session, list[str]]:
        session, notices = load_session(replace(self._config, model=replace(model, module=module)))
        if is_surveyed(session.info.settings):
            raise RequestError(
                "values that all images of a run share are unknown during a training",
                hint="Style(norm='fixed:LO,HI') draws all steps in one range; no shared components, clusters or anchor",
            )
        if session.plan.second_pass:
            raise RequestError("top images need a finished network", hint="fmapviz.visualize draws them")
        # All channels and their statistics are needed for filmstrips and curves.
        plan = replace(session.plan, whole=True, moments=True, fields=False)
        return replace(session, plan=plan, workers=0, early_stop=None), notices

    def draw(self, step: int) -> tuple[list[DrawnStep], list[Picture]]:
        """Draw all images and the weights, and leave the network and the random generators unchanged.

        Args:
            step: Of the training; it is in the facts of pictures.

        Returns:
            One for each probe, and the pictures of weights.

        Raises:
            ForwardError: The network failed.
            RequestError: The requested classes do not fit the network.
        """
        module = self._module()
        present = {id(each) for each in module.modules()}
        if module is not self.session.model.module or not all(id(layer.module) in present for layer in self.session.layers):
            self.session, _ = self._load(module, self.session.model)  # another network, or other layers in it
        first = next(module.parameters(), torch.empty(0))
        info = replace(self.session.info, weights=f"{IN_TRAINING}, step {step}")
        session = replace(self.session, info=info, device=first.device)
        with training_undisturbed(module):
            results = self._run(session)
            weights, _ = draw_weights(session, info)
        processed = [each for each in results if isinstance(each, Processed)]
        self.remarks = list(dict.fromkeys(remark for each in processed for remark in each.drawn.remarks))
        drawn = [
            DrawnStep(each.image.member.file, describe_result(each, session), list(draw_pictures(each, session)))
            for each in processed
        ]
        if not (weights or any(picture.group != "input" for each in drawn for picture in each.pictures)):
            raise RequestError(f"nothing could be drawn: {_why(results)}", hint="other layers=, types= or views=")
        return drawn, weights

    def _run(self, session: Session) -> list[Result]:
        """Draw the images with the pipeline of a run, in this thread.

        Raises:
            ForwardError: The network failed.
        """
        results: list[Result] = []
        if session.plan.of_images:
            for _ in work(session, self.probes, progress=Progress(), on_drawn=results.append):
                pass
        for failure in (each.failure for each in results if isinstance(each, Failed)):
            if failure.code == "E_MEMORY":
                raise torch.OutOfMemoryError(failure.message)
            if failure.code != _NOTHING:
                raise ForwardError(failure.message, hint=failure.hint)
        return results


def _ask(function: Callable[[], nn.Module]) -> nn.Module:
    """Call a function that returns the network.

    Raises:
        RequestError: It takes arguments.
    """
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        hint = "such as Watch(lambda: ema.module, ...), which is asked each time"
        raise RequestError(f"a function that returns the network takes no arguments: {error}", hint=hint) from error
    except ValueError:  # C code
        pass
    return function()


def _why(results: Sequence[Result]) -> str:
    """Return the first reason why nothing was drawn."""
    for result in results:
        if isinstance(result, Failed):
            return result.failure.message
        drawn = result.drawn
        reasons = {**dict.fromkeys(drawn.not_executed, "not executed"), **drawn.undrawn}
        for name, reason in reasons.items():
            return f"{quote(name)}: {reason}"
        if drawn.notices:
            return drawn.notices[0]
    return "no layer has such channels"


def _structure_of(module: nn.Module) -> str:
    """Return a SHA-256 of the constants of a training: classes of modules and shapes of parameters."""
    parts = [f"{name} {type(each).__qualname__}" for name, each in module.named_modules()]
    parts += [f"{name} {tuple(values.shape)}" for name, values in module.named_parameters()]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _check_undivided(module: nn.Module) -> None:
    """Check that this process holds all parameters of a network.

    Raises:
        RequestError: They are divided among processes, by FSDP or ZeRO-3.
    """
    bases = {base.__name__ for each in module.modules() for base in type(each).__mro__}
    divided = next(iter(bases & {"FullyShardedDataParallel", "FSDPModule"}), None)
    if divided is None and any(hasattr(values, "ds_id") for values in module.parameters()):
        divided = "DeepSpeed's ZeRO-3"
    if divided is None and any(type(values.data).__name__ == "DTensor" for values in module.parameters()):
        divided = "DTensor"
    if divided:
        raise RequestError(
            f"the parameters of the network are divided among processes ({quote(divided)})",
            hint="draw its checkpoints with fmapviz.visualize, or watch a copy with whole parameters: "
            "Watch(lambda: copy, ...)",
        )
