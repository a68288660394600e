"""Number the layers of a training in the order of execution, with the same numbers at all steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fmapviz.data import LayerResult, Picture


class Numbering:
    """The numbers of layers at the first step that drew them: TensorBoard sorts tags by name.

    Example:
        >>> from fmapviz.data import LayerResult
        >>> numbers = Numbering()
        >>> numbers.add([LayerResult("conv", "Conv2d", 1, 3, (8, 4, 4))])
        >>> numbers.name("conv")
        '03 conv'
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._digits = 0  # those of the first step: a tag must not change

    def add(self, layers: Iterable[LayerResult]) -> None:
        """Number layers that were not drawn before."""
        for layer in layers:
            self._numbers.setdefault(layer.layer, layer.index)
        self._digits = self._digits or max(2, len(str(max(self._numbers.values(), default=0))))

    def name(self, layer: str, shown: str = "") -> str:
        """Return the number and the name of a layer; `shown` replaces the name."""
        number = self._numbers.get(layer)
        return (shown or layer) if number is None else f"{number:0{self._digits}d} {shown or layer}"

    def rename(self, picture: Picture) -> Picture:
        """Return a picture with the number of its layer in its name."""
        if picture.layer is None:
            return picture
        return replace(picture, name=self.name(picture.layer.layer, picture.name.partition(" ")[2]))
