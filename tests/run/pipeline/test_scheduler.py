from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count, pairwise
from threading import Barrier, Event, Lock
from types import SimpleNamespace

import pytest
from cases import thorough
from waiting import PATIENCE, wait_until, without_hanging

from fmapviz.run.pipeline import scheduler
from fmapviz.run.pipeline.scheduler import Limits, Schedule

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@dataclass(frozen=True)
class Thing:
    """An image in the schedule."""

    number: int
    shape: str = "square"
    bytes: int = 30


class Fake:
    """Phases that only record their calls; tests override some."""

    held = 0

    def __init__(self, threads=2, drawing=None, batch_size=1, drawn_ahead=0):
        self.limits = Limits(threads, drawing or threads, batch_size, drawn_ahead)
        self.log = []
        self.schedule = Schedule(Reading(self), self, self)

    def listed(self, item):
        self.log.append(("listed", item.number))
        return item

    def read(self, item, _tell):
        self.log.append(("read", item.number))
        return item

    def draw(self, batch, _tell):
        self.log += [("draw", item.number) for item in batch]
        return [], batch

    def write(self, item, tell):
        self.log.append(("write", item.number))
        tell(item)

    def run(self, found):
        return self.schedule.run(map(self.listed, found))

    def numbers(self, step):
        return [number for kind, number in self.log if kind == step]


class Reading:
    """A reader whose images are all drawn."""

    def __init__(self, phases):
        self.phases = phases

    def read(self, _number, item, tell):
        item = self.phases.read(item, tell)
        return [item] if item else [], []


class Peak:
    """Counts how many threads are in a `with` block at once."""

    def __init__(self):
        self._lock = Lock()
        self._now = 0
        self.most = 0

    def __enter__(self):
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            return self._now

    def __exit__(self, *_exception):
        with self._lock:
            self._now -= 1


def things(number, shapes=("square",), **fields):
    return [Thing(n, shapes[n % len(shapes)], **fields) for n in range(number)]


def endless():
    return map(Thing, count())


# --- everything is done, once


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_image_is_read_drawn_and_written_once(threads, batch_size):
    phases = Fake(threads, batch_size=batch_size)
    everything = things(60, ("square", "wide", "wide"))
    assert Counter(phases.run(everything)) == Counter(everything)
    for step in ("listed", "read", "draw", "write"):
        assert sorted(phases.numbers(step)) == list(range(60)), step
    assert phases.numbers("listed") == list(range(60))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_schedule_without_inputs_ends(threads):
    assert list(Fake(threads).run([])) == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_images_finished_after_reading_or_drawing_are_not_passed_on(threads):
    class Some(Fake):
        def read(self, item, tell):
            tell(("read", item.number))
            return super().read(item, tell) if item.number % 3 else None

        def draw(self, batch, tell):
            back, drawn = super().draw(batch, tell)
            return back, [item for item in drawn if item.number % 3 == 1]

    phases = Some(threads, batch_size=4)
    told = list(phases.run(things(30)))
    assert sorted(event[1] for event in told if isinstance(event, tuple)) == list(range(30))
    assert sorted(event.number for event in told if isinstance(event, Thing)) == list(range(1, 30, 3))
    assert sorted(phases.numbers("draw")) == [number for number in range(30) if number % 3]
    assert sorted(phases.numbers("write")) == list(range(1, 30, 3))


def test_one_thread_keeps_the_order_and_finishes_each_before_it_begins_another():
    phases = Fake(1)
    assert list(phases.run(things(20))) == things(20)
    done = [step for step in phases.log if step[0] != "listed"]
    assert done == [(kind, number) for number in range(20) for kind in ("read", "draw", "write")]


def test_results_of_the_reader_are_written_without_drawing():
    class Undrawn(Fake):
        def __init__(self):
            super().__init__()
            self.schedule = Schedule(self, self, self)

        def read(self, number, item, _tell):
            assert number == item.number
            return ([], [item]) if number % 2 else ([item], [])

    phases = Undrawn()
    assert sorted(item.number for item in phases.run(things(9))) == list(range(9))
    assert sorted(phases.numbers("draw")) == [0, 2, 4, 6, 8]


