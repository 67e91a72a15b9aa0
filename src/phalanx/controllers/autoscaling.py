"""The horizontal pod autoscaler: keeps the replicas of its target within bounds.

    autoscaler ─▶ scale of its target ─▶ replicas out of bounds: set the nearest bound
                                      └▶ within: metrics would decide, but none are read

Every 15 seconds, as in Kubernetes, the conditions say whether the target has a scale
(`AbleToScale`) and whether metrics are known (`ScalingActive`): they are those that Kubernetes
writes where no metrics server runs. A target with zero replicas is left alone. The controller is
disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from phalanx import logs
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import HORIZONTAL_POD_AUTOSCALER, KINDS, Kind
from phalanx.api.meta import Condition, Key, find_condition, timestamp
from phalanx.api.other_kinds import HorizontalPodAutoscaler, ScaleTargetReference
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.discovery import discover_resources
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import Informers, new_work_queue, run_workers

LOG = logs.component("horizontal-pod-autoscaler")
#: Seconds between two looks at a target.
SYNC_INTERVAL = 15.0
_ABLE, _ACTIVE = "AbleToScale", "ScalingActive"
#: The reason why a target with zero replicas is left alone.
_DISABLED = "ScalingDisabled"
#: Type of a metric -> the reason that it is unknown, and the field of its source.
_METRIC_REASONS: Mapping[str, tuple[str, str]] = {
    "Resource": ("FailedGetResourceMetric", "resource"),
    "ContainerResource": ("FailedGetContainerResourceMetric", "containerResource"),
    "Pods": ("FailedGetPodsMetric", "pods"),
    "Object": ("FailedGetObjectMetric", "object"),
    "External": ("FailedGetExternalMetric", "external"),
}

_DEFAULT_METRIC: Object = {"type": "Resource", "resource": {"name": "cpu"}}


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The conditions of an autoscaler, the replicas that it saw, and those that it sets now."""

    conditions: Mapping[str, tuple[str, str, str]]
    current: int = 0
    #: None: the target is left as it is.
    desired: int | None = None
    reason: str = ""


class HorizontalController:
    """Scales the targets of autoscalers to their bounds until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None],
    ) -> None:
        self._client, self._clock, self._record = client, clock, record
        self._cache = informers.of(HorizontalPodAutoscaler).cache
        self._queue: WorkQueue[Key] = new_work_queue(client, "horizontal-pod-autoscaler")
        self._cache.subscribe(self._on_change)

    async def run(self) -> None:
        """Scale until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> float | None:
        autoscaler = self._cache.get(key)
        if autoscaler is None or autoscaler.metadata.deletion_timestamp:
            return None
        target = autoscaler.spec.scale_target_ref
        target_key = Key(key.namespace, target.name)
        try:
            kind = await self._find_kind(target)
            path = kind.url_path(key.namespace, target.name, "scale")
            decision = decide(autoscaler, orjson.loads(await self._client.get_raw(path)))
        except ApiError as error:
            decision = refuse_target(str(error))
        else:
            if decision.desired is not None:
                change: Object = {"spec": {"replicas": decision.desired}}
                await self._client.patch(kind, target_key, change, subresource="scale")
                LOG.info("target scaled", kind=kind.name, key=target_key, size=decision.desired)
        await self._write_status(autoscaler, decision)
        return SYNC_INTERVAL

    async def _find_kind(self, target: ScaleTargetReference) -> Kind:
        """Return the kind of a target; raises NotFound if it is not served or has no scale."""
        wanted = (target.api_version or "v1", target.kind)
        served = {(kind.api_version, kind.name): kind for kind in KINDS}
        if wanted not in served:
            found = (await discover_resources(self._client)).resources
            served = {(one.kind.api_version, one.kind.name): one.kind for one in found}
        if wanted not in served:
            raise NotFound(f'no matches for kind "{target.kind}" in version "{wanted[0]}"')
        return served[wanted]

    async def _write_status(
        self, autoscaler: HorizontalPodAutoscaler, decision: ScalingDecision
    ) -> None:
        """Write what changed, and record an event for a new size or a new failure."""
        status, meta = autoscaler.status, autoscaler.metadata
        now = timestamp(self._clock.now())
        conditions = merge_conditions(status.conditions, decision.conditions, now)
        # Without metrics the last decision stays, as in Kubernetes.
        desired = status.desired_replicas if decision.desired is None else decision.desired
        change: Object = {"currentReplicas": decision.current, "desiredReplicas": desired}
        if decision.desired is not None:
            change["lastScaleTime"] = now
            message = f"New size: {decision.desired}; reason: {decision.reason}"
            self._record(ObjectEvent(HORIZONTAL_POD_AUTOSCALER, meta, "SuccessfulRescale", message))
        known = {one.type: (one.status, one.reason, one.message) for one in status.conditions}
        seen = (status.current_replicas, status.desired_replicas, {**known, **decision.conditions})
        if seen == (decision.current, desired, known) and decision.desired is None:
            return
        for condition in conditions:
            old, text = find_condition(status.conditions, condition["type"]), condition["message"]
            is_new = old is None or old.reason != condition["reason"]
            for reason in _failure_reasons(condition) if is_new else ():
                self._record(
                    ObjectEvent(HORIZONTAL_POD_AUTOSCALER, meta, reason, text, type="Warning")
                )
        body = {"metadata": {"uid": meta.uid}, "status": {**change, "conditions": conditions}}
        try:
            await self._client.patch(
                HORIZONTAL_POD_AUTOSCALER, meta.key, body, subresource="status"
            )
        except NotFound:
            return

    def _on_change(
        self, old: HorizontalPodAutoscaler | None, new: HorizontalPodAutoscaler | None
    ) -> None:
        # A write of the status alone is our own: the next look comes with the interval.
        if new is not None and (old is None or old.spec != new.spec):
            self._queue.add(new.metadata.key)


