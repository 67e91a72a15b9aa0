"""The kubelets of simulated nodes: one loop that moves all their pods through their stages.

    bound ─▶ creating ─▶ running ─▶ ready ─▶ ended        deleted ─▶ (stopping) ─▶ gone

Nothing is executed. What is due follows from the pod itself, from its start time and the life that
its stages give it (`stages`), so that a loop that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key, condition, seconds, timestamp
from phalanx.api.podusage import USAGE, BadUsage, stated_usage
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Delete, Plan
from phalanx.controllers.loop import Informers, Loop, NodeClient
from phalanx.controllers.nodes.disruptedpods import status_patch
from phalanx.controllers.nodes.podreports import (
    NOT_READY,
    creating,
    ended,
    refused,
    running,
)
from phalanx.controllers.nodes.stages import STAGES, BadStages, Life, Rule, stages_of

_WORKERS = 16
#: Exit codes of what ended when it was asked to, and of what did not and was killed.
STOPPED, KILLED = 143, 137


class Kubelets:
    """The kubelets of the nodes of these names, all in one; each asks as its node, if it can."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        rules: Sequence[Rule] = (), of_node: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._names, self._rules = clock, names, rules
        self._of_node = of_node or (lambda name: client)
        self._pods = informers.of(POD, Pod).cache
        self._loop: Loop[Key] = Loop(client, self.reconcile, _WORKERS, speaker=self._speaker)
        self._pods.subscribe(self._changed)

    async def run(self) -> None:
        """Be their kubelets until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> Plan:
        """What the kubelet of its node does about a pod."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name not in self._names:
            return Plan()
        try:
            life = stages_of(pod.metadata, self._rules).life(str(key))
            stated_usage(pod.metadata.annotations)
        except BadStages as error:
            return self._turned_away(pod, "InvalidStages", f"annotation {STAGES}: {error}")
        except BadUsage as error:
            return self._turned_away(pod, "InvalidUsage", f"annotation {USAGE}: {error}")
        if pod.metadata.deletion_timestamp:
            return self._take_down(pod, life)
        if pod.ended:
            return Plan()
        return self._started(pod, life) if pod.status.phase == "Pending" else self._ran(pod, life)

    def _speaker(self, key: Key) -> Client:
        pod = self._pods.get(key)
        return self._of_node(pod.spec.node_name if pod else "")

    def _turned_away(self, pod: Pod, reason: str, message: str) -> Plan:
        """A pod whose word about itself cannot be read is not run at all."""
        if pod.metadata.deletion_timestamp:
            return Plan([self._gone(pod)])
        return Plan() if pod.ended else Plan([status_patch(pod, refused(reason, message))])

    def _started(self, pod: Pod, life: Life) -> Plan:
        now = self._clock.now()
        begin = pod.status.start_time or timestamp(now)
        left = seconds(begin) + life.start - now if pod.status.start_time else life.start
        if left > 0:
            taken_in = [] if pod.status.start_time else [status_patch(pod, creating(pod, begin))]
            return Plan(taken_in, again=left)
        is_ready = life.ready == 0
        return Plan([status_patch(pod, running(pod, timestamp(now), begin, ready=is_ready))])

    def _ran(self, pod: Pod, life: Life) -> Plan:
        """Whatever is due of a pod that runs: to become ready, to end, or to wait for either."""
        if not pod.status.start_time:
            return Plan()
        now = self._clock.now()
        begin = seconds(pod.status.start_time) + life.start
        if life.run is not None and begin + life.run <= now:
            return Plan(
                [status_patch(pod, ended(pod, life.exit_code, timestamp(begin), timestamp(now)))]
            )
        left = [] if life.run is None else [begin + life.run - now]
        if _warms_up(pod):
            until_ready = begin + life.ready - now
            if until_ready <= 0:
                status = running(pod, timestamp(begin), pod.status.start_time, ready=True)
                return Plan([status_patch(pod, status)], again=min(left, default=None))
            left.append(until_ready)
        return Plan(again=min(left, default=None))

    def _take_down(self, pod: Pod, life: Life) -> Plan:
        """Let a pod end in its own time, but not beyond its grace period; then it is gone."""
        if pod.ended:
            return Plan([self._gone(pod)])
        now, grace = self._clock.now(), pod.metadata.deletion_grace_period_seconds
        left = seconds(pod.metadata.deletion_timestamp) - grace + min(life.stop, grace) - now
        if pod.status.phase == "Running" and left > 0:
            return Plan(again=left)
        code = STOPPED if life.stop <= grace else KILLED
        end, begin = timestamp(now), pod.status.start_time
        begin = timestamp(seconds(begin) + life.start) if begin else end
        return Plan([status_patch(pod, ended(pod, code, begin, end)), self._gone(pod)])

    def _gone(self, pod: Pod) -> Delete:
        return Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._names:
            self._loop.queue.add(new.metadata.key)


def _warms_up(pod: Pod) -> bool:
    """Whether a pod that runs has not been ready yet."""
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason == NOT_READY
