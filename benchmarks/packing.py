"""Fragmentation: how many nodes and racks stay whole while pods that request GPUs come and go.

Each case runs the decisions of the default profile and, on the same random sequence of pods, best
fit: the node (or rack) with the fewest free GPUs that suffice. The result is the mean number of
whole free nodes (or racks) in per cent of best fit. Time is not measured.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from msgspec import structs

from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import ObjectMeta, pod_ref
from phalanx.api.scheduling import (
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyConstraint,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy

GPU, RACK = "nvidia.com/gpu", "topology.kubernetes.io/rack"
GPUS_PER_NODE, NODES_PER_RACK = 8, 8
SEEDS = (1, 2)
#: The least share of best fit, in per cent.
TARGET = 90.0


@dataclass(frozen=True, slots=True)
class ChurnCase:
    """Gangs that keep a share of all GPUs in use while they come and go.

    A gang has one of `sizes` members, as frequent as `frequencies` say; a member requests `gpus`.
    """

    share: float
    nodes: int
    deletions: int
    sizes: tuple[int, ...]
    frequencies: tuple[int, ...]
    #: GPUs of a member; 0: a gang is a single pod, and its size is its number of GPUs.
    gpus: int = 0
    #: Deletions before the first count, and between two counts.
    warm_up: int = 500
    interval: int = 20

    @property
    def uses_racks(self) -> bool:
        """Whether members of a gang share a rack; then whole free racks are counted, not nodes."""
        return bool(self.gpus)

    @property
    def name(self) -> str:
        """The title of the result."""
        what = (
            f"racks of {self.nodes // NODES_PER_RACK}"
            if self.uses_racks
            else f"nodes of {self.nodes}"
        )
        return f"whole free {what} at {self.share:.0%}"


def pod_churn(share: float) -> ChurnCase:
    """Single pods of 1, 2 and 4 GPUs."""
    return ChurnCase(share, 64, 2_500, (1, 2, 4), (60, 25, 15))


def gang_churn(share: float) -> ChurnCase:
    """Gangs of one to four members that need a whole node each and share a rack."""
    return ChurnCase(
        share, 160, 1_500, (1, 2, 3, 4), (2, 1, 1, 1), GPUS_PER_NODE, warm_up=300, interval=10
    )


CASES = (*map(pod_churn, (0.5, 0.7, 0.85)), gang_churn(0.6))


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Compare the default profile with best fit."""
    for case in CASES:
        seeds: Sequence[int] = SEEDS
        if setting.is_quick:
            case, seeds = replace(case, deletions=case.warm_up + 100), SEEDS[:1]
        found = fmean(run_churn(case, DecidedCluster(case), seed) for seed in seeds)
        best = fmean(run_churn(case, BestFitCluster(case), seed) for seed in seeds)
        beside = {"mean": found, "best fit": best}
        share, target = 100 * found / best, setting.target(TARGET)
        yield Result(case.name, share, "% of best fit", target, at_least=True, beside=beside)


class GpuCluster(ABC):
    """Nodes with GPUs, on which a subclass places gangs."""

    def __init__(self, case: ChurnCase) -> None:
        self.case = case
        #: The free GPUs of each node.
        self.free = [GPUS_PER_NODE] * case.nodes

    @abstractmethod
    def choose_nodes(self, name: str, gpus: Sequence[int]) -> list[int] | None:
        """Return the node of each member, whose GPUs are given; None if the gang does not fit."""

    def place(self, name: str, gpus: Sequence[int]) -> list[tuple[int, int]] | None:
        """Place a gang; return the node and the GPUs of each member."""
        nodes = self.choose_nodes(name, gpus)
        if nodes is None:
            return None
        placed = list(zip(nodes, gpus, strict=True))
        for node, count in placed:
            self.free[node] -= count
        return placed

    def remove(self, name: str, placed: Sequence[tuple[int, int]]) -> None:
        """Remove a gang."""
        for node, count in placed:
            self.free[node] += count

    def count_whole(self) -> int:
        """Count the whole free nodes, or racks."""
        size = NODES_PER_RACK if self.case.uses_racks else 1
        racks = [self.free[begin : begin + size] for begin in range(0, len(self.free), size)]
        return sum(min(rack) == GPUS_PER_NODE for rack in racks)


