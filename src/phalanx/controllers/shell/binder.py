"""Binds what was placed: every gang whole, several gangs in one transaction when there are many.

Between the scheduling shell, which submits, and the server's GroupBinding. What waits while one
transaction is under way goes into the next. A transaction of several gangs that is refused is taken
apart, so that one gang's bad luck is not the others'. What was placed counting on members of its
gang that then could not be bound is not bound either. `podbinder.PodBinder` is its peer where there
is no GroupBinding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.errors import ApiError
from phalanx.api.kinds import GROUP_BINDING
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.scheduler.decision import Binding, Placed
from phalanx.scheduler.entity import Entity
from phalanx.telemetry import NUMBER

#: Pods that one transaction of several gangs holds at most; a larger gang goes alone.
BATCH = 2000

#: What can go wrong with a bind.
Trouble = ApiError | Unreachable


class Attempt(NamedTuple):
    """An entity and where it was placed."""

    entity: Entity
    placed: Placed
    #: When the entity was taken from the queue.
    since: float = 0.0

    @property
    def namespace(self) -> str:
        """Where its pods are."""
        return self.entity.key.namespace

    @property
    def number(self) -> str:
        """Under which it is bound, and told of."""
        return f"bind-{self.placed.bindings[0].uid}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt: who was bound and who was not, and why.

    `enough` says whether the entity is known to have all the members that it needs now, `told`
    whether the server has told users of it already.
    """

    attempt: Attempt
    bound: tuple[Binding, ...]
    failures: Mapping[Binding, Trouble]
    enough: bool
    told: bool = False


#: Called with what became of an attempt.
Finished = Callable[[Outcome], None]
#: What becomes of a group with its members bound, as a GroupBinding says it; nothing: leave it be.
Standing = Callable[[PodGroup], Object]


class Binder:
    """A queue of placed gangs on their way to the server.

    `batched` hears how many pods were bound at once; `standing` is asked what each group says then.
    """

    def __init__(
        self, client: Client, finished: Finished,
        batched: Callable[[int], None] = lambda pods: None,
        standing: Standing = lambda group: {},
    ) -> None:  # fmt: skip
        self._client, self._finished, self._batched = client, finished, batched
        self._standing = standing
        self._waiting: list[Attempt] = []
        #: What was refused together and is now sent one by one.
        self._apart: list[Attempt] = []
        self._news = asyncio.Event()
        self._under_way = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is still to be bound."""
        return self._under_way or bool(self._waiting or self._apart)

    def submit(self, attempt: Attempt) -> None:
        """Have a gang bound."""
        self._waiting.append(attempt)
        self._news.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        while True:
            await self._news.wait()
            batch = [self._apart.pop(0)] if self._apart else self._next()
            self._under_way = True
            await self._bind(batch)
            self._under_way = False
            if not self._waiting and not self._apart:
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
        error: Trouble | None = None
        NUMBER.set(batch[0].number)
        try:
            path = GROUP_BINDING.path(batch[0].namespace)
            await self._client.post(path, self._group_binding(batch))
            self._batched(sum(len(attempt.placed.bindings) for attempt in batch))
        except (ApiError, Unreachable) as caught:
            error = caught
        if error is not None and len(batch) > 1:
            self._apart.extend(batch)
            return
        void = self._dependents(batch[0]) if error is not None else []
        for attempt in (*batch, *void):
            self._finished(_outcome(attempt, error))

    def _group_binding(self, batch: Sequence[Attempt]) -> Object:
        bindings = [
            {"name": pod.name, "uid": uid, "node": node}
            for attempt in batch
            for pod, uid, node in attempt.placed.bindings
        ]
        leaves = [leaf.group for one in batch for leaf in one.entity.leaves]
        groups = [group for group in leaves if isinstance(group, PodGroup)]
        # A group that is there several times is named once, as it was placed last.
        latest = {group.metadata.uid: group for group in groups}
        return {
            "apiVersion": GROUP_BINDING.api_version, "kind": GROUP_BINDING.name,
            "bindings": bindings, "groups": [self._terms(group) for group in latest.values()],
        }  # fmt: skip

    def _terms(self, group: PodGroup) -> Object:
        identity = {"name": group.metadata.name, "uid": group.metadata.uid}
        standing = self._standing(group)
        return {**identity, "standing": standing} if standing else identity

    def _dependents(self, failed: Attempt) -> list[Attempt]:
        """Take out what waits of the same gang: it may need the members that have no node now."""
        gang = failed.entity.group
        if gang is None or (isinstance(gang, PodGroup) and not gang.is_gang):
            return []
        void = []
        for waiting in (self._apart, self._waiting):
            void += [one for one in waiting if one.entity.group_key == gang.metadata.key]
            waiting[:] = [one for one in waiting if one.entity.group_key != gang.metadata.key]
        return void


def _outcome(attempt: Attempt, error: Trouble | None) -> Outcome:
    """All or none."""
    bindings = attempt.placed.bindings
    if error is None:
        return Outcome(attempt, bindings, {}, enough=True, told=True)
    return Outcome(attempt, (), dict.fromkeys(bindings, error), enough=False)
