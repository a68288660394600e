"""`fmapviz layers`: its table, receptive fields, and tables as Markdown, CSV and JSON."""

import csv
import io
import json
from dataclasses import asdict
from itertools import pairwise

import pytest
from cases import thorough
from markdown_it import MarkdownIt

from fmapviz.cli.layer_tables import TABLES
from fmapviz.data import LayerInfo
from fmapviz.run.layer_list import list_layers


def lines(result):
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_the_table_has_the_size_the_stride_and_the_start_of_each_field(fmapviz):
    head, *rows = lines(fmapviz("layers", "alexnet", "--receptive-field"))
    assert head.split() == [
        "#",
        "layer",
        "type",
        "output",
        "axes",
        "parameters",
        "calls",
        "MACs",
        "field",
        "stride",
        "start",
    ]
    assert [row.split("  1  ")[1].split()[1:] for row in rows] == [
        ["11", "x", "11", "4", "x", "4", "-2,", "-2"],
        ["51", "x", "51", "8", "x", "8", "-18,", "-18"],
        ["99", "x", "99", "16", "x", "16", "-34,", "-34"],
        ["131", "x", "131", "16", "x", "16", "-50,", "-50"],
        ["163", "x", "163", "16", "x", "16", "-66,", "-66"],
    ]
    assert head.index("field") == rows[0].index("11 x 11")
    plain = lines(fmapviz("layers", "alexnet"))
    assert [line.split("  field")[0].split("  11 x 11")[0] for line in (head, rows[0])] == [
        line.rstrip() for line in plain[:2]
    ]


@pytest.mark.thorough
def test_the_whole_picture_is_reported_with_its_reason(fmapviz):
    rows = lines(fmapviz("layers", "vit_b_32", "--receptive-field", "--types", "Conv2d,EncoderBlock", "--size", "224"))
    assert rows[1].endswith("32 x 32                   32 x 32  0, 0")
    assert all(row.endswith("whole picture (aten.bmm)") for row in rows[2:])


@pytest.mark.thorough
def test_a_gate_is_listed_with_two_fields(fmapviz):
    chosen = ("--layers", "features.2.block.1.0,classifier.0", "--types", "Module")
    rows = lines(fmapviz("layers", "mobilenet_v3_small", "--receptive-field", *chosen))
    assert "  whole picture, 15 x 15 ungated    8 x 8" in rows[1]
    first, second, _ = map(
        json.loads, lines(fmapviz("layers", "mobilenet_v3_small", "--receptive-field", "--json", *chosen))
    )
    assert first["receptive_field"] == {"size": [224, 224], "stride": None, "start": [0, 0]}
    assert first["ungated"] == {"size": [15, 15], "stride": [8, 8], "start": [-7, -7]}
    assert second["ungated"]["size"] == [831, 831]


UNUSED = """from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.aux = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)
"""


@pytest.mark.thorough
def test_json_of_a_layer_without_a_field_has_the_reason(fmapviz, tmp_path):
    rows = [json.loads(line) for line in lines(
        fmapviz("layers", "vit_b_32", "--receptive-field", "--json", "--types", "Module", "--layers", "conv_proj,encoder.ln")
    )]  # fmt: skip
    assert (rows[0]["receptive_field"], rows[0]["reason"]) == ({"size": [32, 32], "stride": [32, 32], "start": [0, 0]}, "")
    assert (rows[1]["receptive_field"], rows[1]["reason"]) == (None, "aten.bmm")
    assert "ungated" not in rows[0]
    (tmp_path / "net.py").write_text(UNUSED)
    rows = [json.loads(line) for line in lines(fmapviz("layers", "net.py:Net", "--json", "--receptive-field"))]
    assert (rows[1]["name"], rows[1]["receptive_field"], rows[1]["reason"]) == ("aux", None, "not executed")
    assert "receptive_field" not in json.loads(lines(fmapviz("layers", "net.py:Net", "--json"))[0])


def test_the_keys_of_an_output_of_several_tensors_are_named(fmapviz, tmp_path):
    (tmp_path / "heads.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(3, 5, 3)\n\n    def forward(self, x):\n        x = self.conv(x)\n"
        "        return {'grade': x.mean((2, 3)), 'sites': [x.mean((2, 3))[:, :3], x]}\n"
    )
    result = fmapviz("layers", f"{tmp_path}/heads.py:Net", "--json")
    out, err = lines(result), result.stderr.decode()
    assert "grade 5, sites.0 3, sites.1 5 x 222 x 222; --output KEY chooses the class scores" in err
    assert json.loads(out[-1])["outputs"] == {"grade": [5], "sites.0": [3], "sites.1": [5, 222, 222]}


ODD = [
    LayerInfo(0, "a|b.`c`", "Odd_Type", (3, 4), 1234567, 2, ("x|y", "``"), "N 1+H*W C", 1_000_000, 4, 12),
    LayerInfo(1, '=1+1\x1b[31m\n,"q"', "_Net_", (), 0, 1, (), "", None, 0, 4),
    LayerInfo(None, " é*_x_* <b>", "Conv2d", None, 20, 0, parameter_bytes=80),
    LayerInfo(2, "\\", "Conv2d", (1,), 20, 1),
]


