"""Remedies: the smallest changes that let a refused entity be placed, each tried out.

    what a group could do without     concessions.py
    nodes that would help             additions.py
    who would make room by ending     departures.py

Every remedy was verified: the cycle placed the entity after the change (`experiment.py`). So many
decisions at most are made for all of them; then `is_cut_short` says that there may be smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.scheduler.asking.additions import let_in, more_nodes
from phalanx.scheduler.asking.concessions import looser, smaller, wider
from phalanx.scheduler.asking.departures import ending
from phalanx.scheduler.asking.experiment import Experiment
from phalanx.scheduler.remedy import Remedy, Sort

#: Who knows changes of which sort, and how many decisions they may make; the cheapest sort first.
SOURCES: tuple[tuple[Sort, Callable[[Experiment], Iterator[Remedy]], int], ...] = (
    (Sort.SMALLER, smaller, 10),
    (Sort.NODES, more_nodes, 26),
    (Sort.WIDER, wider, 6),
    (Sort.ENDING, ending, 14),
    (Sort.LOOSER, looser, 5),
    (Sort.LOOSER, let_in, 3),
)
#: How many decisions that is in all.
MOST_DECISIONS = sum(decisions for _, _, decisions in SOURCES)


@dataclass(frozen=True, slots=True)
class Remedies:
    """What helps, and how thoroughly that was looked for."""

    found: tuple[Remedy, ...] = ()
    decisions: int = 0
    is_cut_short: bool = False


def remedies(trial: Experiment) -> Remedies:
    """The smallest changes of every sort, in no order that means anything."""
    found: list[Remedy] = []
    for _, source, decisions in SOURCES:
        trial.allow(decisions)
        found += source(trial)
    return Remedies(tuple(found), trial.decisions, trial.is_cut_short)
