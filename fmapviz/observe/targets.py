"""Parse the classes whose scores are differentiated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fmapviz.errors import RequestError, printable, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A requested class, by its rank among the scores or by its index; or a box or a pixel, by its rank or its place.

    Attributes:
        label: In names of pictures: `top1`, `class3`, `star`, `box1`.
        rank: From 1, the highest score; None if `index`, `box` or `place` is given.
        index: Among the classes; None if it is not given.
        each: Another class for each image of a batch; then none of these counts.
        named: Whether it was requested by its name.
        box: From 1, the box with the highest score; None if a class is given.
        every: Whether all boxes of the class count, and not only the best one.
        place: Left, top, right and bottom of a box, or column and row of a pixel, from 0; pixels of the upright picture.
    """

    label: str
    rank: int | None
    index: int | None
    each: tuple[TargetChoice, ...] = ()
    named: bool = field(default=False, compare=False)
    box: int | None = None
    every: bool = False
    place: tuple[float, ...] = ()

    @property
    def key(self) -> object:
        """Equal for two ways of writing the same."""
        return self.rank, self.index, self.box, self.every, self.place


@dataclass(frozen=True, slots=True)
class BoxTarget:
    """A part of a detector's output in one image, in place of the index of a class.

    Attributes:
        index: Of the class.
        boxes: Positions among the boxes of the image.
    """

    index: int
    boxes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PixelTarget:
    """A class at one pixel of a segmentation, in place of the index of a class.

    Attributes:
        index: Of the class.
        pixel: Position among all pixels of the scores.
    """

    index: int
    pixel: int


@dataclass(frozen=True, slots=True)
class PixelsTarget:
    """A class at some pixels of a segmentation, whatever is predicted there, in place of the index of a class.

    Attributes:
        index: Of the class.
        pixels: Positions among all pixels of the scores.
    """

    index: int
    pixels: tuple[int, ...]


TOP1 = TargetChoice("top1", rank=1, index=None)
RANK = re.compile(r"top(\d{1,4})", re.IGNORECASE)
_BOX = re.compile(r"box(\d{1,4})", re.IGNORECASE)
_NUMBER = r"\s*[-+]?\d{1,6}(?:\.\d{0,6})?\s*"
_PLACED_BOX = re.compile(rf"box:({_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER})(?=,|$)", re.IGNORECASE)
_PIXEL = re.compile(r"([^,]*)@(\s*\d{1,6}\s*,\s*\d{1,6}\s*)(?=,|$)")
_PLACED_CLASS = re.compile(r"(.*)@(\s*\d{1,6}\s*,\s*\d{1,6}\s*)", re.DOTALL)  # its name may have commas
# What begins like a place, in place of one, with as many numbers: in messages.
_ILL_PLACED = re.compile(r"box:[^,]*(?:,[^,@:]*){0,3}|[^,]*@[^,]*(?:,[^,@:]*)?", re.IGNORECASE)
_ILL_RANKED = re.compile(r"box[-+.\d\s]*", re.IGNORECASE)
_FORM_OF_BOX = "box:LEFT,TOP,RIGHT,BOTTOM, in pixels of the upright picture"
_FORM_OF_PIXEL = "CLASS@X,Y or @X,Y, in whole pixels of the upright picture"
_ALL_BOXES = "a name or an index before *, for all its boxes"
_FEW = 20  # names of classes that fit into a hint
INDEX = re.compile(r"-?\d{1,9}")  # of a class; a negative one is refused


