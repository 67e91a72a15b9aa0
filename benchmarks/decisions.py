"""Decisions alone: the time that the pure core needs to place gangs, without a server.

Measures `decide` and updating the snapshot on a new cluster; creating pods and nodes is not
measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import (
    Affinity,
    Container,
    Node,
    NodeStatus,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodResourceClaim,
    PodSpec,
    ResourceRequirements,
    SchedulingGroup,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from phalanx.api.dynamic_resources import (
    CelSelector,
    Device,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceRequests,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.scheduling import GangPolicy, PodGroup, PodGroupSpec, SchedulingPolicy
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME, ZONE
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity, Member
from phalanx.scheduler.policy import DEFAULT_POLICY

NODE_CAPACITY: dict[str, str | int | float] = {"cpu": "4", "memory": "32Gi", "pods": "110"}
ZONES = 50
DRIVER = "gpu.example.com"
LABELS = {"app": "gang"}
SELECTOR = {"matchLabels": LABELS}
REPEATS = 5


@dataclass(frozen=True, slots=True)
class GangConstraints:
    """Constraints between the pods of a gang."""

    name: str
    spreads: tuple[TopologySpreadConstraint, ...] = ()
    affinity: Affinity | None = None


def _spread(key: str, how: str) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(key, how, label_selector=SELECTOR)


_ANTI_AFFINITY = PodAffinityTerm(HOSTNAME, SELECTOR)
_ZONE_AFFINITY = WeightedPodAffinityTerm(10, PodAffinityTerm(ZONE, SELECTOR))

UNCONSTRAINED = GangConstraints("")
SPREAD = GangConstraints(", spread over zones", (_spread(ZONE, "DoNotSchedule"),))
SOFT_SPREAD = GangConstraints(
    ", soft spread", (_spread(ZONE, "ScheduleAnyway"), _spread(HOSTNAME, "ScheduleAnyway"))
)
ONE_PER_NODE = GangConstraints(
    ", one per node", affinity=Affinity(None, None, PodAffinity((_ANTI_AFFINITY,)))
)
SOFT_AFFINITY = GangConstraints(
    ", soft affinity", affinity=Affinity(None, PodAffinity((), (_ZONE_AFFINITY,)))
)


@dataclass(frozen=True, slots=True)
class PlacementCase:
    """A number of gangs on a number of nodes; `shapes` is the number of different pods per gang."""

    nodes: int
    gangs: int
    size: int
    target_ms: float | None
    shapes: int = 1
    constraints: GangConstraints = UNCONSTRAINED
    #: Devices of each node; every pod has a claim for one.
    devices: int = 0

    @property
    def name(self) -> str:
        """The title of the result."""
        shapes = f" of {self.shapes} shapes" if self.shapes > 1 else ""
        devices = f", a device each of {self.devices} per node" if self.devices else ""
        sort = f"{shapes}{self.constraints.name}{devices}"
        return f"decide {self.gangs:,} x {self.size:,}{sort}, {self.nodes:,} nodes"

    def quick(self) -> PlacementCase:
        """Return the case with a tenth of the nodes, without a target."""
        return replace(self, nodes=self.nodes // 10, target_ms=None)


PLACEMENT_CASES = (
    PlacementCase(5_000, 1, 1_000, 8),
    PlacementCase(50_000, 1, 1_000, 30),
    PlacementCase(5_000, 1, 1_000, 60, shapes=20),
    PlacementCase(5_000, 1_000, 3, 50),
    *(
        PlacementCase(5_000, 1, 1_000, 200, constraints=constraints)
        for constraints in (SPREAD, SOFT_SPREAD, ONE_PER_NODE, SOFT_AFFINITY)
    ),
)


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure the pure core."""
    for case in PLACEMENT_CASES:
        chosen = case.quick() if setting.is_quick else case
        runs = sorted(_run(chosen) * 1000 for _ in range(REPEATS))
        beside = {"runs": REPEATS, "slowest ms": runs[-1]}
        yield Result(chosen.name, runs[0], "ms", chosen.target_ms, beside=beside)


def measure_milliseconds(case: PlacementCase) -> float:
    """Return the milliseconds of the fastest run: other load only ever makes a run slower."""
    return min(_run(case) for _ in range(REPEATS)) * 1000


