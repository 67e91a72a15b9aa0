"""Decides about an entity on a changed cluster, and undoes the change.

    experiment = Experiment(entity, waiting, known, policy=policy)
    experiment.allow_decisions(10)
    experiment.is_placed_after(ClusterChange(nodes=(new_node,)))

The scheduling cycle decides; nothing is estimated. Preemption is off: an eviction would answer
whether the entity can displace other pods, not whether the change helps. Experiments are bounded by
counts, never by time, so the same question has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod
from phalanx.api.dynamic_resources import ResourceSlice
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

#: How many programs the exact solver gets in one experiment, and their largest number of columns.
MAX_SOLVER_CALLS, MAX_SOLVER_COLUMNS = 8, 800


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A hypothetical change of the cluster, of the entity, or of both."""

    entity: Entity | None = None
    #: Nodes that are added or replaced.
    nodes: tuple[Node, ...] = ()
    #: Pods that have ended.
    ended_pods: tuple[Key, ...] = ()
    #: New nodes, and the nodes whose devices they have.
    devices_like: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """The cache of a scheduler, and the nodes and pods that it was loaded from."""

    cache: SchedulerCache
    nodes: Mapping[str, Node]
    pods: Mapping[Key, Pod]


class Experiment:
    """A refused entity, the cluster that refuses it, and a budget of decisions."""

    def __init__(
        self,
        entity: Entity,
        waiting: Waiting,
        known: KnownCluster,
        *,
        policy: SchedulerPolicy,
        solver: SolverFunction = no_solver,
        solver_calls: int = MAX_SOLVER_CALLS,
    ) -> None:
        self.entity, self.waiting, self.known = entity, waiting, known
        self.policy = replace(policy, pods_preempt=False, groups_preempt=False)
        self._solver, self._solver_calls_left = solver, solver_calls
        self._decisions_left = 0
        #: How many decisions were made.
        self.decisions = 0
        #: Whether the budget ended the search.
        self.is_cut_short = False

    def allow_decisions(self, decisions: int) -> None:
        """Set the number of decisions that may still be made."""
        self._decisions_left = decisions

    def is_placed_after(self, change: ClusterChange) -> bool:
        """Whether the entity is placed after a change; False if the budget is used up."""
        if not self._decisions_left:
            self.is_cut_short = True
            return False
        self._decisions_left -= 1
        self.decisions += 1
        with self.apply_change(change) as snapshot:
            entity = change.entity or self.entity
            return isinstance(decide(entity, snapshot, self.policy, solver=self._solve), Placed)

    @contextmanager
    def apply_change(self, change: ClusterChange) -> Iterator[Snapshot]:
        """Yield the snapshot of the changed cluster, and undo the change afterwards."""
        cache, nodes, pods = self.known.cache, self.known.nodes, self.known.pods
        for node in change.nodes:
            cache.update_node(node.metadata.name, node)
        for key in change.ended_pods:
            cache.update_pod(key, None)
        slices = []
        for new, like in change.devices_like.items():
            for one in cache.devices.local_slices(like):
                # The new node has equal devices, in a slice and a pool of its own.
                meta = but(one.metadata, name=f"{new}/{one.metadata.name}")
                pool = but(one.spec.pool, name=f"{new}/{one.spec.pool.name}")
                slices.append(ResourceSlice(meta, but(one.spec, node_name=new, pool=pool)))
        for one in slices:
            cache.devices.update_object(ResourceSlice, one.metadata.name, one)
        ended = {pods[key].metadata.uid for key in change.ended_pods}
        snapshot = cache.snapshot()
        devices = snapshot.devices
        snapshot.devices = devices.fork(ended) if ended and devices.claims else devices
        try:
            yield snapshot
        finally:
            snapshot.devices = devices
            for one in slices:
                cache.devices.update_object(ResourceSlice, one.metadata.name, None)
            for node in change.nodes:
                cache.update_node(node.metadata.name, nodes.get(node.metadata.name))
            for key in change.ended_pods:
                cache.update_pod(key, pods[key])

    def _solve(self, program: IntegerProgram) -> SolverAnswer:
        """Ask the exact solver within the budget: exact searches are slow."""
        if not self._solver_calls_left or len(program.limits) > MAX_SOLVER_COLUMNS:
            self.is_cut_short = True
            return NO_SOLVER_ANSWER
        self._solver_calls_left -= 1
        return self._solver(program)


def find_smallest(
    suffices: Callable[[int], bool], guess: int, most: int, *, low: int = 0
) -> int | None:
    """Find the smallest number above `low` and up to `most` that suffices; None if none does.

    Searches outwards from the guess. If a number suffices, larger numbers are taken to suffice too.
    No number is tried twice.
    """
    if most <= low:
        return None
    number, step = min(max(guess, low + 1), most), 1
    while not suffices(number):
        if number == most:
            return None
        low, number, step = number, min(number + step, most), 2 * step
    high, step = number, 1
    while high - low > 1:
        number = max(high - step, (low + high) // 2)
        if suffices(number):
            high, step = number, 2 * step
        else:
            low = number
    return high
