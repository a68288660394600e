"""Describe a network: its input, preprocessing, class names and identity."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from operator import call
from types import FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fmapviz.config import InputOptions, check_glob, check_scores
from fmapviz.core.layout import check_layout
from fmapviz.data import Model
from fmapviz.errors import RequestError, quote
from fmapviz.images.preprocess import as_for_imagenet, by_callable, for_volumes, standard
from fmapviz.models.identity import digest_of_network, without_addresses
from fmapviz.models.own_transforms import OwnTransforms, find_own_transforms
from fmapviz.models.weights.state_dict import ordered_names
from fmapviz.observe.hooks import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

    from fmapviz.data import Preparation, UserLayouts
    from fmapviz.models.weights.fit import LoadedWeights

BY_OPTIONS = "InputOptions(size=), InputOptions(mean=) and InputOptions(std=)"  # which not every function takes
_SIDE = 224  # pixels; most networks accept it
_PREPROCESSING = ("preprocess", "transforms")
_CLASSES = ("classes", "class_names", "categories", "class_to_idx", "idx_to_class", "id2label")
_SCORES = "scores"
_LAYOUT = "layout"


def describe_network(
    loaded: LoadedWeights,
    *,
    name: str,
    preprocessing: InputOptions,
    code: Iterable[Path] | None = (),
    home: object = None,
    homes: Iterable[object] = (),
    forward: Callable[[nn.Module, Tensor], object] | None = None,
) -> Model:
    """Make a `Model` of a network that takes one batch of images `(N, C, H, W)`, or that a function calls with one.

    Args:
        loaded: Any network.
        name: As the user typed it.
        preprocessing: Input options; any that is set replaces the network's own preprocessing.
        code: Source files that its digest covers besides those of its classes; None: compute no digest.
        home: The Python module that builds the network; it may define the preprocessing, the class names, the shape of an
            input, `inputs`, and what the outputs are, `scores`.
        homes: Modules that are looked into after it; see `fmapviz.models.homes`.
        forward: Calls the network with a batch; None: it takes the batch itself.

    Raises:
        RequestError: The network takes several inputs, and no function calls it; or it has uninitialized layers.
    """
    network, notices = loaded.module, loaded.notices
    owners = [network, *filter(None, [home]), *homes]
    shape = find_inputs(owners)
    check_network(network, is_called=forward is None, shape=shape)
    transforms = _find_own_transforms(network, forward, preprocessing.channels_in, shape)
    definitions = (getattr(owner, key, None) for owner in owners for key in _PREPROCESSING)
    beside = (each for each in definitions if callable(each) and not _is_submodule(each) and not transforms.include(each))
    preprocess = next(beside, None)
    if preprocess is not None and replace(preprocessing, channels_in=None) != InputOptions():
        notices = (*notices, "the input options replace the network's own preprocessing")
        preprocess = None
    # A preprocessing of one's own returns what the network takes.
    time_first = preprocess is None and shape is not None and takes_time_first(network, shape)
    if time_first and shape:
        shape = (shape[1], shape[0], *shape[2:])
    channels = preprocessing.channels_in or (shape[0] if shape else input_channels(network))
    named, said = said_of_outputs(owners)
    notices = (*notices, *_of_other_kinds(owners))
    volume = len(shape) == 4 if shape else _takes_volumes(network, channels)
    preparation = (
        by_callable(preprocess, description=_words(preprocess), channels=channels, as_stored=True, volume=volume)
        if preprocess is not None
        else _prepare(preprocessing, channels, shape, transforms, volume=volume)
    )
    if time_first:
        channels_first = preparation.apply
        preparation = replace(preparation, apply=lambda picture: channels_first(picture).transpose(0, 1), time_first=True)
    return Model(
        name=name,
        module=network,
        weights=loaded.name,
        sha256=None if code is None else digest_of_network(network, files=code, called=filter(None, [preprocess, forward])),
        preparation=preparation,
        forward=forward or call,
        classes=loaded.classes or named,
        scores=said,
        layout=find_layout(*owners),
        own=True,
        notices=notices,
        assumption="" if preprocess is not None else _assumption(preprocessing, channels, shape, transforms, volume=volume),
    )


# Values beside a network with a reserved name and another type: the common wrong types, and the expected ones.
_EXPECTED: dict[tuple[str, ...], tuple[Any, str]] = {
    _PREPROCESSING: (str | Mapping | list | tuple, "a function of one picture"),
    _CLASSES: (
        int | str | FunctionType | GeneratorType | Mapping | Sequence | AbstractSet,
        "a list of names, or a dictionary of names and indices",
    ),
    (_SCORES,): (Mapping | list | tuple, "one word, such as 'sigmoid'"),
    ("inputs",): (int | float | str | Mapping, "the shape of one input, (channels, height, width)"),
}


def _of_other_kinds(owners: Iterable[object]) -> Iterator[str]:
    """Yield notices of names in the modules beside a network that are not used, as they hold something of another kind."""
    for owner in (owner for owner in owners if isinstance(owner, ModuleType)):
        for names, (kinds, expected) in _EXPECTED.items():
            for name in names:
                value = getattr(owner, name, None)
                is_named = names == _CLASSES and ordered_names(value)
                if isinstance(value, kinds) and not isinstance(value, bool) and not is_named:
                    given = f"{name} = {quote(value)} in {owner.__name__}"
                    yield f"{given} is not used: it is of type {type(value).__name__}, and should be {expected}"


def said_of_outputs(owners: Iterable[object]) -> tuple[tuple[str, ...], str]:
    """Return the class names and the kind of outputs, `scores`, of the first owner that defines them.

    Raises:
        RequestError: There is no such kind of scores.
    """
    owners = list(owners)
    named = (ordered_names(getattr(owner, key, None)) for owner in owners for key in _CLASSES)
    said = next((said for owner in owners if isinstance(said := getattr(owner, _SCORES, None), str)), "")
    check_scores(said or None)
    return next(filter(None, named), ()), said


def find_layout(*owners: object) -> UserLayouts | None:
    """Return the axes of layers as the user names them: `layout` of a network, or of the module that builds it.

    Raises:
        RequestError: It is no mapping of globs to layouts.
    """
    given: Any = next(
        (found for owner in owners if (found := vars(owner).get(_LAYOUT) if owner is not None else None)), None
    )
    if given is None or isinstance(given, nn.Module):
        return None
    if isinstance(given, Mapping):
        for glob in given:
            check_glob(str(glob))
        return {str(glob): check_layout(text) for glob, text in given.items()}
    if callable(given):
        return cast("UserLayouts", given)
    raise RequestError(
        f"`layout` is neither a mapping nor a function: {quote(type(given).__name__)}",
        hint='layout = {"blocks.*": "N H W C", "encoder.*": "N 1+H*W C"}, or a function of name and shape',
    )


def find_inputs(owners: Iterable[object]) -> tuple[int, ...] | None:
    """Return the shape of one input that a network, or the module beside it, calls `inputs`.

    Returns:
        `(C, H, W)`, `(C, D, H, W)` of volumes and clips, or `(T, C, H, W)` of clips; None if nothing of that name is one.

    Raises:
        RequestError: It has another number of axes.

    Example:
        >>> from types import SimpleNamespace
        >>> find_inputs([SimpleNamespace(inputs=(4, 224, 224))])
        (4, 224, 224)
    """
    for owner in owners:
        given = getattr(owner, "inputs", None)
        if isinstance(given, tuple | list) and given and all(isinstance(side, int) and side > 0 for side in given):
            if len(given) not in {3, 4}:
                raise RequestError(
                    f"inputs is no shape of one input: {quote(tuple(given))}",
                    hint="(channels, height, width), or as the network takes them (channels, depth, height, width) of a "
                    "volume, (frames, channels, height, width) of a clip",
                )
            return tuple(given)
    return None


def _find_own_transforms(
    network: nn.Module,
    forward: Callable[[nn.Module, Tensor], object] | None,
    channels: int | None,
    shape: tuple[int, ...] | None,
) -> OwnTransforms:
    """Return the transforms that a network of pictures calls; see `fmapviz.models.own_transforms`."""
    if shape and len(shape) != 3:
        return OwnTransforms()
    called = network if forward is None else _Called(network, forward)
    sides = shape[1:] if shape else (_SIDE, _SIDE)
    return find_own_transforms(
        network, lambda: _accepts(called, (1, channels or (shape[0] if shape else input_channels(network)), *sides))
    )


def _prepare(
    preprocessing: InputOptions, channels: int, shape: tuple[int, ...] | None, transforms: OwnTransforms, *, volume: bool
) -> Preparation:
    """Return a preprocessing for a network that has none."""
    if volume:
        return for_volumes(preprocessing, channels=channels, shape=(shape[1], shape[2], shape[3]) if shape else None)
    mean, std = ((0.0,) * channels, (1.0,) * channels) if transforms.normalizes else (None, None)
    if shape:
        return standard(preprocessing, size=(shape[1], shape[2]), mean=mean, std=std, channels=channels)
    if transforms.resizes and not preprocessing.size:
        preprocessing = replace(preprocessing, fit=preprocessing.fit or "none")
    return as_for_imagenet(preprocessing, mean=mean, std=std, channels=channels)


def _assumption(
    preprocessing: InputOptions, channels: int, shape: tuple[int, ...] | None, transforms: OwnTransforms, *, volume: bool
) -> str:
    """Return the assumptions of a preprocessing of `_prepare`, for the user; empty if options replace all."""
    assumed = []
    if shape is None and not preprocessing.size and not preprocessing.fit and not volume and not transforms.resizes:
        assumed.append("resized to 256 and cropped to 224")
    if volume and not (preprocessing.mean and preprocessing.std):
        assumed.append("scaled to 0..1")
    elif not (preprocessing.mean and preprocessing.std) and not transforms.normalizes:
        assumed.append(f"normalised with {'' if channels == 3 else 'the average of '}ImageNet's mean and deviation")
    if not assumed:
        return ""
    what = "volumes" if volume else "images"
    return (
        f"no preprocess is defined beside the network: {what} are {' and '.join(assumed)}, which is an assumption; "
        f"define preprocess or inputs beside it, or use {BY_OPTIONS}"
    )


def takes_volumes(model: str | nn.Module | Model) -> bool:
    """Return True if a network that was built already takes volumes `(C, D, H, W)`; False for a name."""
    if isinstance(model, Model):
        return model.preparation.volume
    return isinstance(model, nn.Module) and _takes_volumes(model, input_channels(model))


def _takes_volumes(network: nn.Module, channels: int) -> bool:
    """Return True if the first convolution of a network is three-dimensional, unless it makes clips of pictures itself."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    first = next((module for module in network.modules() if isinstance(module, kinds)), None)
    # A convolution would take as many pictures as it has channels for one volume.
    return isinstance(first, nn.Conv3d) and not _accepts(network, (channels + 1, channels, _SIDE, _SIDE))