def parse(texts: Sequence[str], classes: Sequence[str], *, outputs: int | None = None) -> tuple[TargetChoice, ...]:
    """Parse classes as they are typed.

    Args:
        texts: Each the name of a class, which may have commas in it, or a list with commas of `topK`, which means top1 to
            topK, of numbers, which are always indices, and of names. Upper and lower case differ only where two names do.
            `boxK` is a detector's K-th box, unless a class has that name, `box:L,T,R,B` the box that overlaps this one most,
            and a class with `*` behind it all its boxes. `star@X,Y` is a class at one pixel, `@X,Y` what is predicted there.
        classes: The names, by index; empty if they are unknown.
        outputs: Number of classes by the network's output; None if it is unknown: then it is the number of names.

    Returns:
        In the order of the texts, each class once.

    Raises:
        RequestError: No such class, several of this name, or an empty list.

    Example:
        >>> [each.label for each in parse(["top2,star", "0"], ["circle", "star"])]
        ['top1', 'top2', 'star', 'class0']
    """
    choices: dict[object, TargetChoice] = {}
    for text in texts:
        for part in [text.strip()] if _has_commas(text, classes) else _parts(text, classes):
            for each in _read_one(part, classes, outputs):
                choices.setdefault(each.key, each)
    if not choices:
        raise RequestError(f"no class in the list: {quote(','.join(texts))}", hint="for example top1, or an index")
    return tuple(choices.values())


def parse_one(text: str, classes: Sequence[str]) -> TargetChoice:
    """Parse a single class; `top3` is the third one.

    Args:
        text: As of `parse`.
        classes: Likewise; an index is not limited by them if they are unknown.

    Raises:
        RequestError: As of `parse`, or they are several.

    Example:
        >>> parse_one("top3", ["circle", "star"]).label, parse_one("7", []).label
        ('top3', 'class7')
    """
    if not classes and INDEX.fullmatch(text):
        return TargetChoice(f"class{int(text)}", rank=None, index=int(text))  # the network's output limits it
    read = parse([text], classes)
    if len(read) > 1 and "," in text:
        raise RequestError(f"several classes: {quote(text)}", hint="call once for each")
    return read[-1]


