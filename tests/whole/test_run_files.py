"""Run-level files: complete after any end, and never in place of foreign files."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
import torch
from cases import each_once, often
from conftest import captured
from image_files import paint
from PIL import Image
from tiny_runs import AS_IT_IS, runner
from torch import nn
from trees import stamps
from warm import ask

from fmapviz.config import Style
from fmapviz.core import files
from fmapviz.errors import OutputError, RefusedError, printable
from fmapviz.run import publish
from fmapviz.run.loop import visualize
from fmapviz.store import run_files
from fmapviz.store.aggregates import statistics
from fmapviz.store.verify import verify


class Net(nn.Module):
    """One convolution."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)


@pytest.fixture
def folder(tmp_path):
    """Three pictures, one of them in a folder."""
    for seed, name in enumerate(("img10.png", "img2.png", "sub/img1.png")):
        paint(tmp_path / "in" / name, seed)
    return tmp_path / "in"


@pytest.fixture
def look(tmp_path):
    return runner(Net, out=tmp_path / "out", preprocessing=AS_IT_IS, workers=1, to=["html"])


class Page(HTMLParser):
    """Finds the data of a page, as a browser would."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.data, self._inside = "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._inside = tag == "script" and dict(attributes).get("type") == "application/json"

    def handle_endtag(self, _tag):
        self._inside = False

    def handle_data(self, data):
        self.data += data if self._inside else ""


def page(run):
    return json.loads(Page((run / "index.html").read_text("ascii")).data)


def units(run):
    return [each["unit"] for each in page(run)["units"]]


def problems(run):
    return sorted((problem.path.name, problem.message) for place in verify(run) for problem in place.problems)


# --- what they hold


def test_the_page_grows_with_the_run(folder, look):
    run = look([folder]).directory
    assert units(run) == ["img2.png", "img10.png", "sub/img1.png"]
    paint(folder / "img1.png", 7)
    paint(folder / "sub/a/b.png", 8)
    grown = look([folder])
    assert (grown.done, grown.skipped) == (2, 3)
    assert units(run) == ["img1.png", "img2.png", "img10.png", "sub/a/b.png", "sub/img1.png"]
    assert problems(run) == []
    look([paint(folder.parent / "elsewhere.png", 9)])
    assert len(units(run)) == 6


@pytest.mark.thorough
def test_html_alone_makes_the_same_run_as_html_and_png(folder, look):
    run = look([folder], to="html").directory
    before = stamps(run)
    for formats in (["html", "png"], ["png", "html"], ["html", "html"]):
        summary = look([folder], to=formats)
        assert (summary.directory, summary.skipped) == (run, 3)
        assert stamps(run) == before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("formats", [["html"], ["html", "stats"], ["stats"]])
def test_unchanged_run_level_files_are_not_rewritten(folder, look, formats):
    (folder / "bad.png").write_bytes(b"no image")
    run = look([folder], to=formats).directory
    before = stamps(run)
    look([folder], to=formats)
    after = stamps(run)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"failures.jsonl"}  # which tells when


def test_unfinished_images_are_listed_until_they_are_drawn(folder, look):
    (folder / "bad.png").write_bytes(b"no image")
    (folder / "empty.png").write_bytes(b"")
    run = look([folder]).directory
    told = {Path(each["path"]).name: each["code"] for each in page(run)["failures"]}
    assert told == {"bad.png": "E_FORMAT", "empty.png": "E_EMPTY"}
    paint(folder / "bad.png", 5)
    look([folder])
    assert [Path(each["path"]).name for each in page(run)["failures"]] == ["empty.png"]
    assert "bad.png" in units(run)
    assert problems(run) == []


def test_a_picture_damaged_after_drawing_is_reported(folder, look):
    run = look([folder]).directory
    (folder / "img2.png").write_bytes(b"no image any more")
    assert look([folder]).failed == 1
    assert [Path(each["path"]).name for each in page(run)["failures"]] == ["img2.png"]


class Complains(nn.Module):
    """Fails at every picture with a message that ends alike."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        if x.shape[-2:] == (16, 20):
            message = "that is not what I am used to, " * 8
            raise ValueError(message)
        return self.conv(x)