def test_events_arrive_in_order():
    class Talkative(Fake):
        def read(self, item, tell):
            for part in range(30):  # more than wait at once
                tell((item.number, part))
            return item

        def write(self, item, tell):
            tell((item.number, 30))

    told = list(Talkative(3).run(things(5)))
    for number in range(5):
        assert [part for own, part in told if own == number] == list(range(31))


# --- batches


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_has_one_shape_and_a_limited_size(threads):
    dice, batches = random.Random(0), []

    class Noting(Fake):
        def draw(self, batch, tell):
            batches.append(batch)
            return super().draw(batch, tell)

    everything = [Thing(number, dice.choice(("square", "wide"))) for number in range(80)]
    assert len(list(Noting(threads, batch_size=3).run(everything))) == 80
    assert all(1 <= len(batch) <= 3 and len({item.shape for item in batch}) == 1 for batch in batches)


@pytest.fixture
def stopped_clock(monkeypatch):
    """Stop the scheduler's clock: an incomplete batch that waits for another image waits forever."""
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: 0.0))


def test_batches_are_as_large_as_they_may_be(stopped_clock):
    batches = []

    class Noting(Fake):
        def draw(self, batch, tell):
            batches.append([item.number for item in batch])
            return super().draw(batch, tell)

    told = without_hanging(lambda: list(Noting(1, batch_size=4).run(things(10))))
    assert len(told) == 10
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_smaller_batch_size_applies_afterwards():
    sizes = []

    class Shrinking(Fake):
        def draw(self, batch, tell):
            sizes.append(len(batch))
            self.limits.batch_size = 2
            return super().draw(batch, tell)

    assert len(list(Shrinking(1, batch_size=6).run(things(20)))) == 20
    assert max(sizes[1:]) <= 2


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 3])
def test_an_incomplete_batch_is_drawn_after_a_while(threads):
    written, waited = Event(), []

    class Noting(Fake):
        def write(self, item, tell):
            super().write(item, tell)
            if item.number % 2:
                written.set()

    def slowly():
        for number in range(0, 6, 2):
            yield Thing(number)
            yield Thing(number + 1)
            waited.append(written.wait(PATIENCE))
            written.clear()

    assert len(list(Noting(threads, batch_size=8).run(slowly()))) == 6
    assert waited == [True] * 3


def test_a_batch_beyond_the_limit_of_reading_is_drawn_incomplete(monkeypatch, stopped_clock):
    monkeypatch.setattr(scheduler, "READ_BYTES", 100)
    told = Fake(2, drawing=1, batch_size=50).run(endless())
    assert without_hanging(lambda: next(told)) == Thing(0)
    told.close()


def test_failed_drawings_are_repeated_in_order():
    class Halving(Fake):
        def draw(self, batch, tell):
            half = (len(batch) + 1) // 2
            super().draw(batch[:half], tell)
            return batch[half:], batch[:half]

    phases = Halving(1, batch_size=5)
    assert list(phases.run(things(23))) == things(23)
    assert phases.numbers("draw") == list(range(23))


def test_failed_drawings_are_repeated_by_several_threads():
    class Refusing(Fake):
        def __init__(self, *args, **limits):
            super().__init__(*args, **limits)
            self.tried = Counter()

        def draw(self, batch, _tell):
            self.tried.update(item.number for item in batch)
            drawn = [item for item in batch if self.tried[item.number] == 3]
            return [item for item in batch if item not in drawn], drawn

    phases = Refusing(4, batch_size=3)
    assert Counter(phases.run(things(30, ("square", "wide")))) == Counter(things(30, ("square", "wide")))
    assert phases.tried == Counter(dict.fromkeys(range(30), 3))


# --- how much at once


def test_the_first_batch_is_drawn_alone_and_later_ones_concurrently():
    peak, together, alone = Peak(), Barrier(3), []

    class Several(Fake):
        def draw(self, batch, tell):
            with peak:
                if not alone:
                    time.sleep(0.2)
                    alone.append(peak.most)
                else:
                    together.wait(PATIENCE)
            return super().draw(batch, tell)

    assert len(list(Several(5, drawing=3).run(things(1 + 9)))) == 10
    assert alone == [1]
    assert peak.most == 3


