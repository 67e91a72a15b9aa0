"""Rescue: a placement for members of which placing one after the other did not place enough.

From the cheap to the thorough: is there room at all; other orders; moving who is in the way; and
the questions to an exact solver. Each step may find a placement; only the first and the last can
show that there is none. Nothing here depends on time or chance, and all of it is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from msgspec.structs import replace as but

from phalanx.scheduler.cluster.snapshot import IntArray, Placement
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placing.attempt import Attempt, Ground
from phalanx.scheduler.placing.sites import capacities
from phalanx.scheduler.rescue.inquiry import inquire
from phalanx.scheduler.rescue.orders import orders
from phalanx.scheduler.rescue.puzzle import Puzzle, pose
from phalanx.scheduler.rescue.repair import repaired
from phalanx.scheduler.rescue.search import Found, Outcome, Proven, Steps, Undecided
from phalanx.scheduler.rescue.stage import Stage

#: How many orders are tried, and in how many placements there may be a long search.
ORDERS, PLACEMENTS = 6, 64

HASTE = "there was no time for a long search"


def rescued(attempt: Attempt, ground: Ground, found: Sequence[Placement] | None) -> Steps[Attempt]:
    """An attempt that failed, with what it needs after all, or with why that is not known."""
    if attempt.is_certain:
        return attempt
    for number, placement in enumerate([None] if found is None else found):
        inside = but(
            ground,
            nodes=placement.nodes if placement else ground.nodes,
            is_thorough=ground.is_thorough and number < PLACEMENTS,
        )  # fmt: skip
        outcome = yield from rescue(attempt.members, inside, attempt.needed)
        match outcome:
            case Found(seats, left):
                attempt.adopt(seats, left, placement)
                return attempt
            case Undecided(why, is_passing):
                attempt.undecided = attempt.undecided or why
                attempt.awaits_search |= is_passing
    return attempt


def rescue(members: Sequence[Member], ground: Ground, needed: int) -> Steps[Outcome]:
    """Place so many of some members. Those to spare may be left over."""
    if is_full(members, ground, needed):
        return Proven()
    puzzle = pose(ground, members, needed)
    if isinstance(puzzle, str):
        return Undecided(puzzle)
    if lacks_room(puzzle):
        return Proven()
    stage = Stage(puzzle, ground)
    some = list(islice(orders(puzzle), ORDERS if ground.is_thorough else 1))
    for number, order in enumerate(some, 1):
        if found := stage.played(order):
            return found
        yield number
    if puzzle.is_simple:
        return Proven()
    for order in some:
        pieces = yield from repaired(puzzle, order)
        if found := stage.proposed(pieces):
            return found
    return (yield from inquire(stage)) if ground.is_thorough else Undecided(HASTE)


def is_full(members: Sequence[Member], ground: Ground, needed: int) -> bool:
    """Whether there are too few places even if no shape were in the way of another.

    What `lacks_room` would find too, but mostly found before there is a puzzle.
    """
    if not ground.policy.counts_room:
        return False
    reachable = 0
    for shape, count in Counter(member.shape for member in members).items():
        each = capacities(ground.snapshot, ground.policy, shape)
        inside = each if ground.nodes is None else each[ground.nodes]
        reachable += min(count, int(inside.sum()))
    return reachable < needed


def lacks_room(puzzle: Puzzle) -> bool:
    """Whether there are too few places even if no member were in the way of another kind."""
    asks, counts = puzzle.asks, puzzle.counts
    reachable = 0
    for kind, count in enumerate(counts):
        needs = asks[kind] > 0
        room = puzzle.free[puzzle.allowed[kind]][:, needs] // asks[kind][needs]
        places = room.min(axis=1, initial=count)
        reachable += min(count, int(places.sum()), *_apart(puzzle, kind, places))
    if reachable < puzzle.needed:
        return True
    every = np.repeat(asks, counts, axis=0)
    least = np.cumsum(np.sort(every, axis=0), axis=0)
    return bool((least[puzzle.needed - 1] > puzzle.free.sum(axis=0)).any())


def _apart(puzzle: Puzzle, kind: int, places: IntArray) -> Iterator[int]:
    """How many of a kind that keeps apart from itself there can be, by every key that it does."""
    for row in puzzle.apart:
        if (kind, kind) in row.pairs:
            ids = row.layer.ids[puzzle.allowed[kind]]
            domains = np.unique(ids[(ids >= 0) & (places > 0)])
            yield len(domains) + int(places[ids < 0].sum())
