"""Quantities, the resources of pods and nodes, and the usage of simulated containers.

A quantity such as `500m`, `4Gi` or `1e3` is an exact number and has a canonical form:

    text        value          canonical
    1000m       1              1
    0.1         1/10           100m
    1.5Gi       1610612736     1536Mi
    2048Ki      2097152        2Mi
    1200e0      1200           1200
    1e3         1000           1e3

No value passes through a float. Fractions below one billionth are rounded up, as in Kubernetes.

Resource requests of pods and allocatable resources of nodes are exact integers: CPU is counted in
thousandths, every other resource in whole units. The scheduler's arrays and the server's node
allocations use the same functions, so both always agree.

The annotation `phalanx.dev/usage: cpu=250m,memory=1Gi` is the usage of each container of a pod on a
simulated node. The server reads it for `kubectl top`, and simulated kubelets reject a pod whose
annotation cannot be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from phalanx.api.core import Container, Node, Pod, PodSpec

_SYNTAX = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?\d{1,4}))")
_BINARY = {suffix: 1024**n for n, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NANO = 10**9
#: The largest exponent, and the length of the longest text; more only costs time.
_LIMIT = 64

QuantityText = str | int | float
#: Units per resource name.
Amounts = dict[str, int]
_ContainerAmounts = Callable[[Container], dict[str, int]]

#: The requests that scores (never filters) assume for a container without any: 100m and 200Mi.
DEFAULT_NONZERO_REQUESTS: Mapping[str, int] = {"cpu": 100, "memory": 200 * 1024 * 1024}

#: The annotation of a pod with the usage of each of its containers on a simulated node.
USAGE_ANNOTATION = "phalanx.dev/usage"
_MAX_USAGE_TEXT = 256
#: The resources that usage is stated for.
MEASURED_RESOURCES = ("cpu", "memory")


class BadQuantity(ValueError):
    """The text is not a quantity."""

    def __init__(self, text: QuantityText) -> None:
        super().__init__(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
        self.text = text


@lru_cache(maxsize=65536)
def exact_value(text: QuantityText) -> Fraction:
    """Return the exact value of a quantity. Raises BadQuantity."""
    match = _SYNTAX.fullmatch(str(text)) if len(str(text)) <= _LIMIT else None
    if match is None:
        raise BadQuantity(text)
    sign, digits, binary, decimal, exponent = match.groups()
    if exponent is not None and abs(int(exponent)) > _LIMIT:
        raise BadQuantity(text)
    power = int(exponent) if exponent else _DECIMAL[decimal or ""]
    scale = Fraction(_BINARY[binary]) if binary else Fraction(10) ** power
    exact = Fraction(digits) * scale
    rounded = exact if _NANO % exact.denominator == 0 else Fraction(_round_up(exact * _NANO), _NANO)
    return -rounded if sign == "-" else rounded


@lru_cache(maxsize=4096)
def integer_value(text: QuantityText) -> int:
    """Return a quantity in whole units, rounded up: bytes, devices, pods."""
    return _round_up(exact_value(text))


@lru_cache(maxsize=4096)
def milli_value(text: QuantityText) -> int:
    """Return a quantity in thousandths, rounded up: CPU."""
    return _round_up(exact_value(text) * 1000)


@lru_cache(maxsize=65536)
def canonical_quantity(text: QuantityText) -> str:
    """Return the stored form: no fraction, the largest suffix, the written style."""
    number, written = exact_value(text), str(text)
    if number == 0:
        return "0"
    if written.endswith("i") and abs(number) >= 1024:
        return _with_binary_suffix(number)
    if re.search(r"[eE][+-]?\d", written):
        power = max(p for p in range(-9, _LIMIT, 3) if _is_multiple(p, number))
        return f"{number / Fraction(10) ** power}e{power}" if power else f"{number}"
    return _with_decimal_suffix(number)


def _with_binary_suffix(number: Fraction) -> str:
    if number.denominator != 1:
        return _with_decimal_suffix(number)
    suffix = max((s for s in _BINARY if number % _BINARY[s] == 0), key=_BINARY.__getitem__)
    return f"{number // _BINARY[suffix]}{suffix}"


def _with_decimal_suffix(number: Fraction) -> str:
    fitting = [s for s, power in _DECIMAL.items() if _is_multiple(power, number)]
    suffix = max(fitting, key=_DECIMAL.__getitem__)
    return f"{number / Fraction(10) ** _DECIMAL[suffix]}{suffix}"


def _is_multiple(power: int, number: Fraction) -> bool:
    return (number / Fraction(10) ** power).denominator == 1


def _round_up(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)


def to_amounts(quantities: Mapping[str, QuantityText]) -> Amounts:
    """Convert quantities to integers."""
    return {name: to_amount(name, text) for name, text in quantities.items()}


def to_amount(name: str, text: QuantityText) -> int:
    """Convert one quantity to the unit of its resource."""
    return milli_value(text) if name == "cpu" else integer_value(text)


def pod_requests(pod: Pod) -> Amounts:
    """Return the resources that a pod occupies on its node, the pod itself under `pods`.

    While a container is resized, the larger of its requests and its allocated resources counts.
    """
    total = {**_sum_containers(pod.spec, _held_requests(pod)), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    total["pods"] = 1
    return {name: count for name, count in total.items() if count}


def requests_of_node(pod: Pod) -> Amounts:
    """Return what a pod requests of its node: without the resources that devices serve."""
    requests, extended = pod_requests(pod), pod.status.extended_resource_claim_status
    if extended is None:
        return requests
    served = {one.resource_name for one in extended.request_mappings}
    return {name: amount for name, amount in requests.items() if name not in served}


def container_requests(spec: PodSpec) -> Amounts:
    """Return the requests of all containers of a pod together."""
    return _sum_containers(spec, _container_requests)


def nonzero_requests(pod: Pod) -> Amounts:
    """Return CPU and memory for scores: a container without requests counts with defaults."""
    held = _held_requests(
        pod, lambda one: {**DEFAULT_NONZERO_REQUESTS, **to_amounts(one.resources.requests)}
    )
    total = {**_sum_containers(pod.spec, held), **_pod_level_requests(pod)}
    _add_to(total, to_amounts(pod.spec.overhead))
    return {name: total.get(name, 0) for name in DEFAULT_NONZERO_REQUESTS}


def node_allocatable(node: Node) -> Amounts:
    """Return the allocatable resources of a node."""
    return to_amounts(node.status.allocatable)


def sum_amounts(parts: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the sum of several amounts."""
    result: Amounts = {}
    for part in parts:
        _add_to(result, part)
    return result


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


