"""Runs with a real Ray: the same tree, whichever workers and nodes die.

The cluster has two nodes on this machine, with one core each.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import stores
from cases import thorough
from extras import needs, require
from image_files import paint
from PIL import Image as PillowImage
from trees import difference, problems, snapshot
from waiting import PATIENCE, wait_until
from warm import HEEDING, start_process

from fmapviz.config import Engine, InputOptions
from fmapviz.core.platforms import is_running
from fmapviz.core.urls import is_url
from fmapviz.errors import OutputError, RequestError
from fmapviz.events import Counted, Notice, Outcome, Staged, Started
from fmapviz.run.loop import visualize
from fmapviz.run.ray import driver
from fmapviz.run.ray.driver import _FOLDERS, _make_folder
from fmapviz.run.ray.tasks import ATTEMPTS
from fmapviz.store.unit import read_unit

NETWORK = """
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent


class Net(nn.Sequential):
    def forward(self, x):
        shade = int(x.flatten()[0] * 255 + 0.5)
        if bool((x == x.flatten()[0]).all()):  # a picture of one shade: something happens
            with (HERE / f"seen-{shade}").open("a") as file:
                file.write(f"{os.getpid()}\\n")
            (HERE / f"devices-{os.getpid()}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
            if shade == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            for _ in range(6000):
                if shade == 2 and not (HERE / "go").exists():
                    time.sleep(0.1)
        return super().forward((x * 255).round())


def build():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 3, 3))
"""
POISON, SLOW = 1, 2
# On a busy machine, Ray would give up workers and servers that start slowly, and nodes and processes that answer slowly.
PATIENT = {
    **dict.fromkeys(["RAY_worker_register_timeout_seconds", "RAY_gcs_server_port_wait_time_s"], str(PATIENCE)),
    **dict.fromkeys(
        ["RAY_health_check_timeout_ms", "RAY_grpc_keepalive_timeout_ms", "RAY_grpc_client_keepalive_timeout_ms"],
        str(1000 * PATIENCE),
    ),
}
pytestmark = pytest.mark.ray
WORKER = 'import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name="__main__")'
OPTIONS = {"preprocessing": InputOptions(fit="none", mean=(0.0,), std=(1.0,)), "batch_size": 1, "name": "run"}
SHARDS = {"to": ["tar", "tensorboard", "stats"], "shard": 3}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory, warm):
    """What Ray may start its workers with: they have imported everything already, see `warm.py`."""
    path = tmp_path_factory.mktemp("interpreter") / "python"
    worker = (
        f"exec '{sys.executable}' -S '{Path(__file__).parents[1] / 'support/warm.py'}' '{warm}' run -c '{WORKER}' \"$@\""
    )
    path.write_text(f"#!/bin/sh\ncase $1 in */default_worker.py) {worker};; esac\nexec '{sys.executable}' \"$@\"\n")
    path.chmod(0o755)
    return path


@contextmanager
def started_with(interpreter):
    """Let Ray start processes with another interpreter than this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(interpreter))
        yield


@pytest.fixture(scope="module", autouse=True)
def patience():
    """Let Ray wait for workers and nodes as long as the tests do, in all clusters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_SLOW_START_SECONDS", PATIENCE)
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def only_cluster():
    """Wait until no other process has a cluster: several at once have lost each other's objects on a busy machine."""
    with (Path(tempfile.gettempdir()) / f"fmapviz-tests-ray-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def small_cluster(interpreter, _store, patience, only_cluster):
    """One node; nothing is left of it and of further ones in the end."""
    require("pyarrow", "scale")
    reachable = {**stores.ENVIRONMENT, "AWS_ENDPOINT_URL": _store.url}
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    Cluster = require("ray.cluster_utils", "ray").Cluster  # noqa: N806

    class Nodes(Cluster):
        def add_node(self, **options):
            with started_with(interpreter):
                # No test reads what workers print or the dashboard, or asks for more nodes.
                unused = {"include_log_monitor": False, "include_dashboard": False, "no_monitor": True}
                options = {"object_store_memory": 100 * 2**20, **unused, **options}
                return super().add_node(**options)

    before = dict(os.environ)
    os.environ.update(reachable)  # the workers', too
    settings = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
    }  # a node that is killed does not answer at all
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short path: sockets have names in it
    os.environ["RAY_TMPDIR"] = directory  # where a cluster notes its address, in a directory that it does not make
    (Path(directory) / "ray").mkdir()
    cluster = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "temp_dir": directory, "_system_config": settings})
    os.environ.clear()
    os.environ.update(before)
    cluster.reachable = reachable
    try:
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
        del os.environ["RAY_AUTH_MODE"]


