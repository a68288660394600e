"""The division of a run into tasks, and the handling of workers that die."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from faults import Net
from image_files import paint

from fmapviz.config import Engine, InputOptions, RunConfig
from fmapviz.errors import RequestError
from fmapviz.events import Outcome
from fmapviz.images.find import find_images
from fmapviz.run.load import load_session
from fmapviz.run.pipeline.progress import Progress
from fmapviz.run.pipeline.reader import counted
from fmapviz.run.ray.tasks import ATTEMPTS, IMAGES, MOST_UNEXPLAINED, Begun, Task, after_death, divide, do
from fmapviz.store.shards.grouping import Grouping
from fmapviz.store.unit import Group, Member
from fmapviz.types import Failure, ImageFile

FILES = [ImageFile(f"/in/{number}.png", f"{number}.png", {"size": 1, "mtime_ns": 1}) for number in range(40)]


def configuration(**options):
    given = {
        "model": Net(), "to": "png", "preprocessing": InputOptions(fit="none"), "device": "cpu", "workers": 2
    }  # fmt: skip
    return RunConfig(**{**given, **options})


def test_images_without_shards_are_grouped_into_tasks(tmp_path):
    failure = Failure("/in/x.png", "E_MISSING", "no")
    tasks = list(divide([*FILES[:20], failure, *FILES[20:]]))
    assert [len(task.items) for task in tasks if isinstance(task, Task)] == [IMAGES, IMAGES, 40 - 2 * IMAGES]
    assert [event for event in tasks if isinstance(event, Outcome)] == [Outcome("/in/x.png", "failed", failure=failure)]


def test_a_complete_shard_is_a_task(tmp_path):
    tasks = list(divide(Grouping(tmp_path, "run", 16).items(iter(FILES))))
    assert [[item.file for item in task.items] for task in tasks] == [FILES[:16], FILES[16:32], FILES[32:]]
    assert all(task.items[0].group.complete for task in tasks)
    assert [task.items[0].group.number for task in tasks] == [0, 1, 2]


def test_finished_images_are_no_task(tmp_path):
    (event,) = divide([Outcome("/in/0.png", "skipped", unit=tmp_path)])
    assert event == Outcome("/in/0.png", "skipped", unit=tmp_path)


def test_repeated_events_are_counted_once():
    shard = Group(0, 3, FILES[:3], reported=frozenset({1}), complete=True)
    progress = Progress()
    (task,) = divide(counted([*(Member(shard, position) for position in range(3))], progress))
    assert (len(task.items), progress.found) == (3, 2)


def test_the_end_of_inputs_completes_a_partial_shard():
    shard = Group(0, 9)
    shard.members += FILES[:2]

    def items():
        yield Member(shard, 0)
        shard.complete = True
        yield Member(shard, 1)

    (task,) = divide(items())
    assert [item.file for item in task.items] == FILES[:2]


def test_an_image_that_kills_workers_fails_after_three_attempts():
    task = after_death(Task(tuple(FILES[:4])), None)  # any of them may be to blame
    assert (task.careful, task.lost) == (True, {})
    task = after_death(task, "/in/2.png")
    assert task.lost == {}
    task = after_death(task, "/in/2.png")
    assert (list(task.lost), task.lost["/in/2.png"].code) == (["/in/2.png"], "E_WORKER")
    assert str(ATTEMPTS) in task.lost["/in/2.png"].message
    assert task.paths == ["/in/0.png", "/in/1.png", "/in/3.png"]


def test_two_images_that_kill_workers_are_distinguished():
    task = Task(tuple(FILES[:4]))
    for under_way in (None, "/in/1.png", "/in/3.png", "/in/1.png", "/in/3.png"):
        task = after_death(task, under_way)
    assert set(task.lost) == {"/in/1.png", "/in/3.png"}


def test_all_images_of_a_task_fail_if_the_fatal_one_is_unknown():
    task = Task(tuple(FILES[:4]))
    for _ in range(MOST_UNEXPLAINED):
        assert task.lost == {}
        task = after_death(task, None)
    assert set(task.lost) == {file.path for file in FILES[:4]}


def done(session, task):
    """Execute a task in this process; return its events and its receipt."""
    *reports, receipt = do(session, task)
    return reports, receipt


@pytest.fixture
def session(tmp_path):
    loaded, _ = load_session(configuration())
    (tmp_path / "out").mkdir()
    for number in range(3):
        paint(tmp_path / f"in/{number}.png", number)
    return replace(loaded, directory=tmp_path / "out")


def test_a_careful_task_draws_one_image_after_the_other(session, tmp_path):
    files = tuple(find_images([str(tmp_path / "in")]))
    lost = {files[1].path: Failure(files[1].path, "E_WORKER", "died")}
    reports, receipt = done(session, Task(files, lost=lost, deaths={None: 1}))
    assert reports == [Begun(files[0].path), Begun(files[2].path)]
    assert (len(receipt.progress.layers), receipt.progress.accepted, receipt.error) == (2, True, None)
    assert {event.path: event.status for event in receipt.events} == {
        files[0].path: "done", files[1].path: "failed", files[2].path: "done",
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.png", "2.png"]


def test_a_careful_task_reports_an_image_before_it_begins(session, tmp_path):
    (file, *_) = find_images([str(tmp_path / "in")])
    reports = do(session, Task((file,), deaths={None: 1}))
    assert next(reports) == Begun(file.path)
    time.sleep(0.2)  # long enough to draw it
    assert list((tmp_path / "out").iterdir()) == []
    (receipt,) = reports
    assert [event.status for event in receipt.events] == ["done"]


class Looking(Net):
    """Looks at values, so that its number of outputs is unknown before the first image."""

    def forward(self, x):
        return super().forward(x if bool(x.isfinite().all()) else x.nan_to_num())


@pytest.mark.thorough
def test_a_wrong_request_of_a_task_is_raised(tmp_path, session):
    requested = {"views": ("gradcam",), "targets": ("999",)}
    with pytest.raises(RequestError, match="no class 999: the network has 3 outputs"):  # where that is known, at once
        load_session(configuration(**requested))
    loaded, _ = load_session(configuration(model=Looking(), **requested))
    loaded = replace(loaded, directory=session.directory)
    files = tuple(find_images([str(tmp_path / "in")]))
    assert isinstance(done(loaded, Task(files))[1].error, RequestError)
    # Of a later image it is that image's own failure.
    later = done(loaded, Task(files, accepted=True))[1]
    assert later.error is None
    assert {event.failure.code for event in later.events if isinstance(event, Outcome)} == {"E_CLASS"}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ({"cpus": 0}, "worker CPUs must be at least 1: '0'"),
        ({"gpus": -0.5}, "worker GPUs must be 0 or more: '-0.5'"),
        ({"gpus": 1.5}, "worker GPUs above 1 must be a whole number: '1.5'"),
    ],
)
def test_cores_and_gpus_that_no_worker_can_have_are_refused(number, message):
    with pytest.raises(RequestError, match=message):
        Engine(**number)
    assert [Engine(gpus=gpus).gpus for gpus in (0, 0.25, 1.0, 4.0)] == [0, 0.25, 1, 4]
