"""`fmapviz report`, in processes of its own."""

import shutil

import pytest
from image_files import paint
from torch import nn
from trees import difference, snapshot

from fmapviz.run.loop import visualize


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with a report in the directory `runs`, and one without; only read."""
    root = tmp_path_factory.mktemp("runs")
    image = paint(root / "cat.png", 1)
    for name, form in (("runs/a", "html"), ("runs/b", "html"), ("plain", "png")):
        out = root / name
        visualize(nn.Sequential(nn.Conv2d(3, 4, 1)), image, out=out.parent, name=out.name, to=form, workers=1)
    return root


@pytest.mark.thorough
def test_the_command_prints_the_path_of_the_page(fmapviz, runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    for arguments, page in [
        (["runs/a", "runs/b"], "runs/a-b.html"),
        (["runs/b", "runs/../runs/a/", "--out", "x/y.html"], "x/y.html"),
    ]:
        result = fmapviz("report", *arguments)
        assert (result.returncode, result.stdout.decode(), result.stderr) == (0, f"{page}\n", b"")
        assert (tmp_path / page).is_file()
    for display in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(display, raising=False)
    result = fmapviz("report", "runs/a", "--open")
    assert (result.returncode, result.stdout) == (0, b"runs/a/index.html\n")
    assert b"cannot open a browser here" in result.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["gone", "runs/b"], "no run of fmapviz: 'gone'", "no similar name"),
        (["runs/b", "run"], "no run of fmapviz: 'run'", "did you mean 'runs'?"),
        (["runs", "runs/b"], "no run of fmapviz: 'runs'", "it holds runs: runs/a, runs/b"),
        (["runs/a/cat.png"], "no run of fmapviz: 'runs/a/cat.png'", "holds run.json"),
        (["s3://bucket/a", "runs/b"], "not a local directory: 's3://bucket/a'", "copy the run"),
        (["runs/a", "runs/b", "--out", "s3://b/x.html"], "not a local file: 's3://b/x.html'", "--out takes"),
        (["runs/a", "runs/b", "--out", ""], "not a local file: ''", "--out takes"),
        (["runs/a", "runs/b", "--out", "runs/a"], "the page would lie in a run", "--out takes"),
        (["runs/a", "runs/b", "runs/a"], "a page shows two runs, not 3", "`fmapviz report RUN RUN`"),
        (["runs/a", "--out", "x.html"], "--out is for a page of two runs", "RUN RUN --out FILE"),
        (["runs/a", "plain"], "no report in 'plain'", "hint: `fmapviz MODEL INPUT... --to html` writes one"),
        (["plain"], "no report in 'plain'", "hint: `fmapviz MODEL INPUT... --to html` writes one"),
        ([], "missing argument 'RUN [RUN]'", "`fmapviz report --help`"),
    ],
)
def test_runs_that_cannot_be_shown_are_an_error(fmapviz, runs, tmp_path, arguments, error, hint):  # noqa: PLR0917  a table
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    before = snapshot(tmp_path)
    result = fmapviz("report", *arguments)
    shown = result.stderr.decode()
    assert (result.returncode, result.stdout) == (2, b"")
    assert (error in shown, hint in shown) == (True, True), shown
    assert difference(snapshot(tmp_path), before) == []
