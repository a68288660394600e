"""Former names of arguments are accepted with a warning, wherever an argument has a new one, and refused beside it."""

import inspect
import json
from contextlib import suppress
from pathlib import Path

import pytest

import fmapviz
from fmapviz.errors import ArgumentError
from fmapviz.public_names import HOMES

STAR = Path(__file__).parents[2] / "sample_images" / "shapes" / "star.jpg"
FORMER = {"predictions": "top", "preprocessing": "options", "anchor": "seed"}
PUBLIC = [getattr(fmapviz, name) for name in HOMES]
PLACES = [(function, name) for function in PUBLIC for name in inspect.signature(function).parameters if name in FORMER]
if "Watch" in HOMES:
    PLACES += [(fmapviz.Watch, name) for name in ("predictions", "preprocessing")]  # among its other options


@pytest.mark.parametrize(("function", "name"), PLACES, ids=lambda each: getattr(each, "__name__", each))
def test_a_former_name_is_accepted_with_a_warning_and_refused_beside_the_new_one(function, name):
    former = FORMER[name]
    message = rf"^{function.__name__}\(\): {former}= is now {name}=$"
    with pytest.warns(DeprecationWarning, match=message) as told, suppress(ArgumentError):  # other arguments are missing
        function(**{former: None})
    assert [each.filename for each in told] == [__file__]
    with pytest.raises(ArgumentError, match=f"{former}= is now {name}=, and both are given") as caught:
        function(**{former: None, name: None})
    assert caught.value.hint == f"leave out {former}="


def test_all_former_names_are_tested():
    renamed = {"visualize", "diff", "top_images", "list_layers", "load_model", "receptive_field", "Style", "Watch"}
    assert {function.__name__ for function, _ in PLACES} == renamed & {*HOMES}


def test_a_style_with_a_former_option_name_is_the_same():
    with pytest.warns(DeprecationWarning, match="anchor="):
        assert fmapviz.Style(seed="3,4") == fmapviz.Style(anchor="3,4")


def test_a_run_with_former_option_names_is_the_same(tmp_path):
    with pytest.warns(DeprecationWarning, match="is now") as told:
        first = fmapviz.visualize(
            "shapesnet",
            STAR,
            out=tmp_path,
            to="png",
            top=1,
            options=fmapviz.InputOptions(size=64),
            progress=False,
        )
    assert len(told) == 2
    again = fmapviz.visualize(
        "shapesnet", STAR, out=tmp_path, to="png", predictions=1, preprocessing=fmapviz.InputOptions(size=64), progress=False
    )
    assert (again.directory, again.done, again.skipped) == (first.directory, 0, 1)
    record = json.loads((first.directory / "run.json").read_bytes())
    assert record["settings"]["predictions"] == 1
    assert record["request"]["preprocessing"]["size"] == [64, 64]
