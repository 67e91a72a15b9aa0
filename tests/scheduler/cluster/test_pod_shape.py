"""Pod shapes: what makes pods interchangeable."""

from __future__ import annotations

import pytest

from phalanx.api.core import Pod, Toleration
from phalanx.scheduler.cluster import pod_shape as shapes
from phalanx.scheduler.cluster.pod_shape import PodShape, format_amount, shape_of
from tests.scheduler.builders import pod


def test_members_of_a_gang_share_one_shape() -> None:
    one, other = pod("a", "g", cpu="1", memory="1Gi"), pod("b", "g", cpu="1", memory="1Gi")
    assert shape_of(one) == shape_of(other)
    assert hash(shape_of(one)) == hash(shape_of(other))


def test_the_same_amount_written_otherwise_is_the_same_shape() -> None:
    assert shape_of(pod("a", cpu="1")) == shape_of(pod("b", cpu="1000m"))


@pytest.mark.parametrize(
    "other",
    [
        pod("b", cpu="2"),
        pod("b", cpu="1", memory="1Gi"),
        pod("b", cpu="1", selector={"disk": "ssd"}),
        pod("b", cpu="1", tolerations=(Toleration("x"),)),
    ],
)
def test_every_field_that_filters_or_scores_read_changes_the_shape(other: Pod) -> None:
    assert shape_of(other) != shape_of(pod("a", cpu="1"))


def test_a_pod_without_requests_uses_a_pod_slot_and_is_scored_with_defaults() -> None:
    shape = shape_of(pod("a"))
    assert shape.requests == (("pods", 1),)
    assert shape.nonzero_requests == (100, 200 * 1024 * 1024)


def test_a_resource_without_a_column_is_unknown() -> None:
    shape = shape_of(pod("a", cpu="1", requests={"example.com/gpu": "1"}))
    columns = {"cpu": 0, "memory": 1, "pods": 2}
    assert shape.request_vector(columns).has_unknown_resource
    assert shape.request_vector({**columns, "example.com/gpu": 3}).amounts == (
        (0, 1000),
        (3, 1),
        (2, 1),
    )


def test_clearing_the_full_memo_changes_no_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_MEMO_LIMIT", 4)
    monkeypatch.setattr(shapes, "_memo", {})
    seen = [shape_of(pod("a", cpu=f"{n}m")) for n in range(1, 10)]
    assert len(set(seen)) == 9
    assert len(shapes._memo) <= 4


def test_shapes_are_formatted_as_people_write_quantities() -> None:
    assert str(shape_of(pod("a", cpu="1500m", memory="2Gi"))) == "cpu 1500m, memory 2Gi"
    assert str(PodShape((("pods", 1),), (0, 0))) == "one pod"


@pytest.mark.parametrize(
    ("name", "amount", "text"),
    [
        ("cpu", 500, "cpu 500m"),
        ("cpu", 2000, "cpu 2"),
        ("memory", 3 * 1024**3, "memory 3Gi"),
        ("memory", 1000, "memory 1000"),
        ("hugepages-2Mi", 2 * 1024**2, "hugepages-2Mi 2Mi"),
        ("example.com/gpu", 1024, "example.com/gpu 1024"),
    ],
)
def test_amounts_are_formatted_with_their_units(name: str, amount: int, text: str) -> None:
    assert format_amount(name, amount) == text
