"""Choose cases of a test: not each value of a parameter needs to meet each of another, nor to be tried every time."""

from itertools import combinations, cycle, islice, product

import pytest


def pairwise(*parameters):
    """Return rows in which each two values of different parameters meet at least once: all-pairs testing."""
    numbered = [list(enumerate(values)) for values in parameters]
    rows = [(row, {*combinations(enumerate(number for number, _ in row), 2)}) for row in product(*numbered)]
    missing, chosen = set().union(*(pairs for _, pairs in rows)), []
    while missing:
        row, pairs = max(rows, key=lambda each: len(each[1] & missing))
        missing -= pairs
        chosen.append(tuple(value for _, value in row))
    return chosen


def each_once(*parameters):
    """Return rows in which each value of each parameter is met at least once."""
    return [*islice(zip(*map(cycle, parameters), strict=False), max(map(len, parameters)))]


def thorough(*rows):
    """Mark cases whose promise the other cases of the test check, too; `make test-all` runs them."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.thorough) for row in rows]


def often(chosen, of):
    """Return the rows `chosen`, and the others of `of` marked as `thorough` marks them."""
    return [*chosen, *thorough(*(row for row in of if row not in chosen))]
