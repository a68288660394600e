"""`fmapviz verify` and `fmapviz extract`: check finished runs, and write one picture of a shard to a file."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmapviz.cli.printing import print_bytes, print_json, print_line, print_message, results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, running_option
from fmapviz.config.sample import SampleSize
from fmapviz.core.urls import is_unknown, is_url
from fmapviz.core.words import counted
from fmapviz.errors import RequestError, printable, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fmapviz.run.redraw import Redrawn
    from fmapviz.store.verify import Verified

_STATUSES = ("same", "rounded", "differs", "undrawn")


def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory of runs, a run, or an image in it.")],
    hashed: Annotated[bool, running_option("--hash/--no-hash", help="Compare checksums, or sizes only.")] = True,
    redraw: Annotated[
        str | None,
        running_option(
            "--redraw",
            metavar="N%|N|all",
            help="Draw a sample of the images again, and compare its files byte by byte. Runs the network.",
            show_default="none",
        ),
    ] = None,
    quiet: Annotated[
        bool, running_option("-q", "--quiet", help="Print problems and digests only; of a single run its digest alone.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Check that DIR holds the files that it records, unchanged, and no others. Report how to repair it.

    The last lines are the digest of each run, to cite it by: `fmapviz guide reliability` defines it. A run that is being
    written or was interrupted is not damaged, but reported, and has no digest.

    Exit codes: 0 no damage; 2 wrong request; 3 a file is missing, changed, foreign or out of date, or some images of the
    sample could not be drawn again or differ; 4 none of the sample could be drawn again, and nothing else is wrong.
    """
    sample = SampleSize.parse(redraw) if redraw is not None else None
    if sample and not hashed:
        raise RequestError("--redraw compares bytes, and --no-hash reads none", hint="leave out one of them")
    if not quiet:
        show_status(f"checking {directory} ...")
    from fmapviz.store.digest import Digests
    from fmapviz.store.remote.local_copy import local_copy
    from fmapviz.store.verify import verify_copy

    found, digests = _Output(quiet=quiet, json=json), Digests()
    with local_copy(directory) as copy:
        for checked in verify_copy(copy, hashed=hashed, digests=digests):
            found.note(checked)
        if sample:
            if not quiet:
                show_status(f"loading the network of {directory} ...")
            with importing():
                from fmapviz.run.redraw import redraw as redraw_all
            with results_only():
                for redrawn in redraw_all(copy, digests, sample):
                    found.note_redrawn(redrawn)
        named = {str(copy.address_of(run)): digest for run, digest in digests.runs.items()} if hashed else {}
    return found.finish(named)


