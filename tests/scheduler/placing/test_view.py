"""Views: built once per shape, patched ever after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.census import Resident
from phalanx.scheduler.cluster.shape import shape_of
from phalanx.scheduler.cluster.variation import varied
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.placing import view as views
from phalanx.scheduler.placing.ranking import NOWHERE
from phalanx.scheduler.placing.view import INDEX, View, view_of
from phalanx.scheduler.policy import DEFAULT, Policy
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.strategies import NODE_NAMES, nodes, pods

SHAPE = shape_of(pod("p", cpu="1"))


def told(view: View) -> list[int]:
    """The keys of all nodes; how far behind one is that refuses does not matter."""
    return [min(key, NOWHERE) for key in view.keys.tolist()]


def ranked(view: View) -> list[str]:
    while view.ranking.extend():
        pass
    return [view.snapshot.names[key & INDEX] for key in view.ranking.best]


def assume(cache: Cache, name: str, on: str, *, cpu: str) -> None:
    one = pod(name, cpu=cpu)
    cache.pod(one.metadata.key, one)
    cache.assume([Binding(one.metadata.key, one.metadata.uid, on)])


def test_the_best_node_comes_first_and_of_equal_ones_the_lower_name() -> None:
    machines = [node("c"), node("a"), node("b"), node("tiny", cpu="500m")]
    cache = cluster(machines, [pod("q", on="a", cpu="2")])
    assert ranked(view_of(cache.snapshot(), DEFAULT, SHAPE)) == ["b", "c", "a"]


def test_a_view_outlives_the_cycle_and_follows_the_load() -> None:
    cache = cluster([node(f"n{i:02}") for i in range(40)])
    view = view_of(cache.snapshot(), DEFAULT, SHAPE)
    assume(cache, "q", "n00", cpu="1")
    assume(cache, "full", "n01", cpu="4")
    assert view_of(cache.snapshot(), DEFAULT, SHAPE) is view
    assert ranked(view) == [*(f"n{i:02}" for i in range(2, 40)), "n00"]
    cache.pod(pod("full").metadata.key, None)
    assert ranked(view_of(cache.snapshot(), DEFAULT, SHAPE))[-2:] == ["n39", "n00"]


def test_a_view_is_built_anew_when_a_node_changes() -> None:
    cache = cluster([node("a"), node("b")])
    view = view_of(cache.snapshot(), DEFAULT, SHAPE)
    cache.node("a", node("a", cordoned=True))
    again = view_of(cache.snapshot(), DEFAULT, SHAPE)
    assert again is not view
    assert ranked(again) == ["b"]


def test_a_view_belongs_to_one_policy() -> None:
    snapshot = cluster([node("a", cpu="1"), node("b")]).snapshot()
    view = view_of(snapshot, DEFAULT, SHAPE)
    other = view_of(snapshot, Policy(filters=DEFAULT.filters, scores=()), SHAPE)
    assert other is not view
    assert ranked(other) == ["a", "b"]


def test_the_least_recently_used_view_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_VIEWS_LIMIT", 2)
    snapshot = cluster([node("a")]).snapshot()
    one, two, three = (shape_of(pod("p", cpu=f"{n}")) for n in (1, 2, 3))
    for shape in (one, two, one, three):
        view_of(snapshot, DEFAULT, shape)
    assert list(snapshot.views) == [(DEFAULT, one), (DEFAULT, three)]


def test_a_refusal_is_remembered_until_the_load_changes() -> None:
    cache = cluster([node(f"n{i:02}", cpu="500m") for i in range(40)])
    view = view_of(cache.snapshot(), DEFAULT, SHAPE)
    first = view.refusal()
    assert view.refusal() is first
    assume(cache, "q", "n00", cpu="100m")
    assert view_of(cache.snapshot(), DEFAULT, SHAPE).refusal() is not first


@given(st.data())
def test_a_patched_view_equals_a_fresh_one(data: st.DataObject) -> None:
    machines = [data.draw(nodes(name)) for name in NODE_NAMES]
    # Enough idle nodes to make patching worth while.
    idle = [node(f"z{i:02}", cpu="1") for i in range(40)]
    cache = cluster([*machines, *idle])
    shape = shape_of(data.draw(pods("new")))
    for step in range(data.draw(st.integers(1, 6))):
        view_of(cache.snapshot(), DEFAULT, shape)
        name = data.draw(st.sampled_from(NODE_NAMES))
        one = data.draw(pods(f"p{step % 3}", on=name))
        cache.pod(one.metadata.key, data.draw(st.sampled_from([one, None])))
    patched, fresh = (
        view_of(cache.snapshot(), DEFAULT, shape),
        View(cache.snapshot(), DEFAULT, shape),
    )
    assert told(patched) == told(fresh)
    assert ranked(patched) == ranked(fresh)


@given(st.data())
def test_the_view_of_a_twin_is_what_looking_anew_would_give(data: st.DataObject) -> None:
    snapshot = cluster([data.draw(nodes(name)) for name in NODE_NAMES]).snapshot()
    one = data.draw(pods("p"))
    meta, shape = one.metadata, shape_of(one)
    view_of(snapshot, DEFAULT, shape)
    guest = Resident(meta.key, meta.uid, NODE_NAMES[0], meta.labels, shape)
    twin = varied(snapshot, plus=[guest])
    inherited, anew = view_of(twin, DEFAULT, shape), View(twin, DEFAULT, shape)
    assert told(inherited) == told(anew)
    assert inherited.allowed.tolist() == anew.allowed.tolist()
    assert inherited.comparisons == anew.comparisons
