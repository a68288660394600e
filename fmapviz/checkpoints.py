"""Read a state dict from a file without running anything in it, and fit it into a network."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fmapviz.errors import WeightsError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

StateDict = dict[str, Tensor]

# Where training scripts put the state dict, and what wrappers write before its keys.
NESTS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.", "model.")

_DAMAGED = "if it is damaged or incomplete, delete it and get it again"


def read_state_dict(path: Path) -> StateDict:
    """Read the state dict of a `.safetensors`, `.pth` or `.pt` file, at the top or under one of the usual names.

    Raises:
        WeightsError: It is not there, damaged, holds no state dict, or would have to run code.
    """
    if not path.is_file():
        raise WeightsError(f"no such weights file: {quote(path)}")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    state = _state_dict_in(content)
    if state is None:
        raise WeightsError(
            f"no state dict in {quote(path)}: it holds a {type(content).__name__}",
            hint="save it with torch.save(model.state_dict(), path)",
        )
    return state


def strip_prefixes(state: StateDict, wanted: Iterable[str]) -> tuple[StateDict, tuple[str, ...]]:
    """Take off what wrappers put before every key, as long as the keys are not what the network wants.

    Returns:
        The state dict under the shorter keys, and the prefixes taken off, outermost first.

    Example:
        >>> strip_prefixes({"module.a.weight": torch.zeros(1)}, ["a.weight"])
        ({'a.weight': tensor([0.])}, ('module.',))
    """
    wanted, stripped = set(wanted), []
    while not wanted & state.keys():
        prefix = next((prefix for prefix in PREFIXES if state and all(key.startswith(prefix) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        stripped.append(prefix)
    return state, tuple(stripped)


def load_state_dict(module: nn.Module, state: StateDict, path: Path) -> None:
    """Fill a network with the values of a state dict; where they lie in memory as the network's own do, without a copy.

    Keys of former days are renamed as torch and torchvision do; counts of batches, which the oldest files lack, are 0.

    Raises:
        WeightsError: The keys or shapes are not the same; the first of them are named.
    """
    own = module.state_dict()
    resized = [key for key in own if key in state and state[key].shape != own[key].shape]
    fitting = OrderedDict((key, values) for key, values in state.items() if key not in resized)
    # The versions of the classes that wrote the file; without one every class looks for older keys, but MNASNet must know.
    fitting._metadata = {"": {"version": module._version}}  # type: ignore[attr-defined]  # as torch does
    alike = all(_lies_like(values, own[key]) for key, values in fitting.items() if key in own)
    try:
        missing, unexpected = module.load_state_dict(fitting, strict=False, assign=alike)
    except RuntimeError as error:  # values under an older key that have another shape
        raise WeightsError(f"the weights in {quote(path)} do not fit: {' '.join(str(error).split())[:300]}") from error
    differences = [
        *(f"missing {key}" for key in missing if key not in resized),
        *(f"unexpected {key}" for key in unexpected),
        *(f"{key} is {_written(state[key])}, not {_written(own[key])}" for key in resized),
    ]
    if differences:
        more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise WeightsError(
            f"the weights in {quote(path)} do not fit: {'; '.join(differences[:4])}{more}",
            hint="are they of another model, or of one with another number of classes?",
        )


def digest_of(path: Path) -> str:
    """Give the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_state(state: StateDict) -> str:
    """Give the SHA-256 of the names, kinds, shapes and bytes of a state dict, hexadecimal."""
    digest = hashlib.sha256()
    for key, values in state.items():
        digest.update(f"{key} {values.dtype} {tuple(values.shape)} ".encode())
        digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_safetensors(path: Path) -> object:
    try:
        return load_file(path)
    except Exception as error:  # SafetensorError and OSError, whatever a damaged header leads to
        raise WeightsError(f"cannot read {quote(path)}: {_first_line(error)}", hint=_DAMAGED) from error


def _read_pickle(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats of long ago
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # UnpicklingError, RuntimeError, EOFError, KeyError, ...: the file is foreign
        text = str(error)
        if "TorchScript" in text:
            raise WeightsError(
                f"a TorchScript archive, no state dict: {quote(path)}",
                hint="torch.save(torch.jit.load(path).state_dict(), 'weights.pth') makes one",
            ) from error
        if culprit := re.search(r"GLOBAL (\S+)", text):
            raise WeightsError(
                f"refused: {quote(path)} holds Python objects ({printable(culprit[1])}), which would run code when loaded",
                hint="save only the weights, with torch.save(model.state_dict(), path)",
            ) from error
        reason = error.strerror if isinstance(error, OSError) else "damaged, cut off, or no checkpoint at all"
        raise WeightsError(f"cannot read {quote(path)}: {reason}", hint=_DAMAGED) from error


def _state_dict_in(content: object) -> StateDict | None:
    if not isinstance(content, dict):
        return None
    if content and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items()):
        return dict(content)
    nested = (_state_dict_in(content[name]) for name in NESTS if name in content)
    return next((state for state in nested if state is not None), None)


def _lies_like(values: Tensor, own: Tensor) -> bool:
    """Tell whether a tensor can stand for another of its shape, not only give it its values."""
    if (values.layout, values.dtype, values.device) != (own.layout, own.dtype, own.device):
        return False
    return values.stride() == own.stride()


def _written(values: Tensor) -> str:
    return f"({', '.join(map(str, values.shape))})"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
