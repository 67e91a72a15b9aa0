"""Validation of pod templates, PodTemplates and volume claim templates.

Kubernetes reports faults of a template's labels and annotations beside its spec, not below its
metadata.

A pod may mount a volume that only a claim template defines. `add_claim_volumes` returns the pod
template with these volumes, which is then validated.

`drop_stale_workload_annotations` is no check: it removes, in place, the annotations of an old
`workloadRef` from pods and templates that name another group. A `workloadRef` is converted to
annotations from which a controller creates the PodGroup (`conversion/workload_references.py`). A
later write that names another group does not know them; left in place, they would create a group
that the user did not ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from phalanx.api.conversion.workload_references import WORKLOAD_ANNOTATIONS, is_replica_group
from phalanx.api.errors import Causes, forbidden, prefix_causes
from phalanx.api.formats import validate_dns_label
from phalanx.api.schema import FieldTree, build_field_tree
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


def check_template_metadata(new: Any, old: Any) -> Causes:
    """Check the labels and annotations of a pod template."""
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
    check_template_metadata,
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
    """Yield the names of all volumes that the containers mount."""
    spec = template.get("spec", {})
    for field in CONTAINER_FIELDS:
        for container in spec.get(field, ()):
            yield from (mount.get("name", "") for mount in container.get("volumeMounts", ()))


#: A volume claim template.
VOLUME_CLAIM_TEMPLATE: Check = all_of(
    struct(("metadata", struct(("name", mandatory(string_format(validate_dns_label)))))),
    check_persistent_volume_claim,
)


def drop_stale_workload_annotations(struct: str, obj: Object) -> None:
    """Remove stale annotations in place from all pods and templates in an object."""
    site = _pod_spec_site(struct)
    if site is not None:
        _drop_below(site, obj)


@cache
def _pod_spec_site(struct: str) -> FieldTree[None] | None:
    return build_field_tree(struct, {"core.v1.PodSpec": [((), None)]})


def _drop_below(site: FieldTree[None], value: Any) -> None:
    if isinstance(value, dict):
        for step, inner in site.fields.items():
            if inner.rows:
                _drop_from_pod(value, value.get(step) or {})
            elif step in value:
                _drop_below(inner, value[step])
    elif isinstance(value, list) and site.item is not None:
        for item in value:
            _drop_below(site.item, item)


def _drop_from_pod(owner: Object, spec: Object) -> None:
    """Remove the stale annotations of one pod or template."""
    meta = owner.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    if not annotations or not any(name in annotations for name in WORKLOAD_ANNOTATIONS):
        return
    group = (spec.get("schedulingGroup") or {}).get("podGroupName", "")
    if is_replica_group(group, annotations):
        return
    for name in WORKLOAD_ANNOTATIONS:
        annotations.pop(name, None)
    if not annotations:
        del meta["annotations"]