def _held_requests(pod: Pod, requests_of: _ContainerAmounts | None = None) -> _ContainerAmounts:
    """Return the amounts of a container: its requests, or what the node still holds for it."""
    wanted = requests_of or _container_requests
    allocated: dict[str, Amounts] = {}
    for status in pod.resized_containers:
        held = allocated.setdefault(status.name, {})
        _raise_to(held, to_amounts(status.allocated_resources))
        _raise_to(held, to_amounts(status.resources.requests) if status.resources else {})
    if not allocated:
        return wanted

    def larger_requests(container: Container) -> Amounts:
        amounts = wanted(container)
        _raise_to(amounts, allocated.get(container.name, {}))
        return amounts

    return larger_requests


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


class BadUsage(ValueError):
    """The usage annotation cannot be parsed."""


def parse_usage_annotation(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the usage of each container by resource, as far as the annotation states it."""
    text = annotations.get(USAGE_ANNOTATION, "")
    if len(text) > _MAX_USAGE_TEXT:
        raise BadUsage(f"longer than {_MAX_USAGE_TEXT} characters")
    return _parse_usage(text) if text else {}


@lru_cache(maxsize=1024)
def _parse_usage(text: str) -> Mapping[str, str]:
    return dict(_parse_usage_pair(part.strip()) for part in text.split(","))


def _parse_usage_pair(part: str) -> tuple[str, str]:
    name, _, quantity = part.partition("=")
    try:
        if name in MEASURED_RESOURCES and exact_value(quantity) >= 0:
            return name, quantity
    except BadQuantity:
        pass
    raise BadUsage(f"{part!r} is not of the form cpu=250m,memory=1Gi")
