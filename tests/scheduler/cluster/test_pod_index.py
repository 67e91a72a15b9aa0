"""Counts of pods per node: they follow every pod, whichever label a selection requires."""

from __future__ import annotations

from phalanx.api.selectors import LabelRequirement
from phalanx.scheduler.cluster.peer_constraints import PodSelector
from phalanx.scheduler.cluster.pod_index import PodSelection, SelectionCounts
from tests.scheduler.builders import cluster, key, node, pod


def select(*requirements: LabelRequirement) -> PodSelection:
    return PodSelection((PodSelector(requirements, ("default",)),))


def is_in(key: str, *values: str) -> LabelRequirement:
    return LabelRequirement(key, "in", frozenset(values))


SELECTIONS = {
    "app=web": select(is_in("app", "web")),
    "app in (web, db)": select(is_in("app", "web", "db")),
    "app in (web, db), tier=one": select(is_in("app", "web", "db"), is_in("tier", "one")),
    "has app": select(LabelRequirement("app", "exists")),
    "everything": select(),
}


def test_selections_with_and_without_a_required_label_count_later_pods() -> None:
    state = cluster([node("n1"), node("n2")])
    index = state.snapshot().pod_index
    for selection in SELECTIONS.values():
        assert index.count_per_node(selection).tolist() == [0, 0]
    web = {"app": "web", "tier": "one"}
    for at, (labels, on) in enumerate(((web, "n1"), ({"app": "db"}, "n2"), ({}, "n2"))):
        state.update_pod(key(f"p{at}"), pod(f"p{at}", labels=labels, on=on))
    index = state.snapshot().pod_index
    counts = {name: index.count_per_node(one).tolist() for name, one in SELECTIONS.items()}
    assert counts == {
        "app=web": [1, 0],
        "app in (web, db)": [1, 1],
        "app in (web, db), tier=one": [1, 0],
        "has app": [1, 1],
        "everything": [1, 2],
    }
    assert list(index.check()) == []


def test_new_selection_counts_pods_that_came_changed_and_left_before_it() -> None:
    state = cluster([node("n1"), node("n2")])
    # The first selection that requires the label indexes the pods that are there.
    state.update_pod(key("p0"), pod("p0", labels={"app": "web"}, on="n1"))
    assert state.snapshot().pod_index.count_per_node(SELECTIONS["app=web"]).tolist() == [1, 0]
    for at, (app, on) in enumerate((("db", "n1"), ("db", "n2"), ("mail", "n2")), 1):
        state.update_pod(key(f"p{at}"), pod(f"p{at}", labels={"app": app}, on=on))
    state.update_pod(key("p1"), pod("p1", labels={"app": "mail"}, on="n1"))
    state.update_pod(key("p3"), None)
    index = state.snapshot().pod_index
    assert index.count_per_node(select(is_in("app", "db"))).tolist() == [0, 1]
    assert index.count_per_node(select(is_in("app", "mail"))).tolist() == [1, 0]
    assert index.count_per_node(select(is_in("app", "other"))).tolist() == [0, 0]
    assert list(index.check()) == []


def test_new_selection_is_compared_only_with_pods_that_have_its_label() -> None:
    state = cluster([node("n1")])
    for at in range(20):
        state.update_pod(key(f"p{at}"), pod(f"p{at}", labels={"app": f"a{at % 10}"}, on="n1"))
    index = state.snapshot().pod_index
    assert [list(index.count_in_steps(select(is_in("app", f"a{at}")))) for at in range(3)] == [
        [2]
    ] * 3
    assert index.count_per_node(select(is_in("app", "a1"))).tolist() == [2]


def test_a_pod_is_compared_with_selections_that_require_one_of_its_labels() -> None:
    state = cluster([node("n1")])
    index, counts = state.snapshot().pod_index, SelectionCounts()
    for at in range(300):
        selection = select(is_in("app", f"a{at}"))
        counts.keep(selection, index.count_per_node(selection))
    counts.keep(SELECTIONS["everything"], index.count_per_node(SELECTIONS["everything"]))
    candidates = [selection for selection, _ in counts.candidates({"app": "a299", "x": "y"})]
    assert candidates == [select(is_in("app", "a299")), SELECTIONS["everything"]]
    # The least recently used counts are discarded.
    assert select(is_in("app", "a0")) not in counts
    assert [one for one, _ in counts.candidates({"app": "a0"})] == [SELECTIONS["everything"]]
    counts.clear()
    assert list(counts.candidates({"app": "a299"})) == []
