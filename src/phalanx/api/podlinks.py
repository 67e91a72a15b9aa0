"""How a pod says which group it belongs to, and how it used to.

    schedulingGroup: {podGroupName: g}                          what is stored
    workloadRef: {name: w, podGroupName: g}                     g
    workloadRef: {name: w, podGroup: t, podGroupReplicaKey: k}  w-t-k, made from template t of w

In the last form nobody but the pod knows of the group, so it also gets annotations by which a
controller can tell from what to make it. A row of `aliases.py` brings old forms into the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from phalanx.api.causes import invalid, required
from phalanx.api.errors import Cause
from phalanx.api.turning import Turned
from phalanx.api.wire import Object

#: The Workload that the group of a pod is made from, and the template in it.
WORKLOAD_MARK = "phalanx.dev/workload"
TEMPLATE_MARK = "phalanx.dev/pod-group-template"
MARKS = (WORKLOAD_MARK, TEMPLATE_MARK)

#: The fields of a `workloadRef`, of all forms that it ever had.
WORKLOAD_REF_FIELDS = (
    "name", "podGroup", "podGroupReplicaKey", "podGroupName", "podGroupTemplateName",
)  # fmt: skip
#: By these a pod names its group itself.
_OWN_NAMES = ("podGroupName", "podGroupTemplateName")
_LONGEST_NAME = 253
_HASH = 10


def turn_workload_ref(value: Any) -> Turned | Sequence[Cause]:
    """A `schedulingGroup` in place of a `workloadRef`, or what is wrong with that."""
    if not isinstance(value, dict):
        return [invalid("", value, "must be an object")]
    said = {key: value[key] for key in WORKLOAD_REF_FIELDS if value.get(key) not in (None, "")}
    if wrong := [key for key, text in said.items() if not isinstance(text, str)]:
        return [invalid(key, said[key], "must be a string") for key in wrong]
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
    return f"{name[: _LONGEST_NAME - _HASH - 1].rstrip('-.')}-{digest}"