def canonical(texts: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Return classes as they are typed, with names spelled as the model does. `parse` must accept them.

    Example:
        >>> canonical(["Top2, STAR", "0"], ["circle", "star"])
        ('top2,star', '0')
    """
    return tuple(
        _spelled(text, classes)
        if _has_commas(text, classes)
        else ",".join(_spelled(part, classes) for part in _parts(text, classes))
        for text in texts
    )


def no_output(index: int, outputs: int) -> RequestError:
    """Return the error for a class that the network does not have."""
    plural = "" if outputs == 1 else "s"
    last = f"from 0 to {outputs - 1}" if outputs > 1 else "0"
    return RequestError(f"no class {index}: the network has {outputs} output{plural}", hint=f"{last}, or top1")


def _has_commas(text: str, classes: Sequence[str]) -> bool:
    """Return True for a class in whose name commas are, alone, before `*` or before `@X,Y`."""
    text = text.strip()
    placed = _PLACED_CLASS.fullmatch(text)
    names = {text, text.removesuffix("*").strip(), placed[1].strip() if placed else text}
    return any("," in name and _called(name, classes) for name in names)


def _parts(text: str, classes: Sequence[str]) -> list[str]:
    """Split a list at its commas, except those of places."""
    parts, rest = list[str](), text.lstrip()
    while rest:
        part, _, after = rest.partition(",")
        forms = () if _called(part.strip(), classes) else (_PLACED_BOX, _PIXEL, _ILL_PLACED)
        if placed := next(filter(None, (form.match(rest) for form in forms)), None):
            part, after = placed[0], rest[placed.end() + 1 :]
        parts.append(part.strip())
        rest = after.lstrip()
    return [part for part in parts if part]


def _read_one(text: str, classes: Sequence[str], outputs: int | None) -> list[TargetChoice]:
    if match := RANK.fullmatch(text):
        if not int(match[1]):
            raise RequestError(f"no such class: {quote(text)}", hint="ranks begin at top1")
        return [TargetChoice(f"top{rank}", rank, None) for rank in range(1, int(match[1]) + 1)]
    if (match := _BOX.fullmatch(text)) and not _called(text, classes):
        if not int(match[1]):
            raise RequestError(f"no such box: {quote(text)}", hint="ranks begin at box1")
        return [TargetChoice(f"box{int(match[1])}", None, None, box=int(match[1]))]
    if placed := None if _called(text, classes) else _read_placed(text, classes, outputs):
        return [placed]
    if text.endswith("*") and not _called(text, classes):
        name = text[:-1].strip()
        found = _read_one(name, classes, outputs) if name else []
        if len(found) != 1 or found[0].index is None:
            raise RequestError(f"no such class: {quote(text)}", hint=_ALL_BOXES)
        return [replace(found[0], label=f"{found[0].label}*", every=True)]
    if INDEX.fullmatch(text):
        index = int(text)
        if outputs and not 0 <= index < outputs:
            raise no_output(index, outputs)
        count = outputs or len(classes)
        if index < 0 or (count and index >= count):
            raise RequestError(f"no such class: '{index}'", hint=f"from 0 to {count - 1}" if count else "from 0")
        return [TargetChoice(f"class{index}", None, index)]
    if _ILL_RANKED.fullmatch(text) and not _called(text, classes) and not suggest(text, classes):
        raise RequestError(f"not a box: {quote(text)}", hint=f"box1 is the one with the highest score; or {_FORM_OF_BOX}")
    return [_named(text, classes)]


def _read_placed(text: str, classes: Sequence[str], outputs: int | None) -> TargetChoice | None:
    """Return a box or a pixel that is given by its place; None if it is something else."""
    if match := _PLACED_BOX.fullmatch(text):
        left, top, right, bottom = place = _numbers(match[1])
        if left >= right or top >= bottom:
            raise RequestError(f"an empty box: {quote(text)}", hint=f"LEFT below RIGHT and TOP below BOTTOM: {_FORM_OF_BOX}")
        return TargetChoice(f"box:{_shown(place)}", None, None, place=place)
    match = _PLACED_CLASS.fullmatch(text)
    if match and (not match[1].count(",") or _called(match[1].strip(), classes)):
        place, name = _numbers(match[2]), match[1].strip()
        if not name:
            return TargetChoice(f"@{_shown(place)}", None, None, place=place)
        own = _read_one(name, classes, outputs)[0]
        if own.index is None or own.place or own.every:
            raise RequestError(
                f"not a class at a pixel: {quote(text)}", hint=f"a name or an index before @: {_FORM_OF_PIXEL}"
            )
        return replace(own, label=f"{own.label}@{_shown(place)}", place=place)
    if text.lower().startswith("box:"):
        raise RequestError(f"not a box: {quote(text)}", hint=_FORM_OF_BOX)
    if "@" in text:
        raise RequestError(f"not a class at a pixel: {quote(text)}", hint=_FORM_OF_PIXEL)
    return None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _shown(place: tuple[float, ...]) -> str:
    return ",".join(f"{number:.10g}" for number in place)


def _named(name: str, classes: Sequence[str]) -> TargetChoice:
    if not classes:
        raise RequestError(f"no such class: {quote(name)}; class names are unknown", hint="use an index, or top1")
    indices = _called(name, classes)
    if not indices:
        names = f"there are: {', '.join(map(printable, classes))}; or" if len(classes) <= _FEW else "a name,"
        hint = suggest(name, classes) or f"{names} a number from 0 to {len(classes) - 1}, or top1"
        raise RequestError(f"no such class: {quote(name)}", hint=hint)
    if len(indices) > 1:
        raise RequestError(
            f"several classes are named {quote(name)}: {', '.join(map(str, indices))}", hint="choose an index"
        )
    index = indices[0]
    # A class whose name looks like the label of another's number must not share it: pictures are named after labels.
    label = f"class{index}" if re.fullmatch(r"class\d+", classes[index]) else classes[index]
    return TargetChoice(label, None, index, named=True)


def _spelled(text: str, classes: Sequence[str]) -> str:
    if RANK.fullmatch(text) or (_BOX.fullmatch(text) and not _called(text, classes)):
        return text.lower()
    if not _called(text, classes) and (placed := _read_placed(text, classes, None)):
        name = text.rpartition("@")[0].strip()
        return f"{_spelled(name, classes)}@{_shown(placed.place)}" if name else placed.label
    if text.endswith("*") and not _called(text, classes):
        return f"{_spelled(text[:-1].strip(), classes)}*"
    indices = [] if INDEX.fullmatch(text) else _called(text, classes)
    return classes[indices[0]] if indices else text


def _called(name: str, classes: Sequence[str]) -> list[int]:
    exactly = [index for index, known in enumerate(classes) if known == name]
    return exactly or [index for index, known in enumerate(classes) if known.casefold() == name.casefold()]
