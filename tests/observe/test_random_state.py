"""Random numbers: generators are left as they were, and threads that ask for their states do not lock each other out."""

from __future__ import annotations

import pytest
import torch
from waiting import PATIENCE
from warm import ask

from fmapviz.observe.hooks import undisturbed

# Each time that PyTorch makes an object of the generator's state, the collector runs and another thread goes on, as when the
# collector frees a tensor. Without care this comes to no end.
THREADS = """
import gc, sys, threading, time
from fmapviz.observe.hooks import undisturbed

def go_on(*_):
    caller = sys._getframe().f_back
    if caller and caller.f_code.co_name == "get_rng_state":
        time.sleep(0.01)

def work():
    for _ in range(5):
        with undisturbed():
            pass

gc.callbacks.append(go_on)
gc.set_threshold(1)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.callbacks.clear()
"""


@pytest.mark.thorough
def test_threads_that_collect_garbage_do_not_lock_each_other_out(warm, tmp_path):
    with (tmp_path / "errors").open("w+b") as errors:
        assert ask(warm, ["-c", THREADS], streams=[errors.fileno()] * 3, timeout=PATIENCE) == 0
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.parametrize("fails", [False, True])
def test_the_state_of_the_generator_is_restored(fails):
    before = torch.get_rng_state()
    expected = torch.rand(3)
    torch.set_rng_state(before)
    try:
        with undisturbed() as numbers:
            torch.rand(3)
            assert not fails
    except AssertionError:
        assert fails
    assert numbers.drawn
    assert torch.equal(torch.rand(3), expected)


def test_drawing_random_numbers_is_detected():
    with undisturbed() as numbers:
        torch.zeros(1)
    assert not numbers.drawn
