"""Annotations of our own: the type of a node, and the resource usage of simulated containers.

`phalanx.dev/node` marks the Nodes whose kubelet this process plays; Nodes without it belong to
another kubelet. `phalanx.dev/usage: cpu=250m,memory=1Gi` is the usage of each container of a pod on
a simulated node. The server reads it for `kubectl top`, and simulated kubelets reject a pod whose
annotation cannot be parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from phalanx.api.quantity import BadQuantity, exact_value

NODE_TYPE_ANNOTATION = "phalanx.dev/node"
#: No process runs; pods pass through their phases.
SIMULATED_NODE_TYPE = "simulated"
#: The pods' commands run as processes of the machine.
PROCESS_NODE_TYPE = "process"
USAGE_ANNOTATION = "phalanx.dev/usage"
#: The resources that usage is stated for.
MEASURED_RESOURCES = ("cpu", "memory")


class BadUsage(ValueError):
    """The usage annotation cannot be parsed."""


def parse_usage_annotation(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the usage of each container by resource, as far as the annotation states it."""
    text = annotations.get(USAGE_ANNOTATION, "")
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
