"""What the containers of a pod are said to use: an annotation, for nodes that only pretend.

`phalanx.dev/usage: cpu=250m,memory=1Gi` holds of each container. Read by the server for
`kubectl top` and by the simulated kubelets, which turn away a pod whose word cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from phalanx.api.quantity import BadQuantity, value

USAGE = "phalanx.dev/usage"
#: What is measured at all.
MEASURED = ("cpu", "memory")


class BadUsage(ValueError):
    """The annotation says nothing that can be read."""


def stated_usage(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """What each container is said to use, by resource; what is not said is missing."""
    text = annotations.get(USAGE, "")
    return _read(text) if text else {}


@lru_cache(maxsize=1024)
def _read(text: str) -> Mapping[str, str]:
    return dict(_pair(part.strip()) for part in text.split(","))


def _pair(part: str) -> tuple[str, str]:
    name, _, quantity = part.partition("=")
    try:
        if name in MEASURED and value(quantity) >= 0:
            return name, quantity
    except BadQuantity:
        pass
    raise BadUsage(f"{part!r} is not of the form cpu=250m,memory=1Gi")
