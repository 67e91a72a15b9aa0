"""Defaults of LeaderWorkerSets, beyond those that their schema tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.defaults.pod import default_pod_spec
from phalanx.api.wire import Object

_TEMPLATES = ("leaderTemplate", "workerTemplate")
_ROLLING: Mapping[str, Any] = {"maxUnavailable": 1, "maxSurge": 0, "partition": 0}
#: Old names of what a group does when one of its pods fails.
_RENAMED = {"Default": "None"}


def default_leader_worker_set(leader_worker_set: Object) -> None:
    """Defaults of a LeaderWorkerSet."""
    spec = leader_worker_set["spec"]
    group = spec["leaderWorkerTemplate"]
    group["restartPolicy"] = _RENAMED.get(group["restartPolicy"], group["restartPolicy"])
    for name in _TEMPLATES:
        if name in group:
            default_pod_spec(group[name]["spec"])
    for claim in group.get("volumeClaimTemplates", ()):
        claim["spec"].setdefault("volumeMode", "Filesystem")
    if spec["rolloutStrategy"]["type"] == "RollingUpdate":
        spec["rolloutStrategy"].setdefault("rollingUpdateConfiguration", dict(_ROLLING))
    spec.setdefault("networkConfig", {"subdomainPolicy": "Shared"})
