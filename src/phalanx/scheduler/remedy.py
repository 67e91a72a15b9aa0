"""Remedy: one change that lets a refused entity be placed. A value; `remedies.py` finds them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple


class Sort(IntEnum):
    """What is changed, in the order of what it costs."""

    SMALLER = 1
    NODES = 2
    WIDER = 3
    ENDING = 4
    LOOSER = 5


class Remedy(NamedTuple):
    """A change with which the entity was placed when it was tried out."""

    sort: Sort
    #: How much of it: members or groups fewer, nodes more, pods that end.
    size: int
    text: str


def smallest(works: Callable[[int], bool], guess: int, most: int, low: int = 0) -> int | None:
    """The least number above `low` and up to `most` that works, sought from a guess outwards.

    What works is taken to work for all larger numbers too; what does not is not tried twice.
    """
    if most <= low:
        return None
    number, step = min(max(guess, low + 1), most), 1
    while not works(number):
        if number == most:
            return None
        low, number, step = number, min(number + step, most), 2 * step
    high, step = number, 1
    while high - low > 1:
        number = max(high - step, (low + high) // 2)
        if works(number):
            high, step = number, 2 * step
        else:
            low = number
    return high
