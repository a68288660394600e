"""The peak of memory does not depend on the number of passes of an attribution."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ROOM = 12 * 2**20  # bytes: what an allocator holds more after many passes
_IMAGE = 3 * 96 * 96 * 4

PROGRAM = """
import resource
import fmapviz

model = fmapviz.load_model("shapesnet")

def peak(**options):
    fmapviz.cam(model, "sample_images/shapes/star.jpg", target="star", method=METHOD, **options)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

few, many = peak(**FEW), peak(**MANY)
print(many - few)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit")
@pytest.mark.parametrize(
    ("method", "few", "many"),
    [
        ("rise", {"samples": 50}, {"samples": 5000}),
        ("smoothgrad", {"samples": 16}, {"samples": 400}),
        ("integrated-gradients", {"steps": 16}, {"steps": 400}),
        ("occlusion", {"patch": 32, "stride": 12}, {"patch": 32, "stride": 2}),
    ],
)
def test_many_more_passes_take_no_more_memory(method, few, many):
    program = PROGRAM.replace("METHOD", repr(method)).replace("FEW", repr(few)).replace("MANY", repr(many))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < _ROOM < 1000 * _IMAGE  # which all copies of the first one would take
