from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.resources import Amounts
from phalanx.api.scheduling import (
    POD_GROUP_INITIALLY_SCHEDULED,
    CompositePodGroup,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SchedulingPolicy,
)
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import WatchEvent
from phalanx.sim.invariants import InvariantAuditor, check_cluster


def pod(name: str, on: str = "", of: str = "", cpu: str = "1", phase: str = "Running") -> Pod:
    said = (Condition("PodScheduled", "True"),) if on else ()
    return Pod(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        PodSpec(
            node_name=on,
            scheduling_group=SchedulingGroup(of) if of else None,
            containers=(
                Container(resources=ResourceRequirements(requests={"cpu": cpu} if cpu else {})),
            ),
        ),
        PodStatus(phase=phase, conditions=said),
    )


def node(name: str = "n", cpu: str = "2") -> Node:
    return Node(ObjectMeta(name=name), status=NodeStatus(allocatable={"cpu": cpu, "pods": "10"}))


def gang(name: str, needs: int, placed: bool = False) -> PodGroup:
    said = (Condition(POD_GROUP_INITIALLY_SCHEDULED, "True"),) if placed else ()
    return PodGroup(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(needs))),
        PodGroupStatus(conditions=said),
    )


HALF_BOUND = "gang default/g was never placed, yet 1 of the 2 members that it needs are bound"


def test_a_full_node_is_well() -> None:
    assert check_cluster([pod("a", "n"), pod("b", "n"), pod("c")], [node()], []) == []


def test_a_node_over_its_room_is_found() -> None:
    pods = [pod("a", "n"), pod("b", "n", cpu="1500m")]
    assert check_cluster(pods, [node()], []) == ["node n holds cpu 2500m but has cpu 2"]


def test_a_node_without_a_resource_has_none_of_it() -> None:
    bare = Node(ObjectMeta(name="n"), status=NodeStatus(allocatable={"pods": "10"}))
    assert check_cluster([pod("a", "n")], [bare], []) == ["node n holds cpu 1 but has cpu 0"]


def test_pods_that_have_ended_take_no_room() -> None:
    pods = [pod(name, "n", phase="Succeeded") for name in "abc"]
    assert check_cluster(pods, [node()], []) == []


def test_a_gang_that_is_half_bound_is_found() -> None:
    pods = [pod("a", "n", "g"), pod("b", "", "g")]
    assert check_cluster(pods, [node()], [gang("g", 2)]) == [HALF_BOUND]


def test_a_gang_may_be_bound_wholly_or_not_at_all() -> None:
    pods = [pod("a", "n", "g"), pod("b", "n", "g"), pod("c", "", "h"), pod("d", "", "h")]
    assert check_cluster(pods, [node()], [gang("g", 2), gang("h", 2)]) == []


def test_a_gang_that_was_placed_once_may_lose_members() -> None:
    assert check_cluster([pod("a", "n", "g")], [node()], [gang("g", 2, placed=True)]) == []


def test_a_basic_group_may_be_bound_in_part() -> None:
    basic = PodGroup(
        ObjectMeta(name="g", namespace="default"),
        PodGroupSpec(scheduling_policy=SchedulingPolicy(basic={})),
    )
    assert check_cluster([pod("a", "n", "g"), pod("b", "", "g")], [node()], [basic]) == []


class Cluster:
    """Caches that an auditor follows, one revision after the other, and a clock."""

    def __init__(self, horizon: float = 0.0, books: dict[str, Amounts] | None = None) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.composites: ObjectCache[CompositePodGroup] = ObjectCache()
        self.now, self.strangers = 0.0, {"uid-stranger"}
        self.auditor = InvariantAuditor(
            self.pods, self.nodes, self.groups, now=lambda: self.now, horizon=horizon,
            manually_bound=self.strangers, ledger=books, composites=self.composites,
        )  # fmt: skip
        self._revision = 0

    def put(
        self, *things: Pod | Node | PodGroup | CompositePodGroup, gone: bool = False
    ) -> list[str]:
        for thing in things:
            self._revision += 1
            meta = replace(thing.metadata, resource_version=str(self._revision))
            event = "DELETED" if gone else "MODIFIED"
            match thing:
                case Pod():
                    self.pods.apply(
                        WatchEvent(event, replace(thing, metadata=meta), self._revision)
                    )
                case Node():
                    self.nodes.apply(
                        WatchEvent(event, replace(thing, metadata=meta), self._revision)
                    )
                case PodGroup():
                    self.groups.apply(
                        WatchEvent(event, replace(thing, metadata=meta), self._revision)
                    )
                case CompositePodGroup():
                    found = replace(thing, metadata=meta)
                    self.composites.apply(WatchEvent(event, found, self._revision))
        return self.auditor.audit()


