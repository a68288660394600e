"""Read a weights file without running anything in it.

`huggingface_hub` 2.4 reads sharded and safetensors files too (`load_torch_model`). Measured with VGG-11 (507 MB) on 2 cores:
it takes as long (0.7 to 1.0 s sharded, 1.8 s as `.pth`), but 840 to 1,015 MB more memory against 7 MB for safetensors and
511 MB for `.pth` here, because it copies into a network that exists. It checks no CRC and no unpacked size, finds neither
nested state dicts nor prefixed keys nor class names, and refuses checkpoints of Lightning. It would save 35 lines.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import warnings
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import torch
from isal import isal_zlib
from safetensors import safe_open

from fmapviz.errors import WeightsError, first_few, printable, quote
from fmapviz.models.weights.archive import DIRECTORY, LENGTHS_AT, CallError, read_archive
from fmapviz.models.weights.errors import no_state, python_objects, unreadable
from fmapviz.models.weights.file import DAMAGED, INDEX, missing, read_index
from fmapviz.models.weights.stand_ins import load_inertly
from fmapviz.models.weights.state_dict import (
    NESTS,
    drop_extras,
    find_classes,
    find_state,
    is_state,
    list_states,
    pickled_at,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fmapviz.models.weights.state_dict import StateDict

# An archive may unpack to this many bytes plus this many times its size. Weights that are mostly 0 compress well.
_UNPACKED_BYTES = 2**28
_UNPACKED_TIMES = 20

_PIECE_BYTES = 1 << 20  # that are read at once
GIVEN = Path("the state dict")  # in messages, in place of a file
_NESTING = (b"(", b"]", b")", b"}")  # a pickle's marks, and its empty containers
_one_at_a_time = Lock()  # see `load_inertly`


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The content of a weights file.

    Attributes:
        state: Tensors on the CPU under the file's own keys.
        classes: Class names in the file, not compared with the network.
        notices: Choices made while reading it, for the user.
    """

    state: StateDict
    classes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


def read_checkpoint(path: Path, entry: str | None = None) -> Checkpoint:
    """Read the state dict and the class names of a file.

    Args:
        path: A `.safetensors`, `.pth`, `.pt` or `.ckpt` file, or an index.
        entry: A dotted key in the file, or the beginning of the tensors' keys; None: the usual state dict.

    Raises:
        WeightsError: The file does not exist, is damaged or of another kind, contains no state dict, or would run code.
    """
    content, header, ignored = read_content(path)
    try:
        _check_nesting(content)
        content, dropped = drop_extras(content)
        found = find_state(content, entry)
        if found is None:
            raise no_state(path, content, ignored)
        state, name = found
        notices = [] if entry else list(_notices(content, name, path))
        pickled = pickled_at(content, name)
        classes = (
            find_classes(content)
            or find_classes(dict(_json_values(header)))
            or find_classes(getattr(pickled, "state", None))
        )
    except RecursionError as error:
        raise WeightsError(f"no state dict in {quote(path)}: it is nested too deeply", hint=DAMAGED) from error
    if dropped:
        notices.append(f"not used of {quote(path)}: {first_few(dropped)}")
    if pickled:
        notices.append(f"only the tensors of the network pickled in {quote(path)} were read ({printable(pickled.spelling)})")
    elif ignored:
        notices.append(f"ignored Python objects in {quote(path)}: {first_few(ignored)}")
    return Checkpoint(state, classes, tuple(notices))


def read_given(weights: Mapping[str, Any]) -> Checkpoint:  # Any: see `find_state`
    """Return the tensors of a state dict given in Python, or of a checkpoint that contains one, copied to the CPU.

    Raises:
        WeightsError: There is no state dict in it, or there are several.

    Example:
        >>> import torch
        >>> [*read_given(torch.nn.Linear(2, 1).state_dict()).state]
        ['weight', 'bias']
    """
    content, dropped = drop_extras(dict(weights))
    content = cast("dict[str, Any]", content)
    try:
        found = find_state(content, None)
    except WeightsError as error:  # there are several
        error.advise(f"pass one of them, such as checkpoint[{list_states(content)[0].partition('.')[0]!r}]")
        raise
    if found is None:
        keys = first_few([quote(key) for key in content]) or "nothing"
        message = f"no state dict, which maps names to tensors, but a {type(weights).__name__} of {keys}"
        raise WeightsError(message, hint="network.state_dict() is one")
    state = {key: values.detach().cpu().clone() for key, values in found[0].items()}  # the caller may continue training
    return Checkpoint(
        state, find_classes(content), (f"not used of the state dict: {first_few(dropped)}",) if dropped else ()
    )


def read_content(path: Path, *, single: bool = False) -> tuple[Any, dict[str, str], tuple[str, ...]]:
    """Read all that a file has, with stand-ins for Python objects.

    Args:
        path: The file.
        single: Whether values of half precision may be returned in single precision, which is faster; see `read_archive`.

    Returns:
        The content, a safetensors file's metadata, and the names of the Python objects that stand-ins replace.

    Raises:
        WeightsError: The file does not exist, is damaged or of another kind, or would run code.
    """
    if not os.path.isfile(path):
        raise missing(str(path))
    if path.name.endswith(INDEX):
        return _read_shards(path), {}, ()
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  it is not a dict
                return tensors, dict(file.metadata() or {}), ()
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats
            content, ignored = _read_pickle(path, single=single)
            return content, {}, ignored
    except WeightsError:
        raise
    except Exception as error:  # SafetensorError, UnpicklingError, RuntimeError, EOFError, KeyError, ...
        raise unreadable(path, error) from error


