"""Rankings: the best first, sorted only as far as somebody has looked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.placement import node_scores as rankings
from phalanx.scheduler.placement.node_scores import NO_NODE, SortedKeys

keys = st.one_of(st.integers(-50, 50), st.just(NO_NODE))


def ranking(*of: int) -> SortedKeys:
    return SortedKeys(np.array(of, np.int64))


def whole(one: SortedKeys) -> list[int]:
    while one.sort_more():
        pass
    return one.best


@pytest.fixture(autouse=True)
def _small_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankings, "_STRIDE", 2)


def test_nothing_is_sorted_before_somebody_looks_and_then_no_more_than_a_stride() -> None:
    one = ranking(7, 3, 9, 1, 5)
    assert one.best == []
    assert one.sort_more()
    assert one.best == [1, 3]


def test_each_extension_is_as_long_as_what_is_there() -> None:
    one = ranking(*range(9, 0, -1))
    lengths = []
    while one.sort_more():
        lengths.append(len(one.best))
    assert (lengths, one.best) == ([2, 4, 8, 9], list(range(1, 10)))


def test_nodes_that_refuse_are_not_in_it() -> None:
    assert whole(ranking(NO_NODE, 4, NO_NODE)) == [4]
    assert not ranking(NO_NODE).sort_more()
    assert not ranking().sort_more()


def test_a_node_moves_inside_what_is_sorted_into_it_and_out_of_it() -> None:
    one = ranking(10, 20, 30, 40)
    one.sort_more()
    one.update([(0, 15)])
    assert one.best == [15, 20]
    one.update([(2, 12)])
    assert one.best == [12, 15, 20]
    one.update([(1, 50)])
    assert one.best == [12, 15]
    assert whole(one) == [12, 15, 40, 50]


def test_a_node_that_refuses_may_take_pods_again() -> None:
    one = ranking(10, 20, 30)
    one.sort_more()
    one.update([(0, NO_NODE)])
    assert one.best == [20]
    one.update([(0, 10)])
    assert one.best == [10, 20]


@given(st.lists(keys, min_size=1, max_size=12), st.data())
def test_whatever_moves_and_whoever_looks_it_is_the_order_of_the_keys(
    numbers: list[int], data: st.DataObject
) -> None:
    # The low bits make keys differ, as the index of the node does in a view.
    present = [key * 16 + i if key != NO_NODE else key for i, key in enumerate(numbers)]
    one = ranking(*present)
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            one.sort_more()
        i = data.draw(st.integers(0, len(numbers) - 1))
        key = data.draw(keys)
        present[i] = key * 16 + i if key != NO_NODE else key
        one.update([(i, present[i])])
        expected = sorted(key for key in present if key != NO_NODE)
        assert one.best == expected[: len(one.best)]
    assert whole(one) == sorted(key for key in present if key != NO_NODE)


def test_a_part_of_it_is_sorted_as_far_as_it_goes() -> None:
    one = ranking(7, 3, 9, 1, 5)
    assert one.keys_between(0, 1) == [1]
    assert one.best == [1, 3]
    assert one.keys_between(1, 4) == [3, 5, 7]
    assert one.keys_between(4, 9) == [9]
    assert one.keys_between(5, 9) == []
