"""The directory of a run: find the one with the same settings, or create it."""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from fmapviz.config.positions import parse_anchor
from fmapviz.core import checksummed_json, files, registry
from fmapviz.core.checksummed_json import FORMAT
from fmapviz.core.file_names import HIDDEN, RUN_FILE, UNIT_FILE, UNIT_TABLE, folded, own_run_files, portable
from fmapviz.core.files import locked, staging_folder, writing_to
from fmapviz.core.platforms import SLASH
from fmapviz.core.settings_file import settings_file
from fmapviz.errors import OutputError, RefusedError, RequestError, printable, quote, suggest_file
from fmapviz.store.unfinished import is_record
from fmapviz.store.unit import read_unit, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fmapviz.config import RunInfo
    from fmapviz.core.members import View

_IMPOSSIBLE = 10_000  # no format has such a number: the record is damaged
_GOOD_NAME = (
    '1 to 200 printable bytes without " * / : < > ? \\ |, no dot at either end or blank at the end, no device such as con'
)
_LONGEST_STEM = 180  # bytes; file systems allow 255
IN_TRAINING = "in training"  # the weights of a run that is drawn while its network is trained
_OTHER_VALUES = "network: other weights, code, attributes or hooks"  # one digest is of all
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, and the same call continues"),
    **dict.fromkeys((errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO), "move that away, and the same call continues"),
    errno.EFBIG: "allow larger files (ulimit -f), and the same call continues",
}


def check_output(out: Path) -> None:
    """Check, without writing, that a directory can be created and written to.

    Raises:
        OutputError: It cannot.
    """
    path = out.absolute()
    with writing_to(out), suppress(FileNotFoundError, NotADirectoryError):
        path.lstat()  # fails for a name that is too long
    while not os.path.lexists(path):
        path = path.parent
    if not os.path.isdir(path):
        raise OutputError(f"not a directory: {quote(path)}", hint="choose another out=")
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {quote(path)}: read-only, or not permitted", hint="choose another out=")


def check_name(name: str | None) -> None:
    """Check the name of a run's directory.

    Raises:
        RequestError: A directory cannot have it on every system, or it would be hidden.
    """
    if name is None:
        return
    fits = 0 < len(os.fsencode(name)) <= 200
    if not fits or not name.isprintable() or name.startswith(".") or portable(name) != name:
        raise RequestError(f"not a directory name: {quote(name)}", hint=_GOOD_NAME)


def open_run(out: Path, info: RunInfo, *, name: str | None = None, sync: bool = False) -> Path:
    """Find the run with the same settings, or create it.

    Args:
        out: The directory of all runs.
        info: The settings.
        name: The run's directory in `out`. None: the model's name, or the first of `alexnet-2`, `alexnet-3`, ... that has
            the same settings or is free.
        sync: Wait until the run would survive a power failure.

    Raises:
        RefusedError: The named directory belongs to a run with other settings, was not made by fmapviz, or was made by a
            version with another format.
        OutputError: It could not be written.
    """
    check_name(name)
    for candidate in names_of(info, name):
        directory = _as_spelled(out, candidate)
        if _create(directory, info, sync=sync) or _is_same(directory, info, sync=sync):
            with writing_to(directory):
                sweep(out)
                sweep(directory)
            return directory
    raise _refusal(directory, info)


def find_run(out: Path, info: RunInfo, *, name: str | None = None) -> Path:
    """Return the directory that a run with these settings would continue, or create.

    Raises:
        RefusedError: The named directory belongs to another run, or was not made by fmapviz.
    """
    for candidate in names_of(info, name):
        directory = _as_spelled(out, candidate)
        if not files.exists(directory) or (read_run(directory) or {}).get("fingerprint") == info.fingerprint:
            return directory
    raise _refusal(directory, info)


def names_of(info: RunInfo, name: str | None = None) -> Iterator[str]:
    """Yield the names that a run with these settings may have."""
    if name is not None:
        yield name
        return
    stem = f"{stem_of(info.model)}-diff" if info.against else stem_of(info.model)
    stem = portable(stem.encode()[:_LONGEST_STEM].decode(errors="ignore"))
    yield stem
    yield from (f"{stem}-{number}" for number in count(2))


