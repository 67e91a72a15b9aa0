"""How much room a pod takes and a node has, as exact integers per resource.

CPU counts in thousandths, everything else in whole units. The scheduler's arrays and the server's
room ledger both count with these functions, so that they can never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from phalanx.api.core import Container, Node, Pod, PodSpec
from phalanx.api.quantity import Text, milli, whole

#: Units per resource name.
Amounts = dict[str, int]
_Count = Callable[[Container], dict[str, int]]

#: What a container that names no request counts as in scores (never in fitting): 100m and 200Mi.
UNSTATED: Mapping[str, int] = {"cpu": 100, "memory": 200 * 1024 * 1024}


def amounts(quantities: Mapping[str, Text]) -> Amounts:
    """Quantities as integers."""
    return {name: amount(name, text) for name, text in quantities.items()}


def amount(name: str, text: Text) -> int:
    """One quantity in the units of its resource."""
    return milli(text) if name == "cpu" else whole(text)


def pod_requests(pod: Pod) -> Amounts:
    """The room that a pod takes on its node, itself counted under `pods`."""
    total = {**container_requests(pod.spec), **_pod_level(pod)}
    _add(total, amounts(pod.spec.overhead))
    total["pods"] = 1
    return {name: count for name, count in total.items() if count}


def container_requests(spec: PodSpec) -> Amounts:
    """What the containers of a pod ask for, all in all."""
    return _together(spec, _container_requests)


def scored_requests(pod: Pod) -> Amounts:
    """CPU and memory as scores see them: a container that states none counts as a small one."""
    total = {**_together(pod.spec, _scored_container), **_pod_level(pod)}
    _add(total, amounts(pod.spec.overhead))
    return {name: total.get(name, 0) for name in UNSTATED}


def node_room(node: Node) -> Amounts:
    """What a node can hold."""
    return amounts(node.status.allocatable)


def _together(spec: PodSpec, of: _Count) -> Amounts:
    """Containers run side by side; init containers one by one before, sidecars all along."""
    running: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        needs = of(container)
        if container.restart_policy == "Always":
            _add(running, needs)
            needs = running
        else:
            needs = _sum(running, needs)
        _raise(peak, needs)
    for container in spec.containers:
        _add(running, of(container))
    _raise(peak, running)
    return peak


def _container_requests(container: Container) -> Amounts:
    return amounts(container.resources.requests)


def _scored_container(container: Container) -> Amounts:
    return {**UNSTATED, **amounts(container.resources.requests)}


def _pod_level(pod: Pod) -> Amounts:
    """Requests of the pod as a whole replace the sum of its containers'."""
    return amounts(pod.spec.resources.requests) if pod.spec.resources else {}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    total = dict(one)
    _add(total, other)
    return total


def _raise(peak: Amounts, level: Mapping[str, int]) -> None:
    for name, count in level.items():
        peak[name] = max(peak.get(name, 0), count)


def total(parts: Iterable[Mapping[str, int]]) -> Amounts:
    """The sum of several amounts."""
    result: Amounts = {}
    for part in parts:
        _add(result, part)
    return result
