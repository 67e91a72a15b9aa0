"""What a change adds for pods of a shape."""

from __future__ import annotations

from phalanx.api.core import ContainerPort, Pod
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.decision import Binding, ClusterEvent
from tests.scheduler.builders import cluster, gang, key, node, pod

WEB = (ContainerPort(80, 80),)


def added(
    change: ClusterDelta | None, *pods: Pod, priority: int = 0, evictable: bool = False
) -> int:
    assert change is not None
    shapes = dict.fromkeys(map(shape_of, pods))
    return change.adds_room(shapes, priority, free=not evictable, evictable=evictable)


def end(name: str, *running: Pod) -> ClusterDelta:
    (change,) = cluster([node("a")], running).update_pod(key(name), None)
    assert change.event is ClusterEvent.POD_GONE
    return change


def test_room_is_added_for_as_many_pods_as_fit_now() -> None:
    change = end("big", pod("big", on="a", cpu="3"), pod("small", on="a", cpu="500m"))
    assert added(change, pod("p", cpu="1")) == 3
    assert added(change, pod("p", cpu="3500m")) == 1
    assert added(change, pod("p", cpu="4")) == 0
    assert added(change, pod("p", memory="1Gi")) == 0
    assert added(change, pod("p", requests={"example.com/gpu": "1"})) == 0


def test_members_of_different_shapes_may_fit_together() -> None:
    change = end("p", pod("p", on="a", cpu="500m"), pod("q", on="a", cpu="500m"))
    three, half = pod("x", cpu="3"), pod("y", cpu="500m")
    assert added(change, three) == 0
    assert added(change, three, half) > 0


def test_host_port_is_room_for_one_pod() -> None:
    change = end("web", pod("web", on="a", ports=WEB))
    assert added(change, pod("p", cpu="1", ports=WEB)) == 1
    other = end("idle", pod("web", on="a", ports=WEB), pod("idle", on="a", cpu="4"))
    assert added(other, pod("p", cpu="1", ports=WEB)) == 0


def test_pods_that_an_entity_may_evict_are_room_already() -> None:
    low, high = pod("low", on="a", cpu="4", priority=1), pod("high", on="a", cpu="4", priority=9)
    asked = pod("p", cpu="4")
    assert added(end("low", low), asked, priority=5, evictable=True) == 0
    assert added(end("low", low), asked, priority=5) == 1
    assert added(end("high", high), asked, priority=5, evictable=True) == 1


def test_leaving_pod_that_ends_is_room_for_every_entity() -> None:
    leaving = pod("p", on="a", cpu="4", priority=1, deleting=True)
    assert added(end("p", leaving), pod("q", cpu="4"), priority=5, evictable=True) == 1


def test_nomination_takes_room_from_entities_that_are_not_more_important() -> None:
    cache = cluster([node("a")], [pod("p", cpu="4", priority=5)])
    cache.nominate([Binding(key("p"), "uid-p", "a")])
    (change,) = cache.nominate([Binding(key("p"), "uid-p", "")])
    assert added(change, pod("q", cpu="4"), priority=5) == 1
    assert added(change, pod("q", cpu="4"), priority=9) == 0


def test_new_node_and_uncordoned_node_add_room() -> None:
    cache = cluster([])
    cordoned = cache.update_node("a", node("a", cordoned=True))
    assert added(cordoned, pod("p", cpu="2")) == 0
    assert added(cache.update_node("a", node("a")), pod("p", cpu="2")) == 2
    assert added(cache.update_node("a", node("a", {"x": "y"})), pod("p", cpu="2")) == 0
    grown = cache.update_node("a", node("a", {"x": "y"}, allocatable={"example.com/gpu": "1"}))
    assert added(grown, pod("p", requests={"example.com/gpu": "1"})) == 1
    assert added(grown, pod("p", cpu="1"), pod("q", requests={"example.com/gpu": "1"})) > 0


def test_pod_on_an_unknown_node_adds_no_room() -> None:
    (change,) = cluster([], [pod("p", on="gone", cpu="1")]).update_pod(key("p"), None)
    assert change.has_details
    assert added(change, pod("q", cpu="1")) == 0


def test_group_of_running_pods_matters_for_evictions() -> None:
    cache = cluster([node("a")], [pod("p", "g", on="a", cpu="4")])
    high, low = gang("g", 1, priority=9), gang("g", 1)
    cache.update_group(group_ref(high), high)
    cache.snapshot()
    assert cache.update_group(group_ref(high), high) is None
    change = cache.update_group(group_ref(low), low)
    assert change is not None
    assert not change.has_details
    assert cache.update_group(group_ref(gang("idle", 1)), gang("idle", 1)) is None
