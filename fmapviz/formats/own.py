"""Write the files of a unit with a format of the user's own; see `fmapviz.core.own`."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fmapviz.core.file_names import UNIT_FILE
from fmapviz.core.own import calling
from fmapviz.core.user_code import one_line, place_of, report_of
from fmapviz.errors import UserCodeError, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fmapviz.core.members import Format
    from fmapviz.data import Picture, UnitImage

_OF_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG}


class OwnWriter:
    """Passes images on to the user's code."""

    members: Mapping[str, int] = MappingProxyType({})

    def __init__(self, form: Format, directory: Path, writer: Any) -> None:  # Any: of the user
        self._form = form
        self._directory = directory
        self._writer = writer

    def add(self, image: UnitImage, pictures: Iterable[Picture]) -> tuple[()]:
        """See `fmapviz.formats.base.Writer`.

        Raises:
            UserCodeError: The user's code failed.
        """
        shown = list(pictures) if "pictures" in self._form.needs else []
        with _running(self._form, self._directory):
            self._writer.add(image, shown)
        return ()


@contextmanager
def open_writer(form: Format, directory: Path, *, many: bool = False) -> Iterator[OwnWriter]:  # noqa: ARG001
    """Open a writer of the user's own; at the end, its `close` is called if it has one.

    Raises:
        UserCodeError: The user's code failed, or left something else than files.
    """
    with _running(form, directory):
        writer = form.own(directory)
    try:
        yield OwnWriter(form, directory, writer)
    finally:
        if close := getattr(writer, "close", None):
            with _running(form, directory):
                close()
    for path in sorted(directory.iterdir()):
        if os.path.islink(path) or not os.path.isfile(path) or path.name.startswith(".") or path.name == UNIT_FILE:
            raise UserCodeError(
                f"the format {form.name} made {quote(path.name)} in the directory of a unit",
                hint=f"it may write files there, whose names begin without a dot; {UNIT_FILE} is the unit's record",
            )


@contextmanager
def _running(form: Format, directory: Path) -> Iterator[None]:
    try:
        with calling():
            yield
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and _is_of_output(error, directory):
            raise
        place = place_of(error)
        message = f"the format {form.name} failed: {one_line(error)}{f' ({place})' if place else ''}"
        raise UserCodeError(message, report=report_of(error)) from error


def _is_of_output(error: OSError, directory: Path) -> bool:
    """Return True if the disk of the output failed, or if the run was removed: no fault of the user's code."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else directory / "unknown"
    return not os.path.exists(directory) or (
        error.errno in _OF_DISK and path.absolute().is_relative_to(directory.absolute())
    )
