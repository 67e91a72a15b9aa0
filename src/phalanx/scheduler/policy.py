"""Policy: which filters, scores and comparisons a cycle uses. What is wanted, never how."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.gates import GANG_SCHEDULING, Gates
from phalanx.scheduler.comparisons import COMPARISONS, Comparison
from phalanx.scheduler.filters import FILTERS, Filter
from phalanx.scheduler.scores import MERITS, SCORES, Merit, Score


@dataclass(frozen=True, slots=True)
class Policy:
    """The rows of the tables that apply, in order."""

    filters: tuple[Filter, ...] = FILTERS
    scores: tuple[Score, ...] = SCORES
    merits: tuple[Merit, ...] = MERITS
    comparisons: tuple[Comparison, ...] = COMPARISONS
    #: What a resident that must be near newcomers of some kind adds to the score of its domain.
    near_weight: int = 1
    #: Whether pods of services are spread without having asked for it.
    default_spreads: bool = True
    #: Whether the members of a group are placed together; else every pod is on its own.
    groups: bool = True


DEFAULT = Policy()


def by_gates(gates: Gates) -> Policy:
    """The usual policy, without what is switched off."""
    return Policy(groups=gates.is_on(GANG_SCHEDULING))
