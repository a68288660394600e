"""Choose cases of a test: not each value of a parameter needs to meet each of another, nor to be tried every time."""

from itertools import cycle, islice

import pytest


def each_once(*parameters):
    """Return rows in which each value of each parameter is met at least once."""
    return [*islice(zip(*map(cycle, parameters), strict=False), max(map(len, parameters)))]


def thorough(*rows):
    """Mark cases whose promise the other cases of the test check, too; `make test-all` runs them."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.thorough) for row in rows]


def often(chosen, of):
    """Return the rows `chosen`, and the others of `of` marked as `thorough` marks them."""
    return [*chosen, *thorough(*(row for row in of if row not in chosen))]
