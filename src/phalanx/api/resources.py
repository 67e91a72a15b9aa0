"""How much room a pod takes and a node has, as exact integers per resource.

CPU counts in thousandths, everything else in whole units. The scheduler's arrays and the server's
room ledger both count with these functions, so that they can never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from phalanx.api.core import Container, Node, Pod, PodSpec
from phalanx.api.quantity import QuantityText, integer_value, milli_value

#: Units per resource name.
Amounts = dict[str, int]
_ContainerAmounts = Callable[[Container], dict[str, int]]

#: What a container that names no request counts as in scores (never in fitting): 100m and 200Mi.
DEFAULT_NONZERO_REQUESTS: Mapping[str, int] = {"cpu": 100, "memory": 200 * 1024 * 1024}


def to_amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    """Quantities as integers."""
    return {name: to_amount(name, text) for name, text in quantities.items()}


def to_amount(name: str, text: QuantityText) -> int:
    """One quantity in the units of its resource."""
    return milli_value(text) if name == "cpu" else integer_value(text)


def pod_requests(pod: Pod) -> Amounts:
    """The room that a pod takes on its node, itself counted under `pods`."""
    total = {**container_requests(pod.spec), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    total["pods"] = 1
    return {name: count for name, count in total.items() if count}


def container_requests(spec: PodSpec) -> Amounts:
    """What the containers of a pod ask for, all in all."""
    return _sum_containers(spec, _container_requests)


def nonzero_requests(pod: Pod) -> Amounts:
    """CPU and memory as scores see them: a container that states none counts as a small one."""
    total = {**_sum_containers(pod.spec, _nonzero_container_requests), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    return {name: total.get(name, 0) for name in DEFAULT_NONZERO_REQUESTS}


def node_allocatable(node: Node) -> Amounts:
    """What a node can hold."""
    return to_amounts(node.status.allocatable)


def _sum_containers(spec: PodSpec, requests_of: _ContainerAmounts) -> Amounts:
    """Containers run side by side; init containers one by one before, sidecars all along."""
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
    """Requests of the pod as a whole replace the sum of its containers'."""
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
    """The sum of several amounts."""
    result: Amounts = {}
    for part in parts:
        _add_to(result, part)
    return result
