"""The contract of a model source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.config import InputOptions
    from fmapviz.types import Model


class ModelSource(Protocol):
    """A module of this folder. Its name is the prefix of its models' names, as in `timm:resnet18`.

    Optional constants, which are literals and read without importing the module, say which names a source accepts:

    * `NAMES`: A string, the names of its models separated by white space, if they are fixed. They need no prefix. A source
      without it may have a function `known_names() -> list[str]`, which lists all names without the prefix.
    * `SPELLING`: A regular expression that must match all of any other name, with its prefix if there is one.
    * `IS_CODE`: True if such a name is a reference to user code, as `fmapviz.models.user_code` parses it.
    * `TAKES_ARGUMENTS`: True if arguments may follow its names, as in `resnet18(num_classes=5)`.
    * `REQUIRES`: The package that it needs; the extra of the source's name installs it.

    A source whose published weights are members of enumerations may have a function `entry_name(name, member) -> str`, which
    returns the word for a member, or raises `WeightsError` if it is of another model.

    The first source in alphabetical order that accepts a name gets it; a name in `NAMES` takes precedence.
    """

    # Any: see `fmapviz.models.weights.state_dict.find_state`.
    def load(self, name: str, *, weights: str | Mapping[str, Any] | None, options: InputOptions) -> Model:
        """Build a model and fill it with weights.

        Args:
            name: As the user typed it, without the prefix.
            weights: `default`, `random`, `random:SEED`, a word that only this source knows, a file or URL, or a state dict;
                None: build modules and shapes only, on the meta device.
            options: How inputs are preprocessed; what is not set is as the weights were trained.

        Raises:
            RequestError: There is no such model, or it cannot be built as requested.
            WeightsError: The weights cannot be found, downloaded, read or fitted. Other weights are never used instead.
            UserCodeError: The user's code failed.
        """