def test_all_failures_with_equal_messages_are_listed(folder, tmp_path):
    """A unit or a failure that is added is another state of the run, however its record ends."""
    Image.new("RGB", (20, 20)).save(tmp_path / "good.png")
    common = {"to": "html", "out": tmp_path / "out", "preprocessing": AS_IT_IS, "workers": 1}
    model = Complains()
    run = visualize(model, [tmp_path / "good.png", folder / "img2.png"], **common).directory
    assert len(page(run)["failures"]) == 1
    visualize(model, [tmp_path / "good.png", folder / "img2.png", folder / "img10.png"], **common)
    assert len(page(run)["failures"]) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "second",
    [
        ["one.png", "two.png"],
        ["two.png", "one.png"],
    ],
)
def test_the_page_is_deterministic(folder, look, tmp_path, second):
    """In whichever order the images came."""
    for name in ("one.png", "two.png"):
        (folder / name).write_bytes(b"no image")
    good = [folder / "img2.png", folder / "img10.png"]
    runs = [
        look([*good, *(folder / name for name in ("one.png", "two.png"))], out=tmp_path / "a", to=["html", "stats"]),
        look([*(folder / name for name in second), *reversed(good)], out=tmp_path / "b", to=["html", "stats"]),
    ]
    for name in ("index.html", "stats.js", "stats.csv", "stats.json"):
        one, other = ((run.directory / name).read_bytes() for run in runs)
        assert one == other, name


STRANGE = ["a b.png", "100%.png", "#1.png", "what?.png", "x&y<z>.png", "'q\".png", "%2e%2e/%41.png", "ü/é 層.png"]


def test_names_with_special_characters_are_linked(tmp_path, look):
    for seed, name in enumerate(STRANGE):
        paint(tmp_path / "in" / name, seed)
    not_text = tmp_path / "in" / os.fsdecode(b"\xff\xfe.png")
    paint(not_text, 99)
    summary = look([tmp_path / "in"])
    assert (summary.done, problems(summary.directory)) == (len(STRANGE) + 1, [])
    records = page(summary.directory)["units"]
    assert len(records) == len(STRANGE) + 1
    found = set()
    for record in records:
        assert re.fullmatch(r"[A-Za-z0-9_.~%/-]+/", record["href"])
        unit = summary.directory / os.fsdecode(unquote_to_bytes(record["href"]))
        found.add(json.loads((unit / "unit.json").read_bytes())["unit"]["path"])
        assert (unit / "report.js").is_file()
    assert found == {str(tmp_path / "in" / name) for name in STRANGE} | {str(not_text)}


# --- existing files


@pytest.mark.thorough
def test_a_foreign_page_is_not_replaced(folder, look, tmp_path):
    run = look([folder / "img2.png"]).directory
    for name in ("index.html", "products.json"):
        (run / name).unlink()
    (run / "index.html").write_text("mine")
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"index\.html") as refused:
            look([folder])
        assert refused.value.exit_code == 6
    assert (run / "index.html").read_text() == "mine"
    (run / "index.html").unlink()
    assert look([folder]).skipped == 3
    assert (len(units(run)), problems(run)) == (3, [])


def test_a_foreign_page_in_a_run_without_html_is_ignored(folder, look):
    run = look([folder / "img2.png"], to=["png"]).directory
    (run / "index.html").write_text("mine")
    assert look([folder], to=["png"]).exit_code == 0
    assert (run / "index.html").read_text() == "mine"
    assert problems(run) == [("index.html", "not made by fmapviz")]


def test_a_foreign_record_is_not_replaced(folder, look, tmp_path):
    look([folder / "img2.png"])
    record = tmp_path / "out/net/products.json"
    (tmp_path / "out/net/index.html").unlink()
    record.write_text("my own goods")
    with pytest.raises(RefusedError, match=r"products\.json' was not made by fmapviz"):
        look([folder])
    assert record.read_text() == "my own goods"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        "survey.json",
        *(name for name in ("index.html", "products.json", "stats.csv", "stats.json", "stats.js")),
    ],
)
def test_an_image_named_like_a_run_level_file_is_drawn(look, tmp_path, name):
    summary = look([paint(tmp_path / "in" / name), paint(tmp_path / "in/a.png", 1)], to=["html", "stats"])
    assert (summary.exit_code, problems(summary.directory)) == (0, [])
    assert len(units(summary.directory)) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["index.html", "stats.csv"])
def test_a_folder_named_like_a_run_level_file_is_drawn(look, tmp_path, name):
    paint(tmp_path / "in" / name / "a.png")
    summary = look([tmp_path / "in"], to=["html", "stats"])
    assert (summary.exit_code, problems(summary.directory)) == (0, [])
    assert len(units(summary.directory)) == 1


FILES = ["index.html", "stats.csv", "stats.json", "stats.js"]
DAMAGES = ["deleted", "cut", "changed", "emptied"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "damage"), often(each_once(FILES, DAMAGES), of=product(FILES, DAMAGES)))
def test_damaged_run_level_files_are_found_and_written_again(folder, look, name, damage):
    run = look([folder], to=["html", "stats"]).directory
    data = (run / name).read_bytes()
    (run / name).unlink()
    if damage != "deleted":
        (run / name).write_bytes({"cut": data[:-3], "changed": data[:-3] + b"xyz", "emptied": b""}[damage])
    assert [problem[0] for problem in problems(run)] == [name]
    summary = look([folder], to=["html", "stats"])
    assert (summary.done, summary.skipped) == (0, 3)
    assert (run / name).read_bytes() == data
    assert problems(run) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["deleted", "cut", "changed", "emptied"])
