"""The status of a LeaderWorkerSet: counts, and the conditions that follow from them.

    condition            true while
    Available            all wanted groups are ready, and no update is under way
    Progressing          otherwise
    UpdateInProgress     groups from the partition on have an old template
    SchedulingFallback   the pods are scheduled one by one, although they should be gangs

Available excludes the next two. A condition that becomes false keeps its reason.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.kinds import LEADER_WORKER_SET
from phalanx.api.leader_worker_sets import (
    LEADER_INDEX,
    NAME_LABEL,
    WORKER_INDEX_LABEL,
    LeaderWorkerSet,
    LeaderWorkerSetStatus,
)
from phalanx.api.meta import Condition, find_condition, timestamp
from phalanx.api.wire import Object
from phalanx.builder.discovery import Fallback
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.leader_worker_sets.rollout import GroupState
from phalanx.controllers.reconcile_loop import Action, Patch, RecordEvent

AVAILABLE, PROGRESSING, UPDATE_IN_PROGRESS = "Available", "Progressing", "UpdateInProgress"
SCHEDULING_FALLBACK = "SchedulingFallback"
_CONDITIONS = {
    AVAILABLE: ("AllGroupsReady", "All replicas are ready"),
    PROGRESSING: ("GroupsProgressing", "Replicas are progressing"),
    UPDATE_IN_PROGRESS: ("GroupsUpdating", "Rolling Upgrade is in progress"),
}
#: The conditions that cannot be true while another one is.
_EXCLUDED = {
    AVAILABLE: (PROGRESSING, UPDATE_IN_PROGRESS),
    PROGRESSING: (AVAILABLE,),
    UPDATE_IN_PROGRESS: (AVAILABLE,),
}


class LwsStatusPlan(NamedTuple):
    """The patch and the events of a status, and whether all groups are updated and ready."""

    actions: list[Action]
    is_update_done: bool


def plan_status(
    lws: LeaderWorkerSet,
    groups: dict[int, GroupState],
    leader_count: int,
    *,
    fallback: Fallback | None,
    now: float,
) -> LwsStatusPlan:
    """Plan the status; `groups` are the states of groups that have a leader and its workers."""
    wanted = lws.spec.replicas
    partition = lws.spec.rollout_strategy.rolling_update_configuration.partition
    rolling = [state for index, state in groups.items() if partition <= index < wanted]
    ready = sum(state.is_ready for state in groups.values())
    ready_wanted = sum(state.is_ready for index, state in groups.items() if index < wanted)
    finished = sum(state.is_done for state in rolling)
    true: tuple[str, ...]
    if sum(state.is_updated for state in rolling) < len(rolling):
        true = (UPDATE_IN_PROGRESS, PROGRESSING)
    elif ready_wanted == wanted and finished == len(rolling):
        true = (AVAILABLE,)
    else:
        true = (PROGRESSING,)
    conditions = _set_conditions(lws.status.conditions, true, timestamp(now))
    changes = list[Action]()
    if conditions != lws.status.conditions:
        reason, message = _CONDITIONS[true[0]]
        text = f"{message}, with {ready} groups ready of total {wanted} groups"
        changes.append(_record(lws, reason, text))
    marked = _set_fallback(conditions, fallback, timestamp(now))
    if fallback is not None and marked != conditions:
        changes.append(_record(lws, fallback.reason, fallback.message, severity="Warning"))
    status = LeaderWorkerSetStatus(
        replicas=leader_count,
        ready_replicas=ready,
        updated_replicas=sum(state.is_updated for state in groups.values()),
        observed_generation=lws.metadata.generation,
        hpa_pod_selector=f"{NAME_LABEL}={lws.metadata.name},{WORKER_INDEX_LABEL}={LEADER_INDEX}",
        conditions=marked,
    )
    is_done = partition == 0 and finished == wanted
    return LwsStatusPlan([*_status_patch(lws, status), *changes], is_done)


def _set_conditions(
    conditions: tuple[Condition, ...], true: tuple[str, ...], now: str
) -> tuple[Condition, ...]:
    """Make conditions true and those that they exclude false; new ones are appended."""
    excluded = {other for kind in true for other in _EXCLUDED[kind]}
    found = []
    for one in conditions:
        if one.type in true and one.status != "True":
            reason, message = _CONDITIONS[one.type]
            one = Condition(one.type, "True", reason, message, last_transition_time=now)
        elif one.type in excluded and one.status == "True":
            one = replace(one, status="False", last_transition_time=now)
        found.append(one)
    for kind in true:
        if find_condition(conditions, kind) is None:
            reason, message = _CONDITIONS[kind]
            found.append(Condition(kind, "True", reason, message, last_transition_time=now))
    return tuple(found)


def _set_fallback(
    conditions: tuple[Condition, ...], fallback: Fallback | None, now: str
) -> tuple[Condition, ...]:
    old = find_condition(conditions, SCHEDULING_FALLBACK)
    if fallback is None:
        return tuple(one for one in conditions if one is not old)
    if old is not None and Fallback(old.reason, old.message) == fallback:
        return conditions
    reason, message = fallback.reason, fallback.message
    new = Condition(SCHEDULING_FALLBACK, "True", reason, message, last_transition_time=now)
    return (*(one for one in conditions if one is not old), new)


def _record(
    lws: LeaderWorkerSet, reason: str, message: str, *, severity: str = "Normal"
) -> RecordEvent:
    return RecordEvent(ObjectEvent(LEADER_WORKER_SET, lws.metadata, reason, message, type=severity))


def _status_patch(lws: LeaderWorkerSet, status: LeaderWorkerSetStatus) -> list[Action]:
    """The patch of the status, or nothing if the status is up to date."""
    old, meta = lws.status, lws.metadata
    if status == old:
        return []
    encoded: Object = {
        "replicas": status.replicas,
        "readyReplicas": status.ready_replicas,
        "updatedReplicas": status.updated_replicas,
        "observedGeneration": status.observed_generation,
        "hpaPodSelector": status.hpa_pod_selector,
        "conditions": [_encode_condition(one) for one in status.conditions],
    }
    # With the version: conditions are computed from the cached ones.
    change = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": encoded,
    }
    return [Patch(LEADER_WORKER_SET, meta.key, change, subresource="status")]


def _encode_condition(condition: Condition) -> Object:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time,
    }
