from __future__ import annotations

from phalanx.api.core import (
    Container,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Requirements,
    SchedulingGroup,
)
from phalanx.api.meta import Condition, Meta
from phalanx.api.scheduling import (
    INITIALLY_SCHEDULED,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SchedulingPolicy,
)
from phalanx.client.answers import Event
from phalanx.client.cache import Cache
from phalanx.sim.invariants import Auditor, check


def pod(name: str, on: str = "", of: str = "", cpu: str = "1", phase: str = "Running") -> Pod:
    return Pod(
        Meta(name=name, namespace="default", uid=f"uid-{name}"),
        PodSpec(
            node_name=on,
            scheduling_group=SchedulingGroup(of) if of else None,
            containers=(Container(resources=Requirements(requests={"cpu": cpu})),),
        ),
        PodStatus(phase=phase),
    )


def node(name: str = "n", cpu: str = "2") -> Node:
    return Node(Meta(name=name), status=NodeStatus(allocatable={"cpu": cpu, "pods": "10"}))


def gang(name: str, needs: int, placed: bool = False) -> PodGroup:
    said = (Condition(INITIALLY_SCHEDULED, "True"),) if placed else ()
    return PodGroup(
        Meta(name=name, namespace="default", uid=f"uid-{name}"),
        PodGroupSpec(SchedulingPolicy(gang=GangPolicy(needs))),
        PodGroupStatus(said),
    )


HALF_BOUND = "gang default/g was never placed, yet 1 of the 2 members that it needs are bound"


def test_a_full_node_is_well() -> None:
    assert check([pod("a", "n"), pod("b", "n"), pod("c")], [node()], []) == []


def test_a_node_over_its_room_is_found() -> None:
    pods = [pod("a", "n"), pod("b", "n", cpu="1500m")]
    assert check(pods, [node()], []) == ["node n holds cpu 2500m but has cpu 2"]


def test_a_node_without_a_resource_has_none_of_it() -> None:
    bare = Node(Meta(name="n"), status=NodeStatus(allocatable={"pods": "10"}))
    assert check([pod("a", "n")], [bare], []) == ["node n holds cpu 1 but has cpu 0"]


def test_pods_that_have_ended_take_no_room() -> None:
    pods = [pod(name, "n", phase="Succeeded") for name in "abc"]
    assert check(pods, [node()], []) == []


def test_a_gang_that_is_half_bound_is_found() -> None:
    pods = [pod("a", "n", "g"), pod("b", "", "g")]
    assert check(pods, [node()], [gang("g", 2)]) == [HALF_BOUND]


def test_a_gang_may_be_bound_wholly_or_not_at_all() -> None:
    pods = [pod("a", "n", "g"), pod("b", "n", "g"), pod("c", "", "h"), pod("d", "", "h")]
    assert check(pods, [node()], [gang("g", 2), gang("h", 2)]) == []


def test_a_gang_that_was_placed_once_may_lose_members() -> None:
    assert check([pod("a", "n", "g")], [node()], [gang("g", 2, placed=True)]) == []


def test_a_basic_group_may_be_bound_in_part() -> None:
    basic = PodGroup(Meta(name="g", namespace="default"), PodGroupSpec(SchedulingPolicy(basic={})))
    assert check([pod("a", "n", "g"), pod("b", "", "g")], [node()], [basic]) == []


class Cluster:
    """Three caches that an auditor follows, and one revision after the other."""

    def __init__(self) -> None:
        self.pods: Cache[Pod] = Cache()
        self.nodes: Cache[Node] = Cache()
        self.groups: Cache[PodGroup] = Cache()
        self.auditor = Auditor(self.pods, self.nodes, self.groups)
        self._revision = 0

    def put(self, *things: Pod | Node | PodGroup, gone: bool = False) -> list[str]:
        for thing in things:
            self._revision += 1
            kind = "DELETED" if gone else "MODIFIED"
            meta = thing.metadata
            versioned = Meta(
                name=meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=str(self._revision),
            )
            match thing:
                case Pod():
                    new = Pod(versioned, thing.spec, thing.status)
                    self.pods.apply(Event(kind, new, self._revision))
                case Node():
                    self.nodes.apply(
                        Event(kind, Node(versioned, thing.spec, thing.status), self._revision)
                    )
                case PodGroup():
                    self.groups.apply(
                        Event(kind, PodGroup(versioned, thing.spec, thing.status), self._revision)
                    )
        return self.auditor.audit()


def test_a_pod_that_moves_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node("n"), node("m"), pod("a")) == []
    assert cluster.put(pod("a", "n")) == []
    moved = "pod default/a was bound to n and is now on node m"
    assert cluster.put(pod("a", "m")) == [moved]


def test_a_pod_that_loses_its_node_is_found() -> None:
    cluster = Cluster()
    cluster.put(node(), pod("a", "n"))
    assert cluster.put(pod("a")) == ["pod default/a was bound to n and is now on no node"]


def test_another_pod_of_the_same_name_may_be_elsewhere() -> None:
    cluster = Cluster()
    cluster.put(node("n"), node("m"), pod("a", "n"))
    assert cluster.put(pod("a", "n"), gone=True) == []
    assert cluster.put(pod("a", "m")) == []


def test_the_auditor_sees_what_one_state_shows() -> None:
    cluster = Cluster()
    full = [pod("a", "n"), pod("b", "n")]
    assert cluster.put(node(), gang("g", 2), *full) == []
    assert cluster.put(pod("c", "n", "g")) == ["node n holds cpu 3 but has cpu 2", HALF_BOUND]


def test_the_auditor_remembers_which_gangs_were_placed() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 2), pod("a", "n", "g"), pod("b", "n", "g")) == []
    assert cluster.put(pod("b", "n", "g"), gone=True) == []
    assert cluster.put(gang("g", 3)) == []


def test_a_violation_is_told_once() -> None:
    cluster = Cluster()
    assert cluster.put(node(cpu="0"), pod("a", "n")) == ["node n holds cpu 1 but has cpu 0"]
    assert cluster.auditor.audit() == []
