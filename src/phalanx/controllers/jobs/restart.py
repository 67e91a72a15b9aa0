"""Restarts a gang whose lost members cannot be replaced where it is.

A Job with the annotation `phalanx.dev/on-degraded: Restart` gives up the members that are left, so
that the whole gang is placed anew, elsewhere. It does so once the scheduler has
refused the replacements (Degraded, reason ReplacementUnschedulable).

    Degraded ─▶ annotate the PodGroup: restarts, restarted-at ─▶ evict every pod created before

The time on the PodGroup is written first. From then on every sync evicts the pods that are older,
so that a crash in between changes nothing. It is the next full second, and new pods are created
from then on: the creation time of a pod has no fractions.

Restarts back off: the second waits at least a minute after the first, each further one twice as
long, at most an hour. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import find_condition, parse_timestamp, timestamp
from phalanx.api.scheduling import (
    DEGRADED,
    ON_DEGRADED_ANNOTATION,
    REPLACEMENT_UNSCHEDULABLE,
    RESTART,
    RESTARTED_AT_ANNOTATION,
    RESTARTS_ANNOTATION,
    PodGroup,
)
from phalanx.api.wire import Object

#: Seconds between the first and the second restart, and between any two at most.
MIN_RESTART_INTERVAL, MAX_RESTART_INTERVAL = 60.0, 3600.0
_MAX_DIGITS = 6


class GangRestart(NamedTuple):
    """A restart that is due: the annotations of the PodGroup to write, and why."""

    group: PodGroup
    annotations: Object
    cause: str


def find_restart(
    job: Job, groups: Iterable[PodGroup], active: Sequence[Pod], *, now: float
) -> GangRestart | float | None:
    """Return the restart of a Job that is due, or after how many seconds it will be."""
    if job.metadata.annotations.get(ON_DEGRADED_ANNOTATION) != RESTART:
        return None
    for group in groups:
        degraded = find_condition(group.status.conditions, DEGRADED)
        if degraded is None or degraded.status != "True":
            continue
        since = restart_time(group)
        is_placed = any(
            pod.spec.node_name and pod.group == group.metadata.key and created_at(pod) >= since
            for pod in active
        )
        if degraded.reason != REPLACEMENT_UNSCHEDULABLE or not is_placed:
            continue
        count = _count_restarts(group)
        interval = min(MIN_RESTART_INTERVAL * 2.0 ** min(count - 1, 10), MAX_RESTART_INTERVAL)
        if count and now < since + interval:
            return since + interval - now
        annotations: Object = {
            RESTARTS_ANNOTATION: str(count + 1),
            RESTARTED_AT_ANNOTATION: timestamp(math.floor(now) + 1.0),
        }
        return GangRestart(group, annotations, degraded.message)
    return None


def restart_time(group: PodGroup) -> float:
    """Return when a group was restarted for the last time; 0 if never."""
    text = group.metadata.annotations.get(RESTARTED_AT_ANNOTATION)
    try:
        return parse_timestamp(text) if text else 0.0
    except ValueError:
        return 0.0


def created_at(pod: Pod) -> float:
    """Return when a pod was created."""
    return parse_timestamp(pod.metadata.creation_timestamp)


def _count_restarts(group: PodGroup) -> int:
    text = group.metadata.annotations.get(RESTARTS_ANNOTATION, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0
