"""The queue attempts an entity only after a change that may cure its refusal, and misses none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cycle import decide, run_cycle, run_steps
from phalanx.scheduler.decision import Decision, Placed, Preempting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue import scheduler_state
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState, load_state
from phalanx.scheduler.search.solver import Steps
from tests.scheduler.builders import basic, gang, key, node, pod, pod_like
from tests.scheduler.queue.test_replay import SOLVER
from tests.scheduler.strategies import LABELS, NODE_NAMES, POD_LABELS, nodes, pods

MAX_ATTEMPTS = 200


class QuietCluster:
    """A scheduler that attempts every active entity at once; binds and evictions always succeed."""

    def __init__(self) -> None:
        self.state = SchedulerState(DEFAULT_PROFILES)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[str, PodGroup] = {}
        self.now = 0.0
        #: The names of the entities in the order of their attempts.
        self.attempts: list[str] = []

    def set_node(self, one: Node) -> list[str]:
        self.nodes[one.metadata.name] = one
        self.state.observe(NodeObserved(self.now, one.metadata.name, one))
        return self.run()

    def remove_node(self, name: str) -> list[str]:
        self.nodes.pop(name)
        self.state.observe(NodeObserved(self.now, name, None))
        return self.run()

    def set_group(self, one: PodGroup) -> list[str]:
        self.groups[one.metadata.name] = one
        self.state.observe(PodGroupObserved(self.now, one.metadata.key, one))
        return self.run()

    def set_pods(self, *several: Pod) -> list[str]:
        for one in several:
            self.pods[one.metadata.name] = one
            self.state.observe(PodObserved(self.now, one.metadata.key, one))
        return self.run()

    def remove_pod(self, name: str) -> list[str]:
        self.pods.pop(name)
        self.state.observe(PodObserved(self.now, key(name), None))
        return self.run()

    def create_gang(self, name: str, size: int, priority: int = 0, *, cpu: str) -> list[str]:
        self.set_group(gang(name, size, priority=priority))
        members = (f"{name}-{n}" for n in range(size))
        return self.set_pods(*(pod(m, name, priority=priority, cpu=cpu) for m in members))

    def run(self) -> list[str]:
        """Attempt entities until none is active; return their names."""
        begin = len(self.attempts)
        while entity := self.state.pop(self.now):
            self.attempts.append(entity.key.name)
            assert len(self.attempts) - begin < MAX_ATTEMPTS
            policy = self.state.profiles.policy(entity)
            decision = run_steps(self.state.cycle(entity), SOLVER)
            # An answer to an equal entity is the one that a cycle gives.
            assert decision == decide(entity, self.state.cache.snapshot(), policy, solver=SOLVER)
            self.state.commit(entity, decision, self.now)
            self._carry_out(decision)
        return self.attempts[begin:]

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Placed):
            for bound, _, on in decision.bindings:
                one = self.pods[bound.name] = pod_like(self.pods[bound.name], bound.name, on=on)
                self.state.observe(PodObserved(self.now, bound, one))
        elif isinstance(decision, Preempting):
            for victim in decision.victims:
                del self.pods[victim.pod.name]
                self.state.observe(PodObserved(self.now, victim.pod, None))

    def placeable(self) -> Iterator[str]:
        """Attempt every waiting entity on a scheduler that has just started."""
        objects = ClusterObjects(
            list(self.nodes.values()), list(self.groups.values()), list(self.pods.values())
        )
        fresh = load_state(objects)
        while entity := fresh.pop(self.now):
            policy = fresh.profiles.policy(entity)
            decision = decide(entity, fresh.cache.snapshot(), policy, solver=SOLVER)
            if isinstance(decision, Placed | Preempting):
                yield f"{entity.key.name}: {decision}"


# ---- which changes wake --------------------------------------------------------------------------


@pytest.fixture
def full() -> QuietCluster:
    """Ten nodes of 4 CPU full of pods of 1 CPU, and twenty equal gangs that wait for two nodes."""
    cluster = QuietCluster()
    for n in range(10):
        cluster.set_node(node(f"n{n}", {"rack": f"r{n % 2}"}))
        cluster.set_pods(*(pod(f"run-{n}-{i}", on=f"n{n}", cpu="1") for i in range(4)))
    for n in range(20):
        assert cluster.create_gang(f"gang-{n:02}", 2, cpu="4") == [f"gang-{n:02}"]
    return cluster


def test_pod_that_frees_too_little_wakes_no_entity(full: QuietCluster) -> None:
    for i in range(3):
        assert full.remove_pod(f"run-0-{i}") == []


def test_freed_node_wakes_the_first_gang_when_enough_nodes_are_free(full: QuietCluster) -> None:
    assert [full.remove_pod(f"run-0-{i}") for i in range(4)] == [[]] * 4
    assert [full.remove_pod(f"run-1-{i}") for i in range(3)] == [[]] * 3
    assert full.remove_pod("run-1-3") == ["gang-00", "gang-01"]
    assert full.pods["gang-00-0"].spec.node_name
    assert not full.pods["gang-01-0"].spec.node_name


def test_equal_gangs_keep_their_order(full: QuietCluster) -> None:
    placed = []
    for n in range(10):
        placed += [name for i in range(4) for name in full.remove_pod(f"run-{n}-{i}")]
    assert placed == [
        name for n in range(5) for name in (f"gang-{n:02}", f"gang-{n + 1:02}")
    ]  # the second one asks whether there is room for another gang


def test_image_heartbeat_label_and_cordon_wake_no_entity(full: QuietCluster) -> None:
    for changed in (
        node("n0", {"rack": "r0"}, images={"busybox:1": 1000}),
        node("n0", {"rack": "r0"}, images={"busybox:1": 1000}),
        node("n0", {"rack": "r0", "unrelated": "value"}),
        node("n0", {"rack": "r1"}),
        node("n0", {"rack": "r0"}, cordoned=True),
        node("n0", {"rack": "r0"}),
    ):
        assert full.set_node(changed) == []


def test_pod_that_requests_nothing_wakes_no_entity(full: QuietCluster) -> None:
    assert full.set_pods(pod("tiny", on="n0")) == []
    assert full.set_pods(pod("tiny", on="n0", labels={"a": "b"})) == []
    assert full.remove_pod("tiny") == []


def test_lower_priority_pod_that_ends_wakes_no_preemptor() -> None:
    cluster = QuietCluster()
    cluster.set_node(node("n0"))
    cluster.set_pods(pod("low", on="n0", cpu="1"), pod("high", on="n0", cpu="3", priority=9))
    assert cluster.create_gang("g", 1, priority=5, cpu="4") == ["g"]
    assert cluster.remove_pod("low") == []
    assert cluster.remove_pod("high") == ["g"]


def test_label_and_taint_wake_only_entities_that_they_let_in(full: QuietCluster) -> None:
    assert full.set_pods(pod("picky", selector={"disk": "ssd"}, cpu="1")) == ["picky"]
    assert full.set_node(node("n0", {"rack": "r0", "disk": "ssd"})) == []
    assert full.set_node(node("extra", {"disk": "hdd"}, cpu="2")) == []
    assert full.set_node(node("extra", {"disk": "ssd"}, cpu="2")) == ["picky"]


def test_gang_of_another_shape_is_attempted_beside_the_waiting_ones(full: QuietCluster) -> None:
    assert full.remove_pod("run-0-0") == []
    assert full.create_gang("small", 1, cpu="1") == ["small"]
    assert full.pods["small-0"].spec.node_name == "n0"


def test_more_important_gang_is_attempted_first(full: QuietCluster) -> None:
    full.set_pods(*(replace(one, spec=replace(one.spec, priority=9)) for one in running(full)))
    assert full.create_gang("urgent", 2, priority=5, cpu="4") == ["urgent"]
    woken = [name for n in (0, 1) for i in range(4) for name in full.remove_pod(f"run-{n}-{i}")]
    assert woken == ["urgent", "gang-00"]
    assert full.pods["urgent-0"].spec.node_name


def running(cluster: QuietCluster) -> list[Pod]:
    return [one for one in cluster.pods.values() if one.spec.node_name]


def test_next_equal_gang_is_attempted_when_the_first_is_deleted(full: QuietCluster) -> None:
    for i in range(4):
        full.remove_pod(f"run-0-{i}")
    for i in range(3):
        full.remove_pod(f"run-1-{i}")
    full.state.observe(PodObserved(0.0, key("run-1-3"), None))
    for member in ("gang-00-0", "gang-00-1"):
        full.state.observe(PodObserved(0.0, key(member), None))
    assert full.run() == ["gang-01", "gang-02"]


def test_time_alone_attempts_no_entity_again(full: QuietCluster) -> None:
    for seconds in range(600):
        full.now = float(seconds)
        assert full.run() == []


def test_irrelevant_change_repeats_one_attempt_at_most_once_per_backoff(
    full: QuietCluster,
) -> None:
    attempts: list[str] = []
    for seconds in range(1, 121):
        full.now = float(seconds)
        attempts += full.set_node(node("n0", {"rack": "r0", "beat": str(seconds)}))
    # One of twenty equal gangs, each time after twice the time, up to 10 s times the root of 2.
    assert set(attempts) == {"gang-00"}
    assert len(attempts) <= 12


# ---- one attempt of equal gangs per version of the cluster ---------------------------------------


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the entities for which a cycle ran."""
    names: list[str] = []

    def counting_cycle(entity: Entity, *args: Any, **options: Any) -> Steps[Decision]:
        names.append(entity.key.name)
        return run_cycle(entity, *args, **options)

    monkeypatch.setattr(scheduler_state, "run_cycle", counting_cycle)
    return names


