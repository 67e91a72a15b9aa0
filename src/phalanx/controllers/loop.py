"""Informers → work queue → reconcile → actions → client: what every controller but the scheduler
is.

A reconcile is a function from a key to a Plan; it looks at the world as it is, so that a missed
event costs time, never truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

from msgspec import Struct

from phalanx.api.errors import ApiError
from phalanx.api.kinds import Kind
from phalanx.api.meta import Meta
from phalanx.chance import Chance
from phalanx.client.answers import Resource
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.metrics import observe_queue
from phalanx.client.transports import Unreachable
from phalanx.client.workqueue import WorkQueue
from phalanx.controllers.actions import Action, Plan, perform
from phalanx.controllers.recorder import Note

K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Resource)


class Thing(Struct, frozen=True):
    """As much of any object as somebody needs who reads metadata alone."""

    metadata: Meta


class Informers:
    """One informer per kind, shared by all the loops of a process."""

    def __init__(self, client: Client, chance: Chance) -> None:
        self._client, self._chance = client, chance
        self._informers: dict[Kind, Informer[Any]] = {}

    def of(self, kind: Kind, struct: type[R], *, optional: bool = False) -> Informer[R]:
        """The informer of a kind; whoever asks first says how it is decoded.

        One that is optional counts as filled, with nothing, where its kind may not be read.
        """
        if kind not in self._informers:
            self._informers[kind] = Informer(
                self._client, kind, struct, chance=self._chance, optional=optional
            )
        return self._informers[kind]

    @property
    def failures(self) -> dict[Kind, ApiError | Unreachable]:
        """What is wrong at present with following the server, by kind."""
        found = {kind: informer.failure for kind, informer in self._informers.items()}
        return {kind: failure for kind, failure in found.items() if failure is not None}

    def any(self, kind: Kind) -> Informer[Resource]:
        """The informer of a kind for somebody who reads metadata alone; asked for last."""
        return self._informers.get(kind) or self.of(kind, Thing)

    async def run(self) -> None:
        """Follow the server in all of them."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())

    async def synced(self) -> None:
        """Wait until all of them have been filled."""
        for informer in self._informers.values():
            await informer.synced.wait()


class Loop(Generic[K]):
    """Works keys off: `reconcile` says what to do about each, `workers` do it side by side.

    `record` hears what a plan tells, `refused` which of its actions the server would not have.
    Where `confirm` is given it is asked first, so that nothing is done on the word of a late view.
    """

    def __init__(
        self, client: Client, reconcile: Callable[[K], Plan], workers: int = 1, *,
        record: Callable[[Note], None] = lambda note: None,
        refused: Callable[[K, Action, ApiError], None] = lambda key, action, error: None,
        confirm: Callable[[K], Awaitable[bool]] | None = None,
    ) -> None:  # fmt: skip
        self.queue: WorkQueue[K] = WorkQueue()
        name: str = getattr(reconcile, "__qualname__", type(reconcile).__name__)
        observe_queue(client.metrics, name.partition(".__")[0], self.queue)
        self._client, self._reconcile, self._workers = client, reconcile, workers
        self._record, self._refused, self._confirm = record, refused, confirm

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            self.queue.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._handle(key)
            finally:
                self.queue.done(key)

    async def _handle(self, key: K) -> None:
        plan = self._reconcile(key)
        try:
            if plan.actions and await self._is_so(key):
                for action in plan.actions:
                    await self._perform(key, action)
        except (ApiError, Unreachable):
            self.queue.retry(key)
            return
        self.queue.forget(key)
        if plan.again is not None:
            self.queue.add_after(key, plan.again)

    async def _is_so(self, key: K) -> bool:
        return self._confirm is None or await self._confirm(key)

    async def _perform(self, key: K, action: Action) -> None:
        try:
            await perform(self._client, action, self._record)
        except ApiError as error:
            self._refused(key, action, error)
            raise
