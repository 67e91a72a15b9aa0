"""What users are told of pods that are bound together: an event of each, the standing of groups.

Written in the transaction of a GroupBinding: told if and only if it is so, and at the price of no
other request. All of it is the server's own word, so no admission and no rule looks at it, and it
is owned by nobody, like the node and the condition that a binding gives to a pod.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.kinds import EVENT, POD
from phalanx.api.standing import placed_conditions
from phalanx.api.wire import Object
from phalanx.server.context import Context
from phalanx.server.objects import encoder
from phalanx.store.kv import Record, Write
from phalanx.telemetry import NUMBER_ANNOTATION

#: How much of its uid tells an event from others of the same pod, and how long names may be before.
_OWN, _LONGEST = slice(-12, None), 240
_COUNTS = ("pendingPods", "scheduledPods")


def scheduled_event(context: Context, pod: Object, number: str) -> Write:
    """The event that says where a pod went, in the name of the scheduler that it asks for.

    It has the number of the request, if its client gave it one.
    """
    meta, component = pod["metadata"], pod["spec"].get("schedulerName", "")
    space, name, now = meta["namespace"], meta["name"], context.stamp()
    uid = context.chance.uid()
    called = f"{name[:_LONGEST].rstrip('-.')}.{uid[_OWN]}"
    noted = {"annotations": {NUMBER_ANNOTATION: number}} if number else {}
    event = {
        "metadata": {
            "name": called, "namespace": space, "uid": uid, "creationTimestamp": now, **noted,
        },
        "involvedObject": {
            "kind": POD.name, "apiVersion": POD.api_version, "name": name, "namespace": space,
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        },
        "reason": "Scheduled",
        "message": f"Successfully assigned {space}/{name} to {pod['spec']['nodeName']}",
        "type": "Normal", "source": {"component": component}, "reportingComponent": component,
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }  # fmt: skip
    return Write(EVENT.key(space, called), encoder(event), 0)


def group_standing(
    context: Context, record: Record, group: Object, standing: Mapping[str, int]
) -> list[Write]:
    """The write, if any is needed, by which a group says that it is placed, once and for all."""
    old = group.get("status") or {}
    counts = {name: standing[name] for name in _COUNTS if standing.get(name)}
    kept = {name: value for name, value in old.items() if name not in _COUNTS}
    said = _conditions(context, old.get("conditions") or [], standing)
    new = {**kept, "conditions": said, **counts}
    if new == old:
        return []
    return [Write(record.key, encoder({**group, "status": new}), record.revision)]


def _conditions(context: Context, said: list[Object], standing: Mapping[str, int]) -> list[Object]:
    """The conditions of a placed group, each where it was; one that is true stays as it is."""
    found = {condition["type"]: condition for condition in said}
    for news in placed_conditions(standing.get("neededPods", 0)):
        if found.get(news.type, {}).get("status") != news.status:
            condition: Object = {
                "type": news.type, "status": news.status, "reason": news.reason,
                "message": news.message, "lastTransitionTime": context.stamp(),
            }  # fmt: skip
            if generation := standing.get("generation"):
                condition["observedGeneration"] = generation
            found[news.type] = condition
    return list(found.values())
