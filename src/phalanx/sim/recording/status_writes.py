"""StatusWrites: what scheduler and kubelets write to pods, which the scheduler observes later.

    placed  ─▶ bound ─▶ binding observed ─▶ start observed        as recorded, or as usual
    refused ─▶ reason, message, nominated nodes written ─▶ observed

Each of these observations may count as a change of the cluster. An entity whose back-off ends after
one is attempted again, and one whose back-off ends before is not. A pending pod that is observed is
a reason to plan the reservations again, and they are reviewed a second after that. So a replay must
observe the writes when the scheduler of the cluster did. The recording has no messages: the replay
computes them, and writes them at the interval of the status writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.controllers.scheduling.report_limits import MESSAGE_INTERVAL
from phalanx.scheduler.decision import Decision, nominations_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import explain
from phalanx.sim.recording.history import RecordedHistory
from phalanx.sim.recording.replayed_jobs import LivePod, find_observed_times

#: Called with the time at which an action is due.
Schedule = Callable[[float, Callable[[float], None]], None]


class _Report(NamedTuple):
    uid: str
    reason: str
    message: str
    node: str


class _PodHistory:
    """The last report of a pod, the last written one, and when its message may change again."""

    __slots__ = ("message_from", "reported", "written")

    def __init__(self, reported: _Report) -> None:
        self.reported, self.written = reported, _Report(reported.uid, "", "", "")
        self.message_from = -inf


class StatusWrites:
    """Schedules the observations of bindings, starts and refusals of the pods of a replay."""

    def __init__(
        self,
        pods: Mapping[Key, LivePod],
        history: RecordedHistory,
        *,
        observe: Callable[[Pod, float], None],
        schedule: Schedule,
    ) -> None:
        self._pods, self._history = pods, history
        self._observe, self._schedule = observe, schedule
        self._histories: dict[Key, _PodHistory] = {}

    # ---- placed pods ---------------------------------------------------------------------------

    def follow(self, live: LivePod) -> None:
        """Observe the binding of a pod that was placed now, and then its start."""
        times, number = find_observed_times(live, self._history), live.incarnation
        self._schedule(times.bound, partial(self._observe_binding, live, number))
        start = partial(self._observe_start, live, number, times.started_at)
        self._schedule(times.started, start)

    def _observe_binding(self, live: LivePod, incarnation: int, now: float) -> None:
        if live.incarnation == incarnation and live.pod is not None:
            self._observe(live.pod, now)

    def _observe_start(self, live: LivePod, incarnation: int, at: str, now: float) -> None:
        """The kubelet reports that a pod runs since a time."""
        if live.incarnation == incarnation and live.pod is not None:
            status = replace(live.pod.status, phase="Running", start_time=at)
            live.pod = replace(live.pod, status=status)
            self._observe(live.pod, now)

    # ---- refused pods --------------------------------------------------------------------------

    def report(self, entity: Entity, decision: Decision, now: float) -> None:
        """Report the pods of a refused entity that have no node."""
        nodes = {pod: node for pod, _, node in nominations_of(decision)}
        for key, uid, reason, message in explain(decision).pods:
            report = _Report(uid, reason, message, nodes.get(key, ""))
            history = self._histories.get(key)
            if history is None or history.reported.uid != uid:
                history = self._histories[key] = _PodHistory(report)
            history.reported = report
            self._write(key, uid, now)

    def _write(self, key: Key, uid: str, now: float) -> None:
        """Write the last report of a pod, unless only its message has changed shortly before."""
        live, history = self._pods.get(key), self._histories.get(key)
        if history is None or history.reported.uid != uid:
            return
        if live is None or live.pod is None or live.node or live.pod.metadata.uid != uid:
            del self._histories[key]
            return
        new, old = history.reported, history.written
        if new == old:
            return
        if new._replace(message=old.message) != old:
            history.message_from = -inf
        elif now < history.message_from:
            self._schedule(history.message_from, partial(self._write, key, uid))
            return
        else:
            history.message_from = now + MESSAGE_INTERVAL
        history.written = new
        at = now + self._history.binding_seconds
        self._schedule(at, partial(self._observe_written, live, new))

    def _observe_written(self, live: LivePod, report: _Report, now: float) -> None:
        """The scheduler observes a report, unless the pod has a node or is gone by now."""
        if live.pod is None or live.node or live.pod.metadata.uid != report.uid:
            return
        status = replace(live.pod.status, nominated_node_name=report.node)
        live.pod = replace(live.pod, status=status)
        self._observe(live.pod, now)