def with_axes(model: Model, shape: Sequence[int]) -> Preparation:
    """Return the preprocessing of a network with the axes of what it takes, `shape` without N."""
    return replace(model.preparation, time_first=takes_time_first(model.module, shape))


def takes_time_first(network: nn.Module, shape: Sequence[int]) -> bool:
    """Return True if a network takes clips `(N, T, C, H, W)`, not `(N, C, T, H, W)`.

    Of a clip with as many frames as channels, another number of frames is tried on the meta device, which computes nothing.
    A network that takes neither, because it has a fixed number of frames, is taken to have channels first.

    Args:
        network: Any network.
        shape: Of one clip, without N.

    Example:
        >>> frames = nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(3, 8, 3))
        >>> takes_time_first(frames, (5, 3, 32, 32)), takes_time_first(frames, (3, 3, 32, 32))
        (True, True)
        >>> takes_time_first(nn.Conv3d(3, 8, 3), (3, 5, 32, 32))
        False
    """
    if len(shape) != 4:
        return False
    channels = input_channels(network)
    if shape[0] != channels or shape[1] != channels:
        return shape[0] != channels == shape[1]
    more, sides = channels + 1, tuple(shape[2:])
    return _accepts(network, (1, more, channels, *sides)) and not _accepts(network, (1, channels, more, *sides))


