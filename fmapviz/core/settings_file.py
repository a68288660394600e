"""The settings file from which options of this command come: `run.json` and `--plan` show it, no fingerprint has it."""

from __future__ import annotations

from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Its name as `file`, and the options in effect as `options`; empty without one, as for Python's functions.
settings_file: ContextVar[Mapping[str, Any]] = ContextVar("settings_file", default=MappingProxyType({}))