def _failure_reasons(condition: Object) -> tuple[str, ...]:
    """Return the reasons of the events about a condition; a disabled target is no failure."""
    if condition["status"] != "False" or condition["reason"] == _DISABLED:
        return ()
    computed = ("FailedComputeMetricsReplicas",) if condition["type"] == _ACTIVE else ()
    return (condition["reason"], *computed)


def decide(autoscaler: HorizontalPodAutoscaler, scale: Object) -> ScalingDecision:
    """Return what to do with a target that has this scale."""
    spec = autoscaler.spec
    current = (scale.get("spec") or {}).get("replicas", 0)
    low = 1 if spec.min_replicas is None else spec.min_replicas
    found = "the HPA controller was able to get the target's current scale"
    able = {_ABLE: ("True", "SucceededGetScale", found)}
    if current == 0 and low != 0:
        why = "scaling is disabled since the replica count of the target is zero"
        return ScalingDecision({**able, _ACTIVE: ("False", _DISABLED, why)})
    bounds = (
        (current > spec.max_replicas, spec.max_replicas, "above Spec.MaxReplicas"),
        (current < low, low, "below Spec.MinReplicas"),
    )
    for is_outside, bound, where in bounds:
        if is_outside:
            text = f"the HPA controller was able to update the target scale to {bound}"
            able = {_ABLE: ("True", "SucceededRescale", text)}
            reason = f"Current number of replicas {where}"
            return ScalingDecision(able, current, bound, reason)
    metric: Object = spec.metrics[0] if spec.metrics else _DEFAULT_METRIC
    reason, field = _METRIC_REASONS.get(metric.get("type", ""), ("InvalidMetricSourceType", ""))
    source = metric.get(field) or {}
    name = source.get("name") or (source.get("metric") or {}).get("name", "")
    why = (
        f"the HPA was unable to compute the replica count: failed to get {name} metric: this "
        "control plane reads no metrics for autoscaling"
    )
    return ScalingDecision({**able, _ACTIVE: ("False", reason, why)}, current)


def refuse_target(error: str) -> ScalingDecision:
    """Return the decision about a target whose scale cannot be read."""
    why = f"the HPA controller was unable to get the target's current scale: {error}"
    return ScalingDecision({_ABLE: ("False", "FailedGetScale", why)})


def merge_conditions(
    known: tuple[Condition, ...], wanted: Mapping[str, tuple[str, str, str]], now: str
) -> list[Object]:
    """Return the known conditions with the wanted ones; a time changes with the status only."""
    merged = {one.type: (one.status, one.reason, one.message) for one in known} | dict(wanted)
    unchanged = {
        one.type: one.last_transition_time or now
        for one in known
        if one.status == merged[one.type][0]
    }
    return [
        {
            "type": name,
            "status": status,
            "lastTransitionTime": unchanged.get(name, now),
            "reason": reason,
            "message": message,
        }
        for name, (status, reason, message) in merged.items()
    ]
