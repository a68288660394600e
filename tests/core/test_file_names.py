import ntpath
import os
import re
import sys
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fmapviz.core.file_names import folded, picture_file, portable
from fmapviz.images.find import unit_name

# What Windows reserves; `ntpath.isreserved` is of Python 3.13.
REFUSED = re.compile(
    r"""[\x00-\x1f"*/:<>?\\|] | [. ]\Z | \A(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[1-9¹²³])\ *(\.|\Z)""",
    re.IGNORECASE | re.VERBOSE,
)
AWKWARD = st.sampled_from(
    [
        "con",
        "NUL",
        "aux ",
        "com1",
        "LPT³",
        "conout$",
        ".",
        " ",
        "..",
        ":",
        "*",
        "?",
        '"',
        "<",
        ">",
        "|",
        "\\",
        "\x7f",
        "~",
        "A",
    ]
)
names = st.lists(AWKWARD | st.text(max_size=9), min_size=1, max_size=6).map("".join)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


@settings(max_examples=40)
@given(names)
def test_a_portable_name_is_accepted_by_windows_and_stays_as_it_is(name):
    safe = portable(name)
    assert not REFUSED.search(safe)
    assert portable(safe) == safe
    assert (safe == name) == (not REFUSED.search(name))
    if sys.version_info >= (3, 13):
        assert not ntpath.isreserved(safe)


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.lists(paths, min_size=2, max_size=6, unique=True))
def test_each_path_has_a_unit_of_its_own_that_windows_accepts(found):
    units = [unit_name(path, f"/photos/{path}") for path in found]
    assert len({*units}) == len(units)
    for unit in units:
        for part in unit.split("/"):
            assert not REFUSED.search(part)
            assert len(os.fsencode(part)) <= 200
        assert len(unit.encode("utf-16-le")) <= 2 * 200


@pytest.mark.thorough
def test_names_that_differ_in_case_or_normalization_fold_to_one():
    for each in map(chr, [*range(0xD800), *range(0xE000, 0x20000)]):
        variants = {each.upper(), each.lower(), each.casefold(), normalize("NFC", each), normalize("NFD", each)}
        assert {folded(variant) for variant in variants} == {folded(each)}, each


@given(st.text())
def test_any_name_folds_as_its_variants_do(name):
    assert folded(name) == folded(normalize("NFD", name)) == folded(normalize("NFC", name)) == folded(name.upper())
    assert folded(name.casefold()) == folded(name)


@pytest.mark.parametrize("layer", ["a:b", "con", 'x"y|z', "nul.", "a\\b", "C:\\x", "é" * 300, "trailing. "])
def test_names_of_pictures_are_accepted_by_windows(layer):
    name = picture_file(f"00 {layer}", "maps")
    assert not REFUSED.search(name)
    assert len(name.encode()) <= 255
    assert picture_file("con", "input") == "_con.png"
