"""By what a Node is known as one of ours, and of which sort: an annotation and its values.

A Node without it is somebody else's: nobody here pretends to be its kubelet.

What the containers of a pod are said to use: an annotation, for nodes that only pretend.

`phalanx.dev/usage: cpu=250m,memory=1Gi` holds of each container. Read by the server for
`kubectl top` and by the simulated kubelets, which turn away a pod whose word cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from phalanx.api.quantity import BadQuantity, exact_value

NODE_TYPE_ANNOTATION = "phalanx.dev/node"
#: Nothing runs there; pods move through stages.
SIMULATED_NODE_TYPE = "simulated"
#: The commands of pods run there as processes of the machine.
PROCESS_NODE_TYPE = "process"


USAGE_ANNOTATION = "phalanx.dev/usage"
#: What is measured at all.
MEASURED_RESOURCES = ("cpu", "memory")


class BadUsage(ValueError):
    """The annotation says nothing that can be read."""


def parse_usage_annotation(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """What each container is said to use, by resource; what is not said is missing."""
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
