"""Values that the shell completes: models, layers, classes, runs and pages. Nothing here imports torch or runs user code."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fmapviz.cli.commands import commands
from fmapviz.cli.pages import PAGES, codes_in, rows_of_codes
from fmapviz.config.options import MOST_OF_GLOB
from fmapviz.core import files, registry
from fmapviz.core.file_names import RUN_FILE, UNIT_FILE
from fmapviz.core.user_code import references_in
from fmapviz.models.known_layers import KnownModel, recall
from fmapviz.models.load import model_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Item = tuple[str, str]  # a value, and its description or ""
    Values = Mapping[str, Any]  # of the words that were typed before, by the names of parameters

# Also complete with files, or with directories, which shells do better.
Kind = Literal["words", "files", "directories"]

_MOST_RECORD = 2**22  # bytes of a `run.json` or `unit.json`
_MOST_SHARDS = 20  # whose images are listed
_FILES = re.compile(r"\b(FILE|INPUT|IMAGE|PATH)\b")


def kind_of(metavar: str) -> Kind:
    """Return whether a parameter also takes files or directories, by its name in the help.

    Example:
        >>> kind_of("NAME|FILE|URL"), kind_of("DIR"), kind_of("RUN [RUN]"), kind_of("GLOB,...")
        ('files', 'directories', 'directories', 'words')
    """
    if _FILES.search(metavar):
        return "files"
    return "directories" if re.search(r"\b(DIR|RUN)\b", metavar) else "words"


def complete_model(word: str, _values: Values) -> Iterator[Item]:
    """Yield names of models, prefixes of sources, folders, and the functions and classes in Python files."""
    yield from ((name, "") for name in model_names())
    for name, source in registry.sources().items():
        if not source.names and not source.is_code:
            yield f"{name}:", source.help
    if word:
        yield from _own_code(word)


def complete_layers(word: str, values: Values) -> Iterator[Item]:
    """Yield names of layers, down to the next dot, and globs of what is inside them."""
    known = _known(values)
    names = list(known.layers if known else ())
    parents = {name.rpartition(".")[0] for name in names}
    for name in names:
        if "." not in name[len(word) :].lstrip("."):
            yield _as_glob(name), known.layers[name] if known else ""
            if name in parents:
                yield f"{_as_glob(name, special='*?[')}.*", f"all layers in {name}"


def complete_types(_word: str, values: Values) -> Iterator[Item]:
    """Yield the classes of a model's layers."""
    known = _known(values)
    yield from ((name, "") for name in sorted({*known.layers.values()} if known else ()))


def complete_classes(_word: str, values: Values) -> Iterator[Item]:
    """Yield the names of a model's classes."""
    yield from (("top1", "the likeliest class"), ("top3", "the three likeliest classes"))
    known = _known(values)
    yield from ((name, "") for name in (known.classes if known else ()) if "," not in name)


def complete_run(_word: str, values: Values) -> Iterator[Item]:
    """Yield the runs in the directory of all runs."""
    out = values.get("out")
    yield from _runs(Path(out if isinstance(out, str) else "runs"))


def complete_runs(_word: str, values: Values) -> Iterator[Item]:
    """Yield what `fmapviz runs` takes: `remove`, and behind it the names of runs."""
    typed, out = values.get("words") or (), values.get("out") or "runs"
    if not typed:
        yield "remove", "remove runs"
    elif typed[0] == "remove":
        yield from ((Path(path).name, text) for path, text in _runs(Path(out)) if Path(path).name not in typed)


def complete_image(_word: str, values: Values) -> Iterator[Item]:
    """Yield the names of the images in the first shards of a run."""
    directory = Path(values.get("directory") or "")
    for record in islice(sorted([directory / UNIT_FILE, *directory.glob(f"*/{UNIT_FILE}")]), _MOST_SHARDS):
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            images = json.loads(files.read(record, most=_MOST_RECORD))["images"]
            yield from ((image["name"], "") for image in images if "failed" not in image and isinstance(image["name"], str))


