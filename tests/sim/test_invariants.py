from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import (
    Container,
    ExtendedResourceClaimStatus,
    ExtendedResourceRequest,
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


def pod(name: str, on: str = "", group: str = "", cpu: str = "1", phase: str = "Running") -> Pod:
    conditions = (Condition("PodScheduled", "True"),) if on else ()
    return Pod(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        PodSpec(
            node_name=on,
            scheduling_group=SchedulingGroup(group) if group else None,
            containers=(
                Container(resources=ResourceRequirements(requests={"cpu": cpu} if cpu else {})),
            ),
        ),
        PodStatus(phase=phase, conditions=conditions),
    )


def node(name: str = "n", cpu: str = "2") -> Node:
    return Node(ObjectMeta(name=name), status=NodeStatus(allocatable={"cpu": cpu, "pods": "10"}))


def gang(name: str, min_count: int, placed: bool = False) -> PodGroup:
    conditions = (Condition(POD_GROUP_INITIALLY_SCHEDULED, "True"),) if placed else ()
    return PodGroup(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        PodGroupSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count))),
        PodGroupStatus(conditions=conditions),
    )


HALF_BOUND = "gang default/g was never placed, yet 1 of the 2 members that it needs are bound"


def test_full_node_is_no_violation() -> None:
    assert check_cluster([pod("a", "n"), pod("b", "n"), pod("c")], [node()], []) == []


def test_overcommitted_node_is_found() -> None:
    pods = [pod("a", "n"), pod("b", "n", cpu="1500m")]
    assert check_cluster(pods, [node()], []) == ["node n holds cpu 2500m but has cpu 2"]


def test_resource_missing_on_a_node_counts_as_zero() -> None:
    without_cpu = Node(ObjectMeta(name="n"), status=NodeStatus(allocatable={"pods": "10"}))
    assert check_cluster([pod("a", "n")], [without_cpu], []) == ["node n holds cpu 1 but has cpu 0"]


def test_terminated_pods_take_no_capacity() -> None:
    pods = [pod(name, "n", phase="Succeeded") for name in "abc"]
    assert check_cluster(pods, [node()], []) == []


def test_partially_bound_gang_is_found() -> None:
    pods = [pod("a", "n", "g"), pod("b", "", "g")]
    assert check_cluster(pods, [node()], [gang("g", 2)]) == [HALF_BOUND]


def test_gang_may_be_bound_completely_or_not_at_all() -> None:
    pods = [pod("a", "n", "g"), pod("b", "n", "g"), pod("c", "", "h"), pod("d", "", "h")]
    assert check_cluster(pods, [node()], [gang("g", 2), gang("h", 2)]) == []


def test_placed_gang_may_lose_members() -> None:
    assert check_cluster([pod("a", "n", "g")], [node()], [gang("g", 2, placed=True)]) == []


def test_basic_group_may_be_bound_in_part() -> None:
    basic = PodGroup(
        ObjectMeta(name="g", namespace="default"),
        PodGroupSpec(scheduling_policy=SchedulingPolicy(basic={})),
    )
    assert check_cluster([pod("a", "n", "g"), pod("b", "", "g")], [node()], [basic]) == []


class Cluster:
    """Caches that an auditor watches revision by revision, and a clock."""

    def __init__(self, horizon: float = 0.0, ledger_rows: dict[str, Amounts] | None = None) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.composites: ObjectCache[CompositePodGroup] = ObjectCache()
        self.now, self.manually_bound_uids = 0.0, {"uid-stranger"}
        self.auditor = InvariantAuditor(
            self.pods, self.nodes, self.groups, now=lambda: self.now, horizon=horizon,
            manually_bound=self.manually_bound_uids, ledger=ledger_rows, composites=self.composites,
        )  # fmt: skip
        self._revision = 0

    def put(
        self, *objects: Pod | Node | PodGroup | CompositePodGroup, deleted: bool = False
    ) -> list[str]:
        for obj in objects:
            self._revision += 1
            metadata = replace(obj.metadata, resource_version=str(self._revision))
            event = "DELETED" if deleted else "MODIFIED"
            match obj:
                case Pod():
                    self.pods.apply(
                        WatchEvent(event, replace(obj, metadata=metadata), self._revision)
                    )
                case Node():
                    self.nodes.apply(
                        WatchEvent(event, replace(obj, metadata=metadata), self._revision)
                    )
                case PodGroup():
                    self.groups.apply(
                        WatchEvent(event, replace(obj, metadata=metadata), self._revision)
                    )
                case CompositePodGroup():
                    found = replace(obj, metadata=metadata)
                    self.composites.apply(WatchEvent(event, found, self._revision))
        return self.auditor.audit()


def members(count: int, on: str = "", first: int = 0) -> list[Pod]:
    return [pod(f"m{i}", on, "g", cpu="") for i in range(first, first + count)]


# ---- pods ----------------------------------------------------------------------------------------


def test_pod_that_changes_its_node_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node("n"), node("m"), pod("a")) == []
    assert cluster.put(pod("a", "n")) == []
    moved = "pod default/a was bound to n and is now on node m"
    assert cluster.put(pod("a", "m")) == [moved]


