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
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.rescue.program import Answer, Program
from phalanx.scheduler.rescue.search import UNANSWERED, Solver, nobody

#: How many questions an exact solver is asked in all, and of how many columns at most.
QUESTIONS, COLUMNS = 8, 800


@dataclass(frozen=True, slots=True)
class Change:
    """What is otherwise."""

    entity: Entity | None = None
    #: Nodes that come, or that are like this from now on.
    nodes: tuple[Node, ...] = ()
    #: Pods that have ended.
    ended: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """A cluster: what a scheduler believes, and the objects that it believes it from."""

    cache: Cache
    nodes: Mapping[str, Node]
    pods: Mapping[Key, Pod]


class Experiment:
    """A refused entity, the cluster that refuses it, and how much may still be tried."""

    def __init__(
        self, entity: Entity, waiting: Waiting, known: Known, policy: Policy,
        solver: Solver = nobody, questions: int = QUESTIONS,
    ) -> None:  # fmt: skip
        self.entity, self.waiting, self.known = entity, waiting, known
        self.policy = replace(policy, preempts=False, groups_preempt=False)
        self._solver, self._questions = solver, questions
        self._left = 0
        #: How many decisions were made.
        self.decisions = 0
        #: Whether something was not tried any more.
        self.is_cut_short = False

    def allow(self, decisions: int) -> None:
        """From here on so many decisions may be made."""
        self._left = decisions

    def works(self, change: Change) -> bool:
        """Whether the entity is placed after a change; False also if it may not be tried."""
        if not self._left:
            self.is_cut_short = True
            return False
        self._left -= 1
        self.decisions += 1
        with self.after(change) as snapshot:
            entity = change.entity or self.entity
            return isinstance(decide(entity, snapshot, self.policy, self._answer), Placed)

    @contextmanager
    def after(self, change: Change) -> Iterator[Snapshot]:
        """The cluster after a change. It is as before at the end."""
        cache, nodes, pods = self.known.cache, self.known.nodes, self.known.pods
        for node in change.nodes:
            cache.node(node.metadata.name, node)
        for key in change.ended:
            cache.pod(key, None)
        try:
            yield cache.snapshot()
        finally:
            for node in change.nodes:
                cache.node(node.metadata.name, nodes.get(node.metadata.name))
            for key in change.ended:
                cache.pod(key, pods[key])

    def _answer(self, program: Program) -> Answer:
        """Exact searches are long, and there may be one in every decision."""
        if not self._questions or len(program.limits) > COLUMNS:
            self.is_cut_short = True
            return UNANSWERED
        self._questions -= 1
        return self._solver(program)
