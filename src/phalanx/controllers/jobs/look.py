"""One look at one Job, performed: pods are claimed, made and deleted, the status is written, and
only then are those let go that it has counted.

A part that is refused keeps no other part from being done, but for one: who is not written down is
not let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Invalid
from phalanx.api.kinds import JOB
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.jobs.claiming import claim
from phalanx.controllers.jobs.count import MOST_UNCOUNTED
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.groups import Groups
from phalanx.controllers.jobs.hands import Failure, Hands, is_futile
from phalanx.controllers.jobs.metrics import JobMetrics
from phalanx.controllers.jobs.roll import Roll, is_leaving, is_tracked
from phalanx.controllers.jobs.staffing import MOST_AT_ONCE
from phalanx.controllers.jobs.standing import PLAIN, Place
from phalanx.controllers.jobs.sync import WARNING, Done, Remark, Sync, sync
from phalanx.controllers.jobs.ungrouped import Ungrouped
from phalanx.controllers.jobs.writes import Writes
from phalanx.controllers.loop import Behind


@dataclass(frozen=True, slots=True)
class Tools:
    """What every look uses. Without groups pods are scheduled one by one."""

    client: Client
    clock: Clock
    writes: Writes
    groups: Groups | Ungrouped | None
    metrics: JobMetrics
    tell: Callable[[Job, Remark], None]


class Look:
    """A Job, its pods, and the pods of nobody that it may want."""

    def __init__(self, tools: Tools, job: Job, pods: Sequence[Pod], loose: Sequence[Pod]) -> None:
        self._tools, self._job, self._pods, self._loose = tools, job, pods, loose
        self._tell = partial(tools.tell, job)
        self._pen = tools.writes.pen(job.metadata.key)
        self._hands = Hands(self._pen, job, self._tell)
        self._failures: list[Failure] = []
        self._due: Sync | None = None

    async def perform(self) -> float | None:
        """Do what is due; in how many seconds to look again, if at all.

        Raises one of the failures that another look may cure.
        """
        clock, is_well = self._tools.clock, False
        since = clock.now()
        try:
            await (self._wind_up() if self._job.ended else self._settle())
            pressing = [failure for failure in self._failures if not is_futile(failure)]
            is_well = all(isinstance(failure, Behind) for failure in pressing)
            if pressing:
                raise pressing[0]
        finally:
            self._tools.metrics.looked(self._job, self._due, is_well, clock.now() - since)
        return self._due.again if self._due else None

    async def _wind_up(self) -> None:
        """What is left to do about a Job that has ended; what still runs came after its end."""
        if self._tools.groups is not None:
            await self._tools.groups.wind_up(self._job, self._pen)
        late = Roll(self._job, self._pods).active[:MOST_AT_ONCE]
        self._failures += (await self._hands.dismiss(late))[1]
        held = [pod for pod in self._pods if is_tracked(pod) and (pod.ended or is_leaving(pod))]
        self._failures += await self._hands.release(held[:MOST_UNCOUNTED])

    async def _settle(self) -> None:
        roll = Roll(self._job, await self._claimed())
        self._due = due = sync(Situation(roll, self._tools.clock.now()))
        found = await self._place(due)
        if self._failures and self._job.status.start_time is None:
            return  # It begins when its objects are there.
        gone, refused = await self._hands.delete(due.delete)
        dismissed, kept = await self._hands.dismiss(due.dismiss)
        self._failures += [*refused, *kept]
        made = await self._make(due, found) if found else 0
        fallback = found.fallback if found else None
        await self._write(due, Done([*gone, *dismissed], made, fallback, found is not None))
        self._failures += await self._hands.release(due.release)

    async def _claimed(self) -> Sequence[Pod]:
        """The pods of the Job, once all of them are its own and none of them is not."""
        found = claim(self._job, self._pods, self._loose)
        if not (found.adopt or found.disown):
            return found.own
        failures = await self._hands.disown(found.disown)
        if found.adopt and await self._is_there():
            failures += await self._hands.adopt(found.adopt)
        raise failures[0] if failures else Behind("its pods have changed")

    async def _is_there(self) -> bool:
        """Whether the Job is still to stay, as the API has it."""
        meta = (await self._tools.client.get(JOB, self._job.metadata.key, Job)).metadata
        return meta.uid == self._job.metadata.uid and not meta.deletion_timestamp

    async def _place(self, due: Sync) -> Place | None:
        """Where new pods belong; None if none are to be made, or if that cannot be told now."""
        groups = self._tools.groups
        if due.end is not None or self._job.metadata.deletion_timestamp:
            return None
        try:
            return await groups.ensure(due.situation, self._pen) if groups else PLAIN
        except (ApiError, Unreachable, Behind) as failure:
            self._failures.append(failure)
            return None

    async def _make(self, due: Sync, found: Place) -> int:
        made, failures = await self._hands.make(due.make, found.group, at_once=found.is_gang)
        self._failures += failures
        self._tools.metrics.made_pods(due, made, len(failures))
        return made

    async def _write(self, due: Sync, done: Done) -> None:
        """Write the status of the very Job that was looked at, then tell what there is to tell."""
        report = due.report(done)
        if not report.status:
            return
        meta, change = self._job.metadata, {"status": report.status}
        try:
            await self._pen.patch(JOB, meta, change, subresource="status", exact=True)
        except Invalid as error:
            self._tell(Remark("FailedStatusUpdate", str(error), WARNING))
            raise
        self._tools.metrics.counted(due, done)
        for remark in report.remarks:
            self._tell(remark)
