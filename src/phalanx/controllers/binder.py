"""Binds what was placed: every gang whole, several gangs in one transaction when there are many.

Between the scheduling shell, which submits, and the server's GroupBinding. What waits while one
transaction is under way goes into the next. A transaction of several gangs that is refused is taken
apart, so that one gang's bad luck is not the others'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from phalanx.api.errors import ApiError
from phalanx.api.kinds import GROUP_BINDING
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity

#: Pods that one transaction of several gangs holds at most; a larger gang goes alone.
BATCH = 2000


class Attempt(NamedTuple):
    """An entity and where it was placed."""

    entity: Entity
    placed: Placed

    @property
    def namespace(self) -> str:
        """Where its pods are."""
        return self.entity.key.namespace


#: Called with an attempt and what went wrong with it, if anything did.
Finished = Callable[[Attempt, ApiError | Unreachable | None], None]


class Binder:
    """A queue of placed gangs on their way to the server."""

    def __init__(self, client: Client, finished: Finished) -> None:
        self._client, self._finished = client, finished
        self._waiting: list[Attempt] = []
        self._news = asyncio.Event()
        self._under_way = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be bound."""
        return self._under_way or bool(self._waiting)

    def submit(self, attempt: Attempt) -> None:
        """Have a gang bound."""
        self._waiting.append(attempt)
        self._news.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        while True:
            await self._news.wait()
            batch = self._next()
            self._under_way = True
            await self._bind(batch)
            self._under_way = False
            if not self._waiting:
                self._news.clear()

    def _next(self) -> list[Attempt]:
        """As many of the waiting as fit in one transaction: of one namespace, in order."""
        batch: list[Attempt] = []
        pods = 0
        for attempt in self._waiting:
            pods += len(attempt.placed.bindings)
            if batch and (pods > BATCH or attempt.namespace != batch[0].namespace):
                break
            batch.append(attempt)
        del self._waiting[: len(batch)]
        return batch

    async def _bind(self, batch: Sequence[Attempt]) -> None:
        error: ApiError | Unreachable | None = None
        try:
            path = GROUP_BINDING.path(batch[0].namespace)
            await self._client.post(path, _group_binding(batch))
        except (ApiError, Unreachable) as caught:
            error = caught
        if error is not None and len(batch) > 1:
            for attempt in batch:
                await self._bind([attempt])
            return
        for attempt in batch:
            self._finished(attempt, error)


def _group_binding(batch: Sequence[Attempt]) -> Object:
    bindings = [
        {"name": pod.name, "uid": uid, "node": node}
        for attempt in batch
        for pod, uid, node in attempt.placed.bindings
    ]
    return {
        "apiVersion": GROUP_BINDING.api_version, "kind": GROUP_BINDING.name, "bindings": bindings
    }  # fmt: skip
