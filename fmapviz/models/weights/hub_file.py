"""Find files of the Hugging Face hub: in its cache on this machine, or downloaded, without a hang if there is no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import huggingface_hub
from huggingface_hub import constants, errors

from fmapviz.core.user_code import one_line
from fmapviz.errors import WeightsError, printable, quote
from fmapviz.models.weights.download import unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHER_WEIGHTS = ", or pass weights=FILE or weights='random'"


def find_on_hub(
    repository: str, names: Sequence[str], *, revision: str | None = None, instead: str = _OTHER_WEIGHTS
) -> Path | None:
    """Return the first of some files that a repository has; None if it has none of them.

    What is in the cache is taken without a request.

    Args:
        repository: Such as `google/vit-base-patch16-224`.
        names: Files that serve the same purpose, the best first.
        revision: A branch, tag or commit; None: the main branch.
        instead: Alternatives to the cache, for the hint.

    Raises:
        WeightsError: They are not in the cache, and the hub cannot be reached or refuses the request. Or no repository can
            have this name.
    """
    try:
        found = {name: huggingface_hub.try_to_load_from_cache(repository, name, revision=revision) for name in names}
    except errors.HFValidationError as error:
        raise WeightsError(f"not a name of the Hugging Face hub: {quote(repository)}", hint=one_line(error)) from error
    cached = next((path for path in found.values() if isinstance(path, str)), None)
    if cached:
        return Path(cached)
    for name in [name for name, path in found.items() if path is None]:  # others are known to be missing
        url = huggingface_hub.hf_hub_url(repository, name, revision=revision)
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else unreachable(url)
        if reason and not reason.startswith("HTTP status"):  # the hub's own client has the user's token
            raise _unavailable(repository, url, reason, instead)
        try:
            return Path(huggingface_hub.hf_hub_download(repository, name, revision=revision))
        except errors.EntryNotFoundError:
            continue
        except Exception as error:  # the hub raises errors of several libraries
            raise _unavailable(repository, url, one_line(error), instead) from error
    return None


def list_cached() -> list[str]:
    """List the repositories of models in the hub's cache, sorted."""
    folders = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots")
    return sorted(folder.parent.name.removeprefix("models--").replace("--", "/") for folder in folders)


def _unavailable(repository: str, url: str, reason: str, instead: str) -> WeightsError:
    return WeightsError(
        f"cannot download {quote(url)}: {printable(reason.strip())}",
        hint=f"fill the Hugging Face hub's cache, {quote(constants.HF_HUB_CACHE)}: hf download {repository}{instead}",
    )
