"""Validation of pod templates, PodTemplates and volume claim templates.

Kubernetes reports faults of a template's labels beside its spec, not below its metadata.

A pod may mount a volume that only a claim template defines. `add_claim_volumes` returns the pod
template with these volumes, which is then validated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.api.field_errors import Causes, forbidden, prefix_causes
from phalanx.api.formats import validate_dns_label
from phalanx.api.validation.checks import (
    Check,
    all_of,
    if_present,
    mandatory,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_annotations, check_labels
from phalanx.api.validation.pod_spec import CONTAINER_FIELDS, POD_SPEC
from phalanx.api.validation.volumes import check_persistent_volume_claim
from phalanx.api.wire import Object


def _check_template_metadata(new: Any, old: Any) -> Causes:
    meta = (new or {}).get("metadata") or {}
    return [
        *prefix_causes("labels", check_labels(meta.get("labels"), old)),
        *prefix_causes("annotations", check_annotations(meta.get("annotations"), old)),
    ]


def _check_no_ephemeral_containers(new: Any, old: Any) -> Causes:
    if not new.get("ephemeralContainers"):
        return ()
    return [forbidden("ephemeralContainers", "ephemeral containers not allowed in pod template")]


POD_TEMPLATE_SPEC: Check = all_of(
    _check_template_metadata,
    struct(("spec", if_present(all_of(POD_SPEC, _check_no_ephemeral_containers)))),
)

check_pod_template: Check = struct(("template", POD_TEMPLATE_SPEC))


def claim_template_name(template: Object) -> str:
    """Return the volume name of a claim template."""
    name: str = template.get("metadata", {}).get("name", "")
    return name


def add_claim_volumes(template: Object, names: Sequence[str]) -> Object:
    """Return a pod template with a volume for each claim template without one.

    A template whose name is no valid volume name is skipped; its own check reports it.
    """
    spec = template.get("spec", {})
    own = {volume.get("name") for volume in spec.get("volumes", ())}
    more = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}}
        for name in dict.fromkeys(names)
        if name not in own and not validate_dns_label(name)
    ]
    if not more:
        return template
    return {**template, "spec": {**spec, "volumes": [*spec.get("volumes", ()), *more]}}


def mounted_volume_names(template: Object) -> Iterator[str]:
    """Return the names of all volumes that the containers mount."""
    spec = template.get("spec", {})
    for field in CONTAINER_FIELDS:
        for container in spec.get(field, ()):
            yield from (mount.get("name", "") for mount in container.get("volumeMounts", ()))


#: A volume claim template.
VOLUME_CLAIM_TEMPLATE: Check = all_of(
    struct(("metadata", struct(("name", mandatory(string_format(validate_dns_label)))))),
    check_persistent_volume_claim,
)
