"""The contract of a model source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fmapviz.core.user_code import one_line
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.config import InputOptions
    from fmapviz.data import Model


class ModelSource(Protocol):
    """The module of a source; `fmapviz.core.members.Source` defines which names it accepts.

    A source whose names are not all listed in the catalogue may have a function `model_names() -> list[str]`, which lists
    them without the prefix. A source whose published weights are members of enumerations may have a function
    `entry_name(name, member) -> str`, which returns the word for a member, or raises `WeightsError` for another model's.

    The first source in alphabetical order that accepts a name gets it; a name that the catalogue lists takes precedence.
    """

    # Any: see `fmapviz.models.weights.state_dict.find_state`.
    def load(self, name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
        """Build a model and fill it with weights.

        Args:
            name: As the user typed it, without the prefix.
            weights: `default`, `random`, `random:SEED`, a word that only this source knows, a file or URL, or a state dict;
                None: build modules and shapes only, on the meta device.
            preprocessing: Preprocessing of inputs; options that are not set are those of the weights' training.

        Raises:
            RequestError: There is no such model, or it cannot be built as requested.
            WeightsError: The weights cannot be found, downloaded, read or fitted. Other weights are never used instead.
            UserCodeError: The user's code failed.
        """


def refused(library: str, name: str, arguments: Mapping[str, Any], error: Exception, *, hint: str) -> RequestError:
    """Return the error for a model that a library cannot build with the user's arguments."""
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
    return RequestError(f"{library} cannot build {quote(name)} with {written}: {one_line(error)}", hint=hint)