def test_equal_gangs_are_answered_by_one_cycle(cycles: list[str]) -> None:
    cluster = QuietCluster()
    cluster.set_node(node("n0"))
    for n in range(20):
        cluster.create_gang(f"gang-{n}", 2, cpu="4")
    assert cycles == ["gang-0"]
    cluster.create_gang("other-size", 3, cpu="4")
    cluster.create_gang("other-shape", 2, cpu="3")
    cluster.create_gang("other-priority", 2, priority=5, cpu="4")
    assert cycles[1:] == ["other-size", "other-shape", "other-priority"]
    assert {info.outcome.group for info in cluster.state.queue.list_entities() if info.outcome} == {
        info.key for info in cluster.state.queue.list_entities()
    }


def test_change_of_the_cluster_ends_the_answer(cycles: list[str]) -> None:
    cluster = QuietCluster()
    cluster.set_node(node("n0"))
    cluster.create_gang("a", 2, cpu="4")
    cluster.set_pods(pod("running", on="n0", cpu="1"))
    cluster.create_gang("b", 2, cpu="4")
    cluster.set_node(node("n0", {"new": "label"}))
    cluster.create_gang("c", 2, cpu="4")
    assert cycles == ["a", "b", "c"]


def test_gang_that_running_pods_keep_away_is_attempted_itself(cycles: list[str]) -> None:
    term = PodAffinityTerm("host", {"matchLabels": {"app": "web"}})
    apart = Affinity(pod_anti_affinity=PodAffinity((term,)))
    cluster = QuietCluster()
    cluster.set_node(node("n0", {"host": "n0"}))
    cluster.set_pods(pod("loner", on="n0", affinity=apart))
    for name, labels in (("a", {"app": "web"}), ("b", {"app": "web"}), ("c", {}), ("d", {})):
        cluster.set_pods(pod(name, labels=labels, cpu="8"))
    assert cycles == ["a", "b", "c"]
    cluster.set_node(node("n1", {"host": "n1"}, cpu="8"))
    assert cluster.pods["a"].spec.node_name == "n1"
    assert cluster.remove_pod("loner") == ["b"]


