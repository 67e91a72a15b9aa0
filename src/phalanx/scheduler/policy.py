"""Policy: which filters and scores a cycle uses. What is wanted, never how it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.scheduler.filters import FILTERS, Filter
from phalanx.scheduler.scores import SCORES, Score


@dataclass(frozen=True, slots=True)
class Policy:
    """The rows of the two tables that apply, in order."""

    filters: tuple[Filter, ...] = FILTERS
    scores: tuple[Score, ...] = SCORES


DEFAULT = Policy()