def complete_drawn_layer(_word: str, values: Values) -> Iterator[Item]:
    """Yield the names of the layers that a run draws."""
    yield "input", "the preprocessed input"
    known, record = _known(values), _record_of(values)
    with suppress(LookupError, TypeError):
        settings = record["settings"] if record else {}
        types, globs = settings["types"], [glob for glob in settings["exclude"] if len(glob) <= MOST_OF_GLOB]
        for name, kind in known.layers.items() if known else ():
            if kind in types and not any(fnmatchcase(name, glob) for glob in globs):
                yield name, kind


def complete_page(_word: str, values: Values) -> Iterator[Item]:
    """Yield the pages of the guide and the codes of failed inputs; behind `exit` or `code`, the exit codes."""
    codes = [code for row in rows_of_codes() for code in codes_in(row)]
    if typed := values.get("page"):
        exits = " ".join(typed).lower() in {"exit", "code", "exit code"}
        yield from ((code, "an exit code") for code in codes if exits and code.isdigit())
    else:
        yield from ((page, "") for page in PAGES)
        yield from ((code, "a code") for code in codes if not code.isdigit())


def complete_topic(_word: str, values: Values) -> Iterator[Item]:
    """Yield what `fmapviz help` takes: a command, or what `fmapviz guide` takes."""
    typed = values.get("words")
    if not typed:
        yield from ((name, command.help) for name, command in commands().items())
    yield from complete_page(_word, {"page": typed})


def complete_generated(_word: str, _values: Values) -> Iterator[Item]:
    """Yield the files that `--generate` prints."""
    from fmapviz.cli.generated import GENERATORS

    yield from ((name, "") for name in GENERATORS)


# By the names of parameters; those of other names complete the words that their options declare.
COMPLETERS: Mapping[str, Callable[[str, Values], Iterable[Item]]] = {
    "model": complete_model,
    "layers": complete_layers,
    "exclude": complete_layers,
    "types": complete_types,
    "target": complete_classes,
    "run": complete_run,
    "runs": complete_run,
    "directory": complete_run,
    "runs.words": complete_runs,
    "extract.image": complete_image,
    "extract.layer": complete_drawn_layer,
    "page": complete_page,
    "help.words": complete_topic,
    "generate": complete_generated,
}
LISTS = {"layers", "exclude", "types", "target"}  # take several values with commas


def _known(values: Values) -> KnownModel | None:
    """Return what is known of the model that was typed, or of that of the run."""
    model, record = values.get("model"), _record_of(values)
    if record:
        with suppress(LookupError, TypeError):
            model = record["request"]["model"]
    return recall(model) if isinstance(model, str) else None


def _record_of(values: Values) -> dict[str, Any] | None:
    """Return the record of the run that was typed, or of the run of a shard."""
    run = values.get("run") or values.get("directory")
    for folder in (Path(run), Path(run).parent) if isinstance(run, str) else ():
        with suppress(OSError, ValueError, RecursionError):
            record = json.loads(files.read(folder / RUN_FILE, most=_MOST_RECORD))
            return record if isinstance(record, dict) else None
    return None


def _as_glob(name: str, special: str = "") -> str:
    """Return a glob that matches a name which cannot be typed: with a wildcard for each control character.

    Args:
        name: Name of a layer.
        special: Characters that need a wildcard too.
    """
    if not name.isprintable():
        special = "*?["  # a name that is typed as it is may hold them
    return "".join("?" if not ch.isprintable() or ch in special else ch for ch in name)


def _runs(folder: Path) -> Iterator[Item]:
    with suppress(OSError, ValueError):
        for path in sorted(folder.iterdir()):
            if os.path.isfile(path / "run.json"):
                yield str(path), ""


def _own_code(word: str) -> Iterator[Item]:
    """Yield folders, and references to functions and classes in Python files, that begin with a text; no code is run."""
    file = word.partition(":")[0]
    with suppress(OSError, ValueError):
        for path in sorted(Path(f"{file}_").parent.iterdir()):
            shown = f"{file[: len(file) - len(Path(f'{file}_').name) + 1]}{path.name}"
            if not shown.startswith(file) or path.name.startswith("."):
                continue
            if path.suffix == ".py":
                yield from ((reference, "your own code") for reference in references_in(shown))
            elif os.path.isdir(path):
                yield f"{shown}/", ""
