"""What else the proposals print under scheduling.k8s.io/v1alpha1, brought into its one form.

    printed                                             stands for
    spec.podGroupTemplates, spec.podGroupTemplate       spec.podGroups
    … schedulingPolicy                                  policy, there
    controllerRef.apiVersion: batch/v1                  controllerRef.apiGroup: batch
    spec.workloadRef: {name: w}                         spec.podGroupTemplateRef.workload, the part
    spec.podGroupTemplateRef: {name: t}                 of it that names the Workload, and the part
    spec.podGroupTemplateName: t                        that names the template in it

These functions turn what has another form; `aliases.py` has the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.api.causes import invalid
from phalanx.api.errors import Cause
from phalanx.api.versions.turning import Turned

_GROUP = "scheduling.k8s.io"
_UNUSED = "Taken and not looked at."
#: The fields of a reference to any object, which one to a Workload once was, and what each says.
REFERENCE_FIELDS: Mapping[str, str] = {
    "apiVersion": f"A version of {_GROUP}, if any.",
    "fieldPath": _UNUSED,
    "kind": "Workload, if anything.",
    "name": "The Workload that has the template.",
    "namespace": "That of the group itself, if any.",
    "resourceVersion": _UNUSED,
    "uid": _UNUSED,
}


def turn_api_version(value: Any) -> Turned | Sequence[Cause]:
    """The group of an API version; that of `v1` has no name."""
    if not isinstance(value, str):
        return [invalid("", value, "must be a string")]
    return Turned(value.rpartition("/")[0])


def turn_workload_reference(value: Any) -> Turned | Sequence[Cause]:
    """The Workload of a template, in place of a reference to any object."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    if value.get("kind") not in (None, "", "Workload"):
        return [invalid("kind", value["kind"], "must be Workload")]
    version = value.get("apiVersion")
    if version and not str(version).startswith(f"{_GROUP}/"):
        return [invalid("apiVersion", version, f"must be of {_GROUP}")]
    # What nobody knows goes along, for the schema to complain of.
    strange = {key: more for key, more in value.items() if key not in REFERENCE_FIELDS}
    named = {"workloadName": value["name"]} if value.get("name") else {}
    return Turned({"workload": {**named, **strange}}, namespace=value.get("namespace") or "")


def turn_template_name(value: Any) -> Turned | Sequence[Cause]:
    """The template in a Workload, as a part of the reference to it."""
    return Turned({"podGroupTemplateName": value})


def turn_spec_template_name(value: Any) -> Turned | Sequence[Cause]:
    """The same, said beside the reference."""
    return Turned({"workload": {"podGroupTemplateName": value}})