def test_recreated_pod_may_be_on_another_node() -> None:
    cluster = Cluster()
    cluster.put(node("n"), node("m"), pod("a", "n"))
    assert cluster.put(pod("a", "n"), deleted=True) == []
    assert cluster.put(pod("a", "m")) == []


def test_violation_is_reported_once() -> None:
    cluster = Cluster()
    assert cluster.put(node(cpu="0"), pod("a", "n")) == ["node n holds cpu 1 but has cpu 0"]
    assert cluster.auditor.audit() == []


# ---- node capacity -------------------------------------------------------------------------------


def test_bind_beyond_the_capacity_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("a", "n"), pod("b", "n")) == []
    assert cluster.put(pod("c", "n")) == ["node n holds cpu 3 but has cpu 2"]


def test_shrunken_node_is_a_violation_only_after_the_next_bind() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("a", "n"), pod("b", "n"), node(cpu="1")) == []
    assert cluster.put(pod("modest", "n", cpu="")) == []
    assert cluster.put(pod("c", "n")) == ["node n holds cpu 3 but has cpu 1"]


def test_manually_bound_pod_may_exceed_the_capacity() -> None:
    cluster = Cluster()
    assert cluster.put(node(), pod("stranger", "n", cpu="9")) == []


def test_resource_that_devices_serve_is_not_taken_from_the_node() -> None:
    def asking(name: str) -> Pod:
        found = pod(name, "n", cpu="")
        container = replace(
            found.spec.containers[0],
            resources=ResourceRequirements(requests={"example.com/gpu": "1"}),
        )
        return replace(found, spec=replace(found.spec, containers=(container,)))

    mapping = ExtendedResourceRequest("main", "example.com/gpu", "container-0-request-0")
    served = asking("served")
    status = ExtendedResourceClaimStatus("served-extended-resources-x", (mapping,))
    served = replace(served, status=replace(served.status, extended_resource_claim_status=status))
    cluster = Cluster()
    # The stranger was bound by hand, without a claim.
    assert cluster.put(node(), asking("stranger"), served) == []


def test_ledger_must_equal_the_requests_of_bound_pods() -> None:
    ledger_rows: dict[str, Amounts] = {"n": {"cpu": 1000, "pods": 1}}
    cluster = Cluster(ledger_rows=ledger_rows)
    assert cluster.put(node(), pod("a", "n")) == []
    (violation,) = cluster.put(pod("a", "n", phase="Failed"))
    assert violation == ("node n: the ledger has {'cpu': 1000, 'pods': 1}, its pods request {}")


# ---- gangs ---------------------------------------------------------------------------------------


def test_bind_of_a_gang_below_its_min_count_is_found() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 3), *members(3)) == []
    assert cluster.put(*members(2, "n")) == [
        "gang default/g got nodes for 2 of its members and has 2 now, but needs 3"
    ]


def test_bound_members_count_for_late_members() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 3), *members(3, "n")) == []
    assert cluster.put(*members(1, "n", first=3)) == []


def test_gang_may_lose_members_and_its_min_count_may_rise() -> None:
    cluster = Cluster()
    assert cluster.put(node(), gang("g", 2), *members(2, "n")) == []
    assert cluster.put(*members(1, "n"), deleted=True) == []
    assert cluster.put(gang("g", 3)) == []


def test_decision_from_a_stale_view_is_accepted_within_the_horizon() -> None:
    late, exact = Cluster(horizon=2.0), Cluster()
    for cluster in (late, exact):
        cluster.put(node(), gang("g", 3), *members(3, "n"))
        cluster.now = 5.0
        cluster.put(*members(1, "n"), deleted=True)
        cluster.now = 6.0
        cluster.put(gang("g", 4))
    late.now = exact.now = 6.5
    assert late.put(*members(1, "n", first=3)) == []
    assert exact.put(*members(1, "n", first=3)) == [
        "gang default/g got nodes for 1 of its members and has 3 now, but needs 4"
    ]
    late.now = 9.0
    assert late.put(*members(1, "n", first=4), *members(1, "n", first=1), deleted=True) == []
    late.now = 20.0
    assert late.put(*members(1, "n", first=5)) != []


def test_bind_of_members_without_a_group_is_found() -> None:
    cluster = Cluster(horizon=1.0, ledger_rows={"n": {"pods": 1}})
    cluster.now = 5.0
    assert cluster.put(node(), *members(1, "n")) == [
        "members of group default/g got nodes, but there is no such group"
    ]


def test_removal_of_a_group_with_live_members_is_found() -> None:
    cluster = Cluster(ledger_rows={})
    cluster.put(gang("g", 2), *members(2))
    assert cluster.put(gang("g", 2), deleted=True) == [
        "group default/g was removed while m0, m1 still use it"
    ]


def test_initially_scheduled_condition_must_stay_true() -> None:
    cluster = Cluster()
    cluster.put(gang("g", 2, placed=True))
    assert cluster.put(gang("g", 2)) == [
        "group default/g had the condition PodGroupInitiallyScheduled and lost it"
    ]
