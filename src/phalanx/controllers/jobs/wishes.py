"""What Jobs ask for in the way of scheduling, read once for each version of what they say.

Most looks at a Job are about its pods; what it wants of them has not changed since the last one.
"""

from __future__ import annotations

from functools import cached_property

from phalanx.api.batch import Job
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.builder import jobs as building
from phalanx.builder.management import Management
from phalanx.controllers.jobs.objects import as_object
from phalanx.controllers.jobs.standing import Standing


class Wish:
    """What one Job asks for, as the builder reads it; and where it stands, if it has that."""

    def __init__(self, job: Object, *, basic: bool) -> None:
        self.job = job
        self.standing: Standing | None = None
        self._basic = basic

    @cached_property
    def management(self) -> Management:
        """What of its objects is to be made."""
        return building.management(self.job, basic=self._basic)

    @cached_property
    def size(self) -> int | None:
        """How many pods it needs to begin; None if it is no gang."""
        return building.gang_size(self.job)


class Wishes:
    """What all Jobs ask for, each as it was last seen. The options are those of `Settings`."""

    def __init__(self, *, basic: bool, words: bool, infer: bool) -> None:
        self._basic, self._words, self._infer = basic, words, infer
        self._known: dict[Key, tuple[object, Wish]] = {}

    def of(self, job: Job) -> Wish:
        """What a Job asks for."""
        said, known = _said(job), self._known.get(job.metadata.key)
        if known is not None and known[0] == said:
            return known[1]
        wish = Wish(as_object(job, words=self._words, infer=self._infer), basic=self._basic)
        self._known[job.metadata.key] = said, wish
        return wish

    def forget(self, job: Key) -> None:
        """A Job is gone."""
        self._known.pop(job, None)


def _said(job: Job) -> object:
    """All that a wish depends on: the spec, which has a generation, owners and annotations."""
    meta = job.metadata
    return meta.uid, meta.generation, meta.annotations, meta.owner_references