def _read_shards(index: Path) -> StateDict:
    weight_map = read_index(index)
    shards = {}
    for name in sorted(set(weight_map.values())):
        shard = index.with_name(name)
        if not os.path.isfile(shard):
            raise WeightsError(f"{quote(index)} names a missing file: {quote(name)}", hint="download it too")
        shards[name] = read_content(shard)[0]
        if not is_state(shards[name]):
            raise WeightsError(f"no state dict in {quote(shard)}, which {quote(index)} names", hint=DAMAGED)
    for key, name in weight_map.items():
        if key not in shards[name]:
            raise WeightsError(f"{quote(index)} names a tensor that is not in {quote(name)}: {quote(key)}", hint=DAMAGED)
    return {key: shards[name][key] for key, name in weight_map.items()}


def _json_values(header: dict[str, str]) -> Iterator[tuple[str, object]]:
    for key, value in header.items():
        with suppress(ValueError):  # not JSON
            yield key, json.loads(value)


def _read_pickle(path: Path, *, single: bool) -> tuple[Any, tuple[str, ...]]:
    is_archive = zipfile.is_zipfile(path)
    if is_archive:
        try:
            return read_archive(path, single=single)
        except CallError as error:
            raise python_objects(path, error.shown) from error
        except Exception:  # noqa: BLE001, S110  PyTorch reads what is unusual; what is damaged is refused below
            pass
        _check_archive(path)
    else:
        with path.open("rb") as file:
            _check_depth(path, file.read(_PIECE_BYTES))  # the values follow
    try:
        return torch.load(path, map_location="cpu", weights_only=True), ()
    except pickle.UnpicklingError:
        if not is_archive:
            raise
        return load_inertly(path)


def _check_depth(path: Path, piece: bytes) -> None:
    """Refuse a pickle that is mostly marks and empty containers: 5 MB of these take PyTorch 38 s and 873 MB.

    Raises:
        WeightsError: It is.
    """
    if sum(map(piece.count, _NESTING)) > 10_000 + len(piece) // 4:
        raise WeightsError(f"refused: {quote(path)} is nested too deeply", hint="no weights are nested like that")


def _check_archive(path: Path) -> None:
    """Compare every entry of an archive with its CRC-32, which PyTorch does not, and check its pickle.

    Raises:
        WeightsError: One differs, the archive unpacks to far more than its size, or see `_check_depth`.
        zipfile.BadZipFile: The archive is incomplete.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > _UNPACKED_BYTES + _UNPACKED_TIMES * path.stat().st_size:
            raise WeightsError(f"refused: {quote(path)} unpacks to {unpacked:,} bytes", hint="no weights compress that well")
        for entry in entries:
            # PyTorch leaves memory uninitialized for an entry that is marked as a directory.
            if entry.file_size and entry.external_attr & DIRECTORY:
                raise WeightsError(f"cannot read {quote(path)}: damaged, a tensor is marked as a directory", hint=DAMAGED)
            value, is_pickle = 0, entry.filename.endswith("data.pkl")
            # A CRC of 0 was not computed: see torch.serialization.set_crc32_options.
            for piece in _pieces_of(archive, entry, file) if entry.CRC or is_pickle else ():
                value = isal_zlib.crc32(piece, value)
                if is_pickle:
                    _check_depth(path, piece)
            if entry.CRC and value != entry.CRC:
                raise WeightsError(f"cannot read {quote(path)}: damaged, a checksum does not match", hint=DAMAGED)


def _pieces_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of an entry; `zipfile` alone takes four times as long for one that is not compressed."""
    stream: IO[bytes] = file
    if entry.compress_type == zipfile.ZIP_STORED:
        file.seek(entry.header_offset + LENGTHS_AT)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
    else:
        stream = archive.open(entry)
    size = entry.file_size
    while size and (piece := stream.read(min(size, _PIECE_BYTES))):
        yield piece
        size -= len(piece)


def _check_nesting(content: object) -> None:
    """Refuse dicts that contain each other so often that a search through them does not end.

    Raises:
        RecursionError: They do.
    """
    sizes: dict[int, int] = {}

    def size(content: object) -> int:
        if not isinstance(content, dict):
            return 0
        if id(content) not in sizes:
            sizes[id(content)] = 0  # it may contain itself
            sizes[id(content)] = 1 + sum(size(value) for value in content.values() if isinstance(value, dict))
        return sizes[id(content)]

    if size(content) > 1000 + 10 * len(sizes):
        raise RecursionError


def _notices(content: object, name: str, path: Path) -> Iterator[str]:
    if name and name.rpartition(".")[2] not in NESTS:
        yield f"loaded the state dict under {quote(name)} in {quote(path)}"
    if name and (others := [other for other in list_states(content) if other != name]):
        option = f"weights={quote(f'{path}#{others[0]}')}"
        which = "it" if len(others) == 1 else "the first"
        yield f"{quote(path)} also contains {first_few([*map(quote, others)])}: {option} loads {which}"
