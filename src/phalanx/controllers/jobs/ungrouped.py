"""Jobs on a server that knows no Workloads or no PodGroups: the peer of `groups.Groups` there.

what a Job asks for        what becomes of it
nothing of it              its pods are scheduled one by one
a gang, or one domain      no pods: it says why, and goes on when the kind is there
a part of its parent's     its pods are scheduled one by one, and it says why
"""

from __future__ import annotations

from phalanx.api.batch import Job
from phalanx.api.errors import NotFound
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.builder.management import ManageBoth, ManageGroups
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.groups import Settings, Tell
from phalanx.controllers.jobs.objects import fallback
from phalanx.controllers.jobs.standing import PLAIN, Place
from phalanx.controllers.jobs.sync import WARNING, Remark
from phalanx.controllers.jobs.wishes import Wish, Wishes
from phalanx.controllers.jobs.writes import Pen


class Ungrouped:
    """Arranges nothing. `missing` is the kind that the server lacks."""

    def __init__(self, tell: Tell, settings: Settings, missing: Kind) -> None:
        self._tell, self._missing = tell, missing
        self._wishes = Wishes(basic=settings.basic, words=settings.words, infer=settings.infer)

    async def ensure(self, situation: Situation, pen: Pen) -> Place:
        """No group; raises NotFound for a Job that must not begin without one."""
        job = situation.roll.job
        wish, missing = self._wishes.of(job), self._missing
        text = f'no matches for kind "{missing.name}" in version "{missing.api_version}"'
        match wish.management:
            case ManageBoth() if _must_have(wish):
                said = f"Failed to create {missing.name} for Job {job.metadata.name}: {text}"
                self._tell(job, Remark(f"Failed{missing.name}Create", said, WARNING))
                raise NotFound(text)
            case ManageGroups():
                return Place(fallback=fallback("ParentWorkloadNotFound", text))
        return PLAIN

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._wishes.forget(job)

    async def wind_up(self, job: Job, pen: Pen) -> None:
        """There is nothing to see to."""


def _must_have(wish: Wish) -> bool:
    """Whether a Job asks for what only a group can give."""
    asked = wish.job["spec"].get("scheduling") or {}
    return wish.size is not None or bool(asked.get("schedulingConstraints"))
