"""A table of values over whole numbers as a short decision list: boxes, of which the first that holds decides."""

import itertools
from typing import NamedTuple, Sequence

import numpy as np


class Box(NamedTuple):
    """All cells from `low` to `high`, both included, have this value, unless an earlier box holds them."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    value: int


def boxes(table: np.ndarray) -> tuple[int, list[Box]]:
    """(the value of every cell that no box holds, the boxes in order); together they are exactly the table.

    A greedy cover: each box starts at the first cell that is left and grows over its own value and over what is decided
    already, in whichever order of the axes it comes to hold the most; the default for which the list is shortest is taken.
    No box is the whole table, since cells of the default lie in none.

    Args:
      table: int[n1, ..., nF], F >= 1.
    """
    found = [(int(default), _cover(table, default)) for default in np.unique(table)]
    return min(found, key=lambda pair: len(pair[1]))


def _cover(table: np.ndarray, default: int) -> list[Box]:
    left, out = table != default, []
    while left.any():
        start = np.unravel_index(int(left.argmax()), table.shape)
        barred = (table != table[start]) & (left | (table == default))
        grown = (_grow(barred, start, order) for order in _orders(table.ndim))
        low, high = max(grown, key=lambda ends: left[_slices(*ends)].sum())
        left[_slices(low, high)] = False
        out.append(Box(low, high, int(table[start])))
    return out


def _grow(barred: np.ndarray, start: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ends of a box around `start` without a barred cell, as wide as it can be along one axis after the other."""
    low, high = [int(place) for place in start], [int(place) for place in start]
    for axis in order:
        cut = list(_slices(low, high))
        cut[axis] = slice(None)
        wall = barred[tuple(cut)].any(axis=tuple(other for other in range(barred.ndim) if other != axis))
        while high[axis] + 1 < len(wall) and not wall[high[axis] + 1]:
            high[axis] += 1
        while low[axis] > 0 and not wall[low[axis] - 1]:
            low[axis] -= 1
    return tuple(low), tuple(high)


def _orders(axes: int) -> list[tuple[int, ...]]:
    """All orders of up to three axes; of more, those that go round."""
    if axes <= 3:
        return list(itertools.permutations(range(axes)))
    return [tuple((first + step * turn) % axes for step in range(axes)) for first in range(axes) for turn in (1, -1)]


def _slices(low: Sequence[int], high: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, b + 1) for a, b in zip(low, high, strict=True))
