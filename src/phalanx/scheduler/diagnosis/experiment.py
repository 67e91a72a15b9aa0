"""Experiment: would it be placed if something were otherwise? Changes are tried and taken back.

Nothing is guessed: the cycle decides about the changed entity on the changed cluster. Nobody is
evicted for it, since that is no change that anybody would have to make. Bounded by counts, so that
the same question has the same answer everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.search.solver import (
    NO_SOLVER_ANSWER,
    IntegerProgram,
    SolverAnswer,
    SolverFunction,
    no_solver,
)

#: How many questions an exact solver is asked in all, and of how many columns at most.
MAX_SOLVER_CALLS, MAX_SOLVER_COLUMNS = 8, 800


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """What is otherwise."""

    entity: Entity | None = None
    #: Nodes that come, or that are like this from now on.
    nodes: tuple[Node, ...] = ()
    #: Pods that have ended.
    ended_pods: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """A cluster: what a scheduler believes, and the objects that it believes it from."""

    cache: SchedulerCache
    nodes: Mapping[str, Node]
    pods: Mapping[Key, Pod]


class Experiment:
    """A refused entity, the cluster that refuses it, and how much may still be tried."""

    def __init__(
        self, entity: Entity, waiting: Waiting, known: KnownCluster, policy: SchedulerPolicy,
        solver: SolverFunction = no_solver, solver_calls: int = MAX_SOLVER_CALLS,
    ) -> None:  # fmt: skip
        self.entity, self.waiting, self.known = entity, waiting, known
        self.policy = replace(policy, pods_preempt=False, groups_preempt=False)
        self._solver, self._solver_calls_left = solver, solver_calls
        self._decisions_left = 0
        #: How many decisions were made.
        self.decisions = 0
        #: Whether something was not tried any more.
        self.is_cut_short = False

    def allow_decisions(self, decisions: int) -> None:
        """From here on so many decisions may be made."""
        self._decisions_left = decisions

    def is_placed_after(self, change: ClusterChange) -> bool:
        """Whether the entity is placed after a change; False also if it may not be tried."""
        if not self._decisions_left:
            self.is_cut_short = True
            return False
        self._decisions_left -= 1
        self.decisions += 1
        with self.apply_change(change) as snapshot:
            entity = change.entity or self.entity
            return isinstance(decide(entity, snapshot, self.policy, self._solve), Placed)

    @contextmanager
    def apply_change(self, change: ClusterChange) -> Iterator[Snapshot]:
        """The cluster after a change. It is as before at the end."""
        cache, nodes, pods = self.known.cache, self.known.nodes, self.known.pods
        for node in change.nodes:
            cache.update_node(node.metadata.name, node)
        for key in change.ended_pods:
            cache.update_pod(key, None)
        try:
            yield cache.snapshot()
        finally:
            for node in change.nodes:
                cache.update_node(node.metadata.name, nodes.get(node.metadata.name))
            for key in change.ended_pods:
                cache.update_pod(key, pods[key])

    def _solve(self, program: IntegerProgram) -> SolverAnswer:
        """Exact searches are long, and there may be one in every decision."""
        if not self._solver_calls_left or len(program.limits) > MAX_SOLVER_COLUMNS:
            self.is_cut_short = True
            return NO_SOLVER_ANSWER
        self._solver_calls_left -= 1
        return self._solver(program)
