"""The report's table of the layers of a comparison, ranked by change, in a browser."""

import csv

import torch
from torch import nn

from fmapviz.config import InputOptions, RunConfig
from fmapviz.features.diff.run import run_diff

pytest_plugins = ["browser"]  # its fixtures


def build(scale=1.0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    with torch.no_grad():
        net[1].weight *= scale
    return net


def test_the_table_ranks_layers_and_opens_their_pictures(open_report, tmp_path):
    config = RunConfig(
        build(),
        [torch.rand(3, 16, 16)],
        views="diff",
        to="html",
        out=tmp_path,
        preprocessing=InputOptions(fit="none"),
        name="x",
    )
    run = run_diff(config, against=build(3.0)).directory
    with (run / "layers.csv").open(newline="") as file:
        expected = [(row["layer"], row["rank"]) for row in csv.DictReader(file)]
    report = open_report(run)
    assert f"{int(expected[0][0]):02} {expected[0][0]}" in report.text("main")  # which it opens with
    report.page.click("[data-dialog=changes]")
    rows = report.page.locator("#changes tbody tr")
    found = [(row.locator("button").inner_text(), row.locator("td").first.inner_text()) for row in rows.all()]
    assert found == expected
    assert {rank for _, rank in found} == {"1", "2", ""}
    assert "no difference" in rows.last.inner_text()
    report.page.click('#changes [data-layer="2"]')
    report.settled()
    assert not report.page.locator("#changes").is_visible()
    assert "layer=02+2" in report.page.evaluate("() => new Promise(done => setTimeout(() => done(location.hash), 600))")
