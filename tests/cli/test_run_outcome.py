"""How often a gang had to make way, seen by looking now and then."""

from __future__ import annotations

import msgspec

from phalanx.api.core import Pod
from phalanx.api.wire import Object
from phalanx.cli.run import InterruptionCounter
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from tests.builders import pod


def seen(*pods: Object) -> ClusterObjects:
    return ClusterObjects(nodes=(), groups=(), pods=[msgspec.convert(one, Pod) for one in pods])


def one(uid: str, *, phase: str = "Running", driven_off: bool = False) -> Object:
    made = pod("a", on="n0", meta={"uid": uid})
    conditions = [{"type": "DisruptionTarget", "status": "True"}] if driven_off else []
    return {**made, "status": {"phase": phase, "conditions": conditions}}


def counted(*looks: ClusterObjects) -> list[int]:
    setbacks = InterruptionCounter()
    for look in looks:
        setbacks.observe(look)
    return list(setbacks.values())


def test_who_ends_by_itself_has_made_way_for_nobody() -> None:
    assert counted(seen(one("1")), seen(one("1", phase="Succeeded")), seen()) == []


def test_who_is_driven_off_or_gone_has_made_way_once() -> None:
    leaving = seen(one("1", driven_off=True))
    assert counted(seen(one("1")), leaving, seen(one("1", phase="Failed", driven_off=True))) == [1]
    assert counted(seen(one("1")), seen(one("2"))) == [1]


def test_who_comes_back_may_have_to_make_way_again() -> None:
    looks = [seen(one("1")), seen(), seen(one("2")), seen(one("2", driven_off=True)), seen()]
    assert counted(*looks) == [2]
