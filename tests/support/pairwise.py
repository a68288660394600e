"""Rows of parameters where a full product would repeat itself: all-pairs testing."""

from itertools import combinations, cycle, islice, product


def pairwise(*parameters):
    """Return rows in which each two values of different parameters meet at least once."""
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