def stem_of(model: str) -> str:
    """Return the beginning of names of files and directories about a model.

    Example:
        >>> stem_of("nets/my_net.py:build(width=2)"), stem_of("timm:vit_tiny_patch16_224")
        ('my_net.py_build_width_2', 'timm_vit_tiny_patch16_224')
    """
    model = re.sub(rf"^[^(]*{SLASH}(?=[^(/]*\.py:)", "", model)  # the folder of user code
    return "".join(ch if ch.isalnum() or ch in "._-" else "_" for ch in model).lstrip(".").rstrip("_") or "model"


def describe_contents(directory: Path, info: RunInfo) -> str:
    """Return the content of a directory in place of the run with these settings, with the settings that differ."""
    if read_run(directory) is None:
        return "files that fmapviz did not make"
    different = differences(settings_of(directory), info.settings)
    if not different:  # its record is damaged
        return "a run with other settings"
    more = f"; {len(different) - 3} more" if len(different) > 3 else ""
    return f"a run with other settings ({'; '.join(different[:3])}{more})"


@contextmanager
def removed_if_refused(run: Path, *, out_too: bool) -> Iterator[None]:
    """Remove a run's directory on a `RequestError`, if it holds nothing but `run.json`.

    Args:
        run: The directory.
        out_too: Whether to remove the directory around it too, if that is empty.
    """
    try:
        yield
    except RequestError:
        with suppress(OSError):  # remaining files do no harm
            if [entry.name for entry in run.iterdir()] == [RUN_FILE]:
                files.remove(run / RUN_FILE)
                files.remove_folder(run)
                if out_too:
                    files.remove_folder(run.parent)
        raise


@contextmanager
def marked(run: Path) -> Iterator[None]:
    """Keep an empty hidden directory in a run, which shows that it is being written, or that its command was killed."""
    with ExitStack() as stack:
        with suppress(OSError), locked(run / RUN_FILE):  # a finished run may be read-only; not while it is removed
            stack.enter_context(staging_folder(run))
        yield


def is_surveyed(settings: Mapping[str, Any]) -> bool:
    """Return True if pictures of a run with these settings depend on others of its images."""
    return shares_ranges(settings) or shares_components(settings) or shares_values(settings)


def is_series(settings: Mapping[str, Any]) -> bool:
    """Return True for a comparison of the checkpoints of a training."""
    against = settings.get("against")
    return isinstance(against, dict) and bool(against.get("series"))


def shares_values(settings: Mapping[str, Any]) -> bool:
    """Return True if values depend on other images of the run, not only pictures: clusters, and an anchor in one of them."""
    anchor = settings["style"]["anchor"]
    return bool(clusters_of(settings) or (anchor and parse_anchor(str(anchor)).image))


def clusters_of(settings: Mapping[str, Any]) -> int:
    """Return the number of clusters of all images of a run; 0 if there are none."""
    clustered = any(each.surveyed for each in _views(settings))
    return int(settings["style"]["clusters"]) if clustered else 0


def _views(settings: Mapping[str, Any]) -> list[View]:
    """Return the views of a run, which another version may have drawn."""
    return [registry.views()[name] for name in settings["views"] if name in registry.views()]


def shares_ranges(settings: Mapping[str, Any]) -> bool:
    """Return True if all images of a run have one range."""
    return settings["style"]["norm"] in {"run", "signed-run"}


def shares_components(settings: Mapping[str, Any]) -> bool:
    """Return True if all images of a run share their principal components."""
    return settings["style"]["pca"] == "shared" and any(each.shares for each in _views(settings))


def remedy_of(error: OutputError) -> str:
    """Return a hint for a failure to write."""
    return _REMEDIES.get(getattr(error.__cause__, "errno", None) or 0, "the same call continues")