def check_network(network: nn.Module, *, is_called: bool = True, shape: Sequence[int] | None = None) -> None:
    """Check that a network can be called with one batch of images and nothing else.

    Args:
        network: Any network.
        is_called: Whether it is called in this way; False: a function calls it.
        shape: Of one input, for the hint, if it is known.

    Raises:
        RequestError: It requires more inputs, takes none, or has uninitialized layers.
    """
    if any(is_lazy(values) for values in (*network.parameters(), *network.buffers())):
        raise RequestError(
            "the network has lazy layers, whose shapes depend on the first input",
            hint=f"run it once where it is built: net(torch.zeros(1, {', '.join(map(str, shape or (3, 224, 224)))}))",
        )
    if not is_called:
        return
    try:
        signature = inspect.signature(network.forward)
    except (TypeError, ValueError):  # C code
        return
    try:
        signature.bind(object())
    except TypeError as error:
        plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
        shown = signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)
        raise RequestError(
            f"the network does not take one batch of images: its forward is forward{shown}",
            hint="wrap it in a module that supplies the other inputs: forward(self, images); or, in a file of yours, define "
            "call(network, images) beside the function that builds it",
        ) from error


def check_values(network: nn.Module) -> None:
    """Check that all parameters and buffers of a network have values.

    Raises:
        RequestError: Some are on the meta device.
    """
    numbers = [*chain(network.named_parameters(), network.named_buffers())]
    meta = [name for name, values in numbers if values.is_meta]
    if meta:
        what = "the network is" if len(meta) == len(numbers) else f"a part of the network, {quote(meta[0])}, is"
        raise RequestError(
            f"{what} on the device 'meta', which has no values",
            hint="build it without torch.device('meta'), or network.to_empty(...) and network.load_state_dict(...)",
        )


