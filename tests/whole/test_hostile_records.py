"""Forged records with a valid checksum: a documented error at most, and no change outside of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from contextlib import suppress
from functools import cache

import pytest
from cases import often, thorough
from faults import Scenario
from image_files import paint

from fmapviz.config import Style
from fmapviz.core.checksummed_json import dumps
from fmapviz.errors import FmapvizError
from fmapviz.store.verify import verify

SCENARIO = Scenario(
    {"to": ["html", "stats", "raw"], "views": ["maps", "pca"], "style": Style(norm="run", pca="shared")}, finished=True
)
NESTED = "[" * 100_000 + "]" * 100_000
LEFT = f".fmapviz-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]}-4194305-abc-1234-old"


SHARDS = Scenario({"to": ["tar", "stats"], "shard": 1}, finished=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return cache(lambda scenario: run(scenario, tmp_path_factory.mktemp("whole")))


def run(scenario, place):
    for number in range(2):
        paint(place / f"in/{number}.png", number)
    (SHARDS if scenario == "shards" else SCENARIO).run(place / "in", place / "out")
    return place


def sealed(record):
    """Add a checksum to values that `dumps` refuses: NaN, and others that JSON lacks."""
    body = ("{\n " + ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())).encode("ascii")
    return body + b',\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def rewrite(path, **changes):
    record = json.loads(path.read_bytes())
    del record["sha256"]
    for key, change in changes.items():
        record[key] = change(record[key]) if callable(change) else change
    path.write_bytes(sealed(record))


def write_other_table(path):
    from extras import parquet, pyarrow

    parquet.write_table(pyarrow.table({"layer": [1], "x": ["y"]}), path)


def unit(**changes):
    return lambda run: rewrite(run / "0.png/unit.json", **changes)


def shard(**changes):
    return lambda run: rewrite(run / "shard-000000/unit.json", **changes)


def key(**changes):
    return {"unit": lambda key: {**key, **changes}}


def image(**changes):
    return shard(images=lambda images: [{**images[0], **changes}])


def entry(**changes):
    return unit(files=lambda files: [*files, {"name": "x", "size": 1, "sha256": "0", **changes}])


def product(*entries):
    return lambda run: rewrite(run / "products.json", files=lambda files: [*files, *entries])


def survey(**changes):
    return lambda run: rewrite(run / "survey.json", **changes)


def survey_layer(**changes):
    return survey(layers=lambda layers: [{**layers[0], **changes}, *layers[1:]])


def settings(value):
    return lambda run: rewrite(run / "run.json", settings=value)


def line(**fields):
    def write(run):
        with (run / "failures.jsonl").open("a") as file:
            file.write(json.dumps({"path": "x", "message": "m", "code": "c", "time": 1.0, **fields}) + "\n")

    return write


def aside(**changes):
    def move(run):
        (run / "0.png").rename(run / LEFT)
        rewrite(run / LEFT / "unit.json", **changes)

    return move


def replaced(name, make):
    def replace(run):
        (run / name).unlink()
        make(run / name)

    return replace


CASES = {
    **{
        f"a file called {name!r}": entry(name=name)
        for name in ("../../secret", "/dev/zero", "\ud800", "a\0b", 5, [1], {}, None)
    },
    **{f"a file of {size!r} bytes": entry(size=size) for size in ("x", float("inf"), float("nan"), -1, 10**40, [])},
    "a digest that is a list": entry(sha256=[]),
    **{f"a unit called {name!r}": unit(**key(name=name)) for name in ("\ud800", "\0", "../../x", 7, "x" * 5000)},
    **{f"a unit of {path!r}": unit(**key(path=path)) for path in ("\ud800", "/\0", 7)},
    **{f"of kind {kind!r}": unit(**key(kind=kind)) for kind in ("model", "shard", "top", [], {})},
    **{
        f"of version {version!r}": unit(**key(version=version))
        for version in (
            {},
            [],
            {"size": 1},
            {"size": [], "mtime_ns": {}},
            {"size": 1, "mtime_ns": 1, "step": -1},
            {"path": 5},
        )
    },
    "of no key": unit(unit="0.png"),
    **{
        f"predictions {value!r}": unit(predictions=value)
        for value in (5, [5], "x", [{"class": [], "score": "x"}], [{"score": 10**400}], [{"score": float("nan")}], {"a": 1})
    },
    "layers that are a number": unit(layers=5),
    "a run that is a list": unit(run=[]),
    "nested too deep": lambda run: (run / "0.png/unit.json").write_text('{"files": ' + NESTED + "}"),
    "a number too long": lambda run: (run / "0.png/unit.json").write_text('{"files": [], "fmapviz": ' + "9" * 10_000 + "}"),
    **{
        f"a product called {name!r}": product({"name": name, "size": 1, "sha256": ""})
        for name in ("../../secret", "/dev/zero", 5, "\0", "\ud800")
    },
    "a product without a name": product({"size": 1}, "x"),
    "products nested too deep": lambda run: (run / "products.json").write_text(NESTED),
    "a survey without layers": survey(layers=[]),
    "a survey of text": survey(layers="x"),
    "a survey of so many images": survey(images="x"),
    **{f"a survey from {low!r}": survey_layer(low=low) for low in ("x", None, [])},
    "a survey of other shapes": survey_layer(mean="AAAAAA==", components="AAAA", deviations="AAAAAA=="),
    "a survey of no numbers": survey_layer(mean="AAAA", components="x", deviations=5),
    **{f"a failure at {time!r}": line(time=time) for time in ("x", [1], 10**400, None)},
    "a failure of lists": line(path=[1], message={"a": 1}, code=None),
    "a failure of html": line(path="\ud800", message="</script><script>alert(1)</script>", code="\x1b[31m", time=1e12),
    "failures nested too deep": lambda run: (run / "failures.jsonl").write_text(NESTED),
    "settings that are a list": settings([]),
    "settings without a style": settings({"formats": 5}),
    "a style that is a number": settings({"formats": ["png"], "views": [], "style": 5}),
    "a version that is text": lambda run: rewrite(run / "run.json", fmapviz="x"),
    "a version of many digits": lambda run: rewrite(run / "run.json", fmapviz=10**400),
    **{f"{name} as a pipe": replaced(name, os.mkfifo) for name in ("run.json", "0.png/unit.json", "survey.json")},
    **{
        f"{name} as a link": replaced(name, lambda path: path.symlink_to("/dev/zero"))
        for name in ("run.json", "0.png/unit.json", "products.json", "index.html")
    },
    "statistics of noise": lambda run: (run / "0.png/stats.safetensors").write_bytes(b"x" * 100),
    **{
        f"moved aside, called {name!r}": aside(**key(name=name))
        for name in ("../../up", "\0", "\ud800", "x" * 3000, "/".join("d" * 200))
    },
    "moved aside, of no path": aside(**key(path="\ud800")),
    **{f"a shard of number {number!r}": shard(shard=number) for number in ("x", -1, 10**40, None, True)},
    **{f"a shard of images {images!r}": shard(images=images) for images in ("x", [5], [{}], {"a": 1}, None, [])},
    **{
        f"a shard with an image at {path!r}": image(path=path)
        for path in ("\ud800", "/\0", 7, "../../secret", "/dev/zero", "x" * 5000)
    },
    **{f"a shard with an image called {name!r}": image(name=name) for name in ("\ud800", "../../x", 7)},
    **{f"a shard with an image of {size!r}": image(size=size, mtime_ns=size) for size in ("x", -1, 10**400, float("nan"))},
    "a shard with an image that failed": image(failed={"a": 1}),
    "a shard of another one's name": shard(**key(name="../../x", path="shard:x", version={})),
    **{
        f"a shard whose {name} is noise": lambda run, name=name: (run / "shard-000000" / name).write_bytes(b"x" * 100)
        for name in ("stats.parquet", "index.parquet", "pictures.tar")
    },
    "a shard whose statistics are of something else": lambda run: write_other_table(run / "shard-000000/stats.parquet"),
}


# One for each kind of record; `make test-all` combines every case with every option.
TYPICAL = {
    "a file called '../../secret'",
    "a unit called '../../x'",
    "predictions [5]",
    "nested too deep",
    "a product called '../../secret'",
    "a survey of text",
    "a failure of lists",
    "settings that are a list",
    "run.json as a pipe",
    "statistics of noise",
    "moved aside, called '../../up'",
    "a shard of number 'x'",
    "a shard with an image at '../../secret'",
    "a shard whose index.parquet is noise",
}


def test_the_cases_of_hostile_records_exist():
    assert CASES.keys() >= TYPICAL


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", often(sorted(TYPICAL), of=CASES))
def test_commands_survive_hostile_records(case, whole, tmp_path):
    read_and_go_on(case, whole, tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("option", ["repair", *thorough("force")])
@pytest.mark.parametrize("case", often(sorted(TYPICAL), of=CASES))
def test_a_run_with_hostile_records_can_be_forced_and_repaired(case, option, whole, tmp_path):
    read_and_go_on(case, whole, tmp_path, **{option: True})


def test_a_shard_of_an_impossible_number_is_redrawn(whole, tmp_path):
    read_and_go_on(f"a shard of number {10**40}", whole, tmp_path, force=True)


def read_and_go_on(case, whole, place, **options):
    """Verify a run with a hostile record, and run the command again."""
    (place / "secret").write_text("secret")
    out = place / "place/out"
    scenario = "shards" if case.startswith("a shard") else "images"
    shutil.copytree(whole(scenario) / "out", out)
    CASES[case](out / "net")
    for each in verify(out):
        assert all(problem.path.is_relative_to(out) for problem in each.problems)
    with suppress(FmapvizError):
        (SHARDS if scenario == "shards" else SCENARIO).run(whole(scenario) / "in", out, **options)
    list(verify(out))
    assert sorted(path.name for path in place.iterdir()) == ["place", "secret"]
    assert [path.name for path in out.iterdir()] == ["net"] or case.startswith(("a version", "settings", "run.json"))
    assert (place / "secret").read_text() == "secret"


def test_the_checksum_of_hostile_records_is_valid():
    assert sealed({"a": 1, "files": []}) == dumps({"a": 1, "files": []})


def test_a_run_of_another_format_does_not_prevent_checking_others(whole, tmp_path):
    for name in ("older", "present"):
        shutil.copytree(whole("images") / "out/net", tmp_path / "out" / name)
    rewrite(tmp_path / "out/older/run.json", fmapviz=1)
    found = [(problem.path, problem.message) for each in verify(tmp_path / "out") for problem in each.problems]
    assert [path for path, _ in found] == [tmp_path / "out/older/run.json"]
    assert "was made by version" in found[0][1]
    with pytest.raises(FmapvizError, match="was made by version"):
        list(verify(tmp_path / "out/older"))
