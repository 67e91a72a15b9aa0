"""Sorted keys: the best first, sorted on demand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.placement import node_scores as node_scores_module
from phalanx.scheduler.placement.node_scores import NO_NODE, SortedKeys

keys = st.one_of(st.integers(-50, 50), st.just(NO_NODE))


def sorted_keys(*of: int) -> SortedKeys:
    return SortedKeys(np.array(of, np.int64))


def sort_all(one: SortedKeys) -> list[int]:
    while one.sort_more():
        pass
    return one.best


@pytest.fixture(autouse=True)
def _small_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_scores_module, "_STRIDE", 2)


def test_keys_are_sorted_on_demand_one_stride_at_a_time() -> None:
    one = sorted_keys(7, 3, 9, 1, 5)
    assert one.best == []
    assert one.sort_more()
    assert one.best == [1, 3]


def test_each_extension_doubles_the_sorted_keys() -> None:
    one = sorted_keys(*range(9, 0, -1))
    lengths = []
    while one.sort_more():
        lengths.append(len(one.best))
    assert (lengths, one.best) == ([2, 4, 8, 9], list(range(1, 10)))


def test_rejected_nodes_are_not_among_the_sorted_keys() -> None:
    assert sort_all(sorted_keys(NO_NODE, 4, NO_NODE)) == [4]
    assert not sorted_keys(NO_NODE).sort_more()
    assert not sorted_keys().sort_more()


def test_a_changed_key_moves_within_into_and_out_of_the_sorted_keys() -> None:
    one = sorted_keys(10, 20, 30, 40)
    one.sort_more()
    one.update([(0, 15)])
    assert one.best == [15, 20]
    one.update([(2, 12)])
    assert one.best == [12, 15, 20]
    one.update([(1, 50)])
    assert one.best == [12, 15]
    assert sort_all(one) == [12, 15, 40, 50]


def test_a_rejected_node_may_take_pods_again() -> None:
    one = sorted_keys(10, 20, 30)
    one.sort_more()
    one.update([(0, NO_NODE)])
    assert one.best == [20]
    one.update([(0, 10)])
    assert one.best == [10, 20]


@given(st.lists(keys, min_size=1, max_size=12), st.data())
def test_sorted_keys_equal_a_full_sort_after_any_updates(
    numbers: list[int], data: st.DataObject
) -> None:
    # The low bits make keys differ, as the index of the node does in node scores.
    present = [key * 16 + i if key != NO_NODE else key for i, key in enumerate(numbers)]
    one = sorted_keys(*present)
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            one.sort_more()
        i = data.draw(st.integers(0, len(numbers) - 1))
        key = data.draw(keys)
        present[i] = key * 16 + i if key != NO_NODE else key
        one.update([(i, present[i])])
        expected = sorted(key for key in present if key != NO_NODE)
        assert one.best == expected[: len(one.best)]
    assert sort_all(one) == sorted(key for key in present if key != NO_NODE)


def test_keys_between_returns_fewer_keys_at_the_end() -> None:
    one = sorted_keys(7, 3, 9, 1, 5)
    assert one.keys_between(0, 1) == [1]
    assert one.best == [1, 3]
    assert one.keys_between(1, 4) == [3, 5, 7]
    assert one.keys_between(4, 9) == [9]
    assert one.keys_between(5, 9) == []