def input_channels(network: nn.Module) -> int:
    """Return the number of input channels: that of the first convolution, 3 without one.

    The convolution that is defined first need not run first. A number other than 3 is therefore tried on the meta device,
    which computes nothing; if the network accepts only 3 channels, the result is 3.

    Example:
        >>> input_channels(nn.Sequential(nn.Conv2d(1, 8, 3)))
        1
    """
    kinds = (nn.Conv2d, nn.Conv3d)
    first = next((module.in_channels for module in network.modules() if isinstance(module, kinds)), 3)
    return 3 if first == 3 or (not _accepts_channels(network, first) and _accepts_channels(network, 3)) else first


def input_type(network: nn.Module) -> torch.dtype:
    """Return the dtype of a network's first floating-point parameter, float32 without one.

    Example:
        >>> input_type(nn.Conv2d(3, 4, 3).half())
        torch.float16
    """
    floating = (values.dtype for values in network.parameters() if values.is_floating_point())
    return next(floating, torch.float32)


def _accepts_channels(network: nn.Module, channels: int) -> bool:
    sides = (64, 64, 64) if _takes_volumes(network, channels) else (_SIDE, _SIDE)
    return _accepts(network, (1, channels, *sides))


def _accepts(network: nn.Module, shape: tuple[int, ...]) -> bool:
    numbers = {name: values.to("meta") for name, values in (*network.named_parameters(), *network.named_buffers())}
    batch = torch.empty(shape, device="meta", dtype=input_type(network))
    attributes = [(vars(module), dict(vars(module))) for module in network.modules()]
    try:
        with warnings.catch_warnings(), observe(network, [], lambda _: None), torch.no_grad():
            warnings.simplefilter("ignore")  # from meta kernels
            try:
                torch.func.functional_call(network, numbers, (batch,))
            except (Exception, SystemExit):  # noqa: BLE001  a user's forward pass may raise anything
                return False
    finally:
        for own, before in attributes:  # what a layer keeps for the next pass, such as anchors, has no values here
            for key in own.keys() - before.keys():
                del own[key]
            own.update((key, value) for key, value in before.items() if own.get(key) is not value)
    return True


class _Called(nn.Module):
    """A network that a function calls."""

    def __init__(self, network: nn.Module, forward: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.network, self._call = network, forward

    def forward(self, batch: Tensor) -> object:
        return self._call(self.network, batch)


def _is_submodule(value: object) -> bool:
    return isinstance(value, nn.Module) and not type(value).__module__.startswith("torchvision.transforms")


def _words(preprocess: Callable[..., Any]) -> str:
    name = getattr(preprocess, "__qualname__", None)
    return without_addresses(" ".join((f"{preprocess.__module__}.{name}" if name else repr(preprocess)).split()))
