"""Tell whether memory did not suffice."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory, the GPU's or the computer's, did not suffice."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
