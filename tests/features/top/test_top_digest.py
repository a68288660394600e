"""Top images are made from a run, and are no part of its digest."""

import subprocess

import pytest
from documents import blocks_of
from image_files import paint
from recorded_runs import digest_of

import fmapviz
from fmapviz.config.sample import SampleSize
from fmapviz.run.redraw import redraw
from fmapviz.run.rerun import read_recorded, rerun
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.verify import verify_copy


@pytest.mark.thorough
def test_top_images_do_not_change_the_digest_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        paint(tmp_path / "in" / f"{number}.png", number)
    run = fmapviz.visualize("shapesnet", "in", to=["png", "stats"], layers="features.7.conv", views=["maps"]).directory
    before = digest_of(run)
    fmapviz.top_images(run, channels="0-3")
    assert (run / "_top" / "unit.json").is_file()
    assert digest_of(run) == before
    (script,) = [block.text for block in blocks_of("reliability") if block.kind == "bash" and "sha256sum" in block.text]
    found = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"sha256:{found.stdout.split()[0]}" == before
    with local_copy(run) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
        found = {each.status: each.reason for each in redraw(copy, digests, SampleSize.parse("1"))}
    assert found == {"same": "", "undrawn": "pictures of several images: _top"}
    assert rerun(read_recorded(str(run)), out=tmp_path / "again").same
