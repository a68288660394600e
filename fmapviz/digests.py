"""Tell files and networks apart by a SHA-256."""

from __future__ import annotations

import hashlib
import inspect
import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor, nn

_LIBRARIES = ("torch", "torchvision", "timm")


def digest_of(path: Path) -> str:
    """Give the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_state(state: Mapping[str, Tensor]) -> str:
    """Give the SHA-256 of the names, kinds, shapes and bytes of a state dict, hexadecimal."""
    digest = hashlib.sha256()
    for key, values in state.items():
        digest.update(f"{key} {values.dtype} {tuple(values.shape)} ".encode("utf-8", "surrogatepass"))
        digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of_network(network: nn.Module, *, files: Iterable[Path] = ()) -> str:
    """Tell networks apart by their weights, by what they are made of, and by the code that is not a library's.

    A stride or an activation is no weight, and what a forward pass does with its layers is neither.

    Args:
        network: Whose modules tell where their code is.
        files: More of that code.
    """
    # Not the network's own repr() and state_dict(), which do not come to an end where a module contains itself.
    numbers = dict(chain(network.named_parameters(), network.named_buffers()))
    parts = (f"{name} {type(module).__qualname__} {module.extra_repr()}" for name, module in network.named_modules())
    structure = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(parts))  # a function's address is another one every time
    code = sorted({digest_of(path) for path in (*files, *_code_of(network)) if path.is_file()})
    return hashlib.sha256(f"{digest_of_state(numbers)} {structure} {code}".encode("utf-8", "surrogatepass")).hexdigest()


def _code_of(network: nn.Module) -> set[Path]:
    kinds = {type(module) for module in network.modules()}
    return {path for kind in kinds if kind.__module__.partition(".")[0] not in _LIBRARIES for path in _file_of(kind)}


def _file_of(kind: type) -> Iterable[Path]:
    try:
        yield Path(inspect.getfile(kind))
    except (TypeError, OSError):  # made in a notebook or by C code
        return
