"""The snapshot: rows, labels, taints, and how changes are recorded."""

from __future__ import annotations

import pytest

from phalanx.api.core import Taint
from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster import snapshot as snapshots
from phalanx.scheduler.cluster.snapshot import (
    CPU,
    FIRST_COLUMNS,
    MEMORY,
    PODS,
    Snapshot,
    SnapshotCache,
)
from tests.scheduler.builders import cluster, node, pod

SSD = LabelRequirement("disk", "in", frozenset({"ssd"}))


def test_rows_are_nodes_sorted_by_name() -> None:
    snapshot = cluster([node("b"), node("c"), node("a")]).snapshot()
    assert snapshot.names == ["a", "b", "c"]
    assert [snapshot.index[name] for name in snapshot.names] == [0, 1, 2]


def test_amounts_are_exact_integers_in_the_columns_of_their_resources() -> None:
    machine = node("n", cpu="1500m", memory="1Gi", allocatable={"example.com/gpu": "2"})
    snapshot = cluster([machine], [pod("p", on="n", cpu="250m")]).snapshot()
    gpu = snapshot.columns["example.com/gpu"]
    assert snapshot.allocatable[0, [CPU, MEMORY, PODS, gpu]].tolist() == [1500, 1024**3, 110, 2]
    assert snapshot.requested[0, [CPU, MEMORY, PODS, gpu]].tolist() == [250, 0, 1, 0]
    assert snapshot.nonzero_requested[0].tolist() == [250, 200 * 1024**2]


def test_a_cluster_without_nodes_has_a_snapshot() -> None:
    snapshot = Snapshot((), dict.fromkeys(FIRST_COLUMNS, 0))
    assert len(snapshot) == 0
    assert snapshot.nodes_matching(LabelRequirement("a", "in", frozenset("b"))).tolist() == []


def test_label_masks_are_cached_until_a_node_changes() -> None:
    cache = cluster([node("a", {"disk": "ssd"}), node("b")])
    snapshot = cache.snapshot()
    mask = snapshot.nodes_matching(SSD)
    assert mask.tolist() == [True, False]
    assert snapshot.nodes_matching(SSD) is mask
    cache.update_node("b", node("b", {"disk": "ssd"}))
    assert cache.snapshot().nodes_matching(SSD).tolist() == [True, True]


def test_the_cache_of_label_masks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MASKS_LIMIT", 2)
    snapshot = cluster([node("a", {"k": "1"})]).snapshot()
    needs = [LabelRequirement("k", "in", frozenset(str(i))) for i in range(5)]
    assert [snapshot.nodes_matching(need).tolist() for need in needs] == [
        [i == 1] for i in range(5)
    ]
    assert len(snapshot._masks) <= 2


def test_nodes_with_equal_taints_share_a_taint_class() -> None:
    taint = Taint("a", "b", "NoSchedule")
    snapshot = cluster([node("a", taints=(taint,)), node("b"), node("c", taints=(taint,))])
    classes = snapshot.snapshot().taint_class.tolist()
    assert classes[0] == classes[2] != classes[1]


def test_the_node_class_of_a_row_is_current() -> None:
    cache = cluster([node("a"), node("b")])
    idle = cache.snapshot().node_class(0)
    cache.update_pod(pod("p").metadata.key, pod("p", on="a", cpu="1"))
    busy = cache.snapshot().node_class(0)
    assert (idle.requested[CPU], busy.requested[CPU], cache.snapshot().node_class(1)) == (
        0,
        1000,
        idle,
    )


def test_the_arrays_show_the_latest_load() -> None:
    cache = cluster([node("a"), node("b")])
    for cpu in ("1", "3"):
        cache.update_pod(pod("p").metadata.key, pod("p", on="b", cpu=cpu))
        cache.snapshot()
    cache.update_node("b", node("b", cpu="8"))
    snapshot = cache.snapshot()
    assert (
        snapshot.requested[:, CPU].tolist()
        == snapshot.nonzero_requested[:, CPU].tolist()
        == [0, 3000]
    )
    assert (snapshot.node_class(1).allocatable[CPU], snapshot.node_class(1).requested[CPU]) == (
        8000,
        3000,
    )
    assert cache.check() == []


def test_image_sizes_follow_changed_nodes() -> None:
    cache = cluster([node("a", images={"web": 7, "db": 5}), node("b", images={"web": 9})])
    assert cache.snapshot().image_sizes("web").tolist() == [7, 9]
    cache.update_node("a", node("a", images={"db": 6}))
    found = [cache.snapshot().image_sizes(name).tolist() for name in ("web", "db", "none")]
    assert found == [[0, 9], [6, 0], [0, 0]]


def test_load_changes_are_recorded_and_a_changed_node_begins_an_epoch() -> None:
    cache = cluster([node("a"), node("b")])
    epoch = cache.snapshot().epoch
    cache.update_pod(pod("p").metadata.key, pod("p", on="b"))
    assert (cache.snapshot().epoch, cache.snapshot().changed_rows) == (epoch, [1])
    cache.update_node("a", node("a", cordoned=True))
    assert (cache.snapshot().epoch, cache.snapshot().changed_rows) == (epoch + 1, [])


def test_too_many_changed_rows_begin_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_CHANGED_ROWS_LIMIT", 3)
    snapshot = cluster([node("a")]).snapshot()
    for _ in range(4):
        snapshot.update_load(0, [0, 0, 0], [0, 0], ports=())
    assert (snapshot.epoch, snapshot.changed_rows) == (1, [])


def test_a_snapshot_cache_keeps_one_value_per_snapshot() -> None:
    cache: SnapshotCache[list[str]] = SnapshotCache(list)
    first, second = cluster([node("a")]).snapshot(), cluster([node("a")]).snapshot()
    cache.of(first).append("derived")
    assert (cache.of(first), cache.of(second)) == (["derived"], [])
    assert SnapshotCache[list[str]](list).of(first) == []


def test_a_fork_starts_without_the_cached_values_of_its_origin() -> None:
    cache: SnapshotCache[list[str]] = SnapshotCache(list)
    snapshot = cluster([node("a")]).snapshot()
    cache.of(snapshot).append("derived")
    assert cache.of(snapshot.fork()) == []
    assert cache.of(snapshot) == ["derived"]
