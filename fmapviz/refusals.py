"""Say what a file is that is no weights to load, and what to do instead."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fmapviz.contents import NESTS
from fmapviz.errors import WeightsError, printable, quote
from fmapviz.inert import Inert
from fmapviz.mismatches import is_quantised

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = "if it is damaged or incomplete, delete it and get it again"

_PLAIN = "save only the weights, with torch.save(model.state_dict(), path)"
_CONVERT = "TensorFlow names and lays out weights otherwise: take those for PyTorch, or convert them first"


def unreadable(path: Path, error: Exception) -> WeightsError:
    """Say why a file cannot be read: what it is, as its first bytes tell, or what was wrong with it."""
    if isinstance(error, OSError):
        return WeightsError(f"cannot read {quote(path)}: {error.strerror or error}", hint=DAMAGED)
    for kind, hint in _kinds(path, _beginning(path)):
        return WeightsError(f"cannot read {quote(path)}: it is {kind}", hint=hint)
    for culprit in _refused_names(error):
        return _foreign(path, [culprit])
    return WeightsError(f"cannot read {quote(path)}: damaged, cut off, or no checkpoint at all", hint=DAMAGED)


def no_state(path: Path, content: object, unread: tuple[str, ...]) -> WeightsError:
    """Say what a file holds in which no state dict was found.

    Args:
        unread: The names of the Python objects in it that have not been loaded.
    """
    for model, place in _models(content):
        loading = f"torch.save(torch.load({str(path)!r}, weights_only=False){place}.state_dict(), 'weights.pth')"
        return WeightsError(
            f"refused: {quote(path)} holds a whole model ({printable(model.spelling)}), which would run code when loaded",
            hint=f"if you trust the file, type this where its code is, for it runs what is in the file: {loading}",
        )
    if unread:
        return _foreign(path, list(unread))
    if is_quantised(_keys(content)):
        return WeightsError(
            f"no state dict in {quote(path)}: it is of a quantised model", hint="save that of the model before quantisation"
        )
    return WeightsError(f"no state dict in {quote(path)}: it holds a {type(content).__name__}", hint=_PLAIN)


def _foreign(path: Path, names: list[str]) -> WeightsError:
    return WeightsError(
        f"refused: {quote(path)} holds Python objects ({printable(', '.join(names[:4]))}), which would run code when loaded",
        hint=_PLAIN,
    )


def _refused_names(error: BaseException | None) -> Iterator[str]:
    """List what PyTorch's reader names in an error, and in those that came before it."""
    while error is not None:
        if culprit := re.search(r"GLOBAL (\S+)", str(error)):
            yield culprit[1]
        error = error.__context__


def _models(content: object, place: str = "") -> Iterator[tuple[Inert, str]]:
    """Find what was an object where a state dict should be, with what to type after the loaded content to have it."""
    if isinstance(content, Inert):
        yield content, place
    if isinstance(content, Mapping):
        for nest in (*NESTS, "ema"):
            yield from _models(content.get(nest), f"{place}[{nest!r}]")


def _keys(content: object) -> Iterator[object]:
    if isinstance(content, Mapping):
        yield from content
        for value in content.values():
            yield from _keys(value)


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1024)
    except OSError:
        return b""


def _kinds(path: Path, head: bytes) -> Iterator[tuple[str, str]]:
    """Recognise files that are taken for weights, or downloaded in their place."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        yield "a web page", "the link leads to a page about the file: take the link to the file itself"
    if head.startswith(b"version https://git-lfs"):
        yield "a Git LFS pointer, which stands for the weights", "`git lfs pull` in its repository gets them"
    if re.match(rb"[{\[]\s*[\"\[{\]}]", text):
        first = printable(head[:60].decode("utf-8", "replace").strip())
        yield f"a JSON text that begins with {first}", "it describes something, or says what went wrong: get the weights"
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        yield "an HDF5 file, as Keras writes it", _CONVERT
    if path.suffix == ".onnx" or (head[:1] == b"\x08" and b"\x12\x07pytorch" in head[:16]):
        yield "an ONNX model", "save the state dict of the PyTorch model that it was exported from"
    if head.startswith(b"\x93NUMPY"):
        yield "an array of NumPy's", "weights have names: save a dictionary of tensors with torch.save"
    if path.suffix != ".safetensors" and re.match(rb".{6}\0\0\{\s*\"", head, re.DOTALL):
        yield "a safetensors file", f"give it its name: {quote(path.with_suffix('.safetensors').name)}"
    if head.startswith(b"PK"):
        yield from _kinds_of_archive(path)


def _kinds_of_archive(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # noqa: BLE001 - zipfile raises anything of a damaged archive: UnicodeDecodeError, NotImplementedError, ...
        return
    name = repr(str(path))
    if any(entry.endswith("/constants.pkl") for entry in names):
        yield "a TorchScript archive", f"torch.save(torch.jit.load({name}).state_dict(), 'weights.pth') makes a state dict"
    if any(entry.endswith(("/archive_format", "models/model.json", "serialized_exported_program.json")) for entry in names):
        yield "an exported program", f"torch.save(torch.export.load({name}).state_dict, 'weights.pth') makes a state dict"
    if any(entry.endswith(".npy") for entry in names):
        tensors = f"{{key: torch.from_numpy(values) for key, values in numpy.load({name}).items()}}"
        yield "an archive of NumPy's", f"torch.save({tensors}, 'weights.pth') makes a state dict"
    if any(entry.endswith("model.weights.h5") for entry in names):
        yield "a Keras archive", _CONVERT
