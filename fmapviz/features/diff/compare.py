"""Compare two networks in Python, layer by layer: `fmapviz.diff`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import nn

from fmapviz.config import InputOptions, Style, check_type, explain_arguments, renamed, split
from fmapviz.data import DIFFERENCES, Failure, Model
from fmapviz.errors import InputError, NothingToDoError, RequestError, quote, suggest_file
from fmapviz.features.diff.aggregate import powers_of
from fmapviz.features.diff.layer_pairs import PairDrawer
from fmapviz.features.diff.layer_ranking import LayerChange, Powers, rank_layers, why_apart
from fmapviz.features.diff.networks import choose_layers, compare_networks, load_second
from fmapviz.images.find import find_images
from fmapviz.images.load import read_input
from fmapviz.images.memory.inputs import is_all_prepared, resolve_inputs
from fmapviz.models.load import load_model
from fmapviz.observe.detectors import with_feeds
from fmapviz.observe.layers import default_types, find_layers, select_layers, unwrap
from fmapviz.run.batch import describe_given
from fmapviz.run.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fmapviz.data import Inputs, LayerResult
    from fmapviz.features.diff.networks import Other


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerDifference:
    """How a layer differs between two networks for one image.

    Attributes:
        image: Name of the image.
        layer: Name of the layer, with `#2` for its second call.
        a: Its output in the first network, a copy, `(1, C, H, W)` for a convolution.
        b: Its output in the second network.
        delta: `b - a`, float32, or float64 if one of the two is.
        numbers: Of all channels together: `max_abs`, the largest magnitude of `delta`; `rms`, its root mean square;
            `relative_l2`, its norm relative to that of `a`; `cosine` and `pearson` of both; `sqnr` in dB, infinite where
            nothing differs; `differing`, the share of positions that differ; `nonfinite`, positions with NaN or infinity.
        channels: The same numbers of each channel, float64 `(C, 8)`, in that order; None if there are no channels.
    """

    image: str
    layer: str
    a: Tensor
    b: Tensor
    delta: Tensor
    numbers: Mapping[str, float]
    channels: NDArray[np.float64] | None

    def __repr__(self) -> str:
        """Summarize it in one line."""
        numbers = ", ".join(f"{name}={self.numbers[name]:.4g}" for name in ("max_abs", "rms", "cosine", "sqnr"))
        return f"LayerDifference({self.layer!r}, {self.image!r}, {numbers})"


class Differences(Iterator[LayerDifference]):
    """The layers of two networks, image by image, as they are computed.

    Args:
        found: Computes each layer.
        powers: The sums that the layers so far are ranked by.
        alone: The layers so far that are not compared, and whether it is A that has them.
    """

    def __init__(
        self, found: Iterator[LayerDifference], powers: Mapping[str, Powers], alone: Sequence[tuple[str, bool]]
    ) -> None:
        self._found = found
        self._powers = powers
        self._alone = alone

    def __next__(self) -> LayerDifference:
        """Return the next layer.

        Raises:
            FmapvizError: As in `diff`.
        """
        return next(self._found)

    @property
    def layers(self) -> tuple[LayerChange, ...]:
        """The layers ranked by their change over the images so far, the largest first; then those without a rank."""
        return tuple(rank_layers(self._powers, why_apart(self._alone), None))


@renamed(options="preprocessing")
@explain_arguments
def diff(
    model_a: str | nn.Module | Model,
    model_b: Other,
    images: Inputs,
    *,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    preprocessing: InputOptions | None = None,
) -> Differences:
    """Compare two networks on the same inputs, image by image and layer by layer.

    Args:
        model_a: A network, or a name as `fmapviz.load_model` takes it.
        model_b: Another network; `"model:NAME"`; `"dtype:bfloat16"`, the same network computed in another type; or other
            weights of the first, from a file or a state dict.
        images: As of `fmapviz.visualize`: paths, pictures, arrays or tensors. Each is prepared once, for both networks.
        layers: Globs over dotted names; none means all.
        exclude: Globs of names to leave out again.
        types: Class names, matched through base classes; none means Conv2d, else Conv3d, and blocks of transformers.
        preprocessing: Preprocessing of images.

    Returns:
        An iterator over each layer that both networks have, matched by name, call and shape, in the order of execution of
        the second network. Only the layers of one image are in memory. Its `layers` are ranked by how much they change over
        the images so far.

    Raises:
        RequestError: A network or layer is unknown, or no layer is in both networks, or the two expect inputs that are
            preprocessed in different ways.
        NothingToDoError: There are no images.
        InputError: An image cannot be read.
        FmapvizError: A network failed.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> found = list(diff(net, "dtype:bfloat16", torch.rand(3, 16, 16)))
        >>> [each.layer for each in found], found[0].numbers["sqnr"] > 30
        (['0', '2'], True)
        >>> differences = diff(net, "dtype:bfloat16", torch.rand(3, 16, 16))
        >>> for each in differences:
        ...     pass
        >>> sorted(change.rank for change in differences.layers)
        [1, 2]
    """
    check_type("preprocessing", preprocessing, InputOptions | None, hint="such as InputOptions(fit='pad')")
    preprocessing = preprocessing or InputOptions()
    first = _load(model_a, preprocessing)
    compared = compare_networks(first, load_second(first, model_b, weights="default", preprocessing=preprocessing))
    existing = find_layers(compared.first.module)
    types, layers, exclude = (
        split(check_type(name, value, Sequence[str], hint="names or globs, such as 'layer4.*'"))
        for name, value in {"types": types, "layers": layers, "exclude": exclude}.items()
    )
    kinds = types or default_types(existing)
    include = with_feeds(layers, compared.first.module)
    own = select_layers(existing, types=kinds, include=include, exclude=exclude, any_type=not types)
    theirs = choose_layers(compared, types=kinds, include=layers, exclude=exclude)
    drawer = PairDrawer(compared, (own, theirs), Plan(), Style())
    powers: dict[str, Powers] = {}
    alone: list[tuple[str, bool]] = []
    return Differences(_iterate(drawer, images, compared.first, powers, alone), powers, alone)


def _iterate(
    drawer: PairDrawer, images: Inputs, model: Model, powers: dict[str, Powers], alone: list[tuple[str, bool]]
) -> Iterator[LayerDifference]:
    """Compare the layers of each image; add their sums to `powers`, and the others to `alone`."""
    device = next(model.module.parameters(), torch.empty(0)).device
    found = None
    inputs = resolve_inputs(images, volumes=model.preparation.volume)
    if model.assumption and not is_all_prepared(inputs):
        warnings.warn(model.assumption, stacklevel=3)
    with drawer:
        for found in find_images(inputs):
            if isinstance(found, Failure):
                raise InputError(found.code, found.message, hint=found.hint or suggest_file(found.path))
            values = read_input(found, model.preparation).values[None].to(device)
            kept: list[tuple[LayerResult, Tensor, Tensor]] = []
            drawer.receive = lambda result, a, b: kept.append((result, a, b))  # noqa: B023  used before the next image
            (drawn,) = drawer.draw(values)
            apart = [(layer.layer, layer.difference) for layer in drawn.layers]
            alone += [(name, each.indices[1] is None) for name, each in apart if each and each.whole is None]
            if not kept:
                raise RequestError("no chosen layer is in both networks", hint="they are matched by name, call and shape")
            for result, a, b in kept:
                difference = result.difference
                assert difference
                assert difference.whole is not None
                sums = powers.setdefault(result.layer, Powers(difference.indices[0] or 0))
                sums.add(powers_of(sums.index, difference.whole, difference.powers))
                numbers = MappingProxyType({name: difference.numbers[name] for name in DIFFERENCES})
                yield LayerDifference(found.unit, result.layer, a, b, _subtract(a, b), numbers, difference.channels)
    if found is None:
        raise NothingToDoError("no images", hint="such as 'cat.png', a folder, or tensors")


def _subtract(a: Tensor, b: Tensor) -> Tensor:
    plain = [each.dequantize() if each.is_quantized else each for each in (a, b)]
    wide = torch.float64 if torch.float64 in {each.dtype for each in plain} else torch.float32
    return plain[1].to(wide) - plain[0].to(wide)


def _load(model: object, preprocessing: InputOptions) -> Model:
    if isinstance(model, str):
        return load_model(model, preprocessing=preprocessing)
    if isinstance(model, Model):
        return replace(model, module=unwrap(model.module))
    if isinstance(model, nn.Module):
        return describe_given(unwrap(model), preprocessing=preprocessing, code=None)
    raise RequestError(f"no network: {quote(type(model).__name__)}", hint="a torch.nn.Module, or a name such as 'resnet18'")
