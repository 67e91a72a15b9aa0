"""Rules of the parts of a Pod that are written by themselves: its resources, its ephemeral
containers.

What else of the Pod such a write might change is undone before (`server.parts`), so only the part
itself is judged here. Part of `table.py`.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, not_found, under
from phalanx.api.defaults.pod import qos_class
from phalanx.api.fields import dns_label_faults
from phalanx.api.rules.checks import CREATED, Check, each, given, needed, struct, text, there
from phalanx.api.rules.resource import check_resources

#: What an ephemeral container cannot have: it comes late and goes with its Pod.
_NEVER = (
    "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources",
    "resizePolicy",
)  # fmt: skip


def _class_stays(new: Any, old: Any) -> Causes:
    wanted = qos_class(new.get("spec", {}))
    if old is CREATED or wanted == qos_class(old.get("spec", {})):
        return ()
    return [invalid("spec", wanted, "Pod QOS Class may not change as a result of resizing")]


_CONTAINERS: Check = given(each(struct(("resources", given(check_resources)))))

_RESOURCES = struct(("spec", struct(("containers", _CONTAINERS), ("initContainers", _CONTAINERS))))


def check_resize(new: Any, old: Any) -> Causes:
    """The resources of a Pod's containers: sound, and of the same quality of service."""
    return [*_RESOURCES(new, old), *_class_stays(new, old)]


def _without_lasting(new: Any, old: Any) -> Causes:
    detail = "cannot be set for an Ephemeral Container"
    return [forbidden(field, detail) for field in _NEVER if new.get(field)]


_EPHEMERAL: Check = struct(("name", needed(text(dns_label_faults))), ("image", there))


def check_ephemeral_containers(new: Any, old: Any) -> Causes:
    """Containers that are added to look into a Pod."""
    spec = new.get("spec", {})
    names = [c.get("name") for part in ("containers", "initContainers") for c in spec.get(part, ())]
    found: list[Any] = []
    for at, container in enumerate(spec.get("ephemeralContainers", ())):
        causes = [*_EPHEMERAL(container, {}), *_without_lasting(container, None)]
        if container.get("name") in names:
            causes.append(duplicate("name", container["name"]))
        target = container.get("targetContainerName")
        if target and target not in [c.get("name") for c in spec.get("containers", ())]:
            causes.append(not_found("targetContainerName", target))
        names.append(container.get("name"))
        found += under(f"spec.ephemeralContainers[{at}]", causes)
    return found