def _as_spelled(out: Path, name: str) -> Path:
    """Return the entry of a directory that macOS and Windows take for one of this name; else the path that it would have."""
    named = out / name
    with suppress(OSError):  # there is no such directory yet, for example
        if not files.exists(named):
            return next((path for path in sorted(out.iterdir()) if folded(path.name) == folded(name)), named)
    return named


def _create(directory: Path, info: RunInfo, *, sync: bool) -> bool:
    """Create a run; return False if its name is taken. The rename decides between many processes."""
    if files.exists(directory / RUN_FILE):
        return False
    with writing_to(directory):
        files.make_folders(directory.parent)
        with staging_folder(directory.parent) as staging:
            files.write(staging / RUN_FILE, _record(info))
            if sync:
                files.sync(staging / RUN_FILE)
                files.sync(staging)
            try:
                files.rename(staging, directory)
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                    return False
                raise
        if sync:
            files.sync_folders(directory.parent, directory.parent.parent)
    return True


def _record(info: RunInfo) -> bytes:
    return checksummed_json.dumps(
        {
            "fmapviz": FORMAT,
            "fingerprint": info.fingerprint,
            "settings": info.settings,
            **({"request": dict(info.request)} if info.request else {}),
            "versions": dict(info.versions),
            **({"config": dict(settings_file.get())} if settings_file.get() else {}),
        }
    )


def _is_same(directory: Path, info: RunInfo, *, sync: bool) -> bool:
    """Return True if a directory holds the run with these settings; its damaged `run.json` is rewritten."""
    if checksummed_json.load(directory / RUN_FILE, intact=True) is None and _belongs(directory, info):
        with writing_to(directory):
            files.write_over(directory / RUN_FILE, _record(info), sync_too=sync)
    document = read_run(directory)
    if document is None:
        return False
    check_format(document, directory)
    return bool(document.get("fingerprint") == info.fingerprint)


def _belongs(directory: Path, info: RunInfo) -> bool:
    """Return True if a run without a readable `run.json` has these settings: its units say so, or it is empty."""
    try:
        data = checksummed_json.read(directory / RUN_FILE)
    except FileNotFoundError:
        data = None
    except OSError:
        return False
    if data is not None and not checksummed_json.is_truncated(data):
        return False
    unit = next((record for path in directory.rglob(UNIT_FILE) if (record := read_unit(path.parent))), None)
    if unit is not None:
        return bool(unit.get("run") == info.fingerprint)
    if data is None:
        return False
    visible = (path for path in directory.rglob("*") if HIDDEN not in str(path.relative_to(directory)))
    own = own_run_files() | {UNIT_FILE, UNIT_TABLE}
    return all(
        os.path.isdir(path) or path.name in own or is_record(path.name) or os.path.exists(path.parent / UNIT_FILE)
        for path in visible
    )


def read_run(directory: Path) -> dict[str, Any] | None:
    """Read `run.json`; None if it is missing or cannot be read."""
    document = checksummed_json.load(directory / RUN_FILE)
    return document if document and _version(document) else None


def load_run(directory: Path, *, typed: object = None, hint: str | None = None) -> dict[str, Any]:
    """Read `run.json`.

    Args:
        directory: The run.
        typed: Its path as the user typed it; None: the directory.
        hint: Hint if it is no run; None: one for a path that does not exist, or what a run holds.

    Raises:
        RequestError: It is no run.
        RefusedError: See `check_format`.
    """
    document = read_run(directory)
    if document is None and os.path.isfile(directory / RUN_FILE):
        again = f"draw it again into another directory, or restore {RUN_FILE} from a copy"
        raise RequestError(f"the record of a run is damaged: {quote(directory / RUN_FILE)}", hint=again)
    if document is None:
        if not hint and not os.path.isdir(directory):
            hint = suggest_file(str(typed or directory), lambda _name: False)
        hint = hint or f"the directory of a run holds {RUN_FILE}"
        raise RequestError(f"no run of fmapviz: {quote(typed or directory)}", hint=hint)
    check_format(document, directory)
    return document