def test_a_damaged_record_is_written_again(folder, look, damage):
    """Run-level files are recognised without their record."""
    run = look([folder]).directory
    data = (run / "products.json").read_bytes()
    (run / "products.json").unlink()
    if damage != "deleted":
        (run / "products.json").write_bytes(
            {"cut": data[:-3], "changed": data.replace(b"1", b"2", 1), "emptied": b""}[damage]
        )
    assert look([folder]).skipped == 3
    assert (run / "products.json").read_bytes() == data
    assert problems(run) == []


# --- how a run may end


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "grown"), often(each_once(range(5), [False, True]), of=product(range(5), [False, True])))
def test_the_next_command_repairs_run_level_files_of_a_killed_one(folder, look, monkeypatch, number, grown):
    """Its files are put in place one by one; before each of them the process may end."""
    options = {"to": ["html", "stats"]}
    run = folder.parent / "out/net"
    if grown:
        look([folder / "img2.png"], **options)
    replace, calls = os.replace, []

    def interrupted(source, target, **more):
        if Path(target).parent == run and not Path(target).name.startswith("unfinished-"):
            if len(calls) == number:
                raise KeyboardInterrupt
            calls.append(target)
        return replace(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            look([folder], **options)
    assert len(calls) == number
    if number or grown:
        found = problems(run)
        assert bool(found) is bool(number or grown)  # before the first, the old ones are whole, if of less than there is
    summary = look([folder], **options)
    assert (summary.done, summary.skipped, problems(run)) == (0, 3, [])
    assert len(units(run)) == 3
    whole = look([folder], out=folder.parent / "whole", **options).directory
    for name in ("index.html", "stats.js", "stats.csv", "stats.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_a_full_disk_is_reported_and_repaired(folder, look, monkeypatch, tmp_path):
    write = files.write

    def full(path, *parts):
        if path.name == "index.html":
            raise OSError(28, "No space left on device")
        write(path, *parts)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        with pytest.raises(OutputError, match="No space left"):
            look([folder])
    run = tmp_path / "out/net"
    assert not (run / "index.html").exists()
    assert look([folder]).skipped == 3
    assert problems(run) == []


@pytest.mark.thorough
def test_another_process_may_publish_first(folder, look, monkeypatch, tmp_path):
    """Another process publishes between two checks: its page is not foreign."""
    look([folder], out=tmp_path / "other")
    run = look([folder]).directory
    for name in ("index.html", "products.json"):
        (run / name).unlink()
    read, asked = run_files.read, []

    def slow(place):
        record = read(place)
        asked.append(place)
        if len(asked) == 2:  # the first asks whether everything is up to date
            for name in ("products.json", "index.html"):
                (run / name).write_bytes((tmp_path / "other/net" / name).read_bytes())
        return record

    monkeypatch.setattr(run_files, "read", slow)
    look([folder])
    assert len(asked) >= 2
    monkeypatch.undo()
    assert (len(units(run)), problems(run)) == (3, [])


def test_an_image_that_another_process_replaces_is_not_reported_as_damaged(folder, look, monkeypatch):
    run = look([folder], to=["stats", "html"]).directory
    expected = {name: (run / name).read_bytes() for name in ("stats.csv", "stats.json", "index.html")}
    (run / "stats.csv").unlink()
    merge, aside = statistics.merge, run / ".fmapviz-aside"

    def merge_while_one_is_away(summaries):
        monkeypatch.undo()
        (run / "img2.png").rename(aside)
        try:
            return merge(summaries)
        finally:
            aside.rename(run / "img2.png")

    monkeypatch.setattr(statistics, "merge", merge_while_one_is_away)
    summary = look([folder], to=["stats", "html"])
    assert (summary.skipped, summary.left_out) == (3, ())
    assert {name: (run / name).read_bytes() for name in expected} == expected
    assert problems(run) == []


@pytest.mark.thorough
def test_several_processes_end_with_a_page_of_all_images(warm, tmp_path):
    for seed in range(6):
        paint(tmp_path / f"in{seed % 3}" / f"{seed}.png", seed)

    def run(number):
        arguments = [
            "shapesnet",
            f"in{number}",
            "--to",
            "html,stats",
            "--size",
            "32",
            "--predictions",
            "0",
            "--workers",
            "1",
            "-q",
        ]
        with (tmp_path / f"{number}.err").open("wb") as err, Path(os.devnull).open("r+b", buffering=0) as null:
            return ask(warm, arguments, directory=tmp_path, streams=[null.fileno(), null.fileno(), err.fileno()])

    with ThreadPoolExecutor(3) as pool:
        codes = list(pool.map(run, range(3)))
    assert codes == [0] * 3, [(tmp_path / f"{number}.err").read_text() for number in range(3)]
    run_directory = tmp_path / "runs/shapesnet"
    assert sorted(units(run_directory)) == sorted(f"{seed}.png" for seed in range(6))
    assert json.loads((run_directory / "stats.json").read_bytes())["images"] == 6
    assert problems(run_directory) == []


# --- opening it


@pytest.mark.sampled(1)
@pytest.mark.parametrize("formats", [(), ("--to", "png,tensorboard")])
def test_the_path_of_the_page_is_printed_without_a_display(picture, tmp_path, warm, formats):
    environment = {
        name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    }
    out, err = tmp_path / "out.txt", tmp_path / "err.txt"
    arguments = ["shapesnet", str(picture), "--open", "--predictions", "0", *formats]
    with out.open("wb") as stdout, err.open("wb") as stderr, Path(os.devnull).open("rb") as null:
        streams = [null.fileno(), stdout.fileno(), stderr.fileno()]
        code = ask(warm, arguments, environment=environment, directory=tmp_path, streams=streams)
    assert code == 0, err.read_text()
    unit = tmp_path / "runs/shapesnet/picture.png"
    assert str(Path("runs/shapesnet/index.html")) in out.read_text().splitlines()
    assert "browser" in err.read_text()
    names = {path.name for path in unit.iterdir()}
    assert {"report.js", "input.png", "unit.json"} <= names
    assert ("events.out.tfevents.fmapviz" in names) is bool(formats)


@pytest.mark.parametrize(
    ("variables", "opens"),
    [
        ({"DISPLAY": ":99", "BROWSER": "{place}/browser.sh"}, True),
        ({"BROWSER": "{place}/browser.sh"}, True),  # of VS Code's terminal in a container, JupyterHub, WSL
        ({"BROWSER": "{place}/browser.sh %s"}, True),
        ({"BROWSER": ""}, False),
        ({}, False),
        ({"BROWSER": "{place}/lynx"}, False),
        ({"BROWSER": "{place}/w3m -o x=1 %s"}, False),
        ({"DISPLAY": ":99", "BROWSER": "{place}/links2"}, False),
    ],
)
def test_a_browser_opens_the_page(variables, opens, tmp_path, warm):
    """The browser is a program of this test that records its arguments; one in the terminal is not started."""
    for name in ("browser.sh", "lynx", "w3m", "links2"):
        browser = tmp_path / name
        browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/asked\n')
        browser.chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}}
    environment |= {name: text.format(place=tmp_path) for name, text in variables.items()}
    program = "import pathlib, sys; from fmapviz.cli.run import open_page; print(open_page(pathlib.Path(sys.argv[1])))"
    done = captured(f"{warm}.cli", ["-c", program, "a b/index.html"], environment=environment, directory=tmp_path)
    assert (done.stdout.decode(), done.stderr.decode()) == (f"{opens}\n", "")
    if opens:
        assert (tmp_path / "asked").read_text().strip() == (tmp_path / "a b/index.html").as_uri()
    assert (tmp_path / "asked").exists() is opens


