"""Writes what was decided about trees of groups where users look: on every group of groups.

The sibling of `reporter.py`, for CompositePodGroups. That one was placed is said once and for all;
that it was told to make way is taken back once it is placed again.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.kinds import COMPOSITE_POD_GROUP
from phalanx.api.meta import Key, Meta, condition, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DISRUPTION_TARGET,
    CompositePodGroup,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.loop import Loop
from phalanx.controllers.reporter import Verdict


class TreeReporter:
    """Brings the conditions of groups of groups in line with the latest verdicts."""

    def __init__(self, client: Client, composites: Cache[CompositePodGroup], clock: Clock) -> None:
        self._composites, self._clock = composites, clock
        #: The latest verdict about each, and the object as it was judged.
        self._verdicts: dict[Key, tuple[Meta, Verdict]] = {}
        self._loop: Loop[Key] = Loop(client, self.reconcile)
        composites.subscribe(self._changed)

    async def run(self) -> None:
        """Report until cancelled."""
        await self._loop.run()

    def composite(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a group of groups."""
        if self._verdicts.get(about.key) != (about, verdict):
            self._verdicts[about.key] = about, verdict
            self._loop.queue.add(about.key)

    def disrupted(self, groups: Iterable[Meta]) -> None:
        """These are told to make way: what was said of them holds no more."""
        for meta in groups:
            self._verdicts.pop(meta.key, None)

    def reconcile(self, key: Key) -> Plan:
        """The patch that makes it say what it should, if it does not yet."""
        composite = self._composites.get(key)
        if composite is None:
            self._verdicts.pop(key, None)
            return Plan()
        about, verdict = self._verdicts.get(key, (composite.metadata, None))
        if verdict is None or about.uid != composite.metadata.uid:
            return Plan()
        conditions = self._conditions(composite, about, verdict)
        if not conditions:
            return Plan()
        meta = composite.metadata
        change: Object = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }
        return Plan([Patch(COMPOSITE_POD_GROUP, key, change, "status", STRATEGIC_PATCH)])

    def _conditions(
        self, composite: CompositePodGroup, about: Meta, verdict: Verdict
    ) -> list[Object]:
        said = composite.status.conditions
        old = condition(said, COMPOSITE_INITIALLY_SCHEDULED)
        found: list[Object] = []
        known = old and (old.status, old.reason, old.message)
        is_final = old is not None and old.status == "True"
        if not is_final and known != (verdict.status, verdict.reason, verdict.message):
            since = old.last_transition_time if old and old.status == verdict.status else None
            found.append({
                "type": COMPOSITE_INITIALLY_SCHEDULED, "status": verdict.status,
                "reason": verdict.reason, "message": verdict.message,
                "lastTransitionTime": since or timestamp(self._clock.now()),
                "observedGeneration": about.generation,
            })  # fmt: skip
        if verdict.status == "True" and condition(said, DISRUPTION_TARGET) is not None:
            found.append({"type": DISRUPTION_TARGET, "$patch": "delete"})
        return found

    def _changed(self, old: CompositePodGroup | None, new: CompositePodGroup | None) -> None:
        if new is None and old is not None:
            self._verdicts.pop(old.metadata.key, None)
        elif new is not None and new.metadata.key in self._verdicts:
            self._loop.queue.add(new.metadata.key)