def check_format(document: Mapping[str, Any], directory: Path) -> None:
    """Check that this version reads and writes runs of a format.

    Args:
        document: The content of `run.json`.
        directory: The run.

    Raises:
        RefusedError: It does not.
    """
    version = _version(document)
    if version > FORMAT:
        raise RefusedError(
            f"{quote(directory)} was made by a newer version of fmapviz", hint="pip install --upgrade fmapviz"
        )
    if 0 < version < FORMAT:
        raise RefusedError(
            f"{quote(directory)} was made by version 0.2.0 of fmapviz or an earlier one",
            hint="remove the directory first, or choose another name=",
        )


def is_run(directory: Path) -> bool:
    """Return True for the directory of a run; its `run.json` may be damaged, but not that of another program."""
    try:
        data = checksummed_json.read(directory / RUN_FILE)
    except OSError:
        return False
    return read_run(directory) is not None or checksummed_json.is_truncated(data)


def _version(document: Mapping[str, Any]) -> int:
    version = document.get("fmapviz")
    return version if isinstance(version, int) and 0 < version < _IMPOSSIBLE else 0


def _refusal(directory: Path, info: RunInfo) -> RefusedError:
    hint = "choose another name=, or none for a free one"
    if _OTHER_VALUES in differences(settings_of(directory), info.settings):
        hint = "choose another name= for the network as it is now, or none for a free one, or remove the directory first"
    return RefusedError(f"{quote(directory)} holds {describe_contents(directory, info)}", hint=hint)


def settings_of(run: Path) -> dict[str, Any]:
    """Return the settings of a run; empty if its record is missing or damaged."""
    settings = (read_run(run) or {}).get("settings")
    return settings if isinstance(settings, dict) else {}


def differences(settings: object, others: object) -> list[str]:
    """Return the settings of a run that differ from those of another one, with both values.

    Settings that differ only in consequence of others are left out.

    Args:
        settings: As `run.json` records them; it may be damaged.
        others: Those of the other run.

    Example:
        >>> differences({"views": ["maps"], "predictions": 3}, {"views": [], "predictions": 3})
        ['views: maps, not default']
    """
    recorded, wanted = flat_settings(settings), flat_settings(others)
    names = [name for name in wanted if name in recorded and recorded[name] != wanted[name]]
    if "model" in names:
        names = ["model"]
    elif "weights" in names:
        names = [name for name in names if name not in {"sha256", "preparation"}]
    if {"layers", "exclude"} & {*names}:
        names = [name for name in names if name != "predictions"]  # its default depends on them
    if "against" in names and None in {recorded["against"], wanted["against"]}:
        names = [
            name for name in names if name not in {"views", "formats", "types", "predictions"}
        ]  # a comparison has its own
    unnamed = {"sha256": _OTHER_VALUES, "preparation": "another preprocessing", "images": "other images of an option"}
    return [
        unnamed.get(name) or f"{printable(name)}: {_shown(name, recorded[name])}, not {_shown(name, wanted[name])}"
        for name in names
    ]


def flat_settings(settings: object) -> dict[str, object]:
    """Return the settings of a run with those of its style, also from a damaged record."""
    own: dict[str, object] = settings if isinstance(settings, dict) else {}
    style, other = own.get("style"), own.get("against")
    if isinstance(other, dict):
        facts = other.get("weights"), str(other.get("sha256") or "")[:8]
        named = f"{other.get('model')} ({', '.join(str(fact) for fact in facts if fact)})"
        own = {**own, "against": f"the {other.get('reference')}" if other.get("series") else named}
    elif own:
        own = {**own, "against": None}
    if not isinstance(style, dict):
        return {**own, "style": None}
    return {**own, "style": None, **style}


def _shown(name: str, value: object) -> str:
    if value in (None, []):
        return {"layers": "all", "exclude": "none", "shard": "none", "against": "nothing"}.get(name, "default")
    return printable(",".join(map(str, value)) if isinstance(value, list) else str(value))
