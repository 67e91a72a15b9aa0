"""Hands: does to the pods of one Job what a look at it has found due.

A refusal is a value here: whatever else is due is done all the same, and the Job is looked at again
afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, NotFound
from phalanx.api.kinds import POD
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.transports import Unreachable
from phalanx.controllers.jobs.podmaking import new_pod, owner
from phalanx.controllers.jobs.roll import TRACKING, is_tracked
from phalanx.controllers.jobs.staffing import Order
from phalanx.controllers.jobs.sync import WARNING, Remark
from phalanx.controllers.jobs.writes import Pen
from phalanx.controllers.loop import Behind

#: Requests of one Job under way at a time.
_AT_ONCE = 32
#: What takes our finalizer off a pod.
UNTRACKED: Object = {"$deleteFromPrimitiveList/finalizers": [TRACKING]}

#: Why something could not be done now.
Failure = ApiError | Unreachable | Behind
S = TypeVar("S")
T = TypeVar("T")


class Hands:
    """Makes, adopts, deletes and lets go of the pods of one Job; `tell` hears of it."""

    def __init__(self, pen: Pen, job: Job, tell: Callable[[Remark], None]) -> None:
        self._pen, self._job, self._tell = pen, job, tell

    async def make(
        self, orders: Sequence[Order], group: str, *, at_once: bool
    ) -> tuple[int, list[Failure]]:
        """Make pods: all at once, or in batches that grow, so that a bad one costs little.

        How many were made. After a failure no more are tried, and of several the first is told.
        """
        size, made = len(orders) if at_once else 1, 0
        while made < len(orders):
            batch = orders[made : made + size]
            done, failures = await side_by_side(partial(self._create, group), batch)
            made, size = made + len(done), 2 * size
            if failures:
                if not is_futile(failures[0]):
                    text = f"Error creating: {failures[0]}"
                    self._tell(Remark("FailedCreate", text, WARNING))
                return made, failures
        return made, []

    async def delete(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[Failure]]:
        """Delete pods that are to be counted first; those that are going now."""
        return await side_by_side(self._delete, pods)

    async def dismiss(self, pods: Iterable[Pod]) -> tuple[list[Pod], list[Failure]]:
        """Delete pods that are to be counted as nothing; those that are going now."""
        return await side_by_side(self._dismiss, pods)

    async def release(self, pods: Iterable[Pod]) -> list[Failure]:
        """Take our finalizer off pods."""
        return (await side_by_side(self._release, pods))[1]

    async def adopt(self, pods: Iterable[Pod]) -> list[Failure]:
        """Make pods of nobody the Job's own."""
        change: Object = {"ownerReferences": [owner(self._job)], "finalizers": [TRACKING]}
        return (await side_by_side(partial(self._change, change, exact=True), pods))[1]

    async def disown(self, pods: Iterable[Pod]) -> list[Failure]:
        """Give pods up, and do not hold them any longer."""
        reference = {"$patch": "delete", "uid": self._job.metadata.uid}
        change: Object = {"ownerReferences": [reference], **UNTRACKED}
        return (await side_by_side(partial(self._change, change, exact=True), pods))[1]

    async def _create(self, group: str, order: Order) -> None:
        made = await self._pen.create(POD, new_pod(self._job, order, group))
        self._tell(Remark("SuccessfulCreate", f"Created pod: {made['metadata']['name']}"))

    async def _delete(self, pod: Pod, version: str = "") -> Pod:
        """Delete a pod as it was seen, or in a later version that is our own."""
        try:
            seen = version or pod.metadata.resource_version
            await self._pen.delete(POD, pod.metadata, version=seen)
        except NotFound:
            return pod
        except Conflict:
            raise
        except ApiError as error:
            self._tell(Remark("FailedDelete", f"Error deleting: {error}", WARNING))
            raise
        self._tell(Remark("SuccessfulDelete", f"Deleted pod: {pod.metadata.name}"))
        return pod

    async def _dismiss(self, pod: Pod) -> Pod:
        # As it was seen: one that has ended since is to be counted instead.
        version = await self._change(UNTRACKED, pod, exact=True) if is_tracked(pod) else ""
        return await self._delete(pod, version)

    async def _release(self, pod: Pod) -> None:
        await self._change(UNTRACKED, pod)

    async def _change(self, change: Object, pod: Pod, *, exact: bool = False) -> str:
        """Change the metadata of a pod, if it is still there; the version that it has then."""
        patch, content = {"metadata": change}, STRATEGIC_PATCH
        try:
            changed = await self._pen.patch(POD, pod.metadata, patch, content=content, exact=exact)
        except NotFound:
            return ""
        return str(changed["metadata"]["resourceVersion"])


async def side_by_side(
    act: Callable[[S], Awaitable[T]], items: Iterable[S]
) -> tuple[list[T], list[Failure]]:
    """Do the same to several, some of them at a time: what came of it, and what was refused."""
    gate, items = asyncio.Semaphore(_AT_ONCE), tuple(items)
    if not items:
        return [], []

    async def one(item: S) -> T | Failure:
        async with gate:
            try:
                return await act(item)
            except (ApiError, Unreachable) as failure:
                return failure

    done: list[T] = []
    failures: list[Failure] = []
    for result in await asyncio.gather(*map(one, items)):
        if isinstance(result, ApiError | Unreachable | Behind):
            failures.append(result)
        else:
            done.append(result)
    return done, failures


def is_futile(failure: Failure) -> bool:
    """Whether it is no use trying again: the namespace is on its way out."""
    causes = failure.causes if isinstance(failure, ApiError) else ()
    return any(cause.reason == "NamespaceTerminating" for cause in causes)