def test_findings_of_the_first_batch_apply_to_all_others():
    peak = Peak()

    class Lowering(Fake):
        def draw(self, batch, tell):
            with peak:
                self.limits.drawing = 1
                time.sleep(0.002)
            return super().draw(batch, tell)

    assert len(list(Lowering(4).run(things(30)))) == 30
    assert peak.most == 1


def test_at_most_one_job_per_thread_runs():
    peak = Peak()

    class Measured(Fake):
        def read(self, item, _tell):
            with peak:
                time.sleep(0.001)
            return item

        def draw(self, batch, _tell):
            with peak:
                time.sleep(0.001)
            return [], batch

        def write(self, item, tell):
            with peak:
                time.sleep(0.001)
                tell(item)

    assert len(list(Measured(3).run(things(40)))) == 40
    assert peak.most <= 3


@pytest.mark.parametrize(("drawn_ahead", "expected"), [(0, "dwdwdwdw"), (1, "ddwdwdww"), (2, "dddwdwww"), (9, "ddddwwww")])
def test_the_bytes_waiting_to_be_written_are_limited_before_drawing(drawn_ahead, expected):
    class OneByOne(Fake):
        def draw(self, batch, tell):
            self.limits.batch_size = 1
            super().draw(batch[:1], tell)
            return batch[1:], batch[:1]

    phases = OneByOne(1, batch_size=4, drawn_ahead=drawn_ahead)
    assert len(list(phases.run(things(4)))) == 4
    assert "".join(kind[0] for kind, _ in phases.log if kind in {"draw", "write"}) == expected


class Weighed(Fake):
    """Measures the bytes that wait between the phases."""

    waiting = ()

    def weigh(self, waiting):
        with self.schedule._changed:
            self.waiting = (*self.waiting, sum(item.bytes for item in getattr(self.schedule, waiting)))


@pytest.mark.parametrize(("threads", "drawing", "batch_size"), [(2, 1, 1), (4, 2, 1), (4, 2, 3), (5, 5, 1)])
def test_a_slow_writer_bounds_the_waiting_pictures(threads, drawing, batch_size, monkeypatch):
    monkeypatch.setattr(scheduler, "DRAWN_BYTES", 100)

    class SlowWriter(Weighed):
        def write(self, item, tell):
            self.weigh("_drawn")
            time.sleep(0.003)
            self.weigh("_drawn")
            super().write(item, tell)

    phases = SlowWriter(threads, drawing=drawing, batch_size=batch_size, drawn_ahead=1000)
    assert len(list(phases.run(things(80)))) == 80
    assert max(phases.waiting) < 100 + drawing * batch_size * 30


@pytest.mark.parametrize(("threads", "batch_size"), [(1, 20), (2, 1), (4, 20)])
def test_a_slow_drawer_bounds_the_images_read_ahead(threads, batch_size, monkeypatch):
    monkeypatch.setattr(scheduler, "READ_BYTES", 100)
    monkeypatch.setattr(scheduler, "BATCH_SECONDS", 0.01)

    class SlowDrawer(Weighed):
        def read(self, item, tell):
            self.weigh("_read")
            return super().read(item, tell)

        def draw(self, batch, tell):
            time.sleep(0.003)
            self.weigh("_read")
            return super().draw(batch, tell)

    phases = SlowDrawer(threads, drawing=1, batch_size=batch_size)
    assert len(list(phases.run(things(60)))) == 60
    assert max(phases.waiting) < 100 + threads * 30


def test_images_larger_than_a_bound_are_processed_one_by_one(monkeypatch):
    monkeypatch.setattr(scheduler, "READ_BYTES", 100)
    monkeypatch.setattr(scheduler, "DRAWN_BYTES", 100)
    assert len(list(Fake(3, drawn_ahead=3).run(things(20, bytes=1000)))) == 20


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("batch_size", "drawn_ahead"), [(1, 0), (4, 4), *thorough((1, 4), (4, 0))])
def test_events_that_are_not_consumed_stop_the_schedule(batch_size, drawn_ahead):
    phases = Fake(3, batch_size=batch_size, drawn_ahead=drawn_ahead)
    told = phases.run(endless())
    next(told)
    quiet = []

    def is_quiet():
        quiet.append(len(phases.log))
        time.sleep(0.05)
        return len(quiet) > 8 and quiet[-8] == quiet[-1]

    assert wait_until(is_quiet)
    listed, read, drawn, told_of = 2 * 3 + 1, batch_size * 3 + 2 * 3, 3 * batch_size + drawn_ahead, 2 * 3 + 1
    assert len(phases.numbers("listed")) <= listed + read + drawn + 3 + told_of  # 3: in each thread's hand
    assert len([next(told) for _ in range(100)]) == 100
    told.close()


