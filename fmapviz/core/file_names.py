"""The names of the files of a run, each defined once: its own, those of units, and those that formats declare.

A run is a directory of units, and a unit a directory of the files of one or of many images::

    runs/alexnet/run.json                        what the run was asked for
    runs/alexnet/lena.png/unit.json              what the unit holds, last written
    runs/alexnet/lena.png/00_features.0.maps.png files of the formats

Formats declare their files; see `fmapviz.formats.base`.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache
from unicodedata import normalize
from urllib.parse import quote

from fmapviz.core import registry

RUN_FILE = "run.json"
UNIT_FILE = "unit.json"
INDEX_FILE = "index.parquet"  # of a shard: a row for each picture
FAILURES_FILE = "failures.jsonl"
SURVEY_FILE = "survey.json"
FILMSTRIP = "filmstrip"  # of a training, the group of the pictures of a layer at all steps, and the kind of their unit
FILMSTRIP_FILE = "film.npz"  # small maps of a training, from which its filmstrips are continued
EVENTS = "events.out.tfevents."  # begins the names of TensorBoard's files of a training
ALIGNMENT = "cka"  # of two networks: the group of the picture of all images
STEP = "step_{:06d}"  # the unit of an image, or of the model, at a step of a series
RUN_FILES_RECORD = "products.json"  # the record of the run-level files
UNIT_TABLE = ".units.bin"  # of a run of many units: what each occupies and holds; no name of a unit begins with a dot
_PART = re.compile(r"\['([^']*)'\]|\[(\d+)\]|(.)", re.DOTALL)  # of a name: a key, a position, a character
_KEY = re.compile(r"[A-Za-z_-][\w-]*", re.ASCII)  # that looks like no other step, or several
_REFUSED = re.compile(
    r'[\x00-\x1f"*/:<>?\\|]'
)  # by Windows; TensorBoard shows no pictures of runs with " or \ in their names
_DEVICES = frozenset(
    (
        "CON",
        "PRN",
        "AUX",
        "NUL",
        "CONIN$",
        "CONOUT$",
        *(f"{port}{digit}" for port in ("COM", "LPT") for digit in "123456789¹²³"),
    )
)
HIDDEN = ".fmapviz-"  # begins the names of directories that are being written


@cache
def unit_patterns(form: str) -> tuple[str, ...]:
    """Return the patterns of the names of a format's files in a unit.

    Example:
        >>> unit_patterns("png")
        ('input.png', '*.png')
    """
    return registry.formats()[form].unit_files


@cache
def run_files_of(member: str) -> frozenset[str]:
    """Return the names of the run-level files of a format or view, and of the aggregates that it feeds; none if unknown.

    Example:
        >>> sorted(run_files_of("stats"))
        ['stats.csv', 'stats.json']
    """
    known = registry.formats().get(member) or registry.views().get(member)
    if known is None:
        return frozenset()
    made = (registry.aggregates()[name].run_files for name in known.aggregates)
    return frozenset(known.run_files).union(*made)


@cache
def signatures() -> frozenset[str]:
    """Return file names by which a unit is recognized: every finished unit holds one of them at least."""
    names = (name for form in registry.formats().values() for name in form.unit_files if "*" not in name)
    return frozenset({UNIT_FILE, INDEX_FILE, *names})


@cache
def shard_files() -> frozenset[str]:
    """Return the names of all files that a shard may hold."""
    made = (name for form in registry.formats().values() if form.many for name in form.unit_files)
    return frozenset({UNIT_FILE, INDEX_FILE, *made})


@cache
def own_run_files() -> frozenset[str]:
    """Return the names of all files in a run's directory."""
    made = (run_files_of(member) for member in (*registry.formats(), *registry.views()))
    return frozenset({RUN_FILE, FAILURES_FILE, SURVEY_FILE, FILMSTRIP_FILE, RUN_FILES_RECORD}.union(*made))


def draws_pictures(form: str) -> bool:
    """Return True if a format is made of pictures; False for an unknown format."""
    return form in registry.formats() and "pictures" in registry.formats()[form].needs


@lru_cache(4096)  # the pictures of all images have the same names
def picture_file(name: str, group: str) -> str:
    """Return the name of a picture's PNG file, safe for any name of a layer.

    Args:
        name: The picture's name: index and layer.
        group: The view, and the class if there is one.

    Keys and positions of nested outputs follow a plus. Names with keys that are no words, and names that are too long, end
    in a part of their hash, so that no two names become the same.

    Example:
        >>> picture_file("00 features.0", "maps"), picture_file("03 ../a b", "maps")
        ('00_features.0.maps.png', '03_..%2Fa%20b.maps.png')
        >>> picture_file("04 head['aux'][0]", "maps"), picture_file("04 head['a.0']", "maps")
        ('04_head+aux+0.maps.png', '04_head+a.0~e5c90fc4.maps.png')
    """
    number, _, layer = name.partition(" ")
    steps = [found[1] for found in _PART.finditer(layer) if found[1] is not None]
    stem = _PART.sub(lambda found: _plain(found[3]) if found[3] else f"+{_plain(found[1] or found[2] or '')}", layer)
    ambiguous = not all(map(_KEY.fullmatch, steps))
    if ambiguous or len(stem) > 180:  # file systems allow 255 bytes
        stem = f"{stem[:160]}~{hashlib.sha256(layer.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"{number}_{stem}.{group}.png" if stem else f"{portable(number)}.png"


def portable(name: str) -> str:
    """Return a name that Windows accepts: it refuses some characters, names of devices, and a dot or blank at the end.

    Source: https://learn.microsoft.com/windows/win32/fileio/naming-a-file

    Example:
        >>> portable("cats: 1.png"), portable("Con.png"), portable("lena. .")
        ('cats_ 1.png', '_Con.png', 'lena___')
    """
    safe = _REFUSED.sub("_", name)
    rest = safe.rstrip(". ")
    safe = rest + "_" * (len(safe) - len(rest))
    return f"_{safe}" if safe.partition(".")[0].rstrip(" ").upper() in _DEVICES else safe


def folded(name: str) -> str:
    """Return one text for all names that are the same on macOS or Windows, which ignore case and normalization.

    It is the same for some more, such as with `ß` and `ss`.

    Example:
        >>> folded("Größe.JPG") == folded("gro\u0308ße.jpg"), folded("lena.png")
        (True, 'lena.png')
    """
    if name.isascii():
        return name.lower()
    return normalize("NFC", normalize("NFD", normalize("NFD", name).casefold()).upper().casefold())


def event_tag(text: str) -> str:
    """Return a tag whose picture TensorBoard's fast loader can find.

    It cannot if the tag holds a character that JSON escapes: a quotation mark, a backslash, a control character
    (`WireBlobKey` borrows its strings, https://github.com/tensorflow/tensorboard/pull/4545).

    Example:
        >>> event_tag('maps/00 a"b')
        'maps/00 a%22b'
    """
    if text.isprintable() and not set(text) & {'"', "\\"}:
        return text
    return "".join(ch if ch.isprintable() and ch not in '"\\' else quote(ch, errors="surrogatepass") for ch in text)


def _plain(text: str) -> str:
    return quote(text, safe="#", errors="surrogatepass").replace("~", "%7E")
