"""Write a page that shows two runs beside each other.

It holds no pictures: it refers to the files of both runs by relative addresses, and changes nothing in them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from fmapviz.core import files
from fmapviz.core.file_names import RUN_FILE
from fmapviz.core.files import reading_from, writing_to
from fmapviz.core.urls import expand_home, is_path, is_unknown, is_url
from fmapviz.errors import RefusedError, RequestError, first_few, printable, quote, suggest_file
from fmapviz.formats.html import PAGE, UNIT_SCRIPT
from fmapviz.formats.html.facts import describe_settings
from fmapviz.formats.html.listing import href_of, list_steps
from fmapviz.formats.html.page import link, render_page
from fmapviz.formats.html.pairs import move_steps, pair_images
from fmapviz.store.aggregates import base, images
from fmapviz.store.run import load_run, read_run
from fmapviz.store.run_files import check_replaceable, find_units
from fmapviz.store.unit_key import IMAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fmapviz.store.aggregates.images import ListedUnit

_ENDINGS = (".html", ".htm")


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A run that has a report.

    Attributes:
        directory: Its absolute path.
        record: Its `run.json`.
        units: Its finished units.
    """

    directory: Path
    record: Mapping[str, Any]
    units: Sequence[ListedUnit]

    def of_kind(self, kind: str) -> list[ListedUnit]:
        """Return the units of a kind."""
        return [unit for unit in self.units if unit.kind == kind]


def find_report(run: str | Path) -> Path:
    """Return the path of a run's report.

    Raises:
        RequestError: It is no run, or has no report.
    """
    directory, _ = _open(run)
    if not files.exists(directory / PAGE):
        raise _no_report(run)
    return Path(run) / PAGE


def write_two_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of two runs, whose images and layers are matched by name, and return its path.

    Args:
        runs: Two run directories; a run may still be written, and both may be the same.
        out: The page, or a directory for it; None: the directory that holds both runs.

    Raises:
        RequestError: One of them is no run or has no report, or the page would lie in a run.
        RefusedError: A file of the page's name exists that fmapviz did not make.
        OutputError: A run could not be read, or the page not written.
    """
    both = [_read(run) for run in runs]
    page = _choose_page([run.directory for run in both], out)
    content = render_page(_describe(both, page.parent))
    if files.exists(page):
        try:
            check_replaceable(page, content)
        except RefusedError as error:
            error.advise("move it away, or choose another out=")
            raise
    with writing_to(page):
        files.make_folders(page.parent)
        files.write_over(page, content)
    return page


def _open(run: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the absolute path of a run and its record."""
    if is_url(run) or is_unknown(run):
        raise RequestError(f"not a local directory: {quote(run)}", hint="copy the run to a local directory")
    directory = _absolute(run)
    with reading_from(directory):
        return directory, load_run(directory, typed=run, hint=_hint_at_runs(directory, run))


def _absolute(path: str | Path) -> Path:
    """Return an absolute path; links are followed only where `..` asks for it, since browsers do not follow them."""
    if not is_path(str(path)):
        raise RequestError(f"no path can hold this: {quote(path)}", hint="a directory, such as 'runs/alexnet'")
    expanded = Path(expand_home(path))
    with reading_from(path):  # the working directory may have been removed
        return Path(os.path.realpath(expanded)) if ".." in expanded.parts else expanded.absolute()


def _hint_at_runs(directory: Path, typed: str | Path) -> str:
    if not os.path.isdir(directory):
        return suggest_file(str(typed))
    runs = sorted(str(Path(typed) / each.parent.name) for each in directory.glob(f"*/{RUN_FILE}"))
    return f"it holds runs: {first_few(runs)}" if runs else f"the directory of a run holds {RUN_FILE}"


def _read(run: str | Path) -> _Run:
    directory, record = _open(run)
    with reading_from(directory):
        units, _ = base.gather(images, find_units(directory))
    settings = _mapping(record.get("settings"))
    formats = settings.get("formats")
    reports = isinstance(formats, list) and "html" in formats
    if not any(files.exists(unit.directory / UNIT_SCRIPT) for unit in units) and (units or not reports):
        raise _no_report(run)
    return _Run(directory, record, units)


def _no_report(run: str | Path) -> RequestError:
    return RequestError(f"no report in {quote(run)}", hint="`fmapviz MODEL INPUT... --to html` writes one")


def _choose_page(runs: Sequence[Path], out: str | Path | None) -> Path:
    name = "-".join(run.name for run in runs) + _ENDINGS[0]
    if out is None:
        page = _above(runs) / name
    elif is_url(str(out)) or is_unknown(str(out)) or not str(out):
        raise RequestError(f"not a local file: {quote(out)}", hint="out= takes a local file or directory")
    else:
        page = _absolute(out)
        if os.path.isdir(page) or page.suffix.lower() not in _ENDINGS:
            page /= name
    if run := next((folder for folder in page.parents if read_run(folder)), None):
        raise RequestError(
            f"the page would lie in a run: {quote(page)}", hint=f"out= takes a file that is not below {quote(run)}"
        )
    return page


def _above(runs: Sequence[Path]) -> Path:
    """Return the directory that holds both runs."""
    return Path(os.path.commonpath([run.parent for run in runs]))


def _describe(runs: Sequence[_Run], folder: Path) -> dict[str, Any]:
    """Return the data of the page.

    Args:
        runs: Both runs.
        folder: The directory of the page.
    """
    directories = [run.directory for run in runs]
    top = _above(directories)
    names = [printable(directory.relative_to(top).as_posix()) for directory in directories]
    addresses = [link(PurePath(os.path.relpath(directory, folder))) + "/" for directory in directories]
    about = [_describe_run(*each) for each in zip(runs, names, addresses, strict=True)]
    listed = pair_images([run.of_kind(IMAGE) for run in runs], directories, addresses)
    if not listed and any(each["model"] for each in about):  # runs without images show the models in their place
        of = [each["model"] and {"href": each["model"], "predictions": [], "thumbnail": False} for each in about]
        listed = [{"unit": "the model", "of": of}]
        about = [{**each, "model": None} for each in about]
    views = dict.fromkeys(view for run in runs for view in _views_of(run))
    return {
        "title": " and ".join(names),
        "views": list(views),
        "facts": [fact for fact in about[0]["facts"] if fact in about[1]["facts"]],
        "units": listed,
        "model": None,
        "statistics": None,
        "failures": [],
        "runs": about,
    }


def _describe_run(run: _Run, name: str, address: str) -> dict[str, Any]:
    settings = _mapping(run.record.get("settings"))
    models = run.of_kind("model")
    model = next((address + href_of(unit.directory, run.directory) for unit in models), None)
    steps = move_steps(list_steps(models, run.directory), address)
    return {
        "name": name,
        "label": printable(f"{settings.get('model')} ({settings.get('weights')})"),
        "facts": describe_settings(settings, _mapping(run.record.get("versions"))),
        "images": len(run.of_kind(IMAGE)),
        "report": address + PAGE if files.exists(run.directory / PAGE) else None,
        "model": model,
        **({"models": steps} if steps else {}),
    }


def _views_of(run: _Run) -> list[str]:
    views = _mapping(run.record.get("settings")).get("views")
    return [printable(str(view)) for view in views] if isinstance(views, list) else []


# Any: a record that was tampered with may hold any JSON value.
def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
