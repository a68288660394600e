"""Names of layers and classes are kept for the shell, and a damaged cache is none."""

import json
import os
from pathlib import Path

import pytest
from cases import thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fmapviz.models import known_layers
from fmapviz.models.known_layers import MOST_BYTES, KnownModel, cache_folder, recall, remember
from fmapviz.run.layer_list import list_layers
from fmapviz.run.loop import visualize

LAYERS = {"conv": "Conv2d", "blocks.0": "Block"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FMAPVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_a_run_keeps_the_names_of_all_layers_and_classes(cache, picture, tmp_path):
    visualize("shapesnet", picture, out=tmp_path / "runs", to="png", layers="features.0")
    known = recall("shapesnet")
    assert known.classes[:2] == ("circle", "square")
    assert {row.name: row.type for row in list_layers("shapesnet", types="Module")} == known.layers
    assert not list(cache.rglob(".*"))


def test_a_library_call_with_a_network_keeps_nothing(cache, picture, tmp_path):
    visualize(nn.Sequential(nn.Conv2d(3, 2, 3)), picture, out=tmp_path / "runs", to="png")
    assert not cache.exists()


def test_classes_stay_if_the_layers_are_listed_without_weights(cache):
    remember("resnet18", LAYERS, ["cat", "dog"])
    remember("resnet18", {"other": "Conv2d"})
    assert recall("resnet18") == KnownModel({"other": "Conv2d"}, ("cat", "dog"))


@pytest.mark.thorough
@settings(max_examples=20)
@given(layers=st.dictionaries(st.text(), st.text()), classes=st.lists(st.text()), spec=st.text())
def test_any_names_are_read_as_they_were_kept(tmp_path_factory, layers, classes, spec):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FMAPVIZ_CACHE", str(tmp_path_factory.getbasetemp() / "any"))
        remember(spec, layers, classes)
        known = recall(spec)
    assert known is None or (known.layers, list(known.classes)) == (layers, classes or list(known.classes))
    assert known is not None or "\0" in spec or len(spec) > 50 or any("\ud800" <= ch <= "\udfff" for ch in spec)


@pytest.mark.parametrize("spec", ["my_net.py:build", "my_net.py:build(width=2)", "my_net.py"])
def test_changed_code_has_no_known_layers(cache, tmp_path, spec):
    code = tmp_path / "my_net.py"
    code.write_text("one")
    remember(spec, LAYERS)
    assert recall(spec) == KnownModel(LAYERS)
    status = code.stat()
    os.utime(code, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert recall(spec) is None


def test_code_of_the_same_name_in_another_directory_is_another_model(cache, tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name / "my").mkdir(parents=True)
        (tmp_path / name / "my" / "net.py").write_text("same")
        monkeypatch.chdir(tmp_path / name)
        remember("my.net:build", {name: "Conv2d"})
    monkeypatch.chdir(tmp_path / "a")
    assert recall("my.net:build") == KnownModel({"a": "Conv2d"})


def test_a_folder_with_the_name_of_a_published_model_changes_nothing(cache, tmp_path):
    remember("alexnet", LAYERS)
    (tmp_path / "alexnet").mkdir()
    assert recall("alexnet") == KnownModel(LAYERS)


def test_the_cache_is_bounded(cache, monkeypatch):
    monkeypatch.setattr(known_layers, "MOST_FILES", 3)
    for number in range(6):
        remember(f"timm:{number}", LAYERS)
        path = max(cache.rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (number, number))
    assert [number for number in range(6) if recall(f"timm:{number}")] == [3, 4, 5]
    remember("timm:large", {"x" * MOST_BYTES: "Conv2d"})
    assert recall("timm:large") is None


RECORD = {"model": "alexnet", "stamp": [], "layers": LAYERS, "classes": ["a"]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        b" " * (MOST_BYTES + 1),
        *(json.dumps(value).encode() for value in (
            None, [], {}, RECORD | {"layers": ["conv"]}, RECORD | {"layers": {"conv": 3}}, RECORD | {"classes": "abc"},
            RECORD | {"classes": [{}]}, RECORD | {"model": "vgg11"}, RECORD | {"stamp": [1, 2]},
        )),
    ],
)  # fmt: skip
def test_a_damaged_file_is_no_cache(cache, content):
    remember("alexnet", LAYERS)
    (path,) = cache.rglob("*.json")
    path.write_bytes(content)
    assert recall("alexnet") is None
    remember("alexnet", LAYERS)
    assert recall("alexnet") == KnownModel(LAYERS)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_cache(cache, make):
    remember("alexnet", LAYERS)
    (path,) = cache.rglob("*.json")
    path.unlink()
    make(path)
    assert recall("alexnet") is None


@pytest.mark.parametrize("place", ["/proc/nothing", "/dev/null", *thorough("/dev/null/deeper", "x\0y", "x" * 300)])
def test_a_place_that_cannot_be_written_is_ignored(monkeypatch, place):
    monkeypatch.setattr(known_layers, "cache_folder", lambda: Path(place))
    remember("alexnet", LAYERS)
    assert recall("alexnet") is None


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/me/.cache/fmapviz"),
        ("linux", {"XDG_CACHE_HOME": "/scratch/me"}, "/scratch/me/fmapviz"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/fmapviz"),
        ("darwin", {}, "/home/me/Library/Caches/fmapviz"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/fmapviz/Cache"),
        ("win32", {"LOCALAPPDATA": ""}, "/home/me/AppData/Local/fmapviz/Cache"),
        ("linux", {"FMAPVIZ_CACHE": "/own"}, "/own"),
        ("linux", {"FMAPVIZ_CACHE": ""}, None),
    ],
)
def test_the_folder_follows_the_platform(monkeypatch, platform, variables, folder):
    for name in ("FMAPVIZ_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder() == (folder and Path(folder))


def test_without_a_home_there_is_no_folder(monkeypatch):
    monkeypatch.delenv("FMAPVIZ_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    assert cache_folder() is None
