"""`fmapviz layers --receptive-field`."""

import json

import pytest


def lines(result):
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_the_table_has_the_size_the_stride_and_the_start_of_each_field(fmapviz):
    head, *rows = lines(fmapviz("layers", "alexnet", "--receptive-field"))
    assert head.split() == ["#", "layer", "type", "output", "axes", "parameters", "calls", "field", "stride", "start"]
    assert [row.split("  1  ")[1].split() for row in rows] == [
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
