from __future__ import annotations

import pytest

from fmapviz.core import checksummed_json
from fmapviz.core.checksummed_json import dumps, load, parse


@pytest.mark.parametrize("padding", [0, 1, 1000])
def test_a_file_larger_than_a_record_is_refused(padding, tmp_path, monkeypatch):
    record = dumps({"fmapviz": 2, "files": []})
    monkeypatch.setattr(checksummed_json, "MAX_BYTES", len(record))
    data = record + b" " * padding
    (tmp_path / "unit.json").write_bytes(data)
    found = [parse(data), load(tmp_path / "unit.json"), load(tmp_path / "unit.json", intact=True)]
    assert [each is None for each in found] == [padding > 0] * 3