def members(count: int, on: str = "", first: int = 0) -> list[Pod]:
    return [pod(f"m{i}", on, "g", cpu="") for i in range(first, first + count)]


# ---- one pod -------------------------------------------------------------------------------------


def test_a_pod_that_moves_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node("n"), node("m"), pod("a")) == []
    assert cluster.put(pod("a", "n")) == []
    moved = "pod default/a was bound to n and is now on node m"
    assert cluster.put(pod("a", "m")) == [moved]


def test_another_pod_of_the_same_name_may_be_elsewhere() -> None:
    cluster = Cluster()
    cluster.put(node("n"), node("m"), pod("a", "n"))
    assert cluster.put(pod("a", "n"), gone=True) == []
    assert cluster.put(pod("a", "m")) == []


def test_a_violation_is_told_once() -> None:
    cluster = Cluster()
    assert cluster.put(node(cpu="0"), pod("a", "n")) == ["node n holds cpu 1 but has cpu 0"]
    assert cluster.auditor.audit() == []


# ---- room ----------------------------------------------------------------------------------------


def test_a_bind_that_takes_room_which_is_not_there_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("a", "n"), pod("b", "n")) == []
    assert cluster.put(pod("c", "n")) == ["node n holds cpu 3 but has cpu 2"]


def test_a_node_that_shrinks_is_nobodys_fault_until_somebody_is_bound_there() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("a", "n"), pod("b", "n"), node(cpu="1")) == []
    assert cluster.put(pod("modest", "n", cpu="")) == []
    assert cluster.put(pod("c", "n")) == ["node n holds cpu 3 but has cpu 1"]


def test_who_is_bound_by_hand_may_be_too_much() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("stranger", "n", cpu="9")) == []


def test_the_ledger_must_count_what_pods_take() -> None:
    books: dict[str, Amounts] = {"n": {"cpu": 1000, "pods": 1}}
    cluster = Cluster(books=books)
    assert cluster.put(node(), pod("a", "n")) == []
    (sentence,) = cluster.put(pod("a", "n", phase="Failed"))
    assert sentence == ("the ledger has {'cpu': 1000, 'pods': 1} taken of node n, its pods take {}")


# ---- gangs ---------------------------------------------------------------------------------------


def test_a_gang_is_given_nodes_for_all_that_it_needs_or_for_none() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 3), *members(3)) == []
    assert cluster.put(*members(2, "n")) == [
        "gang default/g got nodes for 2 of its members and has 2 now, but needs 3"
    ]


def test_members_that_have_a_node_count_for_those_that_come_late() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 3), *members(3, "n")) == []
    assert cluster.put(*members(1, "n", first=3)) == []


def test_a_gang_may_lose_members_and_be_asked_for_more() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 2), *members(2, "n")) == []
    assert cluster.put(*members(1, "n"), gone=True) == []
    assert cluster.put(gang("g", 3)) == []


def test_what_was_true_within_the_horizon_excuses_a_late_view() -> None:
    late, exact = Cluster(horizon=2.0), Cluster()
    for cluster in (late, exact):
        cluster.put(node(), gang("g", 3), *members(3, "n"))
        cluster.now = 5.0
        cluster.put(*members(1, "n"), gone=True)
        cluster.now = 6.0
        cluster.put(gang("g", 4))
    late.now = exact.now = 6.5
    assert late.put(*members(1, "n", first=3)) == []
    assert exact.put(*members(1, "n", first=3)) == [
        "gang default/g got nodes for 1 of its members and has 3 now, but needs 4"
    ]
    late.now = 9.0
    assert late.put(*members(1, "n", first=4), *members(1, "n", first=1), gone=True) == []
    late.now = 20.0
    assert late.put(*members(1, "n", first=5)) != []


def test_members_of_a_group_that_is_not_there_get_no_nodes() -> None:
    cluster = Cluster(horizon=1.0, books={"n": {"pods": 1}})
    cluster.now = 5.0
    assert cluster.put(node(), *members(1, "n")) == [
        "members of group default/g got nodes, but there is no such group"
    ]


def test_a_group_stays_while_a_live_member_needs_it() -> None:
    cluster = Cluster(books={})
    cluster.put(gang("g", 2), *members(2))
    assert cluster.put(gang("g", 2), gone=True) == [
        "group default/g went, and m0, m1 still need it"
    ]


def test_a_group_that_was_placed_says_so_for_ever() -> None:
    cluster = Cluster()
    cluster.put(gang("g", 2, placed=True))
    assert cluster.put(gang("g", 2)) == [
        "group default/g said PodGroupInitiallyScheduled once and does not say so any more"
    ]
