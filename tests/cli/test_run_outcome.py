"""Interruptions of gangs, counted from observed."""

from __future__ import annotations

import msgspec

from phalanx.api.core import Pod
from phalanx.api.wire import Object
from phalanx.cli.run import InterruptionCounter
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.builders import pod


def seen(*pods: Object) -> ClusterObjects:
    return ClusterObjects(nodes=(), groups=(), pods=[msgspec.convert(one, Pod) for one in pods])


def one(uid: str, *, phase: str = "Running", disrupted: bool = False) -> Object:
    made = pod("a", on="n0", meta={"uid": uid})
    conditions = [{"type": "DisruptionTarget", "status": "True"}] if disrupted else []
    return {**made, "status": {"phase": phase, "conditions": conditions}}


def count(*observed: ClusterObjects) -> list[int]:
    counter = InterruptionCounter()
    for one in observed:
        counter.observe(one)
    return list(counter.values())


def test_pod_that_ends_is_no_interruption() -> None:
    assert count(seen(one("1")), seen(one("1", phase="Succeeded")), seen()) == []


def test_disrupted_or_deleted_pod_is_one_interruption() -> None:
    leaving = seen(one("1", disrupted=True))
    assert count(seen(one("1")), leaving, seen(one("1", phase="Failed", disrupted=True))) == [1]
    assert count(seen(one("1")), seen(one("2"))) == [1]


def test_gang_can_be_interrupted_again() -> None:
    observed = [
        seen(one("1")),
        seen(),
        seen(one("2")),
        seen(one("2", disrupted=True)),
        seen(),
    ]
    assert count(*observed) == [2]
