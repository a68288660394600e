"""An image in memory as an input of a run: its name, and the identity that its content gives it."""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import Any, Literal
from weakref import WeakValueDictionary

from fmapviz.data import ImageFile
from fmapviz.images.decode import read_orientation

Kind = Literal["picture", "array", "pixels", "prepared"]

_PREFIX, _DIGITS = "memory:", 16
_loading = Lock()  # Pillow decodes on first use, and may not do so in two threads at once


class MemoryImage:
    """An image in memory.

    Attributes:
        name: Name of the image in the run.
        kind: `picture`, a Pillow picture; `array`, as a .npy file of its content; `pixels`, a uint8 tensor `(C, H, W)`;
            `prepared`, a floating-point tensor that the network gets as it is, `(C, H, W)`, or `(C, T, H, W)` for a clip.
        value: The picture, array or tensor, unchanged.
    """

    __slots__ = ("__weakref__", "_digest", "kind", "name", "value")

    def __init__(self, name: str, kind: Kind, value: Any) -> None:  # Any: see `kind`; torch is not imported here
        self.name = name
        self.kind = kind
        self.value = value
        self._digest = ""

    @property
    def path(self) -> str:
        """What identifies the image in the records of a run: its name and a digest of its content.

        Raises:
            Exception: Any error of a decoder: Pillow reads a file only now.
        """
        return f"{_PREFIX}{self.name}#{self._identify()[:_DIGITS]}"

    def as_file(self, unit: str) -> ImageFile:
        """Return the image as a listed input, which keeps it in memory.

        Args:
            unit: Name of its output directory.

        Raises:
            Exception: See `path`.
        """
        path = self.path
        _known[path] = self
        return ImageFile(path, unit, {"sha256": self._identify()}, self)

    def _identify(self) -> str:
        """Return the SHA-256 of the content, hexadecimal."""
        if not self._digest:
            facts, data = _content_of(self.kind, self.value)
            digest = hashlib.sha256(repr((self.kind, facts)).encode("utf-8", "surrogatepass"))
            digest.update(data)
            self._digest = digest.hexdigest()
        return self._digest


# Images that are in memory now, by path: those of a list as long as the run, others until they are drawn.
_known: WeakValueDictionary[str, MemoryImage] = WeakValueDictionary()


def memory_image(file: ImageFile) -> MemoryImage | None:
    """Return the image in memory of a listed or recorded input; None if it is a file, or no longer in memory."""
    return file.content if isinstance(file.content, MemoryImage) else _known.get(file.path)


def is_in_memory(path: str) -> bool:
    """Return True for the path of an image in memory.

    Example:
        >>> is_in_memory("memory:image_0#0123456789abcdef"), is_in_memory("memory://bucket/a.png")
        (True, False)
    """
    return path.startswith(_PREFIX) and path[-_DIGITS - 1 : -_DIGITS] == "#"


def load_picture(picture: Any) -> None:  # Any: a Pillow picture
    """Decode a Pillow picture that was opened but not used yet."""
    with _loading:
        picture.load()


# Any: see `MemoryImage`.
def _content_of(kind: Kind, value: Any) -> tuple[object, bytes]:
    """Return the properties that distinguish images of equal numbers, and the numbers as bytes."""
    if kind == "picture":
        load_picture(value)
        palette = value.getpalette("RGBA") if value.mode in {"P", "PA"} else None
        return (value.mode, value.size, palette, value.info.get("transparency"), read_orientation(value)[0]), value.tobytes()
    array = value if kind == "array" else as_array(value)
    return (array.dtype.str, array.shape), array.tobytes()


def as_array(tensor: Any) -> Any:  # Any: torch is not imported here, nor NumPy
    """Return a tensor as a NumPy array; floating-point numbers as float32."""
    own = tensor.detach().cpu()
    return (own.float() if own.is_floating_point() else own).numpy()
