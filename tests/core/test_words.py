"""Counted nouns are singular for one."""

from __future__ import annotations

import pytest

from fmapviz.core.words import are, counted, plural


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "image", "0 images"), (1, "image", "1 image"), (2, "class", "2 classes"), (3, "directory", "3 directories")],
)
def test_a_noun_is_singular_for_one(number, noun, text):
    assert counted(number, noun) == text
    assert f"{number} {plural(number, noun)} {are(number)}" == f"{text} {'is' if number == 1 else 'are'}"
