"""Remote inputs and outputs, with a real S3 server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import stores
from cases import thorough
from extras import obstore as obstore
from extras import require
from faults import NOTES, SCENARIOS, Net
from image_files import paint
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trees import difference, snapshot
from waiting import PATIENCE

from fmapviz.config import InputOptions, Part, RunConfig, Style
from fmapviz.core import files, object_store
from fmapviz.errors import OutputError, RefusedError, RequestError
from fmapviz.events import Outcome, Started
from fmapviz.images import find
from fmapviz.images.decode_pool import read_image
from fmapviz.images.find import find_images
from fmapviz.run.estimate import estimate
from fmapviz.run.loop import visualize
from fmapviz.store import extract
from fmapviz.store.remote import run_sync
from fmapviz.store.remote.remote import open_remote
from fmapviz.store.unit_key import UnitKey
from fmapviz.store.verify import verify
from fmapviz.types import Failure, ImageFile

IN, OUT = "s3://photos/in", "s3://photos/runs"
EVERYTHING = ["tensorboard", "png", "html", "raw", "stats"]


def png(seed=0, size=(9, 8)):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def draw(inputs, out, *, net=None, **options):
    given = {"to": ["png", "stats"], "preprocessing": InputOptions(fit="none"), "workers": 2, "name": "run"}
    if "shard" in options:
        require("pyarrow", "scale")
    return visualize(net or Net(), inputs, out=out, **{**given, **options})


def planned(inputs, *, name, to=("png",)):
    there = {"out": OUT, "name": name, "shard": None, "part": None, "force": False}
    return estimate(RunConfig(Net(), [str(inputs)], **there, to=to, preprocessing=InputOptions(fit="none")))


def names(*inputs):
    return [found.unit if isinstance(found, ImageFile) else f"{found.code} {found.path}" for found in find_images(inputs)]


def problems(out):
    return [f"{problem.path} {problem.message}" for each in verify(out) for problem in each.problems]


def units_of(bucket, prefix="runs/"):
    """Check that all objects that a record lists are complete, and return the names of the units."""
    tree = bucket.tree(prefix)
    found = [key.removesuffix("/unit.json") for key in tree if key.endswith("/unit.json")]
    for unit in found:
        for entry in json.loads(tree[f"{unit}/unit.json"])["files"]:
            data = tree[f"{unit}/{entry.get('object', entry['name'])}"]
            assert hashlib.sha256(data).hexdigest() == entry["sha256"]
    return found


@pytest.fixture
def inputs(tmp_path):
    for number in range(4):
        paint(tmp_path / "in" / ("" if number else "more") / f"{number}.png", number)
    return tmp_path / "in"


# --- inputs


@pytest.mark.thorough
def test_images_are_found_in_natural_order_and_each_once(bucket):
    for name in ("x10.png", "x2.png", "sub/a.png", "sub/deeper/b.png", ".hidden.png", ".git/c.png", "notes.txt", "a//b.png"):
        bucket.put(f"in/{name}", png())
    bucket.put("in/sub/", b"")  # consoles mark folders like this
    nameless = f"E_TYPE {IN}/a"
    expected = [nameless, "sub/a.png", "sub/deeper/b.png", "x2.png", "x10.png"]
    assert names(IN) == names(f"{IN}/") == expected
    assert names(f"{IN}/x10.png", IN, IN, f"{IN}/sub", f"{IN}/x2.png") == ["x10.png", *expected[:-1]]
    assert names("s3://photos") == [nameless, *(f"in/{name}" for name in expected[1:])] == names("S3://photos/")


@pytest.mark.thorough
def test_each_unreadable_input_is_a_failure(bucket, proxy):
    bucket.put("in/a.png", png())
    bucket.put("in/sub/b.png", png())
    assert names(f"{IN}/none.png", "s3://nobody/x.png", f"{IN}/a.png") == [
        f"E_MISSING {IN}/none.png",
        "E_MISSING s3://nobody/x.png",
        "a.png",
    ]
    proxy.fail("status", path="prefix=in%2F", status=403, code="AccessDenied")
    assert names(IN, f"{IN}/a.png") == [f"E_PERM {IN}", "a.png"]
    proxy.heal()
    proxy.fail("refuse")
    (failure,) = find_images([IN])
    assert isinstance(failure, Failure)
    assert failure.code == "E_READ"
    assert "\n" not in failure.message


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    stores.forget()
    (failure,) = find_images(["gs://photos/a.png"])
    assert "obstore is missing" in failure.message
    assert failure.hint == "pip install 'fmapviz[remote]'"
    with pytest.raises(RequestError, match="obstore is missing"):
        draw(["sample_images"], "gs://photos/runs")


@pytest.mark.thorough
def test_names_with_special_characters(bucket, tmp_path):
    odd = ["we[1]*?.png", "a b+c%20.png", "äß.png", "x#y::z.png", "back\\slash.png"]
    for number, name in enumerate(odd):
        bucket.put(f"in/{name}", png(number))
    found = list(find_images([IN]))
    assert sorted(file.path for file in found) == sorted(f"{IN}/{name}" for name in odd)
    for file in found:
        (tmp_path / "x.png").write_bytes(bucket.get(file.path.removeprefix("s3://photos/")))
        here = read_image(ImageFile(str(tmp_path / "x.png"), ""))
        assert np.array_equal(np.asarray(read_image(file).pixels), np.asarray(here.pixels))


@pytest.mark.thorough
def test_a_changed_object_is_a_changed_image(bucket):
    def state():
        (file,) = find_images([f"{IN}/a.png"])
        return file.version

    bucket.put("in/a.png", b"one")
    first = state()
    bucket.put("in/a.png", b"one")
    assert state() == first
    assert first.keys() == {"size", "etag"}
    bucket.put("in/a.png", b"two")  # of the same size, in the same second
    assert state() != first


@pytest.mark.thorough
def test_many_files_are_listed_in_the_order_of_the_store(bucket, monkeypatch):
    monkeypatch.setattr(find, "SORTED", 3)
    for number in range(12):
        bucket.put(f"in/{number}.png", b"x")
    assert names(IN) == sorted(f"{number}.png" for number in range(12))


@pytest.mark.thorough
def test_large_files_are_read_in_pieces(bucket, monkeypatch):
    data = bytes(range(256)) * 100
    bucket.put("in/a.bin", data)
    monkeypatch.setattr(object_store, "PIECE_BYTES", 1000)
    with object_store.download(f"{IN}/a.bin") as stream:
        assert stream.read() == data


def test_an_image_on_the_web_is_drawn(tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        found, missing, unknown = find_images([f"{address}/a.png?size=1", f"{address}/none.png", "htp://a.png"])
        assert (unknown.code, unknown.message) == ("E_MISSING", "unsupported address: 'htp://a.png'")
        assert (found.unit, missing.code) == ("a.png", "E_MISSING")
        assert found.version["size"] == (tmp_path / "a.png").stat().st_size
        assert read_image(found).pixels.size == (9, 8)
        server.shutdown()


@pytest.mark.thorough
def test_a_web_server_without_lengths_is_read():
    class Chunked(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(png()), png()))

        def log_message(self, *_):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Chunked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (found,) = find_images([f"http://127.0.0.1:{server.server_port}/a.png"])
        assert (found.unit, read_image(found).pixels.size) == ("a.png", (9, 8))
        server.shutdown()


@pytest.mark.thorough
def test_the_output_is_not_an_input(bucket):
    bucket.put("in/a.png", png())
    for out in (f"{IN}/runs", IN, f"{IN}/other", f"{IN}/runs", IN):
        summary = draw([IN], out)
        assert summary.found == 1
    assert summary.skipped == 1
    bucket.put("in/runs/run/run.json", b"{}")  # not made by fmapviz
    assert len(names(IN)) > 1


def test_extract_writes_local_files_only(fmapviz):
    asked = fmapviz("extract", OUT, "--image", "a", "--layer", "b", "--out", "s3://photos/a.png")
    assert asked.returncode == 2
    assert b"--out must be a local file: 's3://photos/a.png'" in asked.stderr


@pytest.mark.thorough
def test_obstore_is_not_imported_by_local_runs(torch_alone):
    program = "import sys; import fmapviz.run.loop, fmapviz.cli.app; print({'obstore'} & {*sys.modules})"
    assert torch_alone(program).stdout.decode().strip() == "set()"


# --- outputs


@pytest.mark.parametrize(
    "options",
    [
        {"to": EVERYTHING, "views": ["maps", "kernels"]},
        *thorough(
            {"to": ["tar", "tensorboard", "stats"], "shard": 3},
            {"to": ["png", "html"], "views": ["maps", "pca"], "style": Style(norm="run", pca="shared")},
        ),
    ],
    ids=["images", "shards", "a survey"],
)
def test_a_remote_run_equals_a_local_one(bucket, inputs, tmp_path, options):
    (inputs / "damaged.png").write_bytes(b"no image")
    here = draw([inputs], tmp_path / "here", **options)
    events = []
    there = draw([inputs], OUT, on_event=events.append, **options)
    assert difference(snapshot(bucket.save("runs/", tmp_path / "there")), snapshot(tmp_path / "here")) == []
    assert (there.done, there.failed, there.pictures) == (here.done, here.failed, here.pictures) == (4, 1, here.pictures)
    assert str(there.directory) == f"{OUT}/run"
    assert [str(event.directory) for event in events if isinstance(event, Started)] == [f"{OUT}/run"]
    done = [str(event.unit) for event in events if isinstance(event, Outcome) and event.status == "done"]
    assert all(unit.startswith(f"{OUT}/run/") for unit in done)
    assert len(done) == 4
    assert problems(OUT) == []


@pytest.mark.thorough
def test_failures_are_in_the_store_before_the_run_ends(bucket, inputs):
    (inputs / "0.png").write_bytes(b"no image")
    seen = []

    def look(event):
        if isinstance(event, Outcome) and event.status == "done":
            seen.append("runs/run/failures.jsonl" in bucket.keys("runs/run/failures"))

    assert draw([inputs], OUT, to=["png"], workers=1, on_event=look).failed == 1
    assert seen[-1]


@pytest.mark.parametrize("beside", ["", "runs/run/0.png/unit.json"], ids=["alone", "beside another command"])
def test_a_refused_run_leaves_no_record_unless_another_command_uses_it(bucket, inputs, beside):
    (inputs / "0.png").write_bytes(b"no image")

    def refuse(event):
        if isinstance(event, Started) and beside:
            bucket.put(beside, b"of another command")
        if isinstance(event, Outcome):
            assert "runs/run/run.json" in bucket.keys("runs/")
            raise RequestError("no")

    with pytest.raises(RequestError):
        draw([inputs / "0.png"], OUT, on_event=refuse)
    assert bucket.keys("runs/") == ([beside, "runs/run/run.json"] if beside else [])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options", [{"to": EVERYTHING}, *thorough({"to": ["tar", "stats"], "shard": 3})], ids=["images", "shards"]
)
def test_finished_units_are_not_uploaded_again(bucket, proxy, inputs, options):
    draw([inputs], OUT, **options)
    proxy.heal()
    summary = draw([inputs], OUT, **options)
    assert (summary.skipped, summary.done) == (4, 0)
    assert proxy.count("PUT") == proxy.count("DELETE") == 0


@pytest.mark.thorough
def test_the_number_of_requests_is_bounded(bucket, proxy, inputs):
    for path in inputs.glob("*.png"):
        bucket.put(f"in/{path.name}", path.read_bytes())
    draw([IN], OUT, to=["tar"], shard=2)
    assert proxy.count("GET", "/in/") == 3  # images
    assert proxy.count("PUT", "/shard-") == 2 * 3  # shards, of an archive, an index and a record
    assert proxy.count("HEAD", "/in/.|/shard-") == proxy.count("DELETE") == 0


@pytest.mark.thorough
def test_no_local_files_are_left(bucket, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    abandoned = tmp_path / "tmp" / ".fmapviz-000000-1-x-y"  # of another machine, and not of a remote run
    abandoned.mkdir()
    draw([inputs], OUT)
    assert [*(tmp_path / "tmp").iterdir()] == [abandoned]
    with pytest.raises(RequestError):
        draw([inputs], "s3://photos/other", layers=["nothing"])
    assert [*(tmp_path / "tmp").iterdir()] == [abandoned]
    assert bucket.keys("other") == []


def test_a_wrong_request_leaves_no_objects(bucket, inputs):
    with pytest.raises(RequestError):
        draw([inputs], OUT, views=["gradcam"], targets=["9999"])
    assert bucket.keys() == []


@pytest.mark.thorough
def test_tensorboard_reads_remote_runs(bucket, inputs):
    draw([inputs], OUT, to=["tensorboard"])
    shown = EventAccumulator(f"{OUT}/run/1.png", size_guidance={"images": 0})
    shown.Reload()
    assert "maps/00 first" in shown.Tags()["tensors"]


@pytest.mark.thorough
def test_extract_reads_one_picture_of_a_shard_only(bucket, proxy, inputs, tmp_path):
    draw([inputs], tmp_path, to=["tar"], shard=3)
    draw([inputs], OUT, to=["tar"], shard=3)
    here = extract.extract(tmp_path, image="2.png", layer="second")
    proxy.heal()
    there = extract.extract(OUT, image="2.png", layer="second")
    assert (there.name, there.png, str(there.shard)) == (here.name, here.png, f"{OUT}/run/shard-000000")
    assert proxy.count("GET", "pictures.tar") == 1
    assert extract.extract(str(there.shard), image="2.png", layer="second") == there
    with pytest.raises(RequestError, match="no such image"):
        extract.extract(OUT, image="none.png", layer="second")
    with pytest.raises(RequestError, match=f"no shards in '{OUT}/none'"):
        extract.extract(f"{OUT}/none", image="2.png", layer="second")
    draw([inputs], OUT, to=["tar"], shard=3, name="second")
    with pytest.raises(RequestError, match=f"2 runs have the image '2.png': {OUT}/run, {OUT}/second") as caught:
        extract.extract(OUT, image="2.png", layer="second")
    assert f"fmapviz extract {OUT}/run --image 2.png --layer second" in caught.value.hint


@pytest.mark.thorough
def test_other_runs_and_foreign_files_are_not_changed(bucket, inputs):
    visualize(Net(), inputs, out=OUT, to=["png"], preprocessing=InputOptions(fit="none"))
    bucket.put("runs/net-2/notes.txt", b"mine")
    summary = visualize(Net(), inputs, out=OUT, to=["raw"], preprocessing=InputOptions(fit="none"))
    assert str(summary.directory) == f"{OUT}/net-3"
    with pytest.raises(RefusedError, match=f"'{OUT}/net-2' holds files that fmapviz did not make"):
        draw([inputs], OUT, name="net-2")
    with pytest.raises(RefusedError, match=f"'{OUT}/net' holds a run with other settings"):
        draw([inputs], OUT, name="net", to=["raw"])
    with pytest.raises(RefusedError, match=f"'{OUT}/net' holds a run with other settings"):
        planned(inputs, name="net", to=["raw"])
    assert str(planned(inputs, name="new").directory) == f"{OUT}/new"
    assert bucket.keys("runs/new") == []
    draw([inputs], OUT, name="page")
    bucket.put("runs/page/stats.csv", b"foreign")
    bucket.remove("runs/page/products.json")
    with pytest.raises(RefusedError, match=f"{OUT}/page/stats.csv"):
        draw([inputs], OUT, name="page")
    assert bucket.get("runs/page/stats.csv") == b"foreign"


def test_an_unwritable_output_is_refused_before_the_model_is_loaded(bucket, inputs, monkeypatch):
    with pytest.raises(OutputError, match="NoSuchBucket"):
        visualize("no such model", inputs, out="s3://nobody/runs")
    with pytest.raises(RequestError, match="cannot write to a web address"):
        visualize("no such model", inputs, out="https://example.org/runs")
    for unknown in ("s4://photos/runs", "file:///tmp/runs"):
        with pytest.raises(RequestError, match=f"unsupported address: '{unknown}'"):
            visualize("no such model", inputs, out=unknown)
    with pytest.raises(RequestError, match="bucket"):
        visualize("no such model", inputs, out="s3://")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    stores.forget()
    with pytest.raises(OutputError, match="no credentials"):
        visualize("no such model", inputs, out=OUT)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    stores.forget()
    with pytest.raises(OutputError, match="no connection"):
        visualize("no such model", inputs, out=OUT)


def test_keys_and_endpoint_of_a_profile_are_used(bucket, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(f"[profile mine]\nregion = eu-west-1\nendpoint_url = {bucket.endpoint}\n")
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = me\naws_secret_access_key = 50%\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    stores.forget()
    bucket.put("in/a.png", png())
    assert names(IN) == ["a.png"]


def test_messages_hold_no_secrets(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hidden@127.0.0.1:1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2020&sig=hidden")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    stores.forget()
    for url in (IN, "az://container/in"):
        (failure,) = find_images([url])
        assert failure.message == f"cannot be read (no connection to the store, or no answer in time): '{url}'"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "hidden")
    stores.forget()
    (failure,) = find_images([IN])
    assert "the endpoint is no address that begins with http:// or https://" in failure.message


@pytest.mark.thorough
def test_a_lost_answer_is_requested_again(bucket, proxy, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    stores.forget()
    store = object_store.Store("s3://photos")
    proxy.fail("lose_answer", method="PUT", count=1)
    assert store.write("a", b"1") is None  # it finds its own object
    proxy.fail("refuse")
    with pytest.raises(ConnectionError):
        store.write("b", b"1")
    assert proxy.count("PUT", "/b") == 3


@pytest.mark.thorough
def test_a_run_without_its_record_is_recognized_by_its_units(bucket, inputs, tmp_path):
    draw([inputs], OUT, name=None)
    record = bucket.get("runs/net/run.json")
    bucket.remove("runs/net/run.json")
    assert problems(OUT) == [f"{OUT}/net/run.json missing"]
    summary = draw([inputs], OUT, name=None)
    assert (summary.skipped, str(summary.directory)) == (4, f"{OUT}/net")
    assert bucket.get("runs/net/run.json") == record


# --- changes, damage, several at once


@pytest.mark.thorough
def test_a_changed_image_replaces_its_unit(bucket, inputs, tmp_path):
    draw([inputs], OUT)
    bucket.put("runs/run/1.png/notes.txt", b"mine")
    paint(inputs / "1.png", 100)
    assert draw([inputs], OUT).done == 1
    draw([inputs], tmp_path / "here")
    (tmp_path / "here/run/1.png/notes.txt").write_text("mine")
    assert difference(snapshot(bucket.save("runs/", tmp_path / "there")), snapshot(tmp_path / "here")) == []
    assert problems(OUT) == [f"{OUT}/run/1.png/notes.txt not made by fmapviz"]
    assert unlisted(bucket) == ["run/1.png/notes.txt"]


@pytest.mark.thorough
def test_the_report_finds_the_pictures_of_a_redrawn_image(bucket, inputs):
    draw([inputs], OUT, to=["html"])
    page = bucket.get("runs/run/index.html")
    assert b"objects" not in page.partition(b'id="run"')[2].partition(b"</script>")[0]
    paint(inputs / "1.png", 100)
    draw([inputs], OUT, to=["html"])
    page = bucket.get("runs/run/index.html").partition(b'id="run"')[2].partition(b">")[2].partition(b"</script>")[0]
    objects = json.loads(page)["objects"]
    keys = bucket.keys("runs/run/")
    assert all(f"runs/run/{unquote(address)}" in keys for address in objects.values())
    assert not any(f"runs/run/{unquote(address)}" in keys for address in objects)
    assert "1.png/report.js" in objects


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, *thorough({"to": ["tar", "stats"], "shard": 3})], ids=["images", "shards"])
def test_damage_is_found_and_repaired(bucket, inputs, tmp_path, options):
    draw([inputs], OUT, **options)
    draw([inputs], tmp_path / "here", **options)
    units = units_of(bucket)
    changed, gone = (next(key for key in bucket.keys(f"runs/{unit}/") if "unit.json" not in key) for unit in units[:2])
    bucket.put(changed, bucket.get(changed)[:-1] + b"!")
    bucket.remove(gone)
    assert problems(OUT) == [f"s3://photos/{changed} changed since it was written", f"s3://photos/{gone} missing"]
    assert [
        problem for each in verify(OUT, hashed=False) for problem in each.problems if "missing" not in problem.message
    ] == []
    assert draw([inputs], OUT, **options).done == 0
    assert draw([inputs], OUT, repair=True, **options).done > 1
    assert problems(OUT) == []
    assert unlisted(bucket) == []
    assert difference(snapshot(bucket.save("runs/", tmp_path / "there")), snapshot(tmp_path / "here")) == []


@pytest.mark.thorough
def test_concurrent_commands_share_the_work(bucket, inputs, tmp_path):
    (inputs / "damaged.png").write_bytes(b"no image")
    draw([inputs], tmp_path / "here", to=["raw", "stats"])
    errors = []

    def run(net, **options):
        try:
            draw([inputs], OUT, net=net, to=["raw", "stats"], workers=1, **options)
        except Exception as error:  # noqa: BLE001  told below
            errors.append(error)

    for options in ({}, {"force": True}):
        threads = [threading.Thread(target=run, args=[Net()], kwargs=options) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        units_of(bucket)
        draw([inputs], OUT, to=["raw", "stats"])  # finishes what one command left to another
        assert unlisted(bucket) == []
        found = snapshot(bucket.save("runs/", tmp_path / f"there{options}"))
        assert difference(found, snapshot(tmp_path / "here")) == []
        assert problems(OUT) == []


@pytest.mark.thorough
def test_parts_write_one_run(bucket, inputs, tmp_path):
    (inputs / "damaged.png").write_bytes(b"no image")
    draw([inputs], tmp_path / "here", to=["tar", "stats"], shard=2)
    for index in (2, 1, 3):
        draw([inputs], OUT, to=["tar", "stats"], shard=2, part=Part(index, 3))
    assert difference(snapshot(bucket.save("runs/", tmp_path / "there")), snapshot(tmp_path / "here")) == []


@pytest.mark.thorough
def test_several_threads_store_one_record(bucket, monkeypatch):
    bucket.put("in/0.png", png())
    draw(IN, OUT)
    replace = files.replace
    monkeypatch.setattr(files, "replace", lambda *paths: (time.sleep(0.05), replace(*paths)))
    with open_remote(OUT) as output:
        run = output.join_run("run")
        output.fetch_records(run, [UnitKey("image", f"{IN}/0.png", "0.png", {})] * 16)
        assert {path.name for path in (run / "0.png").iterdir()} == {"unit.json"}


@pytest.mark.thorough
def test_two_inputs_of_one_name_have_two_units(bucket, proxy, inputs):
    """Two processes find the same name free, each for its own image."""
    paint(inputs / "other/1.png", 50)
    between = threading.Event()
    commit, began = run_sync.RunSync.commit, []

    def slow(self, unit):
        began.append(unit)
        if len(began) == 1:  # the second commits first
            between.set()
            assert resumed.wait(PATIENCE)
        return commit(self, unit)

    resumed = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_sync.RunSync, "commit", slow)
        first = threading.Thread(target=draw, args=([inputs / "1.png"], OUT))
        first.start()
        assert between.wait(PATIENCE)
        draw([inputs / "other/1.png"], OUT)
        resumed.set()
        first.join()
    sources = {unit: json.loads(bucket.get(f"runs/{unit}/unit.json"))["unit"]["path"] for unit in units_of(bucket)}
    assert sorted(sources.values()) == sorted([str(inputs / "1.png"), str(inputs / "other/1.png")])
    assert sources["run/1.png"] == str(inputs / "other/1.png")
    assert problems(OUT) == []


@pytest.mark.thorough
def test_names_in_records_stay_inside_the_run(bucket, inputs, tmp_path):
    draw([inputs], OUT)
    record = json.loads(bucket.get("runs/run/1.png/unit.json"))
    record["files"][0]["object"] = "../../../victim"
    bucket.put("runs/run/1.png/unit.json", json.dumps(record).encode())
    bucket.put("victim", b"mine")
    assert draw([inputs], OUT, force=True).done == 4
    list(verify(OUT))
    bucket.put("runs/run/../../escaped/unit.json", bucket.get("runs/run/2.png/unit.json"))
    for action in (partial(draw, [inputs], OUT, force=True), partial(problems, OUT)):
        with pytest.raises(OutputError, match=r"cannot read '.*': it holds an object whose name no local file can have"):
            action()
    assert bucket.get("victim") == b"mine"
    assert not (Path(tempfile.gettempdir()).parent / "escaped").exists()


# --- writes that fail

FAULTS = {
    "refused": {"do": "status", "status": 403, "code": "AccessDenied"},
    "cut off": {"do": "cut_request", "after": 100},
    "answer lost": {"do": "lose_answer"},
    "all that follows": {"do": "status", "status": 500, "count": 10**6},
}
WRITES = "PUT|POST|DELETE"
# A few writes of these fail here; in `make torture` each of them does.
DISTURBED = [
    ("a new run", "all that follows", 1),
]
MORE_DISTURBED = [
    ("a finished run of shards that has grown", "cut off", 2),
    ("a new run by what its images have in common", "refused", 1),
    ("a finished run that has grown", "answer lost", 1),
    ("a finished run of shards that has grown", "cut off", 1),
    ("a new run", "all that follows", 2),
    ("a new run by what its images have in common", "refused", 2),
    ("a finished run that has grown", "refused", 2),
    ("a finished run that has grown", "answer lost", 2),
    ("a new run of shards", "answer lost", 2),
]


def disturb(bucket, proxy, place, scenario, fault, *, points=None, **options):
    """Let each write of a command fail, in separate runs; then repeat the command, and compare.

    Returns:
        The number of failed writes.
    """
    for number in range(2):
        paint(place / "in" / ("" if number else "more") / f"{number}.png", number)
    (place / "in/damaged.png").write_bytes(b"no image")
    begun: dict[str, bytes] = {}
    if scenario.finished:
        scenario.run(place / "in", OUT, **{**options, "force": False})
        unit = "shard-000000" if "shard" in scenario.options else "more/0.png"
        bucket.put(f"runs/net/{unit}/{NOTES}", b"mine")
        begun = bucket.tree("runs/")
    if scenario.grown:
        paint(place / "in/more/0.png", 100)
        paint(place / "in/new.png", 101)
    proxy.heal()
    scenario.run(place / "in", OUT, **options)
    total = proxy.count(WRITES)
    expected = snapshot(bucket.save("runs/", place / "expected"))
    numbers = (
        range(1, total + 1) if points is None else [1 + total * (2 * each + 1) // (2 * points) for each in range(points)]
    )
    for number in numbers:
        bucket.clear()
        for key, data in begun.items():
            bucket.put(f"runs/{key}", data)
        proxy.heal()
        fault_now = proxy.fail(**{"method": WRITES, "first": number, "count": 1, **fault})
        error = None
        try:
            scenario.run(place / "in", OUT, **options)
        except OutputError as refused:
            error = refused
        where = f"{fault} at {number}: {error}"
        assert fault_now.seen >= number or number > total - 2, where  # the number of removals varies with the threads
        if fault["do"] == "status" and fault_now.last != "DELETE":  # removed by the next command
            assert error is not None, where
            assert "s3://photos/runs" in str(error), where
        whole = units_of(bucket)
        assert {*scenario_units(begun)} <= {*whole}, where
        proxy.heal()
        scenario.run(place / "in", OUT, **options)
        assert [name for name in unlisted(bucket) if NOTES not in name] == [], where
        found = snapshot(bucket.save("runs/", place / f"found{number}"))
        assert difference(found, expected) == [], where
        assert [problem for problem in problems(OUT) if NOTES not in problem] == [], where
    return len(numbers)


def unlisted(bucket):
    """Return the objects in the folders of units that no record lists."""
    tree = bucket.tree("runs/")
    units = {key.removesuffix("unit.json"): json.loads(data) for key, data in tree.items() if key.endswith("/unit.json")}
    listed = {unit + entry.get("object", entry["name"]) for unit, record in units.items() for entry in record["files"]}
    inside = [key for key in tree if key.startswith(tuple(units)) and not key.endswith("/unit.json")]
    return [key for key in inside if key not in listed]


def scenario_units(tree):
    return [key.removesuffix("/unit.json") for key in tree if key.endswith("/unit.json")]


@pytest.mark.thorough
@pytest.mark.parametrize(("scenario", "fault", "points"), [*DISTURBED, *thorough(*MORE_DISTURBED)])
def test_a_failed_write_leaves_no_partial_unit(*, bucket, proxy, tmp_path, monkeypatch, scenario, fault, points):
    monkeypatch.setattr(run_sync, "FOREIGN_SECONDS", 0)
    fewer = {} if "shard" in SCENARIOS[scenario].options else {"to": ["png", "stats"]}
    disturb(bucket, proxy, tmp_path, SCENARIOS[scenario], FAULTS[fault], points=points, **fewer)


@pytest.mark.thorough
def test_a_failed_upload_of_a_large_file_leaves_nothing(bucket, proxy, tmp_path, monkeypatch):
    """It is uploaded in pieces, which the store then joins."""
    monkeypatch.setattr(object_store, "PIECE_BYTES", 5 * 2**20)  # the smallest that S3 accepts
    monkeypatch.setattr(object_store, "_PARALLEL_PIECES", 1)  # moto may fail if it stores one while the rest is given up
    large = tmp_path / "large"
    large.write_bytes(os.urandom(12 * 2**20))
    store = object_store.Store("s3://photos")
    proxy.fail("status", method="PUT", path="partNumber=2", status=403, code="AccessDenied")
    with pytest.raises(PermissionError):
        store.upload("large", large)
    assert bucket.keys() == []
    assert bucket.unfinished() == []
    proxy.heal()
    assert store.upload("large", large)
    assert not store.upload("large", large)
    assert store.checksum("large") == hashlib.sha256(large.read_bytes()).hexdigest()


@pytest.mark.thorough
@pytest.mark.parametrize(("shards", "number"), [((), 6), *thorough((("--shard", "2"), 3))])
def test_a_killed_command_is_completed_by_the_next(*, bucket, proxy, inputs, tmp_path, fmapviz, begin, shards, number):
    options = ["--to", "tar" if shards else "png,stats", *shards, "--name", "run", "-q"]
    assert fmapviz("shapesnet", inputs, *options, "--out", tmp_path / "here").returncode == 0
    hanging = proxy.fail("hang", method="PUT", first=number)
    with begin("shapesnet", inputs, *options, "--out", OUT) as killed:
        assert hanging.reached.wait(PATIENCE)
        killed.process.kill()
        killed.process.wait()
    proxy.heal()
    units_of(bucket)
    assert fmapviz("shapesnet", inputs, *options, "--out", OUT).returncode == 0
    assert difference(snapshot(bucket.save("runs/", tmp_path / "there")), snapshot(tmp_path / "here")) == []
    assert problems(OUT) == []


@pytest.mark.thorough
def test_an_interruption_does_not_wait_for_an_answer(*, bucket, proxy, inputs, tmp_path, begin, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    hanging = proxy.fail("hang", method="PUT", first=4)
    with begin("shapesnet", inputs, "--to", "png", "--out", OUT) as interrupted:
        assert hanging.reached.wait(PATIENCE)
        interrupted.process.send_signal(signal.SIGINT)
        assert interrupted.process.wait(PATIENCE) == 130
    assert [*(tmp_path / "tmp").iterdir()] == []


@pytest.mark.thorough
def test_a_broken_connection_is_one_line_on_stderr(bucket, proxy, inputs, fmapviz):
    proxy.fail("cut_request", method="PUT", first=5, after=50)
    broken = fmapviz("shapesnet", inputs, "--to", "png", "--out", OUT, "-q")
    assert broken.returncode == 5
    lines = broken.stderr.decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]


@pytest.mark.thorough
def test_a_failed_read_ends_the_run_or_costs_one_image(bucket, proxy, inputs):
    for path in inputs.glob("*.png"):
        bucket.put(f"in/{path.name}", path.read_bytes())
    proxy.fail("status", method="GET", path="/in/2.png", status=403, code="AccessDenied")
    summary = draw([IN], OUT)
    assert (summary.done, [failure.code for failure in summary.failures]) == (2, ["E_PERM"])
    proxy.fail("status", method="GET", path="/runs/run/1.png/unit.json", status=403, code="AccessDenied")
    with pytest.raises(OutputError, match=f"cannot read '{OUT}/run"):
        draw([IN], OUT)
    proxy.heal()
    assert draw([IN], OUT).skipped == 2


@pytest.mark.thorough
def test_a_film_at_an_address_is_drawn_as_a_local_one(bucket, tmp_path):
    from films import write_film

    film = write_film(tmp_path / "clip.mp4", 12)
    bucket.put("in/clip.mp4", film.read_bytes())
    remote = draw(f"{IN}/clip.mp4", tmp_path / "remote", every=4)
    local = draw(film, tmp_path / "local", every=4)
    assert (remote.done, remote.failed, remote.skipped) == (3, 0, 0)
    pictures = [
        {path.relative_to(summary.directory): path.read_bytes() for path in summary.directory.rglob("*.png")}
        for summary in (remote, local)
    ]
    assert len(pictures[0]) >= 6
    assert pictures[0] == pictures[1]
    assert draw(f"{IN}/clip.mp4", tmp_path / "remote", every=4).skipped == 3
    assert draw(f"{IN}/clip.mp4/000005", tmp_path / "remote").done == 1
    assert draw([film], OUT, every=6).done == 2
    assert units_of(bucket) == ["run/clip.mp4/000000", "run/clip.mp4/000006"]
