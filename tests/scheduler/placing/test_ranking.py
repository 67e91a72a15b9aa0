"""Rankings: the best first, sorted only as far as somebody has looked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scheduler.placing import ranking as rankings
from phalanx.scheduler.placing.ranking import NOWHERE, Ranking

keys = st.one_of(st.integers(-50, 50), st.just(NOWHERE))


def ranking(*of: int) -> Ranking:
    return Ranking(np.array(of, np.int64))


def whole(one: Ranking) -> list[int]:
    while one.extend():
        pass
    return one.best


@pytest.fixture(autouse=True)
def _small_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankings, "_STRIDE", 2)


def test_nothing_is_sorted_before_somebody_looks_and_then_no_more_than_a_stride() -> None:
    one = ranking(7, 3, 9, 1, 5)
    assert one.best == []
    assert one.extend()
    assert one.best == [1, 3]


def test_each_extension_is_as_long_as_what_is_there() -> None:
    one = ranking(*range(9, 0, -1))
    lengths = []
    while one.extend():
        lengths.append(len(one.best))
    assert (lengths, one.best) == ([2, 4, 8, 9], list(range(1, 10)))


def test_nodes_that_refuse_are_not_in_it() -> None:
    assert whole(ranking(NOWHERE, 4, NOWHERE)) == [4]
    assert not ranking(NOWHERE).extend()
    assert not ranking().extend()


def test_a_node_moves_inside_what_is_sorted_into_it_and_out_of_it() -> None:
    one = ranking(10, 20, 30, 40)
    one.extend()
    one.put([(0, 15)])
    assert one.best == [15, 20]
    one.put([(2, 12)])
    assert one.best == [12, 15, 20]
    one.put([(1, 50)])
    assert one.best == [12, 15]
    assert whole(one) == [12, 15, 40, 50]


def test_a_node_that_refuses_may_take_pods_again() -> None:
    one = ranking(10, 20, 30)
    one.extend()
    one.put([(0, NOWHERE)])
    assert one.best == [20]
    one.put([(0, 10)])
    assert one.best == [10, 20]


@given(st.lists(keys, min_size=1, max_size=12), st.data())
def test_whatever_moves_and_whoever_looks_it_is_the_order_of_the_keys(
    numbers: list[int], data: st.DataObject
) -> None:
    # The low bits make keys differ, as the index of the node does in a view.
    present = [key * 16 + i if key != NOWHERE else key for i, key in enumerate(numbers)]
    one = ranking(*present)
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            one.extend()
        i = data.draw(st.integers(0, len(numbers) - 1))
        key = data.draw(keys)
        present[i] = key * 16 + i if key != NOWHERE else key
        one.put([(i, present[i])])
        expected = sorted(key for key in present if key != NOWHERE)
        assert one.best == expected[: len(one.best)]
    assert whole(one) == sorted(key for key in present if key != NOWHERE)


def test_a_part_of_it_is_sorted_as_far_as_it_goes() -> None:
    one = ranking(7, 3, 9, 1, 5)
    assert one.part(0, 1) == [1]
    assert one.best == [1, 3]
    assert one.part(1, 4) == [3, 5, 7]
    assert one.part(4, 9) == [9]
    assert one.part(5, 9) == []
