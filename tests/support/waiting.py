"""Wait for events instead of sleeping: a busy machine takes many times as long as an idle one."""

import time
from concurrent.futures import Future
from threading import Thread

PATIENCE = 600  # seconds; only a hang takes longer


def wait_until(condition):
    """Poll until a condition returns something true, for `PATIENCE` seconds at most; return its last result."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def without_hanging(function):
    """Call a function in a daemon thread and return its result.

    Raises:
        TimeoutError: It hangs.
    """
    outcome = Future()

    def call():
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  raised again by `result`
            outcome.set_exception(error)

    Thread(target=call, daemon=True).start()
    return outcome.result(PATIENCE)
