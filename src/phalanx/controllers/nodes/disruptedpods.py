"""Pods on nodes that come to grief: which they are, and how they are marked before they go.

Whoever counts failures (a Job's failure policy) reads the mark. It is of that very pod: a namesake
that came meanwhile is not meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.controllers.actions import Patch

DISRUPTION_TARGET = "DisruptionTarget"


def nodes_of(pod: Pod) -> Sequence[str]:
    """The node that a pod is bound to, if any: by this loops share one index."""
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def disrupted(pod: Pod, reason: str, message: str, now: float, **status: object) -> Patch:
    """The patch that says why a pod goes, and what else there is to say of its status."""
    mark = {
        "type": DISRUPTION_TARGET, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": timestamp(now),
    }  # fmt: skip
    return status_patch(pod, {"conditions": [mark], **status})


def status_patch(pod: Pod, status: Object) -> Patch:
    """The patch that merges something into the status of a pod."""
    change = {"metadata": {"uid": pod.metadata.uid}, "status": status}
    return Patch(POD, pod.metadata.key, change, "status", STRATEGIC_PATCH)
