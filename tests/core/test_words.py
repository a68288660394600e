"""Counted nouns are singular for one: in what the library says, and in its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fmapviz.core.words import are, counted, plural

PACKAGE = Path(__file__).parents[2] / "fmapviz"
NOUNS = "images|pictures|channels|filters|checkpoints|inputs"
# In these a number is at least two, or part of a unit.
ALWAYS_SEVERAL = (
    "more images", "if len(found) > 1", "images == 1", "channels == 1", "MOST}", "LEAST}", "KEPT}", "_LARGEST_SHARD}",
    "len(missed)", "images/s", "channels:,}", "between {length} channels",
    "finished}{total} images", "samples are {images} images", "or more {images} images",
)  # fmt: skip


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "image", "0 images"), (1, "image", "1 image"), (2, "class", "2 classes"), (3, "directory", "3 directories")],
)
def test_a_noun_is_singular_for_one(number, noun, text):
    assert counted(number, noun) == text
    assert f"{number} {plural(number, noun)} {are(number)}" == f"{text} {'is' if number == 1 else 'are'}"


def test_no_message_counts_with_a_plural_alone():
    """Such as `{images} images`, which is `1 images` for one."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(rf"\{{[^{{}}]*\}} ({NOUNS})\b", line) and not any(mark in line for mark in ALWAYS_SEVERAL)
    ]
    assert found == []
