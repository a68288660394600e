"""`fmapviz verify`: check finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from fmapviz.cli.printing import count, print_json, print_line, print_message, show_status
from fmapviz.cli.run import JsonOption, running_option
from fmapviz.core.errors import printable


def verify(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory of runs, a run, or an image in it.")],
    hashed: Annotated[bool, running_option("--hash/--no-hash", help="Compare checksums, or sizes only.")] = True,
    json: JsonOption = False,
) -> int:
    """Check that DIR holds the files that it records, unchanged, and no others. Report how to repair it."""
    show_status(f"checking {directory} ...")
    from fmapviz.runs.verify import REMEDIES
    from fmapviz.runs.verify import verify as verify_all

    units = files = damaged = hidden = 0
    needed = set()
    for unit in verify_all(directory, hashed=hashed):
        units, files, damaged = units + 1, files + unit.files, damaged + bool(unit.problems)
        hidden += unit.hidden
        for problem in unit.problems:
            needed.add(problem.remedy)
            if json:
                fields = {"path": str(problem.path), "message": problem.message, "remedy": problem.remedy}
                print_json({"event": "problem", **fields})
            else:
                print_line(f"{printable(str(problem.path))}: {problem.message}")
    code = 3 if damaged else 0
    if json:
        counts = {"directories": units, "files": files, "damaged": damaged, "hidden": hidden}
        print_json({"event": "summary", **counts, "exit_code": code})
    elif damaged:
        print_message(f"{damaged} of {count(units, 'directory')} {'is' if damaged == 1 else 'are'} damaged")
        for remedy, hint in REMEDIES.items():
            if remedy in needed:
                print_message(f"hint: {hint}")
    else:
        print_line(f"{count(units, 'directory')}, {count(files, 'file')}: all complete and unchanged")
    if hidden and not json:
        print_message(
            f"notice: {count(hidden, 'hidden directory')} of running or killed commands; the next run removes the latter"
        )
    return code