class InOrder(Fake):
    """Holds back pictures until all earlier ones are written, as a shard does; the first takes longer to read."""

    def __init__(self, *args, **limits):
        super().__init__(*args, **limits)
        self.written, self.waiting, self.most = [], {}, 0
        self.lock = Lock()

    @property
    def held(self):
        with self.lock:
            return sum(item.bytes for item in self.waiting.values())

    def read(self, item, tell):
        if item.number == 0:
            time.sleep(0.3)
        return super().read(item, tell)

    def write(self, item, tell):
        with self.lock:
            self.waiting[item.number] = item
            self.most = max(self.most, sum(each.bytes for each in self.waiting.values()))
            while len(self.written) in self.waiting:
                self.written.append(self.waiting.pop(len(self.written)).number)
        super().write(item, tell)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("batch_size", "threads"), [(1, 5), (3, 2), *thorough((1, 1), (1, 2), (3, 1), (3, 5))])
def test_held_back_images_are_bounded_and_finished(threads, batch_size):
    phases = InOrder(threads, batch_size=batch_size)
    items = [Thing(number, bytes=scheduler.DRAWN_BYTES // 4) for number in range(40)]
    assert len(list(phases.run(items))) == 40
    assert phases.written == list(range(40))
    assert phases.most <= scheduler.DRAWN_BYTES + threads * batch_size * scheduler.DRAWN_BYTES // 4


def test_images_are_drawn_in_the_order_of_listing():
    class SlowFirst(Fake):
        def read(self, item, tell):
            if item.number == 2:
                time.sleep(0.2)
            return super().read(item, tell)

        def draw(self, batch, tell):
            if batch[0].number == 0:
                wait_until(lambda: 2 in self.numbers("read"))
            return super().draw(batch, tell)

    phases = SlowFirst(3, drawing=1)
    list(phases.run(Thing(number) for number in range(6)))
    assert phases.numbers("draw") == [0, 1, 2, 3, 4, 5]


# --- how it ends


class StopError(BaseException):
    pass


@pytest.mark.sampled
@pytest.mark.parametrize("error", [ValueError("no"), StopError("no"), KeyboardInterrupt("no")], ids=type)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("place", ["found", "listed", "read", "draw", "write"])
def test_an_exception_reaches_the_caller_and_ends_the_schedule(place, threads, error):
    def broken(number):
        if number == 7:
            raise error

    class Failing(Fake):
        def listed(self, item):
            if place == "listed":
                broken(item.number)
            return super().listed(item)

        def read(self, item, tell):
            if place == "read":
                broken(item.number)
            return super().read(item, tell)

        def draw(self, batch, tell):
            if place == "draw":
                broken(batch[0].number)
            return super().draw(batch, tell)

        def write(self, item, tell):
            if place == "write":
                broken(item.number)
            super().write(item, tell)

    def found():
        for item in endless():
            if place == "found":
                broken(item.number)
            yield item

    phases, before = Failing(threads), set(threading.enumerate())
    with pytest.raises(type(error)) as caught:
        for _ in phases.run(found()):
            pass
    assert caught.value is error
    done = [step for step in phases.log if step[0] != "listed"]
    assert wait_until(lambda: set(threading.enumerate()) <= before)
    assert [step for step in phases.log if step[0] != "listed"] == done


def test_events_before_an_exception_arrive_before_it():
    class Failing(Fake):
        def write(self, item, tell):
            if item.number == 7:
                raise ValueError("no")
            super().write(item, tell)

    told = []
    with pytest.raises(ValueError, match="no"):
        told.extend(Failing(1).run(endless()))
    assert told == things(7)


@pytest.mark.thorough
def test_an_exception_arrives_after_a_pause_of_the_caller():
    class Failing(Fake):
        def write(self, item, tell):
            if item.number == 30:
                raise ValueError("no")
            super().write(item, tell)

    events = Failing(4).run(endless())
    next(events)
    time.sleep(0.3)
    with pytest.raises(ValueError, match="no"):
        list(events)


def test_a_signal_during_the_wait_for_an_event_is_handled():
    class InterruptionError(Exception):
        pass

    def interrupt(*_):
        over.set()
        raise InterruptionError

    def draw(*_):
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # as one that came a moment before the wait
        heeded.append(over.wait(PATIENCE))
        return [], []

    phases, over, heeded, before = Fake(), Event(), [], signal.signal(signal.SIGUSR1, interrupt)
    phases.draw = draw
    try:
        with pytest.raises(InterruptionError):
            next(phases.run(things(1)))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heeded == [True]


def test_of_several_exceptions_one_reaches_the_caller():
    together = Barrier(3)

    class Failing(Fake):
        def read(self, item, _tell):
            together.wait(PATIENCE)
            raise ValueError(item.number)

    with pytest.raises(ValueError, match=r"^[012]$"):
        list(Failing(3).run(things(3)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_closing_the_schedule_early_ends_its_threads(threads):
    phases, before = Fake(threads), set(threading.enumerate())
    told = phases.run(endless())
    for _ in range(3):
        next(told)
    told.close()
    done = [step for step in phases.log if step[0] != "listed"]
    assert wait_until(lambda: set(threading.enumerate()) <= before)
    assert [step for step in phases.log if step[0] != "listed"] == done


def test_closing_an_unstarted_schedule_starts_nothing():
    before = set(threading.enumerate())
    phases = Fake()
    phases.run(endless()).close()
    assert set(threading.enumerate()) == before
    assert phases.log == []


def test_closing_does_not_wait_for_a_slow_list():
    arrives = Event()

    def slowly():
        yield Thing(0)
        waited.append(arrives.wait(PATIENCE))
        yield Thing(1)

    phases, waited = Fake(), []
    told = phases.run(slowly())
    try:
        assert next(told) == Thing(0)
        told.close()
        assert waited == []
    finally:
        arrives.set()


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["read", "draw", "write"])
def test_closing_does_not_wait_long_for_an_endless_job(place, monkeypatch):
    monkeypatch.setattr(scheduler, "PARTING_SECONDS", 0.2)
    begun, released, waited = Event(), Event(), []

    class Hanging(Fake):
        def hang(self, step, number):
            if step == place and number == 3:
                begun.set()
                waited.append(released.wait(PATIENCE))

        def read(self, item, tell):
            tell(item)
            self.hang("read", item.number)
            return super().read(item, tell)

        def draw(self, batch, tell):
            self.hang("draw", batch[0].number)
            return super().draw(batch, tell)

        def write(self, item, tell):
            self.hang("write", item.number)
            super().write(item, tell)

    phases, before = Hanging(2), set(threading.enumerate())
    told = phases.run(endless())
    try:
        while not begun.is_set():
            next(told)
        told.close()
        assert waited == []
    finally:
        released.set()
    assert wait_until(lambda: set(threading.enumerate()) <= before)
    after = ("read", "draw", "write").index(place)
    assert all((kind, 3) not in phases.log for kind in ("read", "draw", "write")[after + 1 :]), "it goes no further"


def test_closing_waits_for_running_jobs(monkeypatch):
    monkeypatch.setattr(scheduler, "PARTING_SECONDS", PATIENCE)
    begun = Event()

    class Slow(Fake):
        def write(self, item, tell):
            tell(item)
            begun.set()
            time.sleep(0.2)
            self.log.append(("write", item.number))

    phases = Slow(1)
    told = phases.run(endless())
    next(told)
    assert begun.wait(PATIENCE)
    told.close()
    assert phases.numbers("write") == [0]


def test_many_consecutive_schedules_lose_nothing():
    for number in range(60):
        phases = Fake(1 + number % 4, batch_size=1 + number % 3, drawn_ahead=number % 2)
        assert len(list(phases.run(things(number % 7, ("square", "wide"))))) == number % 7
    assert all(early <= late for early, late in pairwise(phases.numbers("listed")))
