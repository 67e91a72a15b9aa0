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
#: By the name of a node, the client that asks as this node.
NodeClient = Callable[[str], Client]
#: What is done about a key; in how many seconds to look again, if not only when told.
Act = Callable[[K], Awaitable[float | None]]
R = TypeVar("R", bound=Resource)


class Behind(Exception):
    """The caches have not seen yet how things are: come back later."""


#: What another try may cure.
_PASSING = (ApiError, Unreachable, Behind)


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

        One that is optional counts as filled, with nothing, where its kind may not be read or is
        not there.
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

    @property
    def are_synced(self) -> bool:
        """Whether all of them have been filled."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    async def synced(self) -> None:
        """Wait until all of them have been filled."""
        for informer in self._informers.values():
            await informer.synced.wait()


def observed_queue(client: Client, name: str) -> WorkQueue[Any]:
    """A new queue, which is measured under that name."""
    queue: WorkQueue[Any] = WorkQueue()
    observe_queue(client.metrics, name, queue)
    return queue


async def work(queue: WorkQueue[K], act: Act[K], workers: int = 1) -> None:
    """Act on keys until cancelled, some side by side; what fails for now is tried again later."""
    queue.start(asyncio.get_running_loop().time)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(_work(queue, act))
    finally:
        queue.close()


async def _work(queue: WorkQueue[K], act: Act[K]) -> None:
    while True:
        key = await queue.get()
        try:
            again = await act(key)
        except _PASSING:
            queue.retry(key)
        else:
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            queue.done(key)


class Loop(Generic[K]):
    """Works keys off: `reconcile` says what to do about each, `workers` do it side by side.

    `record` hears what a plan tells, `refused` which of its actions the server would not have.
    Where `confirm` is given it is asked first, so that nothing is done on the word of a late view.
    Where `speaker` is given, each key is acted on by the client that it says, else all by one.
    """

    def __init__(
        self, client: Client, reconcile: Callable[[K], Plan], workers: int = 1, *,
        record: Callable[[Note], None] = lambda note: None,
        refused: Callable[[K, Action, ApiError], None] = lambda key, action, error: None,
        confirm: Callable[[K], Awaitable[bool]] | None = None,
        speaker: Callable[[K], Client] | None = None,
    ) -> None:  # fmt: skip
        name: str = getattr(reconcile, "__qualname__", type(reconcile).__name__)
        self.queue: WorkQueue[K] = observed_queue(client, name.partition(".__")[0])
        self._reconcile, self._workers = reconcile, workers
        self._speaker = speaker or (lambda key: client)
        self._record, self._refused, self._confirm = record, refused, confirm

    async def run(self) -> None:
        """Work until cancelled."""
        await work(self.queue, self._handle, self._workers)

    async def _handle(self, key: K) -> float | None:
        plan = self._reconcile(key)
        if plan.actions and await self._is_so(key):
            client = self._speaker(key)
            for action in plan.actions:
                await self._perform(client, key, action)
        return plan.again

    async def _is_so(self, key: K) -> bool:
        return self._confirm is None or await self._confirm(key)

    async def _perform(self, client: Client, key: K, action: Action) -> None:
        try:
            await perform(client, action, self._record)
        except ApiError as error:
            self._refused(key, action, error)
            raise