def create_cluster(case: PlacementCase) -> tuple[SchedulerCache, list[Entity]]:
    """Return an empty cluster and the gangs to place on it."""
    cache = SchedulerCache()
    for number in range(case.nodes):
        node = create_node(number)
        cache.update_node(node.metadata.name, node)
        if case.devices:
            _publish_devices(cache, node.metadata.name, case.devices)
    gangs = [_gang(cache, number, case) for number in range(case.gangs)]
    snapshot = cache.snapshot()
    if case.devices:
        # The devices of the cluster are counted once, not with every decision.
        decide(gangs[0], snapshot, DEFAULT_POLICY)
    return cache, gangs


def _run(case: PlacementCase) -> float:
    """Measure one run on a new cluster by the wall clock.

    The process clock costs a system call, a tenth of the decision about a gang of three.
    """
    cache, gangs = create_cluster(case)
    seconds = 0.0
    with frozen_gc():
        for gang in gangs:
            begin = time.perf_counter()
            decision = decide(gang, cache.snapshot(), DEFAULT_POLICY)
            seconds += time.perf_counter() - begin
            assert isinstance(decision, Placed), decision
            cache.assume(decision.bindings)
    return seconds


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Exclude existing objects from garbage collection, as a control plane does."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def create_node(number: int, prefix: str = "node") -> Node:
    """Create one of the nodes of a cluster."""
    ready = Condition(type="Ready", status="True")
    status = NodeStatus(allocatable=NODE_CAPACITY, conditions=(ready,))
    name = f"{prefix}-{number:06}"
    labels = {HOSTNAME: name, ZONE: f"zone-{number % ZONES}"}
    return Node(metadata=ObjectMeta(name=name, labels=labels), status=status)


def _publish_devices(cache: SchedulerCache, node: str, count: int) -> None:
    published = ResourceSlice(
        ObjectMeta(name=node),
        ResourceSliceSpec(
            driver=DRIVER,
            pool=ResourcePool(node, 1, 1),
            devices=tuple(Device(name=f"gpu-{number}") for number in range(count)),
            node_name=node,
        ),
    )
    selector = DeviceSelector(CelSelector(f'device.driver == "{DRIVER}"'))
    of_driver = DeviceClass(ObjectMeta(name="gpu"), DeviceClassSpec(selectors=(selector,)))
    cache.devices.update_object(ResourceSlice, node, published)
    cache.devices.update_object(DeviceClass, "gpu", of_driver)


def _claim(pod: Pod) -> DeviceClaim:
    request = DeviceRequest("gpu", ExactDeviceRequest(device_class_name="gpu"))
    return DeviceClaim(
        ObjectMeta(name=pod.metadata.name, namespace="default", uid=f"claim-{pod.metadata.uid}"),
        ResourceClaimSpec(DeviceRequests((request,))),
    )


def _gang(cache: SchedulerCache, number: int, case: PlacementCase) -> Entity:
    name = f"gang-{number}"
    policy = SchedulingPolicy(gang=GangPolicy(min_count=case.size))
    group = PodGroup(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=PodGroupSpec(scheduling_policy=policy),
    )
    pods = [_pod(name, n, case) for n in range(case.size)]
    cache.update_group(group_ref(group), group)
    for pod in pods:
        cache.update_pod(pod.metadata.key, pod)
        if case.devices:
            cache.devices.update_claim(pod.metadata.key, _claim(pod))
    members = tuple(Member(pod, shape_of(pod)) for pod in pods)
    return Entity(group_ref(group), group, members)


def _pod(gang: str, number: int, case: PlacementCase) -> Pod:
    name, constraints = f"{gang}-{number}", case.constraints
    needs = ResourceRequirements(
        requests={"cpu": f"{100 + number % case.shapes}m", "memory": "100Mi"}
    )
    spec = PodSpec(
        containers=(Container(name="main", image="pause", resources=needs),),
        scheduling_group=SchedulingGroup(pod_group_name=gang),
        topology_spread_constraints=constraints.spreads,
        affinity=constraints.affinity,
        resource_claims=(PodResourceClaim("gpu", name),) if case.devices else (),
    )
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, labels=LABELS), spec=spec
    )
