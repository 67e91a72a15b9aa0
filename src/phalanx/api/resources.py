"""Resource requests of pods and allocatable resources of nodes, as exact integers.

CPU is counted in thousandths, every other resource in whole units. The scheduler's arrays and the
server's node allocations use the same functions, so both always agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from phalanx.api.core import Container, Node, Pod, PodSpec
from phalanx.api.quantity import QuantityText, integer_value, milli_value

#: Units per resource name.
Amounts = dict[str, int]
_ContainerAmounts = Callable[[Container], dict[str, int]]

#: The requests that scores (never filters) assume for a container without any: 100m and 200Mi.
DEFAULT_NONZERO_REQUESTS: Mapping[str, int] = {"cpu": 100, "memory": 200 * 1024 * 1024}


def to_amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    """Convert quantities to integers."""
    return {name: to_amount(name, text) for name, text in quantities.items()}


def to_amount(name: str, text: QuantityText) -> int:
    """Convert one quantity to the unit of its resource."""
    return milli_value(text) if name == "cpu" else integer_value(text)


def pod_requests(pod: Pod) -> Amounts:
    """Return the resources that a pod occupies on its node, the pod itself under `pods`."""
    total = {**container_requests(pod.spec), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    total["pods"] = 1
    return {name: count for name, count in total.items() if count}


def container_requests(spec: PodSpec) -> Amounts:
    """Return the requests of all containers of a pod together."""
    return _sum_containers(spec, _container_requests)


def nonzero_requests(pod: Pod) -> Amounts:
    """Return CPU and memory for scores: a container without requests counts with defaults."""
    total = {**_sum_containers(pod.spec, _nonzero_container_requests), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    return {name: total.get(name, 0) for name in DEFAULT_NONZERO_REQUESTS}


def node_allocatable(node: Node) -> Amounts:
    """Return the allocatable resources of a node."""
    return to_amounts(node.status.allocatable)


def _sum_containers(spec: PodSpec, requests_of: _ContainerAmounts) -> Amounts:
    """Sum requests as Kubernetes does: containers run together, init containers one by one before
    them, sidecars all the time.
    """
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        needs = requests_of(container)
        if container.restart_policy == "Always":
            _add_to(running, needs)
            needs = running
        else:
            needs = _sum(running, needs)
        _raise_to(peak, needs)
    for container in spec.containers:
        _add_to(running, requests_of(container))
    _raise_to(peak, running)
    return peak


def _container_requests(container: Container) -> Amounts:
    return to_amounts(container.resources.requests)


def _nonzero_container_requests(container: Container) -> Amounts:
    return {**DEFAULT_NONZERO_REQUESTS, **to_amounts(container.resources.requests)}


def _pod_level_requests(pod: Pod) -> Amounts:
    """Return the pod-level requests, which replace the sum over containers."""
    return to_amounts(pod.spec.resources.requests) if pod.spec.resources else {}


def _add_to(total: Amounts, more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    total = dict(one)
    _add_to(total, other)
    return total


def _raise_to(peak: Amounts, level: Mapping[str, int]) -> None:
    for name, count in level.items():
        peak[name] = max(peak.get(name, 0), count)


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the sum of several amounts."""
    result: Amounts = {}
    for part in parts:
        _add_to(result, part)
    return result
