"""Resource requests of pods and allocatable resources of nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Node, Pod
from phalanx.api.resources import (
    Amounts,
    node_allocatable,
    nonzero_requests,
    pod_requests,
    sum_amounts,
    to_amounts,
)

amount = st.integers(0, 1000)
needs = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/gpu"]), amount)


def container(requests: Amounts, *, sidecar: bool = False) -> dict[str, Any]:
    quantities = {name: f"{n}m" if name == "cpu" else str(n) for name, n in requests.items()}
    always = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": quantities}, **always}


def pod(containers: list[Any], init: list[Any] | None = None, **spec: Any) -> Pod:
    made = {"containers": containers, "initContainers": init or [], **spec}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": made}, Pod)


def without_pods(room: Amounts) -> Amounts:
    return {name: count for name, count in room.items() if name != "pods"}


def positive(room: Amounts) -> Amounts:
    return {name: count for name, count in room.items() if count}


def test_cpu_is_counted_in_thousandths_and_the_rest_in_whole_units() -> None:
    assert to_amounts({"cpu": "1.5", "memory": "1Ki", "pods": "110"}) == {
        "cpu": 1500,
        "memory": 1024,
        "pods": 110,
    }


def test_a_pod_counts_as_one_pod() -> None:
    assert pod_requests(pod([container({})])) == {"pods": 1}


def test_sidecars_run_beside_later_init_containers_and_beside_the_pod() -> None:
    sidecar, init = container({"cpu": 100}, sidecar=True), container({"cpu": 500})
    assert pod_requests(pod([container({"cpu": 200})], [sidecar, init]))["cpu"] == 600
    assert pod_requests(pod([container({"cpu": 200})], [init, sidecar]))["cpu"] == 500


def test_pod_level_requests_and_overhead_count() -> None:
    whole = pod(
        [container({"cpu": 100, "memory": 5})],
        resources={"requests": {"cpu": "1"}},
        overhead={"cpu": "250m"},
    )
    assert pod_requests(whole) == {"cpu": 1250, "memory": 5, "pods": 1}


def test_container_without_requests_counts_with_defaults_in_scores() -> None:
    assert nonzero_requests(pod([container({}), container({"cpu": 50})])) == {
        "cpu": 150,
        "memory": 2 * 200 * 2**20,
    }


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({"name": "c", "allocatedResources": {"cpu": "4"}}, 4000),
        ({"name": "c", "resources": {"requests": {"cpu": "3"}}}, 3000),
        ({"name": "c", "allocatedResources": {"cpu": "500m"}}, 1000),
        ({"name": "another", "allocatedResources": {"cpu": "4"}}, 1000),
    ],
)
def test_larger_of_requested_and_allocated_resources_counts(
    status: dict[str, Any], cpu: int
) -> None:
    one = {"containers": [container({"cpu": 1000, "memory": 5})]}
    resized = msgspec.convert(
        {"metadata": {"name": "p"}, "spec": one, "status": {"containerStatuses": [status]}}, Pod
    )
    assert pod_requests(resized) == {"cpu": cpu, "memory": 5, "pods": 1}
    assert nonzero_requests(resized) == {"cpu": cpu, "memory": 5}


def test_node_has_its_allocatable_resources() -> None:
    node = msgspec.convert(
        {"metadata": {}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}}, Node
    )
    assert node_allocatable(node) == {"cpu": 8000, "pods": 110}


@given(st.lists(needs, max_size=4))
def test_containers_request_their_sum(parts: list[Amounts]) -> None:
    room = pod_requests(pod([container(part) for part in parts]))
    assert without_pods(room) == positive(sum_amounts(parts))


@given(needs, st.lists(needs, max_size=4))
def test_init_containers_request_their_maximum(main: Amounts, parts: list[Amounts]) -> None:
    room = pod_requests(pod([container(main)], [container(part) for part in parts]))
    most = {
        name: max(part.get(name, 0) for part in (main, *parts))
        for name in {**main, **sum_amounts(parts)}
    }
    assert without_pods(room) == positive(most)


@given(st.lists(needs), st.lists(needs))
def test_totals_add_up(one: list[Amounts], other: list[Amounts]) -> None:
    assert sum_amounts([*one, *other]) == sum_amounts([sum_amounts(one), sum_amounts(other)])


def test_equal_containers_of_many_pods_occupy_memory_once() -> None:
    one, other = (pod([container({"cpu": 100, "memory": 5})]) for _ in range(2))
    larger = pod([container({"cpu": 200, "memory": 5})])
    limited = pod([{**container({"cpu": 100}), "resources": {"limits": {"cpu": "1"}}}])
    assert one.spec.containers is other.spec.containers
    assert pod_requests(larger)["cpu"] == 200
    assert limited.spec.containers[0].resources.limits == {"cpu": "1"}


def test_containers_with_requests_in_another_order_are_equal() -> None:
    requests = {"cpu": "1", "memory": "5"}
    one = {"name": "c", "resources": {"requests": requests}}
    other = {"name": "c", "resources": {"requests": dict(reversed(requests.items()))}}
    assert pod([one]).spec.containers is pod([other]).spec.containers
