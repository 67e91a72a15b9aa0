"""A refused entity is attempted again as soon as a change lets it fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, Taint, Toleration
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Preempting
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.decision_log import NamespaceObserved, PodObserved, ServiceObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.builders import basic, composite, gang, key, node, pod
from tests.scheduler.queue.test_replay import SOLVER, Thing, observation_of
from tests.scheduler.strategies import NODE_NAMES, Situation, nodes, pods, situations

HOSTNAME = "kubernetes.io/hostname"
WEB = {"app": "web"}
NEAR_WEB = PodAffinityTerm(HOSTNAME, {"matchLabels": WEB})
APART = Affinity(pod_anti_affinity=PodAffinity((NEAR_WEB,)))


#: A time after the end of all back-offs.
LATER = 1e6


class ImmediateScheduler:
    """A scheduler that attempts every active entity at once, without passing time."""

    def __init__(self, *things: Thing, profiles: Profiles = DEFAULT_PROFILES) -> None:
        self.state = SchedulerState(profiles)
        self.placed: dict[str, str] = {}
        self.evicted: list[str] = []
        self.observe(*things)

    def observe(self, *things: Thing) -> None:
        for thing in things:
            self.state.observe(observation_of(0.0, thing))
        self.run()

    def run(self, now: float = 0.0) -> None:
        state = self.state
        while entity := state.pop(now):
            snapshot = state.cache.snapshot()
            decision = decide(entity, snapshot, state.profiles.policy(entity), solver=SOLVER)
            state.commit(entity, decision, now)
            if isinstance(decision, Placed):
                self.placed |= {pod.name: on for pod, _, on in decision.bindings}
            elif isinstance(decision, Preempting):
                self.evicted += [victim.pod.name for victim in decision.victims]

    def delete_pod(self, name: str) -> None:
        self.state.observe(PodObserved(0.0, key(name), None))
        self.run()


def host(name: str, cpu: str = "4", **labels: str) -> Thing:
    return node(name, {HOSTNAME: name, **labels}, cpu=cpu)


def test_pod_wakes_when_it_loses_labels_that_existing_anti_affinity_matches() -> None:
    scheduler = ImmediateScheduler(
        host("a"), pod("loner", on="a", affinity=APART), pod("p", labels=WEB)
    )
    assert scheduler.placed == {}
    scheduler.observe(pod("p"))
    assert scheduler.placed == {"p": "a"}


def test_namespace_labels_wake_pods_with_matching_affinity() -> None:
    spaces = replace(NEAR_WEB, namespace_selector={"matchLabels": {"team": "x"}})
    near = Affinity(pod_affinity=PodAffinity((spaces,)))
    web_pod = pod("web", on="a", labels=WEB)
    there = replace(web_pod, metadata=replace(web_pod.metadata, namespace="other"))
    scheduler = ImmediateScheduler(host("a"), there, pod("p", affinity=near))
    assert scheduler.placed == {}
    scheduler.state.observe(NamespaceObserved(0.0, "other", {"team": "x"}))
    scheduler.run()
    assert scheduler.placed == {"p": "a"}


def test_deleted_service_wakes_pods_that_were_spread_by_default() -> None:
    even = {"topologyKey": HOSTNAME, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    found = parse_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{
            "name": "PodTopologySpread",
            "args": {"defaultingType": "List", "defaultConstraints": [even]},
        }]}],
    })  # fmt: skip
    assert isinstance(found, SchedulerConfiguration)
    scheduler = ImmediateScheduler(profiles=found.profiles)
    scheduler.state.observe(ServiceObserved(0.0, key("s"), WEB))
    scheduler.observe(host("a"), host("b", cpu="0"), pod("web", on="a", labels=WEB))
    scheduler.observe(pod("p", cpu="1", labels=WEB))
    assert scheduler.placed == {}
    scheduler.state.observe(ServiceObserved(0.0, key("s"), None))
    scheduler.run()
    assert scheduler.placed == {"p": "a"}


def test_corrected_topology_annotation_wakes_the_group() -> None:
    group = gang("g", 1)
    annotated = replace(
        group, metadata=replace(group.metadata, annotations={TOPOLOGY_ANNOTATION: "a after"})
    )
    scheduler = ImmediateScheduler(host("a"), annotated, pod("p", "g"))
    assert scheduler.placed == {}
    scheduler.observe(group)
    assert scheduler.placed == {"p": "a"}


def anti_affine_and_bound_pods() -> list[Pod]:
    """Members that fit only if the first, with anti-affinity to web, has another node."""
    return [
        pod("aloof", "g", cpu="2", affinity=APART),
        pod("bound", "g", cpu="2", selector={HOSTNAME: "a"}),
    ]


def test_changed_labels_wake_a_gang_whose_member_fits_elsewhere() -> None:
    scheduler = ImmediateScheduler(host("a", cpu="2"), host("b"), pod("web", on="b", labels=WEB))
    scheduler.observe(gang("g", 2), *anti_affine_and_bound_pods())
    assert scheduler.placed == {}
    scheduler.observe(pod("web", on="b"))
    assert scheduler.placed == {"aloof": "b", "bound": "a"}


def test_changed_labels_wake_a_tree_whose_group_fits_elsewhere() -> None:
    scheduler = ImmediateScheduler(host("a", cpu="2"), host("b"), pod("web", on="b", labels=WEB))
    aloof, bound = (
        replace(one, spec=replace(one.spec, scheduling_group=pod("x", name).spec.scheduling_group))
        for one, name in zip(anti_affine_and_bound_pods(), ("g", "h"), strict=True)
    )
    scheduler.observe(
        composite("t", 2), gang("g", 1, parent="t"), gang("h", 1, parent="t"), aloof, bound
    )
    assert scheduler.placed == {}
    scheduler.observe(pod("web", on="b"))
    assert scheduler.placed == {"aloof": "b", "bound": "a"}


def test_deleted_member_releases_the_topology_domain() -> None:
    scheduler = ImmediateScheduler(
        node("a", {"rack": "a"}), node("b", {"rack": "b"}), basic("g", topology="rack")
    )
    scheduler.observe(pod("first", "g", on="a"), node("a", {"rack": "a"}, cordoned=True))
    scheduler.observe(pod("second", "g"))
    assert scheduler.placed == {}
    scheduler.delete_pod("first")
    assert scheduler.placed == {"second": "b"}


def test_new_node_label_reveals_the_domain_of_members() -> None:
    scheduler = ImmediateScheduler(node("a"), node("b", {"rack": "r"}), basic("g", topology="rack"))
    scheduler.observe(pod("first", "g", on="a"), pod("second", "g"))
    assert scheduler.placed == {}
    scheduler.observe(node("a", {"rack": "r"}))
    assert list(scheduler.placed) == ["second"]


def test_nominated_nodes_are_released_if_the_gang_is_placed_elsewhere() -> None:
    taint, tolerates = Taint("x", "", "NoSchedule"), (Toleration("x", "Exists"),)
    scheduler = ImmediateScheduler(host("a", cpu="2"), host("b", cpu="2"))
    scheduler.observe(node("c", {HOSTNAME: "c"}, taints=(taint,), cpu="6"))
    low = {name: pod(f"low-{name}", on=name, cpu="2", priority=1) for name in "ab"}
    scheduler.observe(*low.values(), gang("g", 2, priority=9))
    scheduler.observe(*(pod(f"g-{n}", "g", cpu="2", priority=9) for n in range(2)))
    assert sorted(scheduler.evicted) == ["low-a", "low-b"]
    scheduler.delete_pod("low-a")
    scheduler.observe(pod("late", cpu="2"))
    assert scheduler.placed == {}
    only = {HOSTNAME: "c"}
    extra = pod("g-2", "g", cpu="1", priority=9, tolerations=tolerates, selector=only)
    moved = [pod(f"g-{n}", "g", cpu="2", priority=9, tolerations=tolerates) for n in range(2)]
    for one in (*moved, extra):
        scheduler.state.observe(observation_of(0.0, one))
    scheduler.run()
    assert scheduler.placed == {"g-0": "c", "g-1": "c", "g-2": "c", "late": "a"}


@st.composite
def changes(draw: st.DrawFn, situation: Situation) -> Thing:
    """A new or changed node, or a new or changed pod."""
    sort = draw(st.sampled_from(["node", "pod", "labels"]))
    if sort == "node":
        return draw(nodes(draw(st.sampled_from(NODE_NAMES))))
    everybody = [*situation.running, *(member.pod for member in situation.entity.members)]
    old = draw(st.sampled_from(everybody))
    group = old.group.name if old.group else ""
    new = draw(pods(old.metadata.name, group, old.spec.node_name, constraints=True))
    kept = new if sort == "pod" else old
    labels = new.metadata.labels
    return replace(kept, metadata=replace(kept.metadata, uid=old.metadata.uid, labels=labels))


@given(situations(), st.sampled_from(["", "zone"]), st.data())
def test_no_entity_that_fits_keeps_waiting_after_any_change(
    situation: Situation, topology: str, data: st.DataObject
) -> None:
    quorum = situation.entity.quorum
    scheduler = ImmediateScheduler(
        gang("g", quorum, topology=topology), *situation.nodes, *situation.running
    )
    for name, labels in situation.namespaces.items():
        scheduler.state.observe(NamespaceObserved(0.0, name, labels))
    scheduler.observe(*(member.pod for member in situation.entity.members))
    scheduler.observe(data.draw(changes(situation)))
    awake = dict(scheduler.placed)
    scheduler.run(LATER)
    assert scheduler.placed == awake