@pytest.fixture(scope="module")
def cluster(small_cluster):
    """Two nodes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small_cluster.reachable.items():
            patch.setenv(name, value)
        small_cluster.second = small_cluster.add_node(num_cpus=1)
    small_cluster.wait_for_nodes()
    return small_cluster


@pytest.fixture
def place(tmp_path):
    """A network, and eight pictures of which one is damaged."""
    (tmp_path / "net.py").write_text(NETWORK)
    for number in range(7):
        paint(tmp_path / f"in/{'more/' if number == 6 else ''}{number}.png", number)
    (tmp_path / "in/damaged.png").write_bytes(b"no image")
    return tmp_path


def shade(path, value):
    PillowImage.fromarray(np.full((8, 9, 3), value, np.uint8)).save(path)


def draw(place, out, engine=None, *, inputs=None, **options):
    given = {**OPTIONS, **SHARDS, "workers": 1, **options}
    out = out if is_url(out) else place / out
    return visualize(f"{place}/net.py:build", inputs or place / "in", out=out, engine=engine, **given)


def on(cluster, **options):
    return Engine(address=cluster.address, **options)


def seen(place, value):
    path = place / f"seen-{value}"
    return path.read_text().split() if path.exists() else []


SINGLE = {"to": ["png", "html", "stats", "tensorboard"], "shard": None}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, *thorough(SINGLE)], ids=["shards", "single"])
def test_a_ray_run_has_the_tree_events_and_summary_of_a_local_run(small_cluster, place, options):
    reported = {"local": [], "ray": []}
    local = draw(place, "local", on_event=reported["local"].append, **options)
    there = draw(place, "ray", on(small_cluster), on_event=reported["ray"].append, **options)
    assert difference(snapshot(place / "ray"), snapshot(place / "local")) == []
    for name in ("found", "done", "skipped", "failed", "pictures", "layers", "not_executed", "undrawn", "failures", "dead"):
        assert getattr(there, name) == getattr(local, name), name
    assert there.exit_code == local.exit_code == 3
    assert timeless(reported["ray"], place / "ray") == timeless(reported["local"], place / "local")
    kinds = Counter(type(event) for event in reported["ray"])
    assert kinds == {Started: 1, Notice: 1, Counted: 1, Outcome: 8, **({Staged: 7} if options == {} else {})}
    assert problems(place / "ray") == []


def timeless(events, out):
    """Return events without order, times and output paths."""
    reported = (replace(event, seconds=0.0) if isinstance(event, Outcome) else event for event in events)
    return sorted(str(event).replace(str(out), "OUT") for event in reported)


@pytest.mark.parametrize("options", [{}, *thorough(SINGLE)], ids=["shards", "single"])
@pytest.mark.thorough
def test_a_ray_run_reads_and_writes_remote_files(cluster, place, bucket, options):
    for path in (place / "in").rglob("*.png"):
        bucket.put(f"in/{path.relative_to(place / 'in')}", path.read_bytes())
    draw(place, "local", inputs="s3://photos/in", **options)
    reported = []
    for force in (False, True)[: 1 if options else 2]:
        remote = {"inputs": "s3://photos/in", "on_event": reported.append, "force": force, **options}
        summary = draw(place, "s3://photos/runs", on(cluster), **remote)
        assert (summary.done, summary.failed, str(summary.directory)) == (7, 1, "s3://photos/runs/run")
        there = bucket.save("runs/", place / f"there{force}")
        assert difference(snapshot(there), snapshot(place / "local")) == []
    units = {str(event.unit) for event in reported if isinstance(event, Outcome) and event.status == "done"}
    assert all(unit.startswith("s3://photos/runs/run/") for unit in units)


@pytest.mark.thorough
def test_the_command_prints_the_lines_of_a_local_run(cluster, place, fmapviz):
    options = ["--fit", "none", "--mean", "0", "--std", "1", "--shard", "3", "--to", "tar,stats", "--json"]
    lines = {}
    for where, more in {"local": ["--workers", "1"], "ray": ["--engine", f"ray:{cluster.address}"]}.items():
        done = fmapviz(f"{place}/net.py:build", "in", "--out", where, "--name", "run", *options, *more, cwd=place)
        assert done.returncode == 3, done.stderr
        objects = [json.loads(line) for line in done.stdout.decode().replace(f"{where}/run", "OUT").splitlines()]
        lines[where] = sorted(json.dumps({**each, "seconds": 0}, sort_keys=True) for each in objects)
    assert lines["ray"] == lines["local"]
    assert len(lines["ray"]) == 11  # the start, a notice about the weights, eight images, the summary


@pytest.mark.thorough
def test_a_worker_killed_within_a_shard_leaves_no_trace_and_no_repeated_events(cluster, place):
    shade(place / "in/5.png", SLOW)
    reported, ends = [], []

    def look(event):
        reported.append(event)
        if isinstance(event, Staged) and not ends:
            ends.append([type(event) for event in reported])
            assert wait_until(lambda: seen(place, SLOW))
            os.kill(int(seen(place, SLOW)[0]), signal.SIGKILL)
            (place / "go").touch()

    def kinds_of(name):
        return [type(event) for event in reported if Path(getattr(event, "path", "")).name == name]

    draw(place, "ray", on(cluster), shard=8, on_event=look)
    assert Outcome not in ends[0]
    assert all(kinds_of(f"{number}.png") == [Staged, Outcome] for number in range(7))
    draw(place, "local", shard=8)
    assert difference(snapshot(place / "ray"), snapshot(place / "local")) == []


@pytest.mark.thorough
def test_an_image_that_kills_workers_fails_and_the_rest_is_drawn(cluster, place):
    shade(place / "in/1.png", POISON)
    reported = []
    summary = draw(place, "ray", on(cluster), on_event=reported.append)
    assert (summary.done, summary.failed, summary.exit_code) == (6, 2, 3)
    (failure,) = [failure for failure in summary.failures if failure.path == str(place / "in/1.png")]
    assert (failure.code, failure.message) == ("E_WORKER", f"its worker died 3 times: '{place}/in/1.png'")
    assert len(seen(place, POISON)) == ATTEMPTS == 3
    images = [image for unit in (place / "ray/run").glob("shard-*") for image in read_unit(unit)["images"]]
    assert {image["name"]: image["failed"] for image in images if "failed" in image} == {
        "1.png": "E_WORKER", "damaged.png": "E_FORMAT",
    }  # fmt: skip
    assert problems(place / "ray") == []
    # What the others are like does not depend on it.
    (place / "in/1.png").write_bytes(b"no image")
    draw(place, "local")
    ours, theirs = ((place / where / "run/stats.csv").read_bytes() for where in ("ray", "local"))
    assert ours == theirs


@pytest.mark.thorough
def test_a_run_continues_after_the_loss_of_a_node(cluster, place):
    shade(place / "in/0.png", SLOW)
    for number in range(10, 22):
        shade(place / f"in/{number}.png", SLOW)

    def lose():
        assert wait_until(lambda: len(set(seen(place, SLOW))) == 2)  # both are at work
        cluster.remove_node(cluster.second, allow_graceful=False)
        (place / "go").touch()

    thread = threading.Thread(target=lose)
    thread.start()
    summary = draw(place, "ray", on(cluster))
    thread.join()
    assert (summary.done, summary.failed) == (19, 1)
    draw(place, "local")
    assert difference(snapshot(place / "ray"), snapshot(place / "local")) == []
    cluster.second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()  # and until it is known that the other is gone


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("requested", "there"),
    [
        ({"gpus": 1.0}, "1 cores and 1 GPUs, Ray has 2 and 0 in 2 nodes"),
        ({"gpus": 0.5}, "1 cores and 0.5 GPUs, Ray has 2 and 0 in 2 nodes"),
        ({"cpus": 3}, "3 cores and 0 GPUs, Ray has 2 and 0 in 2 nodes"),
        ({"cpus": 2}, "2 cores and 0 GPUs, Ray has 2 and 0 in 2 nodes"),  # none of them has both
    ],
)
def test_resources_that_no_node_has_are_reported(cluster, place, requested, there):
    with pytest.raises(RequestError, match=f"each worker needs {there}"):
        draw(place, "ray", on(cluster, **requested))
    assert not (place / "ray").exists()


@pytest.mark.thorough
def test_more_cores_than_a_node_has_are_reported(small_cluster, place):
    with pytest.raises(RequestError, match="each worker needs 3 cores and 0 GPUs, Ray has"):
        draw(place, "ray", on(small_cluster, cpus=3))
    assert not (place / "ray").exists()


@pytest.mark.thorough
def test_workers_that_start_late_are_reported_and_awaited_up_to_a_limit(cluster, place, monkeypatch):
    ray = require("ray", "ray")
    monkeypatch.setattr(driver, "_SLOW_START_SECONDS", 0.5)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        others = [ray.remote(hold).options(num_cpus=1).remote(str(place)) for _ in range(2)]
        assert wait_until(lambda: len([*place.glob("held-*")]) == 2)
        with monkeypatch.context() as patch:
            patch.setattr(driver, "_START_SECONDS", 1.0)
            with pytest.raises(OutputError, match="Ray has started no worker in 1 s"):
                draw(place, "ray", on(cluster))
        reported = []

        def look(event):
            reported.append(event)
            if isinstance(event, Notice) and "no worker" in event.message:
                (place / "go").touch()

        summary = draw(place, "ray", on(cluster), on_event=look)
        assert (summary.done, summary.failed) == (7, 1)
        notices = [event.message for event in reported if isinstance(event, Notice) and "no worker" in event.message]
        assert notices == ["Ray has started no worker for 0 s: its nodes are full or slow; waiting"]
        ray.get(others)
    finally:
        (place / "go").touch()
        ray.shutdown()


def hold(place):
    """Hold a core until there is a file."""
    import os
    import time
    from pathlib import Path

    (Path(place) / f"held-{os.getpid()}").touch()
    while not (Path(place) / "go").exists():
        time.sleep(0.1)


@pytest.mark.thorough
@needs("ray", "ray")
@needs("pyarrow", "scale")
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_an_error(place, address):
    with pytest.raises(RequestError, match=f"no Ray at '{address}'"):
        draw(place, "ray", Engine(address=address))


@pytest.mark.thorough
@needs("ray", "ray")
@pytest.mark.parametrize("first", ["sys", "ray"], ids=["imported by the run", "imported before"])
def test_another_cluster_after_a_ray_of_its_own_is_refused(samples, tmp_path, first):
    """Workers of the other one could not report to this process, which would wait without end."""
    code = f"""
