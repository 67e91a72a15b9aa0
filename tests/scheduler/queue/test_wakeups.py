"""Whoever was refused is tried again the moment that something happens which lets it run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, Taint, Toleration
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Preempting
from phalanx.scheduler.queue.decision_log import NamespaceObserved, PodObserved, ServiceObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.builders import basic, composite, gang, key, node, pod
from tests.scheduler.queue.test_replay import SOLVER, Thing, observation_of
from tests.scheduler.strategies import NODE_NAMES, Situation, nodes, pods, situations

HOSTNAME = "kubernetes.io/hostname"
WEB = {"app": "web"}
NEAR_WEB = PodAffinityTerm(HOSTNAME, {"matchLabels": WEB})
APART = Affinity(pod_anti_affinity=PodAffinity((NEAR_WEB,)))


#: When all back-offs are over.
LATER = 1e6


class ImmediateScheduler:
    """A desk at which whoever can be tried is tried at once, without that any time passes."""

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
        desk = self.state
        while entity := desk.pop(now):
            snapshot = desk.cache.snapshot()
            decision = decide(entity, snapshot, desk.profiles.policy(entity), SOLVER)
            desk.commit(entity, decision, now)
            if isinstance(decision, Placed):
                self.placed |= {pod.name: on for pod, _, on in decision.bindings}
            elif isinstance(decision, Preempting):
                self.evicted += [victim.pod.name for victim in decision.victims]

    def delete_pod(self, name: str) -> None:
        self.state.observe(PodObserved(0.0, key(name), None))
        self.run()


def host(name: str, cpu: str = "4", **labels: str) -> Thing:
    return node(name, {HOSTNAME: name, **labels}, cpu=cpu)


def test_a_pod_whose_labels_a_resident_minds_is_tried_when_it_loses_them() -> None:
    story = ImmediateScheduler(
        host("a"), pod("loner", on="a", affinity=APART), pod("p", labels=WEB)
    )
    assert story.placed == {}
    story.observe(pod("p"))
    assert story.placed == {"p": "a"}


def test_a_namespace_that_comes_to_be_meant_wakes_who_must_be_near_its_pods() -> None:
    spaces = replace(NEAR_WEB, namespace_selector={"matchLabels": {"team": "x"}})
    near = Affinity(pod_affinity=PodAffinity((spaces,)))
    resident = pod("web", on="a", labels=WEB)
    there = replace(resident, metadata=replace(resident.metadata, namespace="other"))
    story = ImmediateScheduler(host("a"), there, pod("p", affinity=near))
    assert story.placed == {}
    story.state.observe(NamespaceObserved(0.0, "other", {"team": "x"}))
    story.run()
    assert story.placed == {"p": "a"}


def test_a_service_that_goes_wakes_who_had_to_be_spread_with_its_pods() -> None:
    even = {"topologyKey": HOSTNAME, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    found = parse_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{
            "name": "PodTopologySpread",
            "args": {"defaultingType": "List", "defaultConstraints": [even]},
        }]}],
    })  # fmt: skip
    assert isinstance(found, SchedulerConfiguration)
    story = ImmediateScheduler(profiles=found.profiles)
    story.state.observe(ServiceObserved(0.0, key("s"), WEB))
    story.observe(host("a"), host("b", cpu="0"), pod("web", on="a", labels=WEB))
    story.observe(pod("p", cpu="1", labels=WEB))
    assert story.placed == {}
    story.state.observe(ServiceObserved(0.0, key("s"), None))
    story.run()
    assert story.placed == {"p": "a"}


def test_a_wish_to_be_near_that_is_mended_wakes_the_group() -> None:
    group = gang("g", 1)
    wishing = replace(
        group, metadata=replace(group.metadata, annotations={TOPOLOGY_ANNOTATION: "a after"})
    )
    story = ImmediateScheduler(host("a"), wishing, pod("p", "g"))
    assert story.placed == {}
    story.observe(group)
    assert story.placed == {"p": "a"}


def anti_affine_and_bound_pods() -> list[Pod]:
    """Members that both fit only if the first, which avoids web, need not be where the other is."""
    return [
        pod("aloof", "g", cpu="2", affinity=APART),
        pod("bound", "g", cpu="2", selector={HOSTNAME: "a"}),
    ]


def test_a_member_that_could_sit_elsewhere_now_makes_room_for_another() -> None:
    story = ImmediateScheduler(host("a", cpu="2"), host("b"), pod("web", on="b", labels=WEB))
    story.observe(gang("g", 2), *anti_affine_and_bound_pods())
    assert story.placed == {}
    story.observe(pod("web", on="b"))
    assert story.placed == {"aloof": "b", "bound": "a"}


def test_a_group_of_a_tree_that_could_sit_elsewhere_now_makes_room_for_another() -> None:
    story = ImmediateScheduler(host("a", cpu="2"), host("b"), pod("web", on="b", labels=WEB))
    aloof, bound = (
        replace(one, spec=replace(one.spec, scheduling_group=pod("x", name).spec.scheduling_group))
        for one, name in zip(anti_affine_and_bound_pods(), ("g", "h"), strict=True)
    )
    story.observe(
        composite("t", 2), gang("g", 1, parent="t"), gang("h", 1, parent="t"), aloof, bound
    )
    assert story.placed == {}
    story.observe(pod("web", on="b"))
    assert story.placed == {"aloof": "b", "bound": "a"}


def test_members_may_be_elsewhere_once_the_one_that_was_there_is_gone() -> None:
    story = ImmediateScheduler(
        node("a", {"rack": "a"}), node("b", {"rack": "b"}), basic("g", topology="rack")
    )
    story.observe(pod("first", "g", on="a"), node("a", {"rack": "a"}, cordoned=True))
    story.observe(pod("second", "g"))
    assert story.placed == {}
    story.delete_pod("first")
    assert story.placed == {"second": "b"}


def test_a_node_that_gets_its_label_says_where_the_members_on_it_are() -> None:
    story = ImmediateScheduler(node("a"), node("b", {"rack": "r"}), basic("g", topology="rack"))
    story.observe(pod("first", "g", on="a"), pod("second", "g"))
    assert story.placed == {}
    story.observe(node("a", {"rack": "r"}))
    assert list(story.placed) == ["second"]


def test_what_was_kept_for_a_gang_that_went_elsewhere_is_given_to_others() -> None:
    taint, tolerates = Taint("x", "", "NoSchedule"), (Toleration("x", "Exists"),)
    story = ImmediateScheduler(host("a", cpu="2"), host("b", cpu="2"))
    story.observe(node("c", {HOSTNAME: "c"}, taints=(taint,), cpu="6"))
    low = {name: pod(f"low-{name}", on=name, cpu="2", priority=1) for name in "ab"}
    story.observe(*low.values(), gang("g", 2, priority=9))
    story.observe(*(pod(f"g-{n}", "g", cpu="2", priority=9) for n in range(2)))
    assert sorted(story.evicted) == ["low-a", "low-b"]
    story.delete_pod("low-a")
    story.observe(pod("late", cpu="2"))
    assert story.placed == {}
    only = {HOSTNAME: "c"}
    extra = pod("g-2", "g", cpu="1", priority=9, tolerations=tolerates, selector=only)
    moved = [pod(f"g-{n}", "g", cpu="2", priority=9, tolerations=tolerates) for n in range(2)]
    for one in (*moved, extra):
        story.state.observe(observation_of(0.0, one))
    story.run()
    assert story.placed == {"g-0": "c", "g-1": "c", "g-2": "c", "late": "a"}


@st.composite
def changes(draw: st.DrawFn, situation: Situation) -> Thing:
    """A node that comes or becomes another, or a pod that does, or has other labels."""
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
def test_whatever_happens_nobody_sleeps_who_could_run(
    situation: Situation, topology: str, data: st.DataObject
) -> None:
    quorum = situation.entity.quorum
    story = ImmediateScheduler(
        gang("g", quorum, topology=topology), *situation.nodes, *situation.running
    )
    for name, labels in situation.namespaces.items():
        story.state.observe(NamespaceObserved(0.0, name, labels))
    story.observe(*(member.pod for member in situation.entity.members))
    story.observe(data.draw(changes(situation)))
    awake = dict(story.placed)
    story.run(LATER)
    assert story.placed == awake
