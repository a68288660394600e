"""Read what a weights file holds, without running anything in it, or say what kind of file it is instead."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import warnings
import zipfile
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import torch
from isal import isal_zlib
from safetensors import safe_open

from fmapviz.contents import is_state
from fmapviz.errors import WeightsError, quote
from fmapviz.inert import load_inertly
from fmapviz.refusals import DAMAGED, unreadable

if TYPE_CHECKING:
    from pathlib import Path

# What a folder of Hugging Face's may hold, the first that it has is taken.
_IN_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")

# How large what is in an archive may be: so many bytes, and so many times the archive. Weights that are mostly 0 pack well.
_UNPACKED_BYTES = 2**28
_UNPACKED_TIMES = 20

_INDEX = ".index.json"
_LONGEST_NAME = 255  # bytes; no file system has longer ones
_LENGTHS_AT = 26  # in the header before an entry
_DIRECTORY = 0x10  # among the attributes of an entry
_one_at_a_time = Lock()  # see `load_inertly`


def files_of(path: Path) -> list[Path]:
    """List a file, or an index and the files beside it that it tells of, in the order of their names.

    Raises:
        WeightsError: It is an index that cannot be read, or that names other than files beside it.
    """
    if not path.name.endswith(_INDEX):
        return [path]
    return [path, *(path.with_name(name) for name in sorted(set(_weight_map(path).values())))]


def in_folder(path: Path) -> Path:
    """Give the weights file or index in a folder; another path as it is.

    Raises:
        WeightsError: The folder has none.
    """
    if not path.is_dir():
        return path
    file = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
    if file is None:
        raise WeightsError(f"no such weights file: {quote(path)}", hint=f"a folder may hold {' or '.join(_IN_FOLDERS)}")
    return file


def read_content(path: Path) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Read everything that a `.safetensors`, `.pth`, `.pt` or `.ckpt` file or an index of several holds.

    Returns:
        The content; what a safetensors header says about it; and the names of foreign Python objects that were left unread.

    Raises:
        WeightsError: It is not there, damaged, of another kind, or would have to run code.
    """
    if not path.is_file():
        raise WeightsError(f"no such weights file: {quote(path)}")
    if path.name.endswith(_INDEX):
        return _read_shards(path), {}, ()
    if path.suffix == ".safetensors":
        return (*_read_safetensors(path), ())
    content, names = _read_pickle(path)
    return content, {}, names


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            content = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  it is no dictionary
            return content, dict(file.metadata() or {})
    except Exception as error:  # SafetensorError and OSError, whatever a damaged header leads to
        raise unreadable(path, error) from error


def _read_pickle(path: Path) -> tuple[Any, tuple[str, ...]]:
    try:
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats of long ago
            _require_sound(path)
            try:
                return torch.load(path, map_location="cpu", weights_only=True), ()
            except pickle.UnpicklingError:
                if not zipfile.is_zipfile(path):
                    raise
                return load_inertly(path)
    except WeightsError:
        raise
    except Exception as error:  # UnpicklingError, RuntimeError, EOFError, KeyError, ...: the file is foreign
        raise unreadable(path, error) from error


def _require_sound(path: Path) -> None:
    """Compare what is in an archive with its checksums, which PyTorch does not look at.

    Raises:
        WeightsError: They differ, or a megabyte of it would take a gigabyte of memory.
        zipfile.BadZipFile: It is no whole archive.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > _UNPACKED_BYTES + _UNPACKED_TIMES * path.stat().st_size:
            raise WeightsError(f"refused: {quote(path)} unpacks to {unpacked:,} bytes", hint="no weights pack so well")
        for entry in entries:
            # PyTorch leaves the memory as it is for what is marked as a directory; a checksum of 0 was not computed, see
            # torch.serialization.set_crc32_options.
            if entry.file_size and entry.external_attr & _DIRECTORY:
                raise WeightsError(f"cannot read {quote(path)}: damaged, what it holds is marked as empty", hint=DAMAGED)
            if entry.CRC and _checksum(archive, entry, file) != entry.CRC:
                raise WeightsError(f"cannot read {quote(path)}: damaged, for it has another checksum", hint=DAMAGED)


def _checksum(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> int:
    """Compute the CRC-32 of what is in an archive; with `zipfile` alone it takes four times as long."""
    if entry.compress_type != zipfile.ZIP_STORED:
        return _crc32(archive.open(entry), entry.file_size)
    file.seek(entry.header_offset + _LENGTHS_AT)
    file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)  # the entry's name, and more about it
    return _crc32(file, entry.file_size)


def _crc32(stream: IO[bytes], size: int) -> int:
    value = 0
    while size and (chunk := stream.read(min(size, 1 << 20))):
        value = isal_zlib.crc32(chunk, value)
        size -= len(chunk)
    return value


def _read_shards(index: Path) -> dict[str, Any]:
    """Read the tensors that an index tells of from the files beside it."""
    weight_map = _weight_map(index)
    shards = {}
    for shard in files_of(index)[1:]:
        if not shard.is_file():
            raise WeightsError(f"{quote(index)} names a file that is not there: {quote(shard.name)}", hint="get it too")
        shards[shard.name] = read_content(shard)[0]
        if not is_state(shards[shard.name]):
            raise WeightsError(f"no state dict in {quote(shard)}, which {quote(index)} names")
    for key, name in weight_map.items():
        if key not in shards[name]:
            raise WeightsError(f"{quote(index)} names a tensor that is not in {quote(name)}: {quote(key)}")
    return {key: shards[name][key] for key, name in weight_map.items()}


def _weight_map(index: Path) -> dict[str, str]:
    """Read which file each tensor is in; only files beside the index are believed, whatever it says."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"cannot read {quote(index)}: no index of weights", hint=DAMAGED) from error
    for name in names:
        if not isinstance(name, str) or re.search(r"[/\\\0]", name) or name in {"", ".", ".."} or name.endswith(_INDEX):
            raise WeightsError(f"refused: {quote(index)} names what is no weights file beside it: {quote(name)}")
        if len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
            raise WeightsError(f"{quote(index)} names a file that cannot be there: {quote(name)}")
    return dict(weight_map)