import {first}, sys, fmapviz
from fmapviz.errors import RequestError
from fmapviz.types import Engine
draw = lambda name, engine: fmapviz.visualize("shapesnet", sys.argv[1], out=name, to="png", engine=engine)
assert draw("own", Engine(workers=1)).done == 1
try:
    draw("other", Engine(address="127.0.0.1:1"))
except RequestError as refused:
    print(refused)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    environment["HOME"] = str(tmp_path)
    command = [sys.executable, "-c", code, samples / "shapes/star.jpg"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    said = "this process has started a Ray of its own, and cannot be reached from another one, '127.0.0.1:1'\n"
    assert ended.stdout == said
    assert not (tmp_path / ".ray/auth_token").exists()


@pytest.mark.thorough
def test_gpus_are_distributed_and_unsuitable_ones_used_only_on_request(cluster, place):
    for number in range(7):
        shade(place / f"in/{'more/' if number == 6 else ''}{number}.png", SLOW)  # none is done before both are at work
    node = cluster.add_node(num_cpus=4, num_gpus=1)  # it is only said that there is one

    def go():
        assert wait_until(lambda: len(set(seen(place, SLOW))) == 2)
        (place / "go").touch()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        summary = draw(place, "ray", on(cluster, gpus=0.5))
        thread.join()
        assert (summary.done, summary.failed) == (7, 1)
        assert len(set(seen(place, SLOW))) == 2
        assert [visible_to(pid, place) for pid in set(seen(place, SLOW))] == ["0", "0"]
        with pytest.raises(RequestError, match="no such device here: 'cuda'"):
            draw(place, "cuda", on(cluster, gpus=1.0), device="cuda")
        assert not (place / "cuda").exists()
        with pytest.raises(RequestError, match="each worker needs 1 cores and 2 GPUs, Ray has 6 and 1 in 3 nodes"):
            draw(place, "more", on(cluster, gpus=2.0))
    finally:
        cluster.remove_node(node, allow_graceful=False)
        cluster.wait_for_nodes()
    draw(place, "local")
    assert difference(snapshot(place / "ray"), snapshot(place / "local")) == []


def visible_to(pid, place):
    return (place / f"devices-{pid}").read_text()


# --- the command, with a Ray of its own and two workers


BEGUN = []  # commands


@pytest.fixture(autouse=True)
def no_command_goes_on():
    """End the commands of a test that failed: others would find them."""
    yield
    while BEGUN:
        process = BEGUN.pop()
        process.kill()
        process.wait()


def begin(place, engine="ray", workers=2, *, warm=None, interpreter=None):
    """Begin the command in a process of its own, with `warm` and `interpreter` one that has imported everything already."""
    arguments = [f"{place}/net.py:build", "in", "--out", "out", "--name", "run", "--fit", "none", "--mean", "0"]
    arguments += ["--std", "1", "--json", "--shard", "3", "--to", "tar,stats", "--engine", engine, "--workers", str(workers)]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE" or engine != "ray"}
    with (place / "stdout").open("wb") as out, (place / "stderr").open("wb") as err, Path(os.devnull).open("rb") as nothing:
        if warm is None:
            command = [sys.executable, "-c", HEEDING, *arguments]
            BEGUN.append(subprocess.Popen(command, cwd=place, env=environment, stdin=nothing, stdout=out, stderr=err))
            return BEGUN[-1]
        streams = [stream.fileno() for stream in (nothing, out, err)]
        program = f"import sys; sys.executable = '{interpreter}'; {HEEDING}"
        BEGUN.append(
            start_process(warm, ["-c", program, *arguments], environment=environment, directory=place, streams=streams)
        )
        return BEGUN[-1]


def wait_for_work(place, process, times=1):
    """Wait until workers of a command have seen the slow picture so many times."""
    wait_until(lambda: len(seen(place, SLOW)) >= times or process.poll() is not None)
    assert len(seen(place, SLOW)) == times, (process.poll(), (place / "stderr").read_text())


def said(place):
    return [json.loads(line) for line in (place / "stdout").read_bytes().splitlines()]


@pytest.mark.thorough
def test_a_command_with_a_ray_of_its_own_is_interrupted_and_another_one_finishes(cluster, place, warm, interpreter):
    shade(place / "in/6.png", SLOW)
    process = begin(place, workers=1, warm=warm, interpreter=interpreter)
    wait_for_work(place, process)
    process.send_signal(signal.SIGINT)  # ends it, while the worker would be busy for much longer
    assert process.wait(PATIENCE) == 130, (place / "stderr").read_text()
    *events, summary = said(place)
    assert {event["status"] for event in events if event["event"] == "image"} == {"done"}
    assert summary["exit_code"] == 130
    assert [path for path in (place / "out").rglob("*") if path.name.startswith(".fmapviz")] == []
    assert wait_until(lambda: not is_running(int(seen(place, SLOW)[-1])))

    (place / "go").touch()
    draw(place, "out", on(cluster), to=["tar", "stats"])
    draw(place, "local", to=["tar", "stats"])
    assert difference(snapshot(place / "out"), snapshot(place / "local")) == []
    assert problems(place / "out") == []


@pytest.mark.thorough
def test_the_command_interrupted_and_killed_with_a_worker_that_is_killed_and_an_image_that_kills(
    cluster, place, warm, interpreter
):
    shade(place / "in/6.png", SLOW)
    process = begin(place, workers=1)
    wait_for_work(place, process)
    process.send_signal(signal.SIGINT)  # ends it, while the worker would be busy for much longer
    assert process.wait(PATIENCE) == 130, (place / "stderr").read_text()
    *events, summary = said(place)
    assert {event["status"] for event in events if event["event"] == "image"} == {"done"}  # by workers as Ray starts them
    assert summary["exit_code"] == 130
    assert [path for path in (place / "out").rglob("*") if path.name.startswith(".fmapviz")] == []
    assert wait_until(lambda: not is_running(int(seen(place, SLOW)[-1])))

    process = begin(place, f"ray:{cluster.address}", warm=warm, interpreter=interpreter)
    wait_for_work(place, process, 2)
    process.kill()
    process.wait(PATIENCE)
    assert wait_until(lambda: not is_running(int(seen(place, SLOW)[-1])))

    shade(place / "in/more/6.png", POISON)
    process = begin(place, warm=warm, interpreter=interpreter)
    wait_for_work(place, process, 3)
    os.kill(int(seen(place, SLOW)[-1]), signal.SIGKILL)
    (place / "go").touch()
    assert process.wait(PATIENCE) == 3, (place / "stderr").read_text()
    assert "Traceback" not in (place / "stderr").read_text()
    *_, summary = events = said(place)
    assert (summary["done"] + summary["skipped"], summary["failed"]) == (7, 2)
    assert {event["code"] for event in events if event.get("status") == "failed"} == {"E_FORMAT", "E_WORKER"}
    assert len(seen(place, POISON)) == ATTEMPTS - 1  # the first worker of its shard was killed by us

    (place / "in/more/6.png").write_bytes(b"no image")
    draw(place, "local", to=["tar", "stats"])
    different = difference(snapshot(place / "out"), snapshot(place / "local"))
    why = {"shard-000002", "products.json", "failures.jsonl"}  # what says for which reason that image failed
    assert {name.split("/")[1] for name in different} <= why
    assert (place / "out/run/stats.csv").read_bytes() == (place / "local/run/stats.csv").read_bytes()
    assert problems(place / "out") == []


@pytest.mark.thorough
def test_files_of_ray_of_killed_commands_are_removed():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, kept = (Path(tempfile.mkdtemp(prefix=f"{_FOLDERS}{pid}-", dir="/tmp")) for pid in (gone.pid, os.getpid()))
    (left / "session").mkdir()
    made = Path(_make_folder())
    try:
        assert [path.exists() for path in (left, kept, made)] == [False, True, True]
    finally:
        kept.rmdir()
        made.rmdir()
