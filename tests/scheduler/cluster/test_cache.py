"""The cache: observed objects and assumed bindings in, snapshots out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, pod_group_ref
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.snapshot import CPU, Snapshot
from phalanx.scheduler.decision import Binding, ClusterEvent
from tests.scheduler.builders import cluster, gang, key, node, pod
from tests.scheduler.strategies import NODE_NAMES, nodes, pods


def events(*changes: ClusterDelta | None) -> list[ClusterEvent]:
    return [change.event for change in changes if change is not None]


def used(cache: SchedulerCache, name: str) -> int:
    snapshot = cache.snapshot()
    return int(snapshot.requested[snapshot.index[name], CPU])


def binding(one: Pod, on: str) -> Binding:
    return Binding(one.metadata.key, one.metadata.uid, on)


# ---- nodes ---------------------------------------------------------------------------------------


def test_nodes_are_added_changed_and_removed() -> None:
    cache = SchedulerCache()
    assert events(cache.update_node("a", node("a"))) == [ClusterEvent.NODE_ADDED]
    assert cache.snapshot().names == ["a"]
    cordoned = cache.update_node("a", node("a", cordoned=True))
    assert events(cordoned) == [ClusterEvent.NODE_UPDATED]
    assert cache.snapshot().cordoned.tolist() == [True]
    assert events(cache.update_node("a", None)) == [ClusterEvent.POD_PLACED], (
        "affinity and spread no longer count its pods"
    )
    assert cache.snapshot().names == []
    assert cache.update_node("a", None) is None


def test_a_heartbeat_changes_nothing() -> None:
    cache = cluster([node("a")])
    before = cache.snapshot()
    assert cache.update_node("a", node("a")) is None
    assert cache.snapshot() is before
    assert before.epoch == 0


def test_a_changed_node_keeps_the_snapshot_and_a_new_node_replaces_it() -> None:
    cache = cluster([node("a")])
    first = cache.snapshot()
    cache.update_node("a", node("a", cpu="16"))
    assert cache.snapshot() is first
    assert first.allocatable[0, CPU] == 16000
    cache.update_node("b", node("b"))
    assert cache.snapshot() is not first


def test_a_node_changed_and_deleted_between_two_snapshots_is_gone() -> None:
    cache = cluster([node("a"), node("b")])
    cache.snapshot()
    cache.update_node("a", node("a", cordoned=True))
    cache.update_node("a", None)
    assert cache.snapshot().names == ["b"]
    assert cache.check() == []


def test_a_new_resource_gets_a_column_in_every_row() -> None:
    cache = cluster([node("a")], [pod("p", on="a", requests={"example.com/odd": "3"})])
    cache.update_node("b", node("b", allocatable={"example.com/gpu": "8"}))
    snapshot = cache.snapshot()
    assert snapshot.allocatable[:, snapshot.columns["example.com/gpu"]].tolist() == [0, 8]
    assert snapshot.requested[:, snapshot.columns["example.com/odd"]].tolist() == [3, 0]
    assert cache.check() == []


# ---- pods ----------------------------------------------------------------------------------------


def test_a_bound_pod_uses_resources_until_it_has_ended() -> None:
    cache = cluster([node("a")])
    assert events(*cache.update_pod(key("p"), pod("p", on="a", cpu="1"))) == [
        ClusterEvent.POD_PLACED
    ]
    assert used(cache, "a") == 1000
    assert events(*cache.update_pod(key("p"), pod("p", on="a", cpu="1", phase="Succeeded"))) == [
        ClusterEvent.POD_GONE
    ]
    assert used(cache, "a") == 0


def test_a_terminating_pod_uses_resources_but_is_no_live_member() -> None:
    cache = cluster([node("a")], [pod("p", "g", on="a", cpu="1")])
    assert cache.snapshot().member_counts == {key("g"): 1}
    assert events(*cache.update_pod(key("p"), pod("p", "g", on="a", cpu="1", deleting=True))) == [
        ClusterEvent.POD_PLACED
    ]
    assert used(cache, "a") == 1000
    assert cache.snapshot().member_counts == {}
    assert events(*cache.update_pod(key("p"), None)) == [ClusterEvent.POD_GONE]


def test_a_pod_on_an_unknown_node_counts_when_the_node_is_added() -> None:
    cache = cluster([], [pod("p", on="late", cpu="1")])
    assert cache.snapshot().names == []
    cache.update_node("late", node("late"))
    assert used(cache, "late") == 1000


def test_pods_outlive_their_node() -> None:
    cache = cluster([node("a")], [pod("p", on="a", cpu="1")])
    cache.update_node("a", None)
    assert cache.check() == []
    cache.update_node("a", node("a"))
    assert used(cache, "a") == 1000
    cache.update_node("a", None)
    cache.update_pod(key("p"), None)
    cache.update_node("a", node("a"))
    assert used(cache, "a") == 0


def test_a_status_change_of_a_running_pod_changes_no_row() -> None:
    cache = cluster([node("a")], [pod("p", on="a", cpu="1")])
    snapshot = cache.snapshot()
    assert events(*cache.update_pod(key("p"), pod("p", on="a", cpu="1", phase="Running"))) == []
    assert cache.snapshot().changed_rows == snapshot.changed_rows == []


def test_a_resized_running_pod_uses_its_new_requests() -> None:
    cache = cluster([node("a")], [pod("p", on="a", cpu="1")])
    cache.update_pod(key("p"), pod("p", on="a", cpu="3"))
    assert used(cache, "a") == 3000


def test_a_recreated_pod_replaces_the_deleted_one() -> None:
    cache = cluster([node("a"), node("b")], [pod("p", uid="1", on="a", cpu="1")])
    assert events(*cache.update_pod(key("p"), pod("p", uid="2", cpu="1"))) == [
        ClusterEvent.POD_GONE
    ]
    assert used(cache, "a") == 0


# ---- assumptions ---------------------------------------------------------------------------------


def test_an_assumed_pod_uses_resources_and_counts_for_its_group() -> None:
    one = pod("p", "g", cpu="1")
    cache = cluster([node("a")], [one])
    cache.assume([binding(one, "a")])
    assert used(cache, "a") == 1000
    assert cache.snapshot().member_counts == {key("g"): 1}
    assert cache.assumed_pods() == [key("p")]


def test_an_assumption_is_confirmed_by_the_bound_pod() -> None:
    one = pod("p", "g", cpu="1")
    cache = cluster([node("a")], [one])
    cache.assume([binding(one, "a")])
    cache.update_pod(key("p"), one)
    assert cache.assumed_pods() == [key("p")]
    changes = len(cache.snapshot().changed_rows)
    cache.update_pod(key("p"), pod("p", "g", on="a", cpu="1"))
    assert cache.assumed_pods() == []
    assert used(cache, "a") == 1000
    assert len(cache.snapshot().changed_rows) == changes


def test_an_assumption_is_corrected_by_the_observed_binding() -> None:
    one = pod("p", cpu="1")
    cache = cluster([node("a"), node("b")], [one])
    cache.assume([binding(one, "a")])
    cache.update_pod(key("p"), pod("p", on="b", cpu="1"))
    assert (used(cache, "a"), used(cache, "b")) == (0, 1000)


def test_forgetting_an_assumption_frees_its_resources() -> None:
    one = pod("p", "g", cpu="1")
    cache = cluster([node("a")], [one])
    cache.assume([binding(one, "a")])
    assert events(*cache.forget([binding(one, "a")])) == [ClusterEvent.POD_GONE]
    assert used(cache, "a") == 0
    assert cache.snapshot().member_counts == {}
    cache.assume([binding(one, "a")])
    assert used(cache, "a") == 1000


def test_a_bound_pod_is_not_forgotten() -> None:
    one = pod("p", on="a", cpu="1")
    cache = cluster([node("a")], [one])
    assert events(*cache.forget([binding(one, "a")])) == []
    assert used(cache, "a") == 1000


@pytest.mark.parametrize("existing", [None, pod("p", uid="other"), pod("p", on="a")])
def test_only_a_pending_pod_of_that_uid_is_assumed(existing: Pod | None) -> None:
    cache = cluster([node("a"), node("b")], [existing] if existing else [])
    cache.assume([binding(pod("p"), "b")])
    assert cache.assumed_pods() == []
    assert used(cache, "b") == 0


def test_deleting_an_assumed_pod_frees_its_resources() -> None:
    one = pod("p", cpu="1")
    cache = cluster([node("a")], [one])
    cache.assume([binding(one, "a")])
    assert events(*cache.update_pod(key("p"), None)) == [ClusterEvent.POD_GONE]
    assert used(cache, "a") == 0


def test_changes_reach_the_snapshot_only_when_the_next_one_is_requested() -> None:
    one = pod("p", "g", cpu="1")
    cache = cluster([node("a")], [one])
    snapshot = cache.snapshot()
    cache.assume([binding(one, "a")])
    cache.update_group(pod_group_ref(key("g")), gang("g", 1))
    cache.update_node("a", node("a", cordoned=True))
    assert snapshot.requested[0, CPU] == 0
    assert (snapshot.member_counts, snapshot.group_trees.groups) == ({}, {})
    assert not snapshot.cordoned[0]


def test_many_changes_of_pods_reach_the_snapshot_in_steps_between_cycles() -> None:
    pods = [pod(name, cpu="1") for name in "pqr"]
    cache = cluster([node("a")], pods)
    snapshot = cache.snapshot()
    cache.assume([binding(one, "a") for one in pods])
    assert list(cache.catch_up(max_pods=3)) == []
    assert snapshot.pod_index.node_of(key("p")) == ""
    steps = cache.catch_up(max_pods=1)
    next(steps)
    assert [snapshot.pod_index.node_of(key(name)) for name in "pqr"] == ["a", "", ""]
    # What is observed between two steps counts.
    cache.update_pod(key("p"), None)
    cache.update_node("b", node("b"))
    for _ in steps:
        pass
    found = cache.snapshot()
    assert [found.pod_index.node_of(key(name)) for name in "pqr"] == ["", "a", "a"]
    assert found.names == ["a", "b"]
    assert not cache.check()


def test_all_versions_of_a_pod_share_one_key() -> None:
    one = pod("p", cpu="1")
    cache = cluster([node("a")])
    cache.update_pod(first := key("p"), one)
    cache.assume([binding(one, "a")])
    cache.update_pod(key("p"), pod("p", cpu="1", on="a"))
    assigned = cache.snapshot().pod_index.assigned_pod(first)
    assert assigned is not None
    assert assigned.key is first
    assert next(iter(cache._nodes["a"].pods)) is first


# ---- groups --------------------------------------------------------------------------------------


def test_groups_are_added_changed_and_removed() -> None:
    cache, name = SchedulerCache(), pod_group_ref(key("g"))
    cache.update_group(name, gang("g", 2))
    cache.update_group(name, gang("g", 1))
    assert cache.snapshot().group_trees.groups == {name: gang("g", 1)}
    cache.update_group(name, None)
    assert cache.snapshot().group_trees.groups == {}


# ---- invariants ----------------------------------------------------------------------------------


def build_cache() -> SchedulerCache:
    one = pod("p", "g", cpu="1")
    cache = cluster([node("a"), node("b")], [one, pod("q", on="b", cpu="1")])
    cache.assume([binding(one, "a")])
    cache.snapshot()
    return cache


def miscount(cache: SchedulerCache) -> None:
    cache._nodes["a"].requested[CPU] += 1


def undercount(cache: SchedulerCache) -> None:
    cache._nodes["b"].requested[CPU] = -1


def lose(cache: SchedulerCache) -> None:
    del cache._nodes["a"].pods[key("p")]


def vanish(cache: SchedulerCache) -> None:
    del cache._pod_states[key("q")]


def hover(cache: SchedulerCache) -> None:
    cache._pod_states[key("p")] = replace(cache._pod_states[key("p")], node="")


def overlook(cache: SchedulerCache) -> None:
    cache._snapshot.allocatable[0, CPU] += 1


def multiply(cache: SchedulerCache) -> None:
    cache._snapshot.member_counts[key("g")] = 7


@pytest.mark.parametrize(
    ("break_cache", "message"),
    [
        (miscount, "node a counts [1001, 0, 1], its pods add up to [1000, 0, 1]"),
        (undercount, "node b counts a negative amount: [-1, 0, 1]"),
        (lose, "pod default/p is not counted on its node a"),
        (vanish, "node b counts pod default/q, which is not there"),
        (hover, "pod default/p is assumed without a node"),
        (hover, "groups count {Key(namespace='default', name='g'): 1}, their members add up to {}"),
        (overlook, "the snapshot of node a differs from the cache"),
        (multiply, "the snapshot counts other members than the cache"),
    ],
)
def test_check_reports_every_broken_invariant(
    break_cache: Callable[[SchedulerCache], None], message: str
) -> None:
    cache = build_cache()
    assert cache.check() == []
    break_cache(cache)
    assert message in cache.check()


Step = tuple[str, Key, Node | Pod | str | None]


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    """A history of changes of nodes and pods in any order, with assumptions in between."""
    history: list[Step] = []
    for _ in range(draw(st.integers(1, 30))):
        name = draw(st.sampled_from(["p0", "p1", "p2", "p3"]))
        machine = draw(st.sampled_from(NODE_NAMES))
        match draw(
            st.sampled_from(["node", "no node", "pod", "no pod", "assume", "forget", "snapshot"])
        ):
            case "node":
                history.append(("node", Key("", machine), draw(nodes(machine))))
            case "no node":
                history.append(("node", Key("", machine), None))
            case "pod":
                on = draw(st.sampled_from(["", machine]))
                group = draw(st.sampled_from(["", "g", "h"]))
                history.append(("pod", key(name), draw(pods(name, group, on))))
            case "no pod":
                history.append(("pod", key(name), None))
            case act:
                history.append((act, key(name), machine))
    return history


def apply_step(cache: SchedulerCache, step: Step) -> None:
    act, where, what = step
    if act == "node":
        cache.update_node(where.name, what if isinstance(what, Node) else None)
    elif act == "pod":
        cache.update_pod(where, what if isinstance(what, Pod) else None)
    elif act == "assume":
        cache.assume([Binding(where, f"uid-{where.name}", str(what))])
    elif act == "forget":
        cache.forget([Binding(where, f"uid-{where.name}", str(what))])
    else:
        cache.snapshot()


def content(snapshot: Snapshot) -> dict[str, object]:
    """The content of a snapshot, independent of the numbers of columns and classes."""
    classes = list(snapshot.taints)

    def row(i: int) -> object:
        named = [
            {
                name: table[i, column]
                for name, column in snapshot.columns.items()
                if table[i, column]
            }
            for table in (snapshot.allocatable, snapshot.requested)
        ]
        taints = classes[snapshot.taint_class[i]]
        return (
            named,
            snapshot.nonzero_requested[i].tolist(),
            taints,
            snapshot.labels[i],
            snapshot.cordoned[i],
        )

    rows: dict[str, object] = {name: row(i) for name, i in snapshot.index.items()}
    return {**rows, "members": snapshot.member_counts}


@given(steps())
def test_a_cache_after_many_events_equals_a_cache_of_the_final_objects(
    history: list[Step],
) -> None:
    cache = SchedulerCache()
    for step in history:
        apply_step(cache, step)
    fresh = SchedulerCache()
    for name, info in cache._nodes.items():
        fresh.update_node(name, info.node)
    for pod_key, state in cache._pod_states.items():
        last = [s[2] for s in history if s[0] == "pod" and s[1] == pod_key][-1]
        assert isinstance(last, Pod)
        fresh.update_pod(pod_key, last)
        if state.assumed:
            fresh.assume([Binding(pod_key, state.uid, state.node)])
    assert content(cache.snapshot()) == content(fresh.snapshot())
    assert cache.check() == []


def test_binding_a_pod_elsewhere_frees_its_nominated_node() -> None:
    cache = cluster([node("a"), node("b")], [pod("p", cpu="1")])
    cache.nominate([Binding(key("p"), "uid-p", "a")])
    assert ClusterEvent.POD_GONE in events(*cache.nominate([Binding(key("p"), "uid-p", "b")]))
    assert ClusterEvent.POD_GONE not in events(*cache.assume([Binding(key("p"), "uid-p", "b")]))
    other = cluster([node("a"), node("b")], [pod("p", cpu="1")])
    other.nominate([Binding(key("p"), "uid-p", "a")])
    assert ClusterEvent.POD_GONE in events(*other.assume([Binding(key("p"), "uid-p", "b")]))


def test_events_of_all_pods_of_a_gang_are_returned() -> None:
    pair = [pod("p", cpu="1"), pod("q", cpu="1")]
    cache = cluster([node("a"), node("b")], pair)
    cache.nominate([Binding(key("p"), "uid-p", "a")])
    placed = [Binding(key("p"), "uid-p", "b"), Binding(key("q"), "uid-q", "b")]
    assert events(*cache.assume(placed)) == [
        ClusterEvent.POD_GONE,
        ClusterEvent.POD_PLACED,
        ClusterEvent.POD_PLACED,
    ]
    cache.nominate([Binding(key("q"), "uid-q", "b")])
    assert events(*cache.forget(placed)) == [ClusterEvent.POD_GONE, ClusterEvent.POD_GONE]
    assert events(*cache.forget(placed)) == []


def test_a_nomination_by_a_decision_counts_after_one_that_was_withheld() -> None:
    cache = cluster([node("a"), node("b")], [pod("p", cpu="1")])
    cache.nominate([Binding(key("p"), "uid-p", "a")])
    cache.withhold_nominations([key("p")])
    assert not cache.snapshot().nominations
    for target in ("", "b"):
        cache.nominate([Binding(key("p"), "uid-p", target)])
    assert [one.node for one in cache.snapshot().nominations.values()] == ["b"]


def test_a_victim_observed_to_terminate_causes_an_event() -> None:
    cache = cluster([node("a")], [pod("p", on="a", cpu="1")])
    cache.mark_evicting([(key("p"), "uid-p")])
    assert cache.evicting_pods() == [(key("p"), "uid-p")]
    assert events(*cache.update_pod(key("p"), pod("p", on="a", cpu="1", deleting=True))) == [
        ClusterEvent.POD_PLACED
    ]
    assert cache.evicting_pods() == []
