"""Tell which layers' outputs may be chosen automatically: those that are surely maps of the picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.shapes import CHANNELS_FIRST, NotAMapError

if TYPE_CHECKING:
    from torch import Tensor

    from fmapviz.places import Place
    from fmapviz.tape import Tape
    from fmapviz.targets import ClassScores

_BACKBONE = "backbone"  # what is not in it, torchvision's detectors use to find boxes
_OFF = 2  # pixels that convolutions without padding may take away


class Eligibility:
    """Knows what the convolutions of a forward pass have returned, and so how large its maps are.

    Args:
        tape: In which all layers were kept.
        scores: Of the classes.
    """

    def __init__(self, tape: Tape, scores: ClassScores) -> None:
        self._tape = tape
        self._scores = scores
        known = (place.feature_map.values for place in tape.places.kept if isinstance(place.layer.module, CHANNELS_FIRST))
        self._sizes = {tuple(values.shape[2:]) for values in known if values.ndim == 4}
        self._has_backbone = any(place.name.startswith(_BACKBONE) for place in tape.places.kept)

    def see(self, place: Place, values: Tensor) -> Tensor:
        """See values of a place as maps of the picture, see `Tape.maps`.

        Raises:
            NotAMapError: They are none, or other things than maps have such shapes too.
        """
        maps = self._tape.maps(place, values)
        for reason in self._reasons(place, values, maps):
            raise NotAMapError(reason)
        return maps

    def _reasons(self, place: Place, values: Tensor, maps: Tensor) -> list[str]:
        size = (maps.shape[-2], maps.shape[-1])
        classes = self._scores.values.shape[1]
        fits = size in self._sizes or self._is_of_picture(size)
        wrong = {
            "class scores themselves": (self._scores.of_pixels or values.ndim == 3) and maps.shape[1] == classes,
            "boxes": self._scores.open_ended and self._has_backbone and not place.name.startswith(_BACKBONE),
            "a part of attention": values.ndim == 3 and _is_in_attention(place.name),
            "no map of the picture": values.ndim < 5 and not fits,
            "no clip": values.ndim == 5 and self._tape.pixels.ndim < 5,
        }
        return [reason for reason, holds in wrong.items() if holds]

    def _is_of_picture(self, size: tuple[int, int]) -> bool:
        """Tell whether there is a row and a column for every so many pixels."""
        whole = self._tape.picture or (0, 0)
        steps = [max(1, round(all_of / own)) for own, all_of in zip(size, whole, strict=True)]
        return all(abs(own - all_of / step) <= _OFF for own, all_of, step in zip(size, whole, steps, strict=True))


def _is_in_attention(name: str) -> bool:
    return any("att" in part for part in name.split(".")[:-1])
