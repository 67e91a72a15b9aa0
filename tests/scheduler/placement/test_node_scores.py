"""Node scores: computed once per shape, then patched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.placement import node_scores as node_scores_module
from phalanx.scheduler.placement.node_scores import (
    INDEX_MASK,
    NO_NODE,
    NODE_SCORES,
    NodeScores,
    node_scores_of,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.strategies import NODE_NAMES, nodes, pods

SHAPE = shape_of(pod("p", cpu="1"))


def capped_keys(node_scores: NodeScores) -> list[int]:
    """The keys of all nodes; all keys of rejected nodes are equal."""
    return [min(key, NO_NODE) for key in node_scores.keys.tolist()]


def ranked_names(node_scores: NodeScores) -> list[str]:
    while node_scores.sorted_keys.sort_more():
        pass
    return [node_scores.snapshot.names[key & INDEX_MASK] for key in node_scores.sorted_keys.best]


def assume(cache: SchedulerCache, name: str, on: str, *, cpu: str) -> None:
    one = pod(name, cpu=cpu)
    cache.update_pod(one.metadata.key, one)
    cache.assume([Binding(one.metadata.key, one.metadata.uid, on)])


def test_the_best_node_comes_first_and_of_equal_nodes_the_lower_name() -> None:
    machines = [node("c"), node("a"), node("b"), node("tiny", cpu="500m")]
    cache = cluster(machines, [pod("q", on="a", cpu="2")])
    assert ranked_names(node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE)) == ["b", "c", "a"]


def test_node_scores_outlive_the_cycle_and_follow_the_load() -> None:
    cache = cluster([node(f"n{i:02}") for i in range(40)])
    scores = node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE)
    assume(cache, "q", "n00", cpu="1")
    assume(cache, "full", "n01", cpu="4")
    assert node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE) is scores
    assert ranked_names(scores) == [*(f"n{i:02}" for i in range(2, 40)), "n00"]
    cache.update_pod(pod("full").metadata.key, None)
    assert ranked_names(node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE))[-2:] == [
        "n39",
        "n00",
    ]


def test_node_scores_are_recomputed_when_a_node_changes() -> None:
    cache = cluster([node("a"), node("b")])
    scores = node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE)
    cache.update_node("a", node("a", cordoned=True))
    again = node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE)
    assert again is not scores
    assert ranked_names(again) == ["b"]


def test_node_scores_belong_to_one_policy() -> None:
    snapshot = cluster([node("a", cpu="1"), node("b")]).snapshot()
    scores = node_scores_of(snapshot, DEFAULT_POLICY, SHAPE)
    other = node_scores_of(
        snapshot, SchedulerPolicy(filters=DEFAULT_POLICY.filters, scores=()), SHAPE
    )
    assert other is not scores
    assert ranked_names(other) == ["a", "b"]


def test_the_least_recently_used_node_scores_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_scores_module, "_NODE_SCORES_LIMIT", 2)
    snapshot = cluster([node("a")]).snapshot()
    one, two, three = (shape_of(pod("p", cpu=f"{n}")) for n in (1, 2, 3))
    for shape in (one, two, one, three):
        node_scores_of(snapshot, DEFAULT_POLICY, shape)
    assert list(NODE_SCORES.of(snapshot)) == [(DEFAULT_POLICY, one), (DEFAULT_POLICY, three)]


def test_a_refusal_is_cached_until_the_load_changes() -> None:
    cache = cluster([node(f"n{i:02}", cpu="500m") for i in range(40)])
    scores = node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE)
    first = scores.refusal()
    assert scores.refusal() is first
    assume(cache, "q", "n00", cpu="100m")
    assert node_scores_of(cache.snapshot(), DEFAULT_POLICY, SHAPE).refusal() is not first


@given(st.data())
def test_updated_node_scores_equal_recomputed_ones(data: st.DataObject) -> None:
    machines = [data.draw(nodes(name)) for name in NODE_NAMES]
    # Enough idle nodes that loads are patched instead of recomputed.
    idle = [node(f"z{i:02}", cpu="1") for i in range(40)]
    cache = cluster([*machines, *idle])
    shape = shape_of(data.draw(pods("new")))
    for step in range(data.draw(st.integers(1, 6))):
        node_scores_of(cache.snapshot(), DEFAULT_POLICY, shape)
        name = data.draw(st.sampled_from(NODE_NAMES))
        one = data.draw(pods(f"p{step % 3}", on=name))
        cache.update_pod(one.metadata.key, data.draw(st.sampled_from([one, None])))
    patched, fresh = (
        node_scores_of(cache.snapshot(), DEFAULT_POLICY, shape),
        NodeScores(cache.snapshot(), DEFAULT_POLICY, shape),
    )
    assert capped_keys(patched) == capped_keys(fresh)
    assert ranked_names(patched) == ranked_names(fresh)


@given(st.data())
def test_inherited_node_scores_of_a_fork_equal_recomputed_ones(data: st.DataObject) -> None:
    snapshot = cluster([data.draw(nodes(name)) for name in NODE_NAMES]).snapshot()
    one = data.draw(pods("p"))
    meta, shape = one.metadata, shape_of(one)
    node_scores_of(snapshot, DEFAULT_POLICY, shape)
    added = AssignedPod(meta.key, meta.uid, NODE_NAMES[0], meta.labels, shape)
    forked = with_changes(snapshot, added=[added])
    inherited, fresh = (
        node_scores_of(forked, DEFAULT_POLICY, shape),
        NodeScores(forked, DEFAULT_POLICY, shape),
    )
    assert capped_keys(inherited) == capped_keys(fresh)
    assert inherited.allowed_nodes.tolist() == fresh.allowed_nodes.tolist()
    assert inherited.normalized_scores == fresh.normalized_scores
