"""Feed fmapviz with damaged files for as long as one likes, led by the code that they reach.

    python tests/fuzz.py images --seconds 300           # also arrays, checkpoints, records
    python tests/fuzz.py images build/fuzz/images/...   # one of the files that it found, again

Needs `pip install atheris`. What is tried, and what is expected of it, stands in `test_fuzz.py`. Every finding is printed
with the file that leads to it; what was worth keeping lies in the same folder, and is where the next time begins.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path

TARGETS = ("images", "arrays", "checkpoints", "records")
OUTPUT = Path("build/fuzz")
LIMITS = ("-timeout=10", "-rss_limit_mb=6000", "-max_len=40000")  # seconds for each file, megabytes, bytes
FOUND, DIED = "finding", "died"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("files", nargs="*", type=Path, help="try only these")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.files:
        again(options.target, options.files)
    elif find_spec("atheris") is None:
        sys.exit("atheris is not installed: pip install atheris")
    elif options.within:
        fuzz(options.target, options.seconds)
    else:
        supervise(options.target, options.seconds)


def supervise(target, seconds):
    """Continue after a crash, and after files that take too long or too much memory."""
    folder = OUTPUT / target
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*-*"))
    until = time.monotonic() + seconds
    while (left := int(until - time.monotonic())) > 0:
        command = [sys.executable, __file__, target, "--within", "--seconds", str(left)]
        if code := subprocess.run(command, check=False).returncode:
            print(f"{DIED}: exit {code}, see the newest of {folder}/*-*", flush=True)
    found = sorted(set(folder.glob("*-*")) - before)
    print(f"{target}: {len(found)} findings", *found, sep="\n  ")
    sys.exit(1 if found else 0)


def fuzz(target, seconds):
    """Let atheris choose what to try, in this process."""
    import atheris

    with atheris.instrument_imports(include=["fmapviz"]):
        attempt, seeds = prepare(target)
    folder = OUTPUT / target
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, content in enumerate(seeds):
        (corpus / f"seed{number:03}").write_bytes(content)
    known = set()

    def try_it(content):
        try:
            attempt(content)
        except Exception as error:  # noqa: BLE001  whatever it is, it is what we look for
            place = traceback.extract_tb(error.__traceback__)[-1]
            if (place.filename, place.lineno) not in known:
                known.add((place.filename, place.lineno))
                path = folder / f"{FOUND}-{hashlib.sha256(content).hexdigest()[:16]}"
                path.write_bytes(content)
                print(f"{FOUND}: {path}\n{traceback.format_exc()}", flush=True)

    ways = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=1", *LIMITS]
    atheris.Setup([sys.argv[0], *ways, str(corpus)], try_it)
    atheris.Fuzz()


def again(target, paths):
    """Try files that were found, and show where they lead to."""
    attempt, _ = prepare(target)
    for path in paths:
        begun = time.monotonic()
        attempt(path.read_bytes())
        print(f"{path}: as it should be, in {time.monotonic() - begun:.1f} s")


def prepare(target):
    """Return a function that tries some bytes, and the bytes to begin with."""
    import test_fuzz as short

    warnings.simplefilter("error")
    place = Path(tempfile.mkdtemp(prefix="fmapviz-fuzz-"))
    if target in {"images", "arrays"}:
        return _images(short, place, arrays=target == "arrays")
    return (_checkpoints if target == "checkpoints" else _records)(short, place)


def _images(short, place, *, arrays):
    """Try a picture; arrays for a network of six channels."""
    seeds = [content for name, content in short.image_files().items() if name.startswith(("TIFF", "NPY")) or not arrays]
    return lambda content: short.check_image(place / "picture", content, 6 if arrays else 3), seeds


def _checkpoints(short, place):
    """Try a checkpoint of the kind that the first byte chooses; other bytes are put into an archive with right checksums."""
    files = short.checkpoint_files(place / "marker")
    names = sorted(files)

    def attempt(content):
        if not content:
            return
        name, content = names[content[0] % len(names)], content[1:]
        if files[name].startswith(b"PK") and not content.startswith(b"PK"):
            content = short.with_pickle(files[name], content)
        for shard in ("plain", "other"):
            (place / f"{shard}.safetensors").write_bytes(files["plain.safetensors"])
        (place / name).write_bytes(content)
        short.check_weights(place / name)
        assert not (place / "marker").exists()

    seeds = [bytes([number]) + files[name] for number, name in enumerate(names)]
    pickles = [(number, files[name]) for number, name in enumerate(names) if files[name].startswith(b"PK")]
    return attempt, [*seeds, *(bytes([number]) + short.pickle_in(content) for number, content in pickles)]


def _records(short, place):
    """Try a record of a finished run; the first byte chooses which, and whether it is sealed if it can be."""
    finished = short.finish(place / "finished")
    records = [finished / "out" / "net" / name for name in short.RECORDS]

    def attempt(content):
        if not content:
            return
        name, sealed, content = short.RECORDS[content[0] % len(records)], content[0] > 127, content[1:]
        run = short.copy(finished, place / "run")
        (run / "out" / "net" / name).write_bytes(short.sealed(content) if sealed else content)
        short.check_run(run, commands=({},))

    contents = [(number, record.read_bytes()) for number, record in enumerate(records)]
    last = 256 // len(records) * len(records) - len(records)
    return attempt, [bytes([start + number]) + content for number, content in contents for start in (0, last)]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