def test_the_page_is_updated_during_a_long_run(folder, look, monkeypatch, tmp_path):
    monkeypatch.setattr(publish, "PUBLISH_SECONDS", 0.0)
    page, seen = tmp_path / "out" / "net" / "index.html", []

    def tell(event):
        seen.append(page.exists())

    summary = look([folder], workers=1, on_event=tell)
    assert summary.done > 2
    assert seen[0] is False  # the run has only begun
    assert seen[-1] is True  # before the last image was told


def test_images_are_named_by_file_and_as_many_folders_as_needed(look, tmp_path):
    for name in ("a/x/one.png", "b/x/one.png", "c/two.png", "tree/deep/three.png", "odd/fo\nur ü.png", "odd/.five.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        paint(tmp_path / name, 1)
    given = ("a/x/one.png", "b/x/one.png", "c/two.png", "tree", "odd/fo\nur ü.png", "odd/.five.png")
    run = look([tmp_path / name for name in given]).directory
    names = {each["href"]: each["unit"] for each in page(run)["units"]}
    assert sorted(names.values()) == sorted(
        ["a/x/one.png", "b/x/one.png", "two.png", "deep/three.png", printable("fo\nur ü.png"), ".five.png"]
    )
    assert names["deep/three.png/"] == "deep/three.png"
    assert (run / "one.png").is_dir()  # the other directory of that name has a hash behind


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"style": Style(pca="shared")}])
def test_options_without_effect_on_results_make_no_other_run(folder, look, options):
    run = look([folder]).directory
    again = look([folder], **options)
    assert (again.directory, again.skipped) == (run, 3)
