"""Standing: where the pods of a Job belong, and that it is still so.

Most looks at a Job are about its pods, while its Workload and its PodGroup are those of the last
look. What `arranging.py` has found in order once is kept beside what it was read from, and holds
as long as the caches show the very same. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from phalanx.api.core import SchedulingGroup
from phalanx.api.scheduling import MEMBERS_TO_RUN, PodGroup, Workload
from phalanx.controllers.jobs.ending import Situation
from phalanx.controllers.jobs.staffing import wanted_still
from phalanx.controllers.jobs.sync import Remark


@dataclass(frozen=True, slots=True)
class Place:
    """The group that the pods of a Job belong to ("": none), and whether that is a gang.

    `fallback` says why there is none, if there should be one.
    """

    group: str = ""
    is_gang: bool = False
    fallback: Remark | None = None


PLAIN = Place()


class View(Protocol):
    """Where Workloads and PodGroups are found."""

    def workloads(self, namespace: str, about: tuple[str, str, str]) -> Sequence[Workload]:
        """Those that are about an object, by its group, kind and name."""
        ...

    def groups(self, workload: Workload) -> Sequence[PodGroup]:
        """Those that are made of a Workload."""
        ...

    @property
    def many_wait(self) -> bool:
        """Whether many Jobs wait, so that no more is done about one than must be now."""
        ...

    async def arrival(self, workload: Workload) -> None:
        """Return when a Workload that was just made is seen; raises Behind if it is not."""
        ...


class Objects(NamedTuple):
    """All that whoever looks for the group of a Job, given its Workload, has to choose from."""

    workloads: Sequence[Workload]
    groups: Sequence[PodGroup]

    @classmethod
    def seen(cls, view: View, workload: Workload) -> Objects:
        """Those that are there now."""
        about, namespace = workload.about, workload.metadata.namespace
        return cls(view.workloads(namespace, about) if about else (), view.groups(workload))


@dataclass(frozen=True, slots=True)
class Standing:
    """That a Job has its objects and they are as it asks for.

    `size` is how many members its gang needs, if the Job is to say how many will still run.
    """

    place: Place
    workload: Workload
    group: PodGroup
    objects: Objects
    size: int | None

    def holds(self, view: View, situation: Situation) -> bool:
        """Whether it is still so."""
        if Objects.seen(view, self.workload) != self.objects:
            return False
        said = self.group.metadata.annotations.get(MEMBERS_TO_RUN)
        return self.size is None or said == members_to_run(situation, self.place.group, self.size)


def members_to_run(situation: Situation, group: str, size: int) -> str | None:
    """How many members of a gang will still run, where that is fewer than it needs."""
    own = SchedulingGroup(group)
    active = [pod.spec.scheduling_group for pod in situation.roll.active]
    members = wanted_still(situation) - len(active) + active.count(own)
    return str(members) if 0 < members < size else None
