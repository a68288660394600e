"""Numbers in sentences: nouns and verbs in singular or plural."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural.

    Example:
        >>> counted(1, "layer"), counted(2, "directory"), counted(2, "day"), counted(3, "class"), counted(2, "box")
        ('1 layer', '2 directories', '2 days', '3 classes', '2 boxes')
    """
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """Return a noun for a number.

    Example:
        >>> f"{20_000:,} {plural(20_000, 'image')}"
        '20,000 images'
    """
    if number == 1:
        return noun
    if noun.endswith("y") and not noun.endswith("ay"):
        return f"{noun.removesuffix('y')}ies"
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def are(number: int) -> str:
    """Return the verb for a number: `is` or `are`."""
    return "is" if number == 1 else "are"