def cells_of(text):
    """The cells of a table of Markdown, as its reader sees them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    cells = [
        "".join(child.content for child in cell.children)
        for before, cell in pairwise(tokens)
        if before.type in {"th_open", "td_open"}
    ]
    columns = sum(token.type == "th_open" for token in tokens)
    return [cells[start : start + columns] for start in range(0, len(cells), columns)]


def test_markdown_shows_any_name():
    text = TABLES["md"](ODD, None)
    header, *rows = cells_of(text)
    assert header[1:] == [
        "layer",
        "type",
        "output",
        "axes",
        "parameters",
        "calls",
        "MACs",
        "parameter bytes",
        "output bytes",
    ]
    names = ["a|b.`c` = x|y, ``", r"=1+1\x1b[31m\n,"  # what a terminal would interpret is escaped
             '"q"', " é*_x_* <b>", "\\"]  # fmt: skip
    assert [row[1].strip() for row in rows] == [name.strip() for name in names]
    assert rows[0][2:] == ["Odd_Type", "3 x 4", "N 1+H*W C", "1,234,567", "2", "1,000,000", "4", "12"]
    assert rows[1][7] == ""
    assert rows[2][0] == "-"
    assert text.isascii() or text.replace("\n", "").isprintable()


def test_csv_and_json_hold_the_fields_of_each_layer():
    records = json.loads(TABLES["json"](ODD, None))
    assert records == json.loads(json.dumps([asdict(row) for row in ODD]))
    header, *rows = csv.reader(io.StringIO(TABLES["csv"](ODD, None)))
    assert header == list(records[0])
    assert [len(row) for row in rows] == [len(header)] * len(ODD)
    assert dict(zip(header, rows[0], strict=True)) | {"name": ""} == {
        "index": "0", "name": "", "type": "Odd_Type", "shape": "3 x 4", "parameters": "1234567", "calls": "2",
        "aliases": "x|y, ``", "layout": "N 1+H*W C", "macs": "1000000", "parameter_bytes": "4", "output_bytes": "12",
    }  # fmt: skip
    assert rows[1][1] == '=1+1\\x1b[31m\\n,"q"'
    assert rows[2][0] == rows[2][header.index("macs")] == ""


@pytest.mark.thorough
def test_tables_are_printed_one_after_the_other_or_written(fmapviz, tmp_path):
    choice = ("layers", "shapesnet", "--types", "Linear")
    result = fmapviz(*choice, "--to", "md,csv", "--to", "json")
    markdown, table, array = result.stdout.decode().split("\n\n")
    assert cells_of(markdown)[1][1] == "classifier"
    assert next(csv.DictReader(io.StringIO(table)))["macs"] == str(json.loads(array)[0]["macs"])
    assert json.loads(array) == json.loads(json.dumps([asdict(row) for row in list_layers("shapesnet", types="Linear")]))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "shapesnet.layers.md").write_text("former")
    result = fmapviz(*choice, "--to", "json,md", "--out", "tables")
    assert lines(result) == ["tables/shapesnet.layers.json", "tables/shapesnet.layers.md"]
    assert (tmp_path / "tables" / "shapesnet.layers.md").read_text() == f"{markdown}\n"
    assert (tmp_path / "tables" / "shapesnet.layers.json").read_text().rstrip() == array.rstrip()


def test_the_whole_model_is_summed_up(fmapviz):
    result = fmapviz("layers", "shapesnet", "--types", "Linear")
    lines(result)
    summary = json.loads(lines(fmapviz("layers", "shapesnet", "--json"))[-1])
    total = f"{summary['parameters']:,} parameters"
    assert total in result.stderr.decode()
    assert f"{summary['macs']:,} MACs" in result.stderr.decode()
    rows = list_layers("shapesnet", types="Module")
    assert summary["macs"] == sum(row.macs for row in rows if "." not in row.name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--to", "cvs"], "no such format of a table: 'cvs'"),
        (["--to", "png"], "no such format of a table: 'png'"),
        (["--to", "md", "--out", "s3://bucket/x"], "--out needs --to, and a local directory"),
        (["--to", "md", "--json"], "--json and --to exclude each other"),
        *thorough((["--out", "x"], "--out needs --to")),
    ],
)
def test_wrong_tables_are_refused(command_line_alone, words, error):
    done = command_line_alone("from fmapviz.__main__ import main; main()", "layers", "shapesnet", *words)
    assert (done.returncode, error in done.stderr.decode()) == (2, True)


OPERATOR = """import torch

@torch.library.custom_op("fmapviz_cli::double", mutates_args=())
def double(values: torch.Tensor) -> torch.Tensor:
    return values * 2

double.register_fake(torch.empty_like)

class Net(torch.nn.Sequential):
    def forward(self, values):
        return double(super().forward(values))

def build():
    return torch.nn.Sequential(Net(torch.nn.Conv2d(3, 2, 3)))
"""


def test_unknown_macs_are_empty_with_a_notice(fmapviz, tmp_path):
    (tmp_path / "net.py").write_text(OPERATOR)
    result = fmapviz("layers", "net.py:build", "--types", "Module", "--to", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout.decode())))
    assert [row["macs"] for row in rows] == [str(2 * 27 * 222 * 222), ""]
    err = result.stderr.decode()
    assert "notice: MACs are unknown where fmapviz_cli.double computes" in err
    assert "56 parameters (224 bytes)\n" in err