class _Output:
    """Prints what is found, and counts it."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        self._quiet, self._json = quiet, json
        self._counts = Counter[str]()
        self._problems = Counter[str]()  # directories by their worst problem
        self._redrawn: Counter[str] | None = None
        self._statuses = set[str]()
        self._needed = set[str]()
        self._unfinished: dict[str, str] = {}

    def note(self, checked: Verified) -> None:
        """Print the problems of a unit or run."""
        self._counts.update(directories=1, files=checked.files, hidden=checked.hidden)
        if checked.worst:
            self._problems[checked.worst] += 1
        if checked.state != "finished":
            self._unfinished[str(checked.directory)] = checked.state
        for problem in checked.problems:
            if problem.remedy == "finish" and not self._json:
                continue
            self._needed.add(problem.remedy)
            if self._json:
                fields = {"path": str(problem.path), "message": problem.message, "remedy": problem.remedy}
                print_json({"event": "problem", **fields})
            else:
                print_line(f"{printable(str(problem.path))}: {problem.message}")

    def note_redrawn(self, redrawn: Redrawn) -> None:
        """Print what differs in an image that was drawn again."""
        if self._redrawn is None:
            self._redrawn = Counter()
        self._statuses.add(redrawn.status)
        self._redrawn.update(images=redrawn.images, **{redrawn.status: redrawn.images})
        if self._json:
            fields = {"path": str(redrawn.path), "status": redrawn.status, "images": redrawn.images}
            print_json({"event": "redrawn", **fields, "differences": list(redrawn.differences), "reason": redrawn.reason})
        elif redrawn.status == "same":
            if not self._quiet:
                show_status(f"drawn again: {counted(self._redrawn['images'], 'image')}")
        else:
            print_line(f"{printable(str(redrawn.path))}: {redrawn.describe()}")

    def finish(self, digests: Mapping[str, str | None]) -> int:
        """Print the summary; return the exit code."""
        counts, redrawn = self._counts, self._redrawn
        code = 3 if self._problems or "differs" in self._statuses else 0
        if redrawn is not None and not code:
            is_proven = self._statuses - {"undrawn"}
            code = 4 if not is_proven else 3 if redrawn["undrawn"] else 0
        if self._json:
            fields: dict[str, Any] = {name: counts[name] for name in ("directories", "files")}
            fields |= {"damaged": self._problems.total(), "unfinished": len(self._unfinished), "hidden": counts["hidden"]}
            known = {run: digest for run, digest in digests.items() if digest}
            digest = next(iter(digests.values())) if len(digests) == 1 else None
            again = None if redrawn is None else {name: redrawn[name] for name in ("images", *_STATUSES)}
            fields |= {"digest": digest, "digests": known, "redrawn": again, "exit_code": code}
            print_json({"event": "summary", **fields})
            return code
        if self._problems:
            print_message(_describe_problems(self._problems, counts["directories"]))
        elif not self._quiet:
            checked = f"{counted(counts['directories'], 'directory')}, {counted(counts['files'], 'file')}: "
            print_line(checked + ("all finished ones are unchanged" if self._unfinished else "all complete and unchanged"))
        if redrawn is not None and not self._quiet:
            print_line(_describe_redrawn(redrawn))
        for hint in self._hints():
            print_message(f"hint: {hint}")
        for run, digest in digests.items():
            if digest:
                print_line(digest if self._quiet and len(digests) == 1 else f"{digest}  {printable(run)}")
        _notice_unfinished(self._unfinished)
        if counts["hidden"]:
            hidden = counted(counts["hidden"], "hidden directory")
            print_message(f"notice: {hidden} of running or killed commands; the next run removes the latter")
        return code

    def _hints(self) -> list[str]:
        from fmapviz.store.verify import hints_of

        hints = hints_of(self._needed) if self._problems else []
        if "differs" in self._statuses:
            hints.append("pictures that differ: run the original command with --force, if its results are right")
        return hints


def _describe_problems(problems: Mapping[str, int], directories: int) -> str:
    """Return a sentence on the numbers of directories by their worst problem.

    Example:
        >>> _describe_problems({"damaged": 2, "foreign": 1}, 8)
        '2 of 8 directories are damaged, 1 holds files that fmapviz did not make'
    """
    words = {
        "damaged": ("is damaged", "are damaged"),
        "stale": ("has run-level files that are out of date", "have run-level files that are out of date"),
        "foreign": ("holds files that fmapviz did not make", "hold files that fmapviz did not make"),
    }
    first, *others = [(number, words[kind][number > 1]) for kind in words if (number := problems.get(kind, 0))]
    of = f"{first[0]} of {counted(directories, 'directory')} {first[1]}"
    return ", ".join([of, *(f"{number} {verb}" for number, verb in others)])


def _describe_redrawn(redrawn: Counter[str]) -> str:
    """Return a sentence on the images that were drawn again."""
    words = {
        "same": "the same bytes",
        "rounded": "within rounding",
        "differs": "with other content",
        "undrawn": "not drawn",
    }
    counts = [f"{redrawn[status]} {words[status]}" for status in _STATUSES if redrawn[status]]
    return f"redraw of {counted(redrawn['images'], 'image')}: {', '.join(counts) or 'nothing to draw'}"


def _notice_unfinished(runs: Mapping[str, str]) -> None:
    """Report unfinished runs.

    Args:
        runs: Their states by path.
    """
    for run, state in runs.items():
        if state == "running":
            print_message(f"notice: {quote(run)} is running: only what is finished was checked")
        else:
            how = "has failed" if state == "failed" else "was interrupted"
            print_message(f"notice: {quote(run)} {how}: only what is finished was checked; the original command finishes it")


def extract(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run with shards, or one of its shards.")],
    image: Annotated[str, typer.Option(metavar="NAME", help="Path of the image, the end of it, or its number.")],
    layer: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Name of the layer; input is the preprocessed input, with --view also boxes, saliency."
        ),
    ],
    view: Annotated[str | None, typer.Option(metavar="NAME", help="View of the layer.", show_default="the only one")] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="top1|INT|NAME", help="Class of a gradient or map.", show_default="the only one"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Output file; - is standard output.", show_default="a name in this directory"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
) -> None:
    """Write one picture of a shard to a file and print its path."""
    if find_spec("pyarrow") is None:
        raise RequestError("fmapviz extract needs the package pyarrow", hint="pip install 'fmapviz[scale]'")
    if out and (is_url(out) or is_unknown(out)):
        raise RequestError(f"--out must be a local file: {quote(out)}", hint="--out FILE, or - for a pipe")
    show_status(f"reading {directory} ...")
    from fmapviz.store.extract import extract as find
    from fmapviz.store.extract import put

    picture = find(directory, image=image, layer=layer, view=view, target=target)
    if out == "-":
        print_bytes(picture.png)
        return
    path = Path(out or picture.name)
    put(path, picture.png, force=force)
    print_line(printable(str(path)))
