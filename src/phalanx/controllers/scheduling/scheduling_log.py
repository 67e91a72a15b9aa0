"""Log lines about scheduling: decisions, binds and evictions.

Every attempt is a line at debug level. A state change of a group is a line at info level: placed,
preempting, unschedulable. A group that stays unschedulable for the same reason is logged once, not
per attempt. A failed bind or eviction, which is retried with back-off, is a warning.

    INFO scheduler: PodGroup placed kind=PodGroup key=default/train pods=64 nodes=8 duration=0.041 …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx import logs
from phalanx.api.meta import Ref, timestamp
from phalanx.controllers.scheduling.binder import BindResult, RequestError
from phalanx.controllers.scheduling.evictor import Eviction
from phalanx.scheduler.decision import Decision, Placed, Preempting, Victim, nominations_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import Explanation
from phalanx.scheduler.reservation.reservation import Reservation

LOG = logs.component("scheduler")


class SchedulingLog:
    """Writes the log lines of one scheduler; remembers which groups are known as unschedulable."""

    def __init__(self) -> None:
        #: The last logged reason of each group that waits.
        self._reasons: dict[Ref, str] = {}

    def log_decision(self, entity: Entity, decision: Decision, seconds: float) -> None:
        """Log one attempt, at debug level."""
        if LOG.is_debug():
            LOG.debug(
                "attempt",
                kind=entity.ref.kind,
                key=entity.key,
                attempt=entity.attempts,
                decision=type(decision).__name__,
                pods=len(entity.members),
                duration=seconds,
            )

    def log_waiting(self, entity: Entity, decision: Decision, explanation: Explanation) -> None:
        """Log that a group preempts or became unschedulable; a pod alone at debug level."""
        if isinstance(decision, Placed):
            return
        write = LOG.info if entity.group is not None else LOG.debug
        kind, key = entity.ref.kind, entity.key
        if isinstance(decision, Preempting):
            self._reasons.pop(entity.ref, None)
            fields = {} if decision.optimal else {"optimal": False}
            victims = len(decision.victims)
            write(f"{kind} preempting", kind=kind, key=key, victims=victims, **fields)
            return
        reason = f"{explanation.reason}: {explanation.message}"
        if nominations_of(decision):
            LOG.debug(f"{kind} waits for victims", kind=kind, key=key, reason=reason)
            return
        if entity.group is None:
            LOG.debug("Pod unschedulable", kind=kind, key=key, reason=reason)
        elif self._reasons.get(entity.ref) != reason:
            self._reasons[entity.ref] = reason
            LOG.info(
                f"{kind} unschedulable",
                kind=kind,
                key=key,
                reason=reason,
                attempt=entity.attempts,
            )

    def log_bind(self, result: BindResult, now: float) -> None:
        """Log the outcome of a bind."""
        entity = result.attempt.entity
        if result.failures:
            LOG.warning(
                f"{entity.ref.kind} not bound, retrying",
                kind=entity.ref.kind,
                key=entity.key,
                pods=len(result.failures),
                bound=len(result.bound),
                attempt=entity.attempts,
                reason=next(iter(result.failures.values())),
            )
            return
        if entity.group is not None:
            self._reasons.pop(entity.ref, None)
            if not LOG.is_info():
                return
        elif not LOG.is_debug():
            return
        write = LOG.info if entity.group is not None else LOG.debug
        write(
            f"{entity.ref.kind} placed",
            kind=entity.ref.kind,
            key=entity.key,
            pods=len(result.bound),
            nodes=len({binding.node for binding in result.bound}),
            duration=now - result.attempt.popped_at,
            waited=now - entity.ready_since,
            attempt=entity.attempts,
        )

    def log_eviction(self, eviction: Eviction, errors: Mapping[Victim, RequestError]) -> None:
        """Log the outcome of an eviction."""
        entity = eviction.entity
        fields: dict[str, object] = {
            "kind": entity.ref.kind,
            "key": entity.key,
            "victims": len(eviction.victims),
        }
        if errors:
            fields |= {"failed": len(errors), "reason": next(iter(errors.values()))}
            LOG.warning("victims not evicted, retrying", **fields)
        else:
            LOG.debug("victims evicted", **fields)

    def log_reservations(self, before: Sequence[Reservation], after: Sequence[Reservation]) -> None:
        """Log reservations that began, whose expected start became known or unknown, or ended."""
        known = {one.ref: one for one in before}
        for one in after:
            old = known.pop(one.ref, None)
            if old is None or (old.expected_start is None) != (one.expected_start is None):
                start = "unknown" if one.expected_start is None else timestamp(one.expected_start)
                LOG.info(
                    f"{one.ref.kind} reserved",
                    kind=one.ref.kind,
                    key=one.ref.key,
                    nodes=len(one.nodes),
                    expected_start=start,
                )
        for ref in known:
            LOG.info(f"{ref.kind} no longer reserved", kind=ref.kind, key=ref.key)

    def forget(self, group: Ref) -> None:
        """Forget a deleted group."""
        self._reasons.pop(group, None)
