"""A run is drawn again from its records, or it is said what is another one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from cases import often, thorough
from faults import Net
from image_files import paint
from recorded_runs import KINDS, comment, digest_of, draw, furnish
from trees import difference, snapshot, stamps

from fmapviz.core import checksummed_json
from fmapviz.errors import RefusedError, RequestError
from fmapviz.events import Outcome, Started
from fmapviz.models.load import load_model
from fmapviz.run.loop import visualize
from fmapviz.run.rerun import plan_rerun, read_recorded, rerun
from fmapviz.store.run import read_run


def again(run, out, **options):
    return rerun(read_recorded(run), out=out, **options)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A directory with a network and three images."""
    return furnish(tmp_path_factory.mktemp("rerun"))


@pytest.fixture
def own(given, tmp_path):
    """A directory that a test may change, with a run."""
    shutil.copy(given / "net.py", tmp_path)
    shutil.copytree(given / "in", tmp_path / "in")
    return tmp_path, draw(tmp_path, tmp_path / "out", to="png,raw", name="first")


def change(run, **entries):
    """Write other entries into a run's record."""
    record = {name: value for name, value in read_run(run).items() if name != "sha256"}
    (run / "run.json").write_bytes(checksummed_json.dumps({**record, **entries}))


@pytest.mark.parametrize("kind", often(["pictures, values and statistics"], of=KINDS))
def test_a_run_is_drawn_again_with_the_same_files(kind, given, tmp_path):
    run = draw(given, tmp_path / "out", **KINDS[kind])
    before = stamps(run)
    summary = again(run, tmp_path / "again")
    assert (summary.same, summary.exit_code, summary.failed) == (True, 0, 0)
    assert summary.directory == tmp_path / "again" / f"{run.name}-rerun"
    assert difference(snapshot(summary.directory), snapshot(run)) == []
    assert stamps(run) == before
    assert (summary.directory / "run.json").read_bytes() == (run / "run.json").read_bytes()
    assert summary.results["digest"] == digest_of(run)


@pytest.mark.thorough
@pytest.mark.parametrize("out", ["../more", *thorough("more", ".")])
def test_paths_are_relative_if_the_directory_of_all_runs_is(out, own, monkeypatch):
    """Although the command works in the directory in which the run was drawn."""
    place, _ = own
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    recorded, events = read_recorded("../out/first"), []
    summary = rerun(recorded, out=out, on_event=events.append)
    assert summary.same
    run = Path(out) / "first-rerun"
    assert (summary.directory, summary.units[0]) == (run, run / "a.png")
    assert [event.directory for event in events if isinstance(event, Started)] == [run]
    assert {event.unit for event in events if isinstance(event, Outcome)} == {
        run / "a.png",
        run / "b.png",
        run / "more/c.png",
    }
    assert all(event.unit.is_dir() for event in events if isinstance(event, Outcome))
    planned = plan_rerun(recorded, out=out)
    assert (planned.directory, planned.images, planned.is_done) == (run, 3, True)
    shutil.rmtree(run / "more")
    assert plan_rerun(recorded, out=out).to_draw == 1  # of a folder


@pytest.mark.thorough
def test_the_record_alone_is_enough_where_the_inputs_are(own, tmp_path_factory, fmapviz):
    _, run = own
    place = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(run / "run.json", place / "theirs.json")
    done = fmapviz("rerun", place / "theirs.json", "--out", place, "--json")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, summary["digest"], summary["digest_before"]) == (0, digest_of(run), None)
    (place / "copy").mkdir()
    shutil.copy(run / "run.json", place / "copy/run.json")
    assert again(place / "copy", place).same is None
    assert digest_of(place / "copy-rerun") == digest_of(run)


@pytest.mark.thorough
def test_the_images_of_the_run_are_drawn_and_no_new_ones(own):
    place, run = own
    paint(place / "in/d.png", 7, (24, 24))
    summary = again(run, place / "again")
    assert (summary.found, summary.same) == (3, True)


@pytest.mark.thorough
def test_an_interrupted_rerun_continues(own):
    place, run = own
    first = again(run, place / "again")
    shutil.rmtree(first.directory / "b.png")
    second = again(run, place / "again")
    assert (second.done, second.skipped, second.same) == (1, 2, True)


@pytest.mark.thorough
def test_another_digest_is_said_with_what_differs(own, fmapviz):
    place, run = own
    paint(place / "in/b.png", 8, (24, 24))
    shutil.copyfile(place / "in/b.png", place / "in/b.copy")
    summary = again(run, place / "again")
    assert (summary.same, summary.exit_code) in {(False, 3), (None, 0)}
    done = fmapviz("rerun", run, "--out", place / "third")
    assert done.returncode == 3
    assert "the digest is not that of" in done.stderr.decode()
    assert "b.png differ" in done.stderr.decode()


@pytest.mark.thorough
def test_a_remote_run_is_drawn_again_into_a_store_and_here(bucket, given, tmp_path):
    draw(given, "s3://photos/runs", to="png,stats", name="first")
    assert again("s3://photos/runs/first", tmp_path).same
    assert again("s3://photos/runs/first", "s3://photos/more", name="second").same


