"""Explain why a file cannot be loaded as weights, and what to do instead."""

from __future__ import annotations

import errno
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fmapviz.core.platforms import python_in_shell
from fmapviz.errors import WeightsError, printable, quote
from fmapviz.models.weights.file import DAMAGED
from fmapviz.models.weights.stand_ins import Inert
from fmapviz.models.weights.state_dict import NESTS, is_quantised

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN = "save only the weights, with torch.save(model.state_dict(), path)"
_CONVERT = "TensorFlow names and stores weights differently: use PyTorch's, or convert them first"

_UNPACK = "unpack it, and use the weights in it"
_ONNX = ("an ONNX model", "save the state dict of the PyTorch model it was exported from")

# The first bytes of files that are mistaken for weights, or downloaded in their place; in the text {0} is their beginning.
_BLANK = rb"[\xef\xbb\xbf \t\r\n]*"
_KINDS = (
    (rb"\Z", "an empty file", "delete it, and save or download the weights again"),
    (
        _BLANK + rb"(?i:(<\?xml[^>]*>\s*)?<(!doctype|html|head|body))",
        "a web page",
        "use the link to the file itself, not to a page about it",
    ),
    (rb"version https://git-lfs", "a Git LFS pointer to the weights", "`git lfs pull` in its repository downloads them"),
    (
        _BLANK + rb"[{\[]\s*[\"\[{\]}]",
        "a JSON text that begins with {0}",
        "download the weights: this may be an error message",
    ),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it", _CONVERT),
    (rb"\x08(?s:.{0,6})\x12\x07pytorch", *_ONNX),
    (rb"\x93NUMPY", "a NumPy array", "save a dictionary of named tensors with torch.save"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|\x28\xb5\x2f\xfd", "a compressed file", _UNPACK),
    (rb"(?s:.{257})ustar", "a tar archive", _UNPACK),
    (rb"\x89PNG|\xff\xd8\xff|GIF8|%PDF", "a picture or a document", "weights are another file; inputs follow the model"),
    (rb"[\t\r\n -~\x80-\xff]{8,}\Z", "a text that begins with {0}", "download the weights: this may be an error message"),
)

# Ends of names in a ZIP archive, and what makes a state dict of its content; in the text {0} is the archive's path.
_ARCHIVES = (
    (("/constants.pkl",), "a TorchScript archive", "torch.jit.load({0}).state_dict()"),
    (
        ("/archive_format", "models/model.json", "serialized_exported_program.json"),
        "an exported program",
        "torch.export.load({0}).state_dict",
    ),
    ((".npy",), "a NumPy archive", "{{key: torch.from_numpy(values) for key, values in numpy.load({0}).items()}}"),
    (("model.weights.h5",), "a Keras archive", None),
)


def unreadable(path: Path, error: Exception) -> WeightsError:
    """Return the error for a file that cannot be read: its kind by its first bytes, or the damage."""
    if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is PyTorch's seek beyond the end
        return WeightsError(f"cannot read {quote(path)}: {error.strerror or error}", hint=DAMAGED)
    for kind, hint in _kinds(path):
        return WeightsError(f"cannot read {quote(path)}: it is {kind}", hint=hint)
    cause: BaseException | None = error
    while cause is not None:
        if refused := re.search(r"GLOBAL (\S+)", str(cause)):  # PyTorch's unpickler names the refused object
            return python_objects(path, refused[1])
        cause = cause.__context__
    return WeightsError(f"cannot read {quote(path)}: damaged, truncated or not a checkpoint", hint=DAMAGED)


def no_state(path: Path, content: object, ignored: tuple[str, ...]) -> WeightsError:
    """Return the error for a file without a state dict.

    Args:
        path: The file.
        content: Its content.
        ignored: The names of the Python objects in it that were not loaded.
    """
    for model, subscript in _models(content):
        command = _saving(path, f"torch.load({{0}}, weights_only=False){subscript}.state_dict()")
        return WeightsError(
            f"refused: {quote(path)} contains a whole model ({printable(model.spelling)}), which would run code when loaded",
            hint=f"if you trust the file, run this beside its source code; it runs what is in the file: {command}",
        )
    if ignored:
        return python_objects(path, ", ".join(ignored[:4]))
    if is_quantised(_keys(content)):
        return WeightsError(f"no state dict in {quote(path)}: it is quantised", hint="save the model before quantisation")
    return WeightsError(f"no state dict in {quote(path)}: it contains a {type(content).__name__}", hint=_PLAIN)


def python_objects(path: Path, names: str) -> WeightsError:
    """Return the error for a file that would run code."""
    return WeightsError(
        f"refused: {quote(path)} contains Python objects ({printable(names)}), which would run code when loaded", hint=_PLAIN
    )


def _models(content: object, subscript: str = "") -> Iterator[tuple[Inert, str]]:
    """Find objects in place of a state dict, with the subscript that returns each from the loaded content."""
    if isinstance(content, Inert):
        yield content, subscript
    if isinstance(content, Mapping):
        for nest in (*NESTS, "ema"):
            yield from _models(content.get(nest), f'{subscript}["{nest}"]')


def _saving(path: Path, content: str) -> str:
    """Return a shell command that saves a state dict.

    Args:
        path: The file.
        content: An expression that loads it; in the text {0} is its path. Its quotes are double, for the shell.
    """
    literal = json.dumps(str(path), ensure_ascii=False)
    modules = "numpy, torch" if "numpy." in content else "torch"
    code = f'import {modules}; torch.save({content.format(literal)}, "weights.pth")'
    return python_in_shell("-c", code)


def _keys(content: object) -> Iterator[object]:
    if isinstance(content, Mapping):
        yield from content
        for value in content.values():
            yield from _keys(value)


def _kinds(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError:
        return
    for beginning, kind, hint in _KINDS:
        if re.match(beginning, head):
            yield kind.format(printable(head[:60].decode("utf-8", "replace").strip())), hint
    if path.suffix == ".onnx":
        yield _ONNX
    if path.suffix != ".safetensors" and re.match(rb".{6}\0\0\{\s*\"", head, re.DOTALL):
        yield "a safetensors file", f"rename it to {quote(path.with_suffix('.safetensors').name)}"
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        except Exception:  # noqa: BLE001 - zipfile raises anything for a damaged archive: UnicodeDecodeError, ...
            return
        for ends, kind, content in _ARCHIVES:
            if any(name.endswith(ends) for name in names):
                yield kind, f"this makes a state dict: {_saving(path, content)}" if content else _CONVERT
        if names and not any(name.endswith("/data.pkl") for name in names):
            yield "a ZIP archive without a checkpoint of PyTorch", _UNPACK
