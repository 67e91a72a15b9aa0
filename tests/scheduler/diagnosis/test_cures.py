"""Cures: each kind by example, and against all possible changes of small clusters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from msgspec.structs import replace as but

from phalanx.api.core import (
    Affinity,
    Node,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    Taint,
    Toleration,
)
from phalanx.api.meta import OwnerReference
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION, CompositePodGroup
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.diagnosis.cures import MAX_DECISIONS, VerifiedCures, find_cures
from phalanx.scheduler.diagnosis.experiment import (
    ClusterChange,
    Experiment,
    KnownCluster,
    find_smallest,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import CureKind
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler import cure_changes as changes
from tests.scheduler.builders import alone, cluster, composite, entity, gang, node, pod, tree
from tests.scheduler.placement_instances import (
    FAMILIES,
    PlacementInstance,
    build_instance,
    build_plain_instance,
)

SOLVER = HighsSolver()
#: Enough for everything that a small instance can ask.
ALL_SOLVER_CALLS = 10_000
SEEDS, MANY = 6, 300
#: Up to how many more nodes everything is tried.
MAX_NODES_TRIED = 2


def experiment(
    one: Entity, nodes: Iterable[Node], running: Iterable[Pod] = (), groups: Iterable[Group] = ()
) -> Experiment:
    """An experiment with a refused entity."""
    known = {n.metadata.name: n for n in nodes}, {p.metadata.key: p for p in running}
    cache = cluster(known[0].values(), known[1].values())
    for group in groups:
        cache.update_group(group_ref(group), group)
    decision = decide(one, cache.snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Waiting)
    return Experiment(
        one,
        decision,
        KnownCluster(cache, *known),
        policy=DEFAULT_POLICY,
        solver=SOLVER,
        solver_calls=ALL_SOLVER_CALLS,
    )


def texts(found: VerifiedCures, sort: CureKind) -> list[str]:
    return [one.text for one in found.found if one.kind is sort]


def cures_for(
    one: Entity, nodes: Iterable[Node], running: Iterable[Pod] = (), groups: Iterable[Group] = (),
) -> VerifiedCures:  # fmt: skip
    return find_cures(experiment(one, nodes, running, groups))


def members(count: int, group: str = "g", *, cpu: str = "1") -> list[Pod]:
    return [pod(f"{group}-{i}", group, cpu=cpu) for i in range(count)]


def racks(*cpus: str) -> list[Node]:
    """A node in each of some racks, two racks to a block."""
    return [
        node(f"n{i}", {"rack": f"r{i}", "block": f"b{i // 2}", "os": "linux"}, cpu=cpu)
        for i, cpu in enumerate(cpus)
    ]


@pytest.mark.parametrize("least", range(1, 12))
@pytest.mark.parametrize("guess", [1, 3, 8, 20])
def test_smallest_number_is_found_from_any_guess(least: int, guess: int) -> None:
    assert find_smallest(lambda n: n >= least, guess, 11) == least


def test_no_number_is_returned_if_none_works() -> None:
    assert find_smallest(lambda n: False, 3, 9) is None
    assert find_smallest(lambda n: True, 1, 0) is None


def test_good_guess_is_confirmed_by_two_calls() -> None:
    asked: list[int] = []

    def works(number: int) -> bool:
        asked.append(number)
        return number >= 500

    assert find_smallest(works, 500, 1_000) == 500
    assert asked == [500, 499]


def test_lower_min_count_is_suggested() -> None:
    found = cures_for(entity(gang("g", 5), members(5)), [node("a", cpu="3")])
    assert texts(found, CureKind.SMALLER) == ["lower minCount from 5 to 3"]


def test_min_count_below_one_is_never_suggested() -> None:
    found = cures_for(entity(gang("g", 2), members(2, cpu="9")), [node("a", cpu="3")])
    assert texts(found, CureKind.SMALLER) == []


def test_tree_may_need_fewer_groups_or_fewer_members_of_one_group() -> None:
    groups = [gang(name, 3, parent="t") for name in ("x", "y")]
    parts = [entity(group, members(3, group.metadata.name)) for group in groups]
    found = cures_for(tree(composite("t", 2), *parts), [node("a", cpu="4")])
    assert texts(found, CureKind.SMALLER) == [
        "lower minGroupCount from 2 to 1",
        "lower minCount of PodGroup x from 3 to 1",
        "lower minCount of PodGroup y from 3 to 1",
    ]


def test_nodes_of_each_shape_are_suggested_fewest_first() -> None:
    nodes = [node("a", cpu="2"), node("b", {"zone": "far"}, cpu="2"), node("c", cpu="6")]
    busy = [pod("r0", on="a", cpu="2"), pod("r1", on="b", cpu="2"), pod("r2", on="c", cpu="6")]
    found = cures_for(entity(gang("g", 6), members(6, cpu="2")), nodes, busy)
    assert texts(found, CureKind.NODES) == [
        "add 2 nodes like c (cpu 6, memory 8Gi)",
        "add 6 nodes like a (cpu 2, memory 8Gi)",
    ]


def test_new_nodes_are_schedulable_and_ready() -> None:
    sick = Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
    found = cures_for(alone(pod("p", cpu="1")), [node("a", cordoned=True, taints=(sick,))])
    assert texts(found, CureKind.NODES) == ["add 1 node like a (cpu 4, memory 8Gi)"]
    assert texts(found, CureKind.LOOSER) == []


def test_new_nodes_with_untolerated_taints_are_not_suggested() -> None:
    ours = Taint("ours", "", "NoSchedule")
    found = cures_for(alone(pod("p", cpu="1")), [node("a", taints=(ours,))])
    assert texts(found, CureKind.NODES) == []
    assert texts(found, CureKind.LOOSER) == ["let its pods tolerate ours:NoSchedule"]


def test_new_nodes_are_suggested_for_the_domain_with_most_capacity() -> None:
    found = cures_for(
        entity(gang("g", 4, topology="rack"), members(4, cpu="2")), racks("2", "6", "2")
    )
    assert texts(found, CureKind.NODES)[0] == "add 1 node like n1 in rack r1 (cpu 6, memory 8Gi)"


def test_next_wider_topology_that_helps_is_suggested() -> None:
    one = entity(gang("g", 4, topology="rack"), members(4, cpu="2"))
    found = cures_for(one, racks("4", "4", "4", "4"))
    assert texts(found, CureKind.WIDER) == ["widen the topology from rack to block"]
    one = entity(gang("g", 6, topology="rack"), members(6, cpu="2"))
    found = cures_for(one, racks("4", "4", "4", "4"))
    assert texts(found, CureKind.WIDER) == ["let the members be anywhere, not in one rack"]


def test_gang_with_topology_annotation_may_only_have_to_wait() -> None:
    annotations = {TOPOLOGY_ANNOTATION: "rack, block after 30s, * after 5m"}
    group = gang("g", 4)
    patient = but(group, metadata=but(group.metadata, annotations=annotations))
    found = cures_for(entity(patient, members(4, cpu="2")), racks("4", "4", "4", "4"))
    assert texts(found, CureKind.WIDER) == [
        "wait until 30 s have passed since it was complete: then one block will do"
    ]


def test_wider_last_level_of_topology_annotation_is_suggested() -> None:
    group = gang("g", 4)
    strict = but(group, metadata=but(group.metadata, annotations={TOPOLOGY_ANNOTATION: "rack"}))
    found = cures_for(entity(strict, members(4, cpu="2")), racks("4", "4", "4", "4"))
    assert texts(found, CureKind.WIDER) == [f'end the annotation {TOPOLOGY_ANNOTATION} with "*"']


def test_smallest_workload_whose_end_suffices_is_suggested() -> None:
    nodes = [node(name, cpu="4") for name in "abc"]
    running = [
        pod("small", on="a", cpu="1"),
        *(pod(f"x-{i}", "x", on="b", cpu="2") for i in range(2)),
        *(pod(f"y-{i}", "y", on="c", cpu="1") for i in range(4)),
        pod("rest", on="a", cpu="3"),
    ]
    found = cures_for(entity(gang("g", 2), members(2, cpu="2")), nodes, running)
    assert texts(found, CureKind.ENDING) == [
        "wait for PodGroup default/x and its 2 pods to end, or end it"
    ]
    found = cures_for(entity(gang("g", 3), members(3)), nodes, running)
    assert texts(found, CureKind.ENDING) == ["wait for Pod default/rest to end, or end it"]


def test_tree_of_groups_ends_as_a_whole() -> None:
    groups: list[Group] = [composite("t"), gang("x", 1, parent="t"), gang("y", 1, parent="t")]
    running = [pod("x-0", "x", on="a", cpu="4"), pod("y-0", "y", on="b", cpu="4")]
    nodes = [node("a"), node("b")]
    found = cures_for(entity(gang("g", 2), members(2, cpu="4")), nodes, running, groups)
    assert texts(found, CureKind.ENDING) == [
        "wait for CompositePodGroup default/t and its 2 pods to end, or end it"
    ]


def test_daemon_pods_and_terminating_pods_are_not_asked_to_end() -> None:
    daemon = pod("d", on="a", cpu="4")
    owner = OwnerReference("apps/v1", "DaemonSet", "d", "1")
    daemon = but(daemon, metadata=but(daemon.metadata, owner_references=(owner,)))
    leaving = pod("l", on="b", cpu="4", deleting=True)
    found = cures_for(alone(pod("p", cpu="1")), [node("a"), node("b")], [daemon, leaving])
    assert texts(found, CureKind.ENDING) == []


def test_of_many_workloads_only_large_enough_ones_are_tried() -> None:
    nodes = [node(f"n{i:02}", cpu="1") for i in range(40)] + [node("z", cpu="8")]
    running = [pod(f"r{i:02}", on=f"n{i:02}", cpu="1") for i in range(40)]
    running.append(pod("large", on="z", cpu="8"))
    found = cures_for(alone(pod("p", cpu="5")), nodes, running)
    assert texts(found, CureKind.ENDING) == ["wait for Pod default/large to end, or end it"]


def test_toleration_is_suggested() -> None:
    ours, theirs = Taint("team", "ours", "NoSchedule"), Taint("team", "theirs", "NoExecute")
    nodes = [node("a", taints=(ours, theirs)), node("b", taints=(theirs,)), node("c", cpu="0")]
    found = cures_for(alone(pod("p", cpu="1")), nodes)
    assert texts(found, CureKind.LOOSER) == ["let its pods tolerate team=theirs:NoExecute"]


def test_smaller_node_selector_is_suggested() -> None:
    nodes = [node("a", {"disk": "ssd"})]
    found = cures_for(alone(pod("p", cpu="1", selector={"disk": "ssd", "gpu": "yes"})), nodes)
    assert texts(found, CureKind.LOOSER) == ["drop gpu=yes from the node selector of its pods"]


def test_smaller_node_affinity_is_suggested() -> None:
    needs = (NodeRequirement("gpu", "Exists"), NodeRequirement("disk", "In", ("ssd", "nvme")))
    wanted = Affinity(NodeAffinity(NodeSelector((NodeTerm(needs),))))
    found = cures_for(alone(pod("p", cpu="1", affinity=wanted)), [node("a", {"gpu": "yes"})])
    assert texts(found, CureKind.LOOSER) == [
        "drop disk In ssd, nvme from the node affinity of its pods"
    ]


def test_removal_of_the_only_node_affinity_expression_is_suggested() -> None:
    wanted = Affinity(NodeAffinity(NodeSelector((NodeTerm((NodeRequirement("gpu", "Exists"),)),))))
    found = cures_for(alone(pod("p", cpu="1", affinity=wanted)), [node("a")])
    assert texts(found, CureKind.LOOSER) == ["drop gpu Exists from the node affinity of its pods"]


def test_uncordoning_a_node_is_suggested() -> None:
    nodes = [node("a", cordoned=True, cpu="1"), node("b", cordoned=True), node("c", cpu="1")]
    found = cures_for(entity(gang("g", 4), members(4)), nodes)
    assert texts(found, CureKind.LOOSER) == ["uncordon node b"]


def test_toleration_that_exists_is_not_suggested() -> None:
    ours = Taint("ours", "", "NoSchedule")
    one = pod("p", cpu="9", tolerations=(Toleration("ours", "Exists"),))
    assert texts(cures_for(alone(one), [node("a", taints=(ours,))]), CureKind.LOOSER) == []


def test_all_changes_are_undone() -> None:
    nodes = [node("a", {"rack": "r"}, cpu="2"), node("b", cordoned=True)]
    running = [pod("r", on="a", cpu="1"), pod("x-0", "x", on="a", cpu="1")]
    trial = experiment(entity(gang("g", 9), members(9)), nodes, running)
    before = trial.known.cache.snapshot()
    names, used = list(before.names), before.requested.tolist()
    find_cures(trial)
    after = trial.known.cache.snapshot()
    assert (list(after.names), after.requested.tolist()) == (names, used)
    assert after.cordoned.tolist() == [False, True]
    assert after.member_counts == {running[1].group: 1}
    assert trial.known.cache.check() == []


def test_number_of_decisions_is_limited() -> None:
    nodes = [node(f"n{i}", cpu=str(1 + i % 9)) for i in range(30)]
    running = [pod(f"r{i}", on=f"n{i}", cpu=str(1 + i % 9)) for i in range(30)]
    trial = experiment(entity(gang("g", 60), members(60)), nodes, running)
    assert find_cures(trial).decisions <= MAX_DECISIONS == 64
    trial.allow_decisions(0)
    assert not trial.is_placed_after(ClusterChange())
    assert trial.is_cut_short


def cures_for_instance(one: PlacementInstance) -> VerifiedCures | None:
    """The cures of an instance; None if it is placed without any."""
    cache = cluster(one.nodes, one.running)
    decision = decide(one.entity, cache.snapshot(), DEFAULT_POLICY, solver=SOLVER)
    if not isinstance(decision, Waiting):
        return None
    known = KnownCluster(
        cache,
        {n.metadata.name: n for n in one.nodes},
        {p.metadata.key: p for p in one.running},
    )
    return find_cures(
        Experiment(
            one.entity,
            decision,
            known,
            policy=DEFAULT_POLICY,
            solver=SOLVER,
            solver_calls=ALL_SOLVER_CALLS,
        )
    )


def verify_cures(one: PlacementInstance) -> Counter[CureKind]:
    """Every cure helps, is minimal, and no kind of cure is missed."""
    found = cures_for_instance(one)
    if found is None:
        return Counter()
    for cure in found.found:
        assert changes.is_possible(changes.apply_change(one, cure.text)), cure.text
    counts: dict[CureKind, int] = {}
    for sort, count, _ in found.found:
        counts[sort] = min(count, counts.get(sort, count))
    for sort in CureKind if not found.is_cut_short else ():
        few = MAX_NODES_TRIED if sort is CureKind.NODES else 9
        least, size = changes.smallest_change(one, sort, few), counts.get(sort)
        assert least == (size if size is None or size <= few else None), sort.name
    return Counter(counts.keys())


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("family", ["plain", *FAMILIES])
def test_cures_are_minimal_and_complete(family: str) -> None:
    for seed in range(SEEDS):
        verify_cures(
            build_plain_instance(seed) if family == "plain" else build_instance(family, seed)
        )


@pytest.mark.soak
@pytest.mark.parametrize("family", ["plain", *FAMILIES])
def test_cures_are_minimal_and_complete_in_many_clusters(family: str) -> None:
    every: Counter[CureKind] = Counter()
    for seed in range(MANY):
        every += verify_cures(
            build_plain_instance(seed) if family == "plain" else build_instance(family, seed)
        )
    assert every[CureKind.SMALLER]
    assert every[CureKind.NODES]


def occupied_instance(seed: int) -> tuple[PlacementInstance, dict[str, list[Pod]]]:
    """A gang that may not fit beside groups of different sizes, and the pods of each group."""
    draw = Random(f"crowded {seed}")
    nodes = [node(f"n{i}", cpu=str(draw.randint(3, 5))) for i in range(draw.randint(2, 4))]
    together: dict[str, list[Pod]] = {}
    free = {n.metadata.name: int(n.status.allocatable["cpu"]) for n in nodes}
    for number in range(draw.randint(2, 5)):
        for i in range(draw.randint(1, 3)):
            name, cpu = draw.choice(list(free)), draw.randint(1, 2)
            if free[name] >= cpu:
                free[name] -= cpu
                one = pod(f"x{number}-{i}", f"x{number}", on=name, cpu=str(cpu))
                together.setdefault(f"x{number}", []).append(one)
    pods = members(draw.randint(1, 4), cpu=str(draw.randint(1, 3)))
    running = [one for pods in together.values() for one in pods]
    return PlacementInstance(nodes, running, entity(gang("g", len(pods)), pods)), together


def test_smallest_group_whose_end_suffices_is_suggested() -> None:
    checked = 0
    for seed in range(20 * SEEDS):
        one, together = occupied_instance(seed)
        found = cures_for_instance(one)
        left = {
            name: replace(one, running=[pod for pod in one.running if pod not in pods])
            for name, pods in together.items()
        }
        enough = [(len(together[name]), name) for name in left if changes.is_possible(left[name])]
        if found is None:
            continue
        sizes = [cure.size for cure in found.found if cure.kind is CureKind.ENDING]
        assert sizes == [min(enough)[0]] if enough else sizes == []
        checked += len(sizes)
    assert checked > SEEDS


def random_tree(seed: int) -> tuple[Entity, list[Node]]:
    """A tree that may not fit, in which some groups have a rack topology."""
    draw = Random(f"tree {seed}")
    nodes = [
        node(f"n{i}", {"rack": f"r{i % 2}"}, cpu=str(draw.randint(1, 4)))
        for i in range(draw.randint(1, 4))
    ]
    parts = []
    for name in "xyz"[: draw.randint(2, 3)]:
        count, topology = draw.randint(1, 4), draw.choice(["", "rack"])
        group = gang(name, draw.randint(1, count), parent="t", topology=topology)
        parts.append(entity(group, members(count, name)))
    return tree(composite("t", draw.randint(1, len(parts))), *parts), nodes


def with_minimum(one: Entity, name: str, quorum: int) -> Entity:
    """The tree with another minimum of one of its groups."""
    assert isinstance(one.group, CompositePodGroup)
    parts = tuple(
        replace(part, group=gang(name, quorum, parent="t", topology=part.topology_key))
        if part.key.name == name
        else part
        for part in one.children
    )
    own = composite("t", quorum) if name == "t" else one.group
    return replace(one, group=own, children=parts)


def is_placed(one: Entity, nodes: list[Node]) -> bool:
    return isinstance(decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY), Placed)


LOWER = re.compile(r"lower min\w+?(?: of PodGroup (?P<name>\w))? from (?P<now>\d) to (?P<to>\d)")


def test_cures_of_trees_are_minimal() -> None:
    checked = 0
    for seed in range(10 * SEEDS):
        one, nodes = random_tree(seed)
        if is_placed(one, nodes):
            continue
        found = cures_for(one, nodes)
        for cure in found.found:
            if match := LOWER.fullmatch(cure.text):
                to, name = int(match["to"]), match["name"] or "t"
                fits = [
                    is_placed(with_minimum(one, name, n), nodes)
                    for n in range(1, int(match["now"]))
                ]
                assert fits == [n <= to for n in range(1, int(match["now"]))]
                checked += 1
    assert checked > SEEDS


def test_same_question_has_the_same_answer() -> None:
    for seed in range(SEEDS):
        assert cures_for_instance(build_instance("places", seed)) == cures_for_instance(
            build_instance("places", seed)
        )