# --- refusals


def test_other_code_is_refused_and_named(own):
    place, run = own
    comment(place / "net.py")
    with pytest.raises(RefusedError, match=r"was drawn with something else: net.py has changed"):
        again(run, place / "again")
    assert not (place / "again/first-rerun").exists()
    (place / "net.py").unlink()
    with pytest.raises(RequestError, match=r"no such file: 'net.py'"):
        again(run, place / "again")


def test_other_weights_are_named_and_nothing_else(own):
    place, _ = own
    values = load_model("shapesnet").module.state_dict()
    torch.save(values, place / "w.pt")
    layers = {"layers": "features.0.conv,features.2.conv", "exclude": "features.2.conv", "types": "Conv2d"}
    run = draw(place, place / "out", model="shapesnet", to="png", weights="w.pt", name="second", **layers)
    torch.save({name: each + 1 for name, each in values.items()}, place / "w.pt")
    with pytest.raises(RefusedError) as refused:
        again(run, place / "again")
    assert str(refused.value).partition("something else: ")[2] == "network: other weights, code, attributes or hooks"


def test_other_images_are_refused_and_named(own):
    place, run = own
    paint(place / "in/a.png", 0, (24, 25))
    (place / "in/b.png").unlink()
    with pytest.raises(RefusedError, match=r"2 images of .* are gone or changed: .*a\.png, .*b\.png"):
        again(run, place / "again")


@pytest.mark.thorough
def test_other_versions_are_refused_unless_they_are_allowed(own):
    place, run = own
    change(run, versions={**read_run(run)["versions"], "torch": "1.0", "python": "3.0"})
    with pytest.raises(RefusedError, match=r"not those that drew .*: torch [^,]*, not 1\.0\b"):
        again(run, place / "again")
    assert again(run, place / "again", allow_versions=True).same


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["numpy", *thorough("pillow")])
def test_the_versions_of_other_packages_count_too(name, own):
    place, run = own
    request = read_run(run)["request"]
    packages = {**request["execution"]["packages"], name: "0.1"}
    change(run, request={**request, "execution": {**request["execution"], "packages": packages}})
    with pytest.raises(RefusedError, match=f"not those that drew .*: {name} .*, not 0.1"):
        again(run, place / "again")


def test_the_run_itself_is_not_written_into(own):
    _, run = own
    for target in (run, run / "run.json"):
        with pytest.raises(RequestError, match="is the run itself"):
            again(target, run.parent, name=run.name)


def test_a_network_of_python_is_named(given, tmp_path):
    run = visualize(Net(), given / "in", to="png", out=tmp_path / "out").directory
    with pytest.raises(RequestError, match="was given in Python"):
        again(run, tmp_path)


@pytest.mark.thorough
def test_the_units_name_the_images_of_a_stream(given, tmp_path):
    options = {"weights": "random", "layers": "classifier.1", "to": "png"}
    run = visualize("squeezenet1_1", iter([given / "in"]), out=tmp_path / "out", **options).directory
    assert again(run, tmp_path).same
    (tmp_path / "alone").mkdir()
    shutil.copy(run / "run.json", tmp_path / "alone")
    with pytest.raises(RequestError, match="does not record its inputs"):
        again(tmp_path / "alone", tmp_path)


@pytest.mark.thorough
def test_comparisons_are_named(given, tmp_path, fmapviz):
    fmapviz("diff", "squeezenet1_1", given / "in/a.png", "--weights", "random", "--against", "random:1", "--layers",
            "classifier.1", "--to", "numbers", "--out", tmp_path / "out")  # fmt: skip
    (run,) = (tmp_path / "out").iterdir()
    done = fmapviz("rerun", run)
    assert (done.returncode, "compares two networks" in done.stderr.decode()) == (2, True)


@pytest.mark.thorough
def test_the_plan_is_refused_for_the_same_reasons_and_writes_nothing(own, fmapviz):
    place, run = own
    assert fmapviz("rerun", run, "--plan", "--out", place / "again").returncode == 0
    comment(place / "net.py")
    done = fmapviz("rerun", run, "--plan", "--out", place / "again")
    assert (done.returncode, "net.py has changed" in done.stderr.decode()) == (6, True)
    assert not (place / "again").exists()


@pytest.mark.parametrize("content", [b"{}", *thorough(b"", b"[1]", b'{"fmapviz": 99, "fingerprint": "a"}', b"\xff")])
def test_a_file_that_is_no_record_is_refused(content, tmp_path, fmapviz):
    (tmp_path / "some.json").write_bytes(content)
    done = fmapviz("rerun", tmp_path / "some.json")
    assert done.returncode in {2, 6}
    assert b"Traceback" not in done.stderr
    assert fmapviz("rerun", tmp_path / "nothing").returncode == 2


@pytest.mark.thorough
def test_a_touched_image_is_drawn_and_compared(own):
    place, run = own
    os.utime(place / "in/a.png")
    assert again(run, place / "again").same