# ---- no wake-up is missed ------------------------------------------------------------------------


@st.composite
def pending_entities(
    draw: st.DrawFn, name: str, *, constraints: bool
) -> tuple[PodGroup | None, list[Pod]]:
    """A gang, a basic group or a single pod; members are mostly equal."""
    priority = draw(st.sampled_from([0, 0, 5]))
    size = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(["gang", "gang", "basic", "pod"]))
    topology = draw(st.sampled_from(["", "", "zone"]))
    group = None
    if kind == "gang":
        group = gang(name, draw(st.integers(1, size)), priority=priority, topology=topology)
    elif kind == "basic":
        group = basic(name, priority=priority, topology=topology)
    joined = name if group else ""
    first = draw(pods(f"{name}-0", joined, constraints=constraints))
    members = [first]
    for n in range(1, size if group else 1):
        other = draw(st.sampled_from([True, True, False]))
        members.append(
            pod_like(first, f"{name}-{n}", uid=f"uid-{name}-{n}")
            if other
            else draw(pods(f"{name}-{n}", joined, constraints=constraints))
        )
    return group, [replace(one, spec=replace(one.spec, priority=priority)) for one in members]


def change_randomly(data: st.DataObject, cluster: QuietCluster, *, constraints: bool) -> None:
    """Change one thing: a node, or a pod that has a node."""
    bound = sorted(name for name, one in cluster.pods.items() if one.spec.node_name)
    kinds = ["node", "label", "uncordon", *["remove"] * (len(cluster.nodes) > 1)]
    kinds += ["gone", "gone", "gone", "relabel", "leaving"] * bool(bound)
    kind = data.draw(st.sampled_from(kinds))
    if kind == "node":
        cluster.set_node(data.draw(nodes(data.draw(st.sampled_from(NODE_NAMES)))))
    elif kind == "remove":
        cluster.remove_node(data.draw(st.sampled_from(sorted(cluster.nodes))))
    elif kind in ("label", "uncordon"):
        one = cluster.nodes[data.draw(st.sampled_from(sorted(cluster.nodes)))]
        labels = data.draw(st.sampled_from(LABELS)) if kind == "label" else one.metadata.labels
        spec = replace(one.spec, unschedulable=False, taints=()) if kind == "uncordon" else one.spec
        cluster.set_node(replace(one, metadata=replace(one.metadata, labels=labels), spec=spec))
    elif kind == "gone":
        cluster.remove_pod(data.draw(st.sampled_from(bound)))
    else:
        old = cluster.pods[data.draw(st.sampled_from(bound))]
        meta = replace(old.metadata, labels=data.draw(st.sampled_from(POD_LABELS)))
        if kind == "leaving":
            meta = replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
        cluster.set_pods(replace(old, metadata=meta))


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("constraints", [False, True])
@settings(max_examples=60)
@given(data=st.data())
def test_no_waiting_entity_can_be_placed_after_any_sequence_of_changes(
    constraints: bool, data: st.DataObject
) -> None:
    cluster = QuietCluster()
    for name in NODE_NAMES[: data.draw(st.integers(1, 3))]:
        cluster.set_node(data.draw(nodes(name)))
        for i in range(data.draw(st.integers(0, 3))):
            one = data.draw(pods(f"run-{name}-{i}", on=name, constraints=constraints))
            priority = data.draw(st.sampled_from([0, 5, 9]))
            cluster.set_pods(replace(one, spec=replace(one.spec, priority=priority)))
    for name in ("a", "b", "c"):
        group, members = data.draw(pending_entities(name, constraints=constraints))
        if group is not None:
            cluster.set_group(group)
        cluster.set_pods(*members)
        # A second entity that differs in its name only is decided alike.
        copy = pod_like(members[0], f"{name}-copy", uid=f"uid-{name}-copy")
        cluster.set_pods(replace(copy, spec=replace(copy.spec, scheduling_group=None)))
    for _ in range(data.draw(st.integers(1, 6))):
        change_randomly(data, cluster, constraints=constraints)
        assert not list(cluster.placeable())