class BestFitCluster(GpuCluster):
    """Places a pod on the node, or a gang in the rack, with the fewest free GPUs that suffice."""

    def choose_nodes(self, name: str, gpus: Sequence[int]) -> list[int] | None:
        """Choose nodes by free GPUs alone."""
        size = NODES_PER_RACK if self.case.uses_racks else 1
        fitting = []
        for begin in range(0, len(self.free), size):
            nodes = [i for i in range(begin, begin + size) if self.free[i] >= gpus[0]]
            if len(nodes) >= len(gpus):
                fitting.append((sum(self.free[begin : begin + size]), nodes[: len(gpus)]))
        return min(fitting)[1] if fitting else None


class DecidedCluster(GpuCluster):
    """Places gangs by the decisions of the scheduler."""

    def __init__(self, case: ChurnCase, policy: SchedulerPolicy = DEFAULT_POLICY) -> None:
        super().__init__(case)
        self._cache, self._policy = SchedulerCache(), policy
        self._pods: dict[str, list[Pod]] = {}
        for number in range(case.nodes):
            node = _node(number)
            self._cache.update_node(node.metadata.name, node)

    def choose_nodes(self, name: str, gpus: Sequence[int]) -> list[int] | None:
        """Decide about the gang, and bind its pods."""
        entity = _entity(name, gpus, uses_racks=self.case.uses_racks)
        snapshot = self._cache.snapshot()
        decision = decide(entity, snapshot, self._policy)
        if not isinstance(decision, Placed):
            return None
        pods = {member.pod.metadata.key: member.pod for member in entity.members}
        for key, _, node in decision.bindings:
            spec = structs.replace(pods[key].spec, node_name=node)
            self._cache.update_pod(key, structs.replace(pods[key], spec=spec))
        self._pods[name] = list(pods.values())
        return [snapshot.index[binding.node] for binding in decision.bindings]

    def remove(self, name: str, placed: Sequence[tuple[int, int]]) -> None:
        """Delete the pods of a gang."""
        super().remove(name, placed)
        for pod in self._pods.pop(name):
            self._cache.update_pod(pod.metadata.key, None)


def run_churn(case: ChurnCase, cluster: GpuCluster, seed: int) -> float:
    """Let gangs come and go; return the mean number of whole free nodes, or racks."""
    rng, used, number = random.Random(seed), 0, 0
    running: list[tuple[str, list[tuple[int, int]]]] = []
    counts = []
    for deletion in range(case.deletions):
        while used < case.share * case.nodes * GPUS_PER_NODE:
            (size,) = rng.choices(case.sizes, case.frequencies)
            gpus, number = [case.gpus] * size if case.gpus else [size], number + 1
            placed = cluster.place(f"gang-{number}", gpus)
            if placed is None:
                break
            running.append((f"gang-{number}", placed))
            used += sum(gpus)
        name, placed = running.pop(rng.randrange(len(running)))
        cluster.remove(name, placed)
        used -= sum(count for _, count in placed)
        if deletion > case.warm_up and deletion % case.interval == 0:
            counts.append(cluster.count_whole())
    return fmean(counts)


def _node(number: int) -> Node:
    allocatable: dict[str, str | int | float] = {
        "cpu": "96",
        "memory": "768Gi",
        "pods": "110",
        GPU: GPUS_PER_NODE,
    }
    labels = {RACK: f"rack-{number // NODES_PER_RACK:03}"}
    metadata = ObjectMeta(name=f"node-{number:03}", labels=labels)
    return Node(metadata=metadata, status=NodeStatus(allocatable=allocatable))


def _entity(name: str, gpus: Sequence[int], *, uses_racks: bool) -> Entity:
    pods = [_pod(name, number, count) for number, count in enumerate(gpus)]
    if not uses_racks:
        (pod,) = pods
        pod = structs.replace(pod, spec=structs.replace(pod.spec, scheduling_group=None))
        return Entity(pod_ref(pod.metadata.key), None, (Member(pod, shape_of(pod)),))
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=len(pods))),
        scheduling_constraints=SchedulingConstraints((TopologyConstraint(RACK),)),
    )
    group = PodGroup(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)
    return Entity(group_ref(group), group, tuple(Member(pod, shape_of(pod)) for pod in pods))


def _pod(gang: str, number: int, gpus: int) -> Pod:
    name = f"{gang}-{number}"
    requests: dict[str, str | int | float] = {
        "cpu": str(8 * gpus),
        "memory": f"{32 * gpus}Gi",
        GPU: gpus,
    }
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    spec = PodSpec(containers=(container,), scheduling_group=SchedulingGroup(pod_group_name=gang))
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=name), spec=spec)
