"""Addresses without a bucket or a host are wrong requests, wherever an address can stand."""

from __future__ import annotations

import pytest
from faults import Net
from image_files import paint

import fmapviz
from fmapviz.core.urls import check_address
from fmapviz.errors import RequestError
from fmapviz.images.find import find_images
from fmapviz.store.verify import verify
from fmapviz.types import Failure

INCOMPLETE = [
    *("s3://", "S3://", "s3a://", "gs://", "az://", "abfs://", "abfss://", "s3:///", "s3:///x", "gs:////a/b.png"),
    *("s3:// /x", "http://", "https://", "http:///a.png", "https://:80/a.png", "http://[::1/a.png", "s3://?x", "s3://#x"),
]


@pytest.mark.parametrize("address", INCOMPLETE)
def test_an_incomplete_address_is_a_wrong_request_before_anything_is_written(address, tmp_path):
    image = paint(tmp_path / "in" / "a.png", 1)
    for inputs in ([address], [image, address], (address, str(image))):
        with pytest.raises(RequestError, match=r"names no (bucket|container|host): '") as caught:
            fmapviz.visualize(Net(), inputs, out=tmp_path / "out")
        assert "://" in caught.value.hint
    for ask in (lambda: [*verify(address)], lambda: fmapviz.top_images(address)):
        with pytest.raises(RequestError, match="names no"):
            ask()
    with pytest.raises(RequestError, match=r"names no|cannot write to a web address"):
        fmapviz.visualize(Net(), image, out=address)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("address", INCOMPLETE)
def test_an_incomplete_address_in_a_stream_fails_alone(address, tmp_path):
    image = paint(tmp_path / "a.png", 1)
    first, second = find_images(iter([address, str(image)]))
    assert isinstance(first, Failure)
    assert (first.path, first.code, second.unit) == (address, "E_MISSING", "a.png")
    assert first.hint


@pytest.mark.parametrize(
    "address", ["s3://b", "s3://b/", "gs://b/c d", "az://c/x", "abfs://c@account.dfs.core.windows.net/x",
                "http://h", "https://u:p@h:80/a?b#c", "http://[::1]/a", "photos/s3", "s3:/x", "nope://", "", 7, None],
)  # fmt: skip
def test_complete_addresses_and_all_other_text_pass(address):
    check_address(address)
