"""Small clusters of every sort, for properties."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from phalanx.api.core import Node, Pod, Taint, Toleration
from phalanx.scheduler.entity import Entity
from tests.scheduler.builders import alone, basic, entity, gang, node, pod, pod_like

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
LABELS = [{}, {"disk": "ssd"}, {"disk": "hdd"}, {"disk": "ssd", "zone": "a"}]
SELECTORS = [{}, {}, {"disk": "ssd"}, {"disk": "ssd", "zone": "a"}, {"zone": "nowhere"}]
ASKS: list[dict[str, str]] = [
    {},
    {"cpu": "500m"},
    {"cpu": "1", "memory": "1Gi"},
    {"cpu": "3", "memory": "512Mi"},
    {"memory": "3Gi"},
    {"cpu": "1", "example.com/gpu": "1"},
    {"example.com/fpga": "1"},
]
ROOMS: list[dict[str, str]] = [
    {},
    {"cpu": "2", "memory": "4Gi"},
    {"cpu": "8", "pods": "2"},
    {"cpu": "0"},
    {"memory": "0", "example.com/gpu": "2"},
    {"cpu": "3500m", "memory": "5000M", "example.com/gpu": "1"},
]


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    return node(
        name,
        draw(st.sampled_from(LABELS)),
        taints=tuple(draw(st.lists(st.sampled_from(TAINTS), max_size=2))),
        cordoned=draw(st.integers(0, 5)) == 0,
        room=draw(st.sampled_from(ROOMS)),
    )


@st.composite
def pods(draw: st.DrawFn, name: str, group: str = "", on: str = "") -> Pod:
    return pod(
        name,
        group,
        on=on,
        selector=draw(st.sampled_from(SELECTORS)),
        tolerations=tuple(draw(st.lists(st.sampled_from(TOLERATIONS), max_size=2))),
        asks=draw(st.sampled_from(ASKS)),
    )


@dataclass(frozen=True)
class Situation:
    """A cluster and an entity to place on it."""

    nodes: list[Node]
    running: list[Pod]
    entity: Entity


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Nodes with pods on them (also pods on nodes that are not there), and somebody new."""
    names = draw(st.lists(st.sampled_from(NODE_NAMES), unique=True))
    running = [
        draw(pods(f"old{i}", draw(st.sampled_from(["", "g"])), draw(st.sampled_from(NODE_NAMES))))
        for i in range(draw(st.integers(0, 4)))
    ]
    members = [draw(pods(f"new{i}", "g")) for i in range(draw(st.integers(1, 5)))]
    # Equal members are what the fast path is for: repeat some.
    repeated = [
        pod_like(one, f"{one.metadata.name}-{i}", uid=f"{one.metadata.name}-{i}")
        for one in members
        for i in range(3)
    ]
    group = draw(st.one_of(st.just(basic("g")), st.integers(1, 12).map(lambda n: gang("g", n))))
    one = draw(st.sampled_from([entity(group, repeated), alone(draw(pods("solo")))]))
    return Situation([draw(nodes(name)) for name in names], running, one)
