"""How a pod says which group it belongs to, and how it used to.

    schedulingGroup: {podGroupName: g}                          what is stored
    workloadRef: {name: w, podGroupName: g}                     g
    workloadRef: {name: w, podGroup: t, podGroupReplicaKey: k}  w-t-k, made from template t of w

In the last form nobody but the pod knows of the group, so it also gets annotations by which a
controller can tell from what to make it. A row of `versions/aliases.py` brings old forms into the
new one; `rules/podmarks.py` takes annotations off that are about another group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.api.causes import invalid, required
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.rules.checks import CREATED, given, struct, text
from phalanx.api.versions.turning import Turned
from phalanx.api.wire import Object

#: The Workload that the group of a pod is made from, and the template in it.
WORKLOAD_MARK = "phalanx.dev/workload"
TEMPLATE_MARK = "phalanx.dev/pod-group-template"
MARKS = (WORKLOAD_MARK, TEMPLATE_MARK)

#: The fields of a `workloadRef`, of all forms that it ever had, and what each says.
WORKLOAD_REF_FIELDS: Mapping[str, str] = {
    "name": "The Workload that the group is made from.",
    "podGroup": "The template, in the Workload, that the group is made from.",
    "podGroupReplicaKey": "Tells apart the groups that are made from one template.",
    "podGroupName": "The group itself; what it is made from does not matter then.",
    "podGroupTemplateName": "Another name of podGroupName.",
}
#: By these a pod names its group itself.
_OWN_NAMES = ("podGroupName", "podGroupTemplateName")
_NAME, _LABEL = given(text(dns_subdomain_faults)), given(text(dns_label_faults))
_CHECK = struct(
    ("name", _NAME),
    ("podGroup", _LABEL),
    ("podGroupReplicaKey", _LABEL),
    *((key, _NAME) for key in _OWN_NAMES),
)
_LONGEST_NAME = 253
_HASH = 10
#: How much of a name that is too long is left.
_CUT = _LONGEST_NAME - _HASH - 1


def turn_workload_ref(value: Any) -> Turned | Sequence[Cause]:
    """A `schedulingGroup` in place of a `workloadRef`, or what is wrong with that."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    said = {key: value[key] for key in WORKLOAD_REF_FIELDS if value.get(key) not in (None, "")}
    if wrong := [key for key, text in said.items() if not isinstance(text, str)]:
        return [invalid(key, said[key], "must be a string") for key in wrong]
    if faults := _CHECK(said, CREATED):
        return faults
    # What nobody knows goes along, for the schema to complain of.
    strange = {key: more for key, more in value.items() if key not in WORKLOAD_REF_FIELDS}
    own = next((said[key] for key in _OWN_NAMES if key in said), "")
    if own:
        return Turned({"podGroupName": own, **strange})
    return _from_template(said, strange)


def _from_template(said: Object, strange: Object) -> Turned | Sequence[Cause]:
    workload, template = said.get("name", ""), said.get("podGroup", "")
    if not template:
        return [required("podGroupName")]
    if not workload:
        return [required("name")]
    name = replica_group_name(workload, template, said.get("podGroupReplicaKey", ""))
    marks = {WORKLOAD_MARK: workload, TEMPLATE_MARK: template}
    return Turned({"podGroupName": name, **strange}, marks)


def replica_group_name(workload: str, template: str, key: str = "") -> str:
    """The name of the group of one replica; where it would be too long, cut and told by a hash."""
    name = "-".join(filter(None, (workload, template, key)))
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256("/".join((workload, template, key)).encode()).hexdigest()[:_HASH]
    return f"{name[:_CUT].rstrip('-.')}-{digest}"


def is_replica_group(name: str, marks: Mapping[str, str]) -> bool:
    """Whether a group may be one of a replica, of whatever key, by the annotations of its pod."""
    workload, template = marks.get(WORKLOAD_MARK), marks.get(TEMPLATE_MARK)
    if not (workload and template):
        return False
    stem = f"{workload}-{template}"
    return name == stem or name.startswith((f"{stem}-", f"{stem[:_CUT].rstrip('-.')}-"))
