"""The catalogue: every member is described without importing it, and its references lead to code."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib import import_module

import pytest
from extras import needs_member
from waiting import PATIENCE

from fmapviz.core import registry
from fmapviz.core.members import load
from fmapviz.errors import RequestError

KINDS = {
    "view": (registry.views, registry.view),
    "format": (registry.formats, registry.form),
    "model source": (registry.sources, registry.source),
}
MEMBERS = [
    pytest.param(kind, member, marks=needs_member(member), id=f"{kind} {member.name}")
    for kind, (members, _) in KINDS.items()
    for member in members().values()
]


SLOW = {"model source hf", "model source timm"}  # import large packages; tests/models/sources covers both


@pytest.mark.parametrize("members", [registry.views, registry.formats, registry.sources, registry.aggregates])
def test_members_are_sorted_and_have_distinct_names(members):
    assert list(members()) == sorted(members())
    assert len(members()) == len([each for one in registry.contributions() for each in getattr(one, members.__name__)])


@pytest.mark.parametrize(("kind", "member"), MEMBERS)
def test_every_member_is_described_and_found(kind, member):
    _, find = KINDS[kind]
    assert find(member.name) is member
    assert member.help.endswith(".")
    assert member.help[0].isupper()
    assert 10 < len(member.help) < 125


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        pytest.param(*each.values, marks=[*each.marks, pytest.mark.thorough], id=each.id) if each.id in SLOW else each
        for each in MEMBERS
    ],
)
def test_each_reference_of_a_member_is_importable(kind, member):
    values = (getattr(member, field.name) for field in dataclasses.fields(member))
    references = [value for value in values if isinstance(value, str) and value.startswith("fmapviz.")]
    for reference in references:
        assert load(reference) if ":" in reference else import_module(reference)
    assert references or member.name == "top"  # which is drawn of all images


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["map", "Maps", "gradcam_pp", "grad_inputs", "_maps", "__init__", "../maps", "maps.py", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_unknown_names_are_no_members(kind, name):
    with pytest.raises(RequestError) as caught:
        KINDS[kind][1](name)
    assert str(caught.value) == f"no such {kind}: '{name}'"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("view", "mpas", "did you mean 'maps', 'pca', 'max'?"),
        ("view", "PNG", "'png' is a format: to='png'"),
        ("format", "tensorbord", "did you mean 'tensorboard'?"),
        ("format", "gradcam", "'gradcam' is a view: views='gradcam'"),
        ("format", "zzz", f"there are: {', '.join(registry.offered_formats())}"),
        ("model source", "torchvison", "did you mean 'torchvision', 'python'?"),
    ],
)
def test_the_hint_for_an_unknown_member_names_the_nearest_ones(kind, name, hint):
    with pytest.raises(RequestError) as caught:
        KINDS[kind][1](name)
    assert caught.value.hint == hint


def test_the_catalogue_needs_no_torch():
    code = """
import sys
from fmapviz.core import registry
assert all(registry.views()[name].help for name in registry.views())
assert registry.formats() and registry.sources() and registry.aggregates() and registry.pages()
assert not {"torch", "torchvision", "numpy", "PIL"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
