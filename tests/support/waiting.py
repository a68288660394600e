"""Wait for what happens, not for seconds: a busy machine takes many times as long as a quiet one."""

import time

PATIENCE = 300  # seconds; longer than anything takes unless it is broken


def wait_until(true):
    """Wait until something is true; return what it then is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
