"""Small clusters of every kind, for property tests."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from phalanx.api.core import (
    Affinity,
    ContainerPort,
    Node,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PreferredNodeTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.builders import (
    NAMESPACE,
    alone,
    basic,
    cluster,
    entity,
    gang,
    key,
    node,
    pod,
    pod_like,
)
from tests.scheduler.oracle_cluster import OracleCluster

NODE_NAMES = [f"n{i}" for i in range(5)]
TAINTS = [
    Taint("dedicated", "train", "NoSchedule"),
    Taint("dedicated", "serve", "NoExecute"),
    Taint("slow", "", "PreferNoSchedule"),
]
TOLERATIONS = [
    Toleration("dedicated", "Equal", "train", "NoSchedule"),
    Toleration("dedicated", "Exists"),
    Toleration("", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/unschedulable", "Exists", "", "NoSchedule"),
]
LABELS = [
    {},
    {"disk": "ssd", "cores": "8"},
    {"disk": "hdd", "zone": "b", "cores": "16"},
    {"disk": "ssd", "zone": "a"},
    {"zone": "a", "topology.kubernetes.io/zone": "a"},
]
SELECTORS = [
    {},
    {},
    {"disk": "ssd"},
    {"disk": "ssd", "zone": "a"},
    {"zone": "nowhere"},
    {"kubernetes.io/hostname": "n1"},
]
REQUESTS: list[dict[str, str]] = [
    {},
    {"cpu": "500m"},
    {"cpu": "1", "memory": "1Gi"},
    {"cpu": "3", "memory": "512Mi"},
    {"memory": "3Gi"},
    {"cpu": "1", "example.com/gpu": "1"},
    {"example.com/fpga": "1"},
    {"cpu": "250m", "memory": "700Mi", "example.com/gpu": "1", "ephemeral-storage": "1G"},
]
CAPACITIES: list[dict[str, str]] = [
    {},
    {"cpu": "2", "memory": "4Gi"},
    {"cpu": "8", "pods": "2"},
    {"cpu": "0"},
    {"memory": "0", "example.com/gpu": "2"},
    {"cpu": "3500m", "memory": "5000M", "example.com/gpu": "1"},
    {"cpu": "7", "memory": "3Gi", "example.com/gpu": "4", "ephemeral-storage": "9G"},
]
IMAGES: list[dict[str, int]] = [{}, {}, {"web:latest": 300 << 20}, {"web:1": 900 << 20}]
POD_LABELS: list[dict[str, str]] = [{}, {"app": "web"}, {"app": "web", "tier": "a"}, {"app": "db"}]
PORTS = [ContainerPort(80, 80), ContainerPort(80, 80, "10.0.0.1"), ContainerPort(53, 53, "", "UDP")]
NEEDS = [
    NodeRequirement("disk", "In", ("ssd", "nvme")),
    NodeRequirement("zone", "NotIn", ("a",)),
    NodeRequirement("zone", "Exists"),
    NodeRequirement("disk", "DoesNotExist"),
    NodeRequirement("cores", "Gt", ("8",)),
    NodeRequirement("cores", "Lt", ("16",)),
]
NAMES = [
    NodeRequirement("metadata.name", "In", ("n1", "n2")),
    NodeRequirement("metadata.name", "In", ("n1",)),
]
KEYS = ["zone", "disk", "kubernetes.io/hostname"]
SELECTIONS: list[dict[str, object] | None] = [
    None,
    {},
    {"matchLabels": {"app": "web"}},
    {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]},
]

node_terms = st.builds(
    NodeTerm,
    st.lists(st.sampled_from(NEEDS), max_size=2).map(tuple),
    st.lists(st.sampled_from(NAMES), max_size=1).map(tuple),
)
node_affinities = st.builds(
    NodeAffinity,
    st.one_of(
        st.none(), st.builds(NodeSelector, st.lists(node_terms, min_size=1, max_size=2).map(tuple))
    ),
    st.lists(st.builds(PreferredNodeTerm, st.integers(1, 100), node_terms), max_size=2).map(tuple),
)
pod_terms = st.builds(
    PodAffinityTerm,
    st.sampled_from(KEYS),
    st.sampled_from(SELECTIONS),
    st.sampled_from([(), ("default",), ("other",)]),
    st.sampled_from([None, None, {}, {"matchLabels": {"team": "a"}}]),
    st.sampled_from([(), ("tier",)]),
)
pod_affinities = st.builds(
    PodAffinity,
    st.lists(pod_terms, max_size=2).map(tuple),
    st.lists(st.builds(WeightedPodAffinityTerm, st.integers(1, 100), pod_terms), max_size=2).map(
        tuple
    ),
)
affinities = st.builds(
    Affinity,
    st.one_of(st.none(), node_affinities),
    st.one_of(st.none(), pod_affinities),
    st.one_of(st.none(), pod_affinities),
)
spread_constraints = st.builds(
    TopologySpreadConstraint,
    st.sampled_from(KEYS),
    st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
    st.integers(1, 3),
    st.sampled_from(SELECTIONS),
    st.integers(1, 3),
    st.sampled_from(["Honor", "Ignore"]),
    st.sampled_from(["Honor", "Ignore"]),
    st.sampled_from([(), ("tier",)]),
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    hostname = draw(st.sampled_from([{}, {"kubernetes.io/hostname": name}]))
    return node(
        name,
        draw(st.sampled_from(LABELS)) | hostname,
        images=draw(st.sampled_from(IMAGES)),
        taints=tuple(draw(st.lists(st.sampled_from(TAINTS), max_size=2))),
        cordoned=draw(st.integers(0, 5)) == 0,
        allocatable=draw(st.sampled_from(CAPACITIES)),
    )


@st.composite
def pods(
    draw: st.DrawFn, name: str, group: str = "", on: str = "", *, constraints: bool = False
) -> Pod:
    """A pod of any kind; with `constraints` it may have peer constraints and be terminating."""
    node_affinity = node_affinities.map(Affinity)
    return pod(
        name,
        group,
        on=on,
        deleting=bool(on) and constraints and draw(st.integers(0, 4)) == 0,
        labels=draw(st.sampled_from(POD_LABELS)),
        affinity=draw(st.one_of(st.none(), affinities if constraints else node_affinity)),
        spreads=tuple(draw(st.lists(spread_constraints, max_size=2))) if constraints else (),
        ports=tuple(draw(st.lists(st.sampled_from(PORTS), max_size=1))),
        image=draw(st.sampled_from(["", "web", "web:1"])),
        selector=draw(st.sampled_from(SELECTORS)),
        tolerations=tuple(draw(st.lists(st.sampled_from(TOLERATIONS), max_size=2))),
        requests=draw(st.sampled_from(REQUESTS)),
    )


@dataclass(frozen=True)
class Situation:
    """A cluster and an entity to place on it."""

    nodes: list[Node]
    running: list[Pod]
    entity: Entity
    namespaces: dict[str, dict[str, str]]
    #: The selectors of the Services of the default namespace.
    services: list[dict[str, str]]

    def cache(self) -> SchedulerCache:
        cache = cluster(self.nodes, self.running)
        for name, labels in self.namespaces.items():
            cache.update_namespace(name, labels)
        for i, selector in enumerate(self.services):
            cache.update_service(key(f"s{i}"), selector)
        return cache

    def oracle_cluster(self) -> OracleCluster:
        found = oracle.build_cluster(self.nodes, self.running)
        found.namespaces = self.namespaces
        found.services = [(NAMESPACE, selector) for selector in self.services]
        return found


@st.composite
def situations(draw: st.DrawFn, *, constraints: bool = True) -> Situation:
    """Nodes with pods on them (also pods on unknown nodes), and an entity to place."""
    constraints = constraints and draw(st.booleans())
    names = draw(st.lists(st.sampled_from(NODE_NAMES), unique=True))
    running = [
        draw(
            pods(
                f"old{i}",
                draw(st.sampled_from(["", "g"])),
                draw(st.sampled_from(NODE_NAMES)),
                constraints=constraints,
            )
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    members = [
        draw(pods(f"new{i}", "g", constraints=constraints)) for i in range(draw(st.integers(1, 5)))
    ]
    # Equal members are what the fast path is for: repeat some.
    repeated = [
        pod_like(one, f"{one.metadata.name}-{i}", uid=f"{one.metadata.name}-{i}")
        for one in members
        for i in range(3)
    ]
    group = draw(st.one_of(st.just(basic("g")), st.integers(1, 12).map(lambda n: gang("g", n))))
    one = draw(
        st.sampled_from(
            [entity(group, repeated), alone(draw(pods("solo", constraints=constraints)))]
        )
    )
    namespaces = draw(st.sampled_from([{}, {"default": {"team": "a"}, "other": {}}]))
    services = draw(st.sampled_from([[], [], [{"app": "web"}], [{"app": "web"}, {"tier": "a"}]]))
    return Situation([draw(nodes(name)) for name in names], running, one, namespaces, services)
