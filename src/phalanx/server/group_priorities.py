"""Priorities of PodGroups of the first API versions, which are those of their members.

In these versions a group is usually created without a priority; its pods have one. A group and its
pods must agree, so such a group would never be scheduled. It is marked with an annotation when it
is created, and gets the lowest priority of its members:

    a marked group is created     the lowest priority of the pods that name it already
    a pod of it is created        its priority, if it is the first or lower, in one transaction

Nothing raises the priority again. `scheduler/entity.py` accepts members of a marked group with
different priorities.
"""

from __future__ import annotations

from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.scheduling import (
    MAX_USER_PRIORITY,
    PRIORITY_FROM_MEMBERS_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
)
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record, encoder
from phalanx.store.kv import Store, StoreWrite

#: The values of the annotation: no member has been created yet, or the priority is the lowest.
_NO_MEMBERS, _LOWEST = "none", "lowest"
#: Cheaper to look for than decoding the group of every new pod.
_MARK = PRIORITY_FROM_MEMBERS_ANNOTATION.encode()


def mark_group(group: Object) -> None:
    """Mark a new group that has no priority of its own."""
    spec = group["spec"]
    if not spec.get("priorityClassName") and spec.get("priority") is None:
        meta = group["metadata"]
        mark = {PRIORITY_FROM_MEMBERS_ANNOTATION: _NO_MEMBERS}
        meta["annotations"] = {**(meta.get("annotations") or {}), **mark}


def take_member_priority(store: Store, group: Object) -> None:
    """Give a new marked group the lowest priority of the pods that name it already."""
    meta = group["metadata"]
    name = meta.get("name")
    if not name or PRIORITY_FROM_MEMBERS_ANNOTATION not in (meta.get("annotations") or {}):
        return
    pods = map(decode_record, store.range(POD.store_prefix(meta.get("namespace", ""))))
    members = [
        pod
        for pod in pods
        if (pod["spec"].get("schedulingGroup") or {}).get("podGroupName") == name
    ]
    if members:
        _copy_priority(group, min(members, key=_priority))


def lower_group_priority(store: Store, pod: Object) -> list[StoreWrite]:
    """Return the write that gives the marked group of a new pod the pod's priority, if due."""
    group_reference = pod["spec"].get("schedulingGroup")
    if not group_reference:
        return []
    name = group_reference.get("podGroupName", "")
    record = store.pending(POD_GROUP.store_key(pod["metadata"]["namespace"], name))
    if record is None or _MARK not in record.value:
        return []
    group = decode_record(record)
    mark = (group["metadata"].get("annotations") or {}).get(PRIORITY_FROM_MEMBERS_ANNOTATION)
    is_lowest = mark != _NO_MEMBERS and group["spec"].get("priority", 0) <= _priority(pod)
    if mark is None or is_lowest:
        return []
    _copy_priority(group, pod)
    return [StoreWrite(record.key, encoder(group), record.revision)]


def _copy_priority(group: Object, pod: Object) -> None:
    """Copy the priority of a pod; no group can have a system priority class."""
    spec, name = group["spec"], pod["spec"].get("priorityClassName", "")
    group["metadata"]["annotations"][PRIORITY_FROM_MEMBERS_ANNOTATION] = _LOWEST
    spec["priority"] = min(_priority(pod), MAX_USER_PRIORITY)
    spec["preemptionPolicy"] = pod["spec"].get("preemptionPolicy", "PreemptLowerPriority")
    spec.pop("priorityClassName", None)
    if name and name not in SYSTEM_PRIORITY_CLASSES:
        spec["priorityClassName"] = name


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority") or 0)
