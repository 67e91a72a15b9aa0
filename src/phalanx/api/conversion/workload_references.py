"""Converters of aliases whose value has another form than the stored one.

Forms of scheduling.k8s.io/v1alpha1 that the KEPs show:

    request                                             stored
    spec.podGroupTemplates, spec.podGroupTemplate       spec.podGroups
    … schedulingPolicy                                  policy
    controllerRef.apiVersion: batch/v1                  controllerRef.apiGroup: batch
    spec.workloadRef: {name: w}                         workloadName of the Workload reference
    spec.podGroupTemplateRef: {name: t}                 podGroupTemplateName of it
    spec.podGroupTemplateName: t                        podGroupTemplateName of it

The Workload reference is `spec.podGroupTemplateRef.workload`.

References from a pod to its group:

    schedulingGroup: {podGroupName: g}                          the stored form
    workloadRef: {name: w, podGroupName: g}                     g
    workloadRef: {name: w, podGroup: t, podGroupReplicaKey: k}  w-t-k, created from template t of w

In the last form the group may not exist yet, so the pod also gets annotations from which a
controller creates it. `aliases.py` has the rows; `validation/pod_template.py` removes annotations
about another group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.errors import Cause, invalid, required
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.api.validation.checks import CREATED, optional, string_format, struct
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class ConvertedValue:
    """A value in its stored form, and annotations for the object that has it in its spec.

    `namespace` is the namespace of the reference, which the stored form does not have.
    """

    value: Any
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""


#: From a value to its stored form, or to what is invalid in it.
AliasConverter = Callable[[Any], ConvertedValue | Sequence[Cause]]


_SCHEDULING_GROUP = "scheduling.k8s.io"
_IGNORED_FIELD = "Accepted and ignored."
#: The fields of a reference to any object, with descriptions; references to Workloads had them.
REFERENCE_FIELDS: Mapping[str, str] = {
    "apiVersion": f"A version of {_SCHEDULING_GROUP}, if any.",
    "fieldPath": _IGNORED_FIELD,
    "kind": "Workload, if anything.",
    "name": "The Workload that has the template.",
    "namespace": "That of the group itself, if any.",
    "resourceVersion": _IGNORED_FIELD,
    "uid": _IGNORED_FIELD,
}


def convert_api_version(value: Any) -> ConvertedValue | Sequence[Cause]:
    """Convert an API version to its group, "" for `v1`."""
    if not isinstance(value, str):
        return [invalid("", value, "must be a string")]
    return ConvertedValue(value.rpartition("/")[0])


def convert_workload_reference(value: Any) -> ConvertedValue | Sequence[Cause]:
    """Convert a reference to any object to a reference to a Workload."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    if value.get("kind") not in (None, "", "Workload"):
        return [invalid("kind", value["kind"], "must be Workload")]
    version = value.get("apiVersion")
    if version and not str(version).startswith(f"{_SCHEDULING_GROUP}/"):
        return [invalid("apiVersion", version, f"must be of {_SCHEDULING_GROUP}")]
    # Unknown fields are kept, so that the schema check reports them.
    unknown = {key: more for key, more in value.items() if key not in REFERENCE_FIELDS}
    named = {"workloadName": value["name"]} if value.get("name") else {}
    return ConvertedValue(
        {"workload": {**named, **unknown}}, namespace=value.get("namespace") or ""
    )


def convert_template_name(value: Any) -> ConvertedValue | Sequence[Cause]:
    """Convert a template name inside the reference."""
    return ConvertedValue({"podGroupTemplateName": value})


def convert_spec_template_name(value: Any) -> ConvertedValue | Sequence[Cause]:
    """Convert a template name beside the reference."""
    return ConvertedValue({"workload": {"podGroupTemplateName": value}})


#: The Workload, and its template, from which the group of a pod is created.
WORKLOAD_ANNOTATION = "phalanx.dev/workload"
TEMPLATE_ANNOTATION = "phalanx.dev/pod-group-template"
WORKLOAD_ANNOTATIONS = (WORKLOAD_ANNOTATION, TEMPLATE_ANNOTATION)

#: The fields of a `workloadRef` in all its forms, with descriptions.
WORKLOAD_REF_FIELDS: Mapping[str, str] = {
    "name": "The Workload that the group is created from.",
    "podGroup": "The template of the Workload that the group is created from.",
    "podGroupReplicaKey": "Distinguishes the groups that are created from one template.",
    "podGroupName": "The group itself; its Workload does not matter then.",
    "podGroupTemplateName": "Another name of podGroupName.",
}
#: The fields that name the group itself.
_GROUP_NAME_FIELDS = ("podGroupName", "podGroupTemplateName")
_CHECK_NAME, _CHECK_LABEL = (
    optional(string_format(validate_dns_subdomain)),
    optional(string_format(validate_dns_label)),
)
_CHECK_WORKLOAD_REF = struct(
    ("name", _CHECK_NAME),
    ("podGroup", _CHECK_LABEL),
    ("podGroupReplicaKey", _CHECK_LABEL),
    *((key, _CHECK_NAME) for key in _GROUP_NAME_FIELDS),
)
_MAX_NAME_LENGTH = 253
_HASH_LENGTH = 10
#: The part of a long name that is kept.
_MAX_STEM_LENGTH = _MAX_NAME_LENGTH - _HASH_LENGTH - 1


def convert_workload_ref(value: Any) -> ConvertedValue | Sequence[Cause]:
    """Convert a pod's `workloadRef` to a `schedulingGroup`, or return what is invalid."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    given = {key: value[key] for key in WORKLOAD_REF_FIELDS if value.get(key) not in (None, "")}
    if wrong := [key for key, text in given.items() if not isinstance(text, str)]:
        return [invalid(key, given[key], "must be a string") for key in wrong]
    if faults := _CHECK_WORKLOAD_REF(given, CREATED):
        return faults
    # Unknown fields are kept, so that the schema check reports them.
    unknown = {key: more for key, more in value.items() if key not in WORKLOAD_REF_FIELDS}
    group = next((given[key] for key in _GROUP_NAME_FIELDS if key in given), "")
    if group:
        return ConvertedValue({"podGroupName": group, **unknown})
    return _convert_template_reference(given, unknown)


def _convert_template_reference(given: Object, unknown: Object) -> ConvertedValue | Sequence[Cause]:
    workload, template = given.get("name", ""), given.get("podGroup", "")
    if not template:
        return [required("podGroupName")]
    if not workload:
        return [required("name")]
    name = replica_group_name(workload, template, given.get("podGroupReplicaKey", ""))
    annotations = {WORKLOAD_ANNOTATION: workload, TEMPLATE_ANNOTATION: template}
    return ConvertedValue({"podGroupName": name, **unknown}, annotations)


def replica_group_name(workload: str, template: str, key: str = "") -> str:
    """Return the name of the group of a replica; a long one is cut and gets a hash."""
    name = "-".join(filter(None, (workload, template, key)))
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256("/".join((workload, template, key)).encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[:_MAX_STEM_LENGTH].rstrip('-.')}-{digest}"


def is_replica_group(name: str, annotations: Mapping[str, str]) -> bool:
    """Whether a group may be that of a replica, by the annotations of its pod."""
    workload, template = annotations.get(WORKLOAD_ANNOTATION), annotations.get(TEMPLATE_ANNOTATION)
    if not (workload and template):
        return False
    stem = f"{workload}-{template}"
    return name == stem or name.startswith((f"{stem}-", f"{stem[:_MAX_STEM_LENGTH].rstrip('-.')}-"))
