"""Policy: which filters, scores and comparisons a cycle uses. What is wanted, never how."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.scheduler.cluster.peers import SYSTEM_DEFAULTS, Defaults
from phalanx.scheduler.judging.comparisons import COMPARISONS, Comparison
from phalanx.scheduler.judging.filters import FILTERS, Filter
from phalanx.scheduler.judging.scores import MERITS, SCORES, Merit, Score
from phalanx.scheduler.judging.stake import CPU_AND_MEMORY, Resource

#: The filters by which room is counted.
_ROOM = {"NodePorts", "NodeResourcesFit"}


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """The rows of the tables that apply, in order. The equal of a policy is only itself."""

    filters: tuple[Filter, ...] = FILTERS
    scores: tuple[Score, ...] = SCORES
    merits: tuple[Merit, ...] = MERITS
    comparisons: tuple[Comparison, ...] = COMPARISONS
    #: What a resident that must be near newcomers of some kind adds to the score of its domain.
    near_weight: int = 1
    #: Whether it matters where residents would like newcomers to be that have no such likes.
    heeds_likes: bool = True
    #: How pods of services are spread that do not say how.
    defaults: Defaults = SYSTEM_DEFAULTS
    #: Of what placements should be full, when there is a choice between them.
    packed: tuple[Resource, ...] = CPU_AND_MEMORY
    #: Whether anybody is evicted for pods, and whether for groups.
    preempts: bool = True
    groups_preempt: bool = True

    def allows_preemption(self, is_group: bool) -> bool:
        """Whether others may be evicted for a pod alone, or for a group."""
        return self.groups_preempt if is_group else self.preempts

    @property
    def counts_room(self) -> bool:
        """Whether a node takes no more pods than it has room for."""
        return {row.name for row in self.filters} >= _ROOM


DEFAULT = Policy()
