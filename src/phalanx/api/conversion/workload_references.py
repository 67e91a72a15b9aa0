"""What becomes of a value that is said under another name and in another form than it is stored.

What else the proposals print under scheduling.k8s.io/v1alpha1, brought into its one form.

    printed                                             stands for
    spec.podGroupTemplates, spec.podGroupTemplate       spec.podGroups
    … schedulingPolicy                                  policy, there
    controllerRef.apiVersion: batch/v1                  controllerRef.apiGroup: batch
    spec.workloadRef: {name: w}                         spec.podGroupTemplateRef.workload, the part
    spec.podGroupTemplateRef: {name: t}                 of it that names the Workload, and the part
    spec.podGroupTemplateName: t                        that names the template in it

These functions turn what has another form; `aliases.py` has the rows.

How a pod says which group it belongs to, and how it used to.

    schedulingGroup: {podGroupName: g}                          what is stored
    workloadRef: {name: w, podGroupName: g}                     g
    workloadRef: {name: w, podGroup: t, podGroupReplicaKey: k}  w-t-k, made from template t of w

In the last form nobody but the pod knows of the group, so it also gets annotations by which a
controller can tell from what to make it. A row of `versions/aliases.py` brings old forms into the
new one; `rules/podmarks.py` takes annotations off that are about another group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import invalid, required
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.api.validation.checks import CREATED, optional, string_format, struct
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class ConvertedValue:
    """The value as it is stored, and annotations for the object that has it in its spec.

    `namespace` is where what it refers to is said to be, which what is stored cannot say.
    """

    value: Any
    annotations: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""


#: From a value to its stored form, or to what is wrong with it.
AliasConverter = Callable[[Any], ConvertedValue | Sequence[Cause]]


_SCHEDULING_GROUP = "scheduling.k8s.io"
_IGNORED_FIELD = "Taken and not looked at."
#: The fields of a reference to any object, which one to a Workload once was, and what each says.
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
    """The group of an API version; that of `v1` has no name."""
    if not isinstance(value, str):
        return [invalid("", value, "must be a string")]
    return ConvertedValue(value.rpartition("/")[0])


def convert_workload_reference(value: Any) -> ConvertedValue | Sequence[Cause]:
    """The Workload of a template, in place of a reference to any object."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    if value.get("kind") not in (None, "", "Workload"):
        return [invalid("kind", value["kind"], "must be Workload")]
    version = value.get("apiVersion")
    if version and not str(version).startswith(f"{_SCHEDULING_GROUP}/"):
        return [invalid("apiVersion", version, f"must be of {_SCHEDULING_GROUP}")]
    # What nobody knows goes along, for the schema to complain of.
    strange = {key: more for key, more in value.items() if key not in REFERENCE_FIELDS}
    named = {"workloadName": value["name"]} if value.get("name") else {}
    return ConvertedValue(
        {"workload": {**named, **strange}}, namespace=value.get("namespace") or ""
    )


def convert_template_name(value: Any) -> ConvertedValue | Sequence[Cause]:
    """The template in a Workload, as a part of the reference to it."""
    return ConvertedValue({"podGroupTemplateName": value})


def convert_spec_template_name(value: Any) -> ConvertedValue | Sequence[Cause]:
    """The same, said beside the reference."""
    return ConvertedValue({"workload": {"podGroupTemplateName": value}})


#: The Workload that the group of a pod is made from, and the template in it.
WORKLOAD_ANNOTATION = "phalanx.dev/workload"
TEMPLATE_ANNOTATION = "phalanx.dev/pod-group-template"
WORKLOAD_ANNOTATIONS = (WORKLOAD_ANNOTATION, TEMPLATE_ANNOTATION)

#: The fields of a `workloadRef`, of all forms that it ever had, and what each says.
WORKLOAD_REF_FIELDS: Mapping[str, str] = {
    "name": "The Workload that the group is made from.",
    "podGroup": "The template, in the Workload, that the group is made from.",
    "podGroupReplicaKey": "Tells apart the groups that are made from one template.",
    "podGroupName": "The group itself; what it is made from does not matter then.",
    "podGroupTemplateName": "Another name of podGroupName.",
}
#: By these a pod names its group itself.
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
#: How much of a name that is too long is left.
_MAX_STEM_LENGTH = _MAX_NAME_LENGTH - _HASH_LENGTH - 1


def convert_workload_ref(value: Any) -> ConvertedValue | Sequence[Cause]:
    """A `schedulingGroup` in place of a `workloadRef`, or what is wrong with that."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    said = {key: value[key] for key in WORKLOAD_REF_FIELDS if value.get(key) not in (None, "")}
    if wrong := [key for key, text in said.items() if not isinstance(text, str)]:
        return [invalid(key, said[key], "must be a string") for key in wrong]
    if faults := _CHECK_WORKLOAD_REF(said, CREATED):
        return faults
    # What nobody knows goes along, for the schema to complain of.
    strange = {key: more for key, more in value.items() if key not in WORKLOAD_REF_FIELDS}
    own = next((said[key] for key in _GROUP_NAME_FIELDS if key in said), "")
    if own:
        return ConvertedValue({"podGroupName": own, **strange})
    return _convert_template_reference(said, strange)


def _convert_template_reference(said: Object, strange: Object) -> ConvertedValue | Sequence[Cause]:
    workload, template = said.get("name", ""), said.get("podGroup", "")
    if not template:
        return [required("podGroupName")]
    if not workload:
        return [required("name")]
    name = replica_group_name(workload, template, said.get("podGroupReplicaKey", ""))
    marks = {WORKLOAD_ANNOTATION: workload, TEMPLATE_ANNOTATION: template}
    return ConvertedValue({"podGroupName": name, **strange}, marks)


def replica_group_name(workload: str, template: str, key: str = "") -> str:
    """The name of the group of one replica; where it would be too long, cut and told by a hash."""
    name = "-".join(filter(None, (workload, template, key)))
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256("/".join((workload, template, key)).encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[:_MAX_STEM_LENGTH].rstrip('-.')}-{digest}"


def is_replica_group(name: str, annotations: Mapping[str, str]) -> bool:
    """Whether a group may be one of a replica, of whatever key, by the annotations of its pod."""
    workload, template = annotations.get(WORKLOAD_ANNOTATION), annotations.get(TEMPLATE_ANNOTATION)
    if not (workload and template):
        return False
    stem = f"{workload}-{template}"
    return name == stem or name.startswith((f"{stem}-", f"{stem[:_MAX_STEM_LENGTH].rstrip('-.')}-"))
