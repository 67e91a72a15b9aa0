"""Orphans: pods that wait to be counted, and no Job is there to do it. They are let go.

A Job counts as gone only when the API itself says so: the cache may be late. A pod that another Job
will adopt is left to that.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.controllers.actions import Patch, perform
from phalanx.controllers.jobs.claiming import controller, is_of, job_key
from phalanx.controllers.jobs.hands import UNTRACKED
from phalanx.controllers.jobs.roll import is_tracked


class Orphans:
    """Lets pods go. `has_suitor` says whether a Job will adopt a pod of nobody."""

    def __init__(self, client: Client, pods: Cache[Pod], has_suitor: Callable[[Pod], bool]) -> None:
        self._client, self._pods, self._has_suitor = client, pods, has_suitor

    async def free(self, key: Key) -> None:
        """Let one pod go, if it is held and has nobody."""
        pod = self._pods.get(key)
        if pod is not None and is_tracked(pod) and await self._has_nobody(pod):
            change = {"metadata": {"uid": pod.metadata.uid, **UNTRACKED}}
            await perform(self._client, Patch(POD, key, change, content=STRATEGIC_PATCH))

    async def _has_nobody(self, pod: Pod) -> bool:
        if controller(pod.metadata) is None:
            return not self._has_suitor(pod)
        for key in job_key(pod):
            try:
                return not is_of(pod, await self._client.get(JOB, key, Job))
            except NotFound:
                return True
        return False
