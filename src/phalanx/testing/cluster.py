"""A control plane of a test's own, and what the test does to it and sees of it: the async verbs.

`virtual` runs it on a loop whose time jumps, `served` on a port in a thread; `verbs` are the same
verbs for those who do not await. Goes through the API like everybody else; only what kinds there
are is asked of the server itself, since it is at hand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any, TypeVar

from phalanx.api.core import Node, Pod
from phalanx.api.errors import Expired, NotFound
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import APPLY_PATCH, Object, Reply, User
from phalanx.chance import Chance
from phalanx.cli.why import told
from phalanx.client.answers import read
from phalanx.client.requests import Scope, build
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.nodes import SHAPE
from phalanx.crew import Staff
from phalanx.scheduler.settings.profiles import by_gates
from phalanx.server.access import MASTERS, Tokens
from phalanx.sim.events import Machine
from phalanx.sim.invariants import check
from phalanx.sim.machines import Machines
from phalanx.sim.run import first
from phalanx.store.memory import MemoryStore
from phalanx.testing.goals import Goal, NotReached, described, has_reached, spelled
from phalanx.testing.manifests import Manifest, objects
from phalanx.testing.settings import Settings

T = TypeVar("T")

#: By whom fields are owned that a test applies, and who it is for the server.
MANAGER = "phalanx-test"
#: Seconds that is waited unless a test says otherwise, in either time.
PATIENCE = 10.0
#: Objects that are told of when something does not come about.
_TOLD = 10


class Cluster:
    """The verbs of a test. Kinds go by any name that kubectl knows: `Job`, `jobs`, `jobs.batch`."""

    def __init__(
        self, plane: ControlPlane, machines: Machines, start: Callable[..., asyncio.Task[Any]]
    ) -> None:
        self.plane = plane
        #: In this process and with every right; a controller of a test may have one too.
        self.client = plane.client(MANAGER)
        self._machines, self._start = machines, start
        self._way = InProcess(plane.server.handle, User(MANAGER, (MASTERS,)))
        self._named: Counter[str] = Counter()

    def start(self, program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have a controller run beside the test, until its end; one that fails fails the test."""
        return self._start(program)

    async def nodes(
        self,
        count: int,
        /,
        *,
        name: str = "node",
        labels: Mapping[str, str] | None = None,
        room: Mapping[str, str | int] | None = None,
        **amounts: str | int,
    ) -> list[str]:
        """Add equal nodes, ready to be used, which run what is bound to them; their names.

        What they have besides the usual is said by keywords, or by `room` where a keyword cannot.
        """
        said = {**(room or {}), **amounts}
        has = {**SHAPE, **{resource: str(amount) for resource, amount in said.items()}}
        first = self._named[name]
        self._named[name] += count
        names = [f"{name}-{n}" for n in range(first, first + count)]
        await self._machines.add([Machine(one, has, labels or {}) for one in names])
        return names

    async def apply(self, *manifests: Manifest, namespace: str = "default") -> list[Object]:
        """Apply objects, YAML texts or files, as `kubectl apply --server-side` does."""
        wanted = [deepcopy(one) for manifest in manifests for one in objects(manifest)]
        return [await self._apply(one, namespace) for one in wanted]

    async def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """An object as it is. Raises NotFound."""
        known = self._kind(kind)
        return await self.client.get(known, _key(known, namespace, name))

    async def find(
        self, kind: str, *, selector: str = "", namespace: str = "default"
    ) -> list[Object]:
        """All objects of a kind, or those with certain labels."""
        known = self._kind(kind)
        scope = _scope(known, namespace, labels=selector)
        return _kinded(known, (await self.client.list(known, **scope)).items)

    async def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        """Delete an object; what it owns goes with it, in the background."""
        known = self._kind(kind)
        key = _key(known, namespace, name)
        await self.client.delete(known, key, propagation="Background")

    async def wait_for(
        self,
        kind: str,
        name: str,
        goal: Goal,
        *,
        namespace: str = "default",
        timeout: float = PATIENCE,  # noqa: ASYNC109
    ) -> Object:
        """Wait until an object is there and has reached a goal; it is given then.

        A goal is the name of a condition that is to be True, a phase, or a function of the object.
        """
        known = self._kind(kind)
        scope = _scope(known, namespace, name=name)
        what = f"{known.name} {_key(known, namespace, name)} has not reached {spelled(goal)}"
        [found] = await self._until(
            known, scope, lambda all_: any(has_reached(one, goal) for one in all_), timeout, what
        )
        return found

    async def wait_for_all(
        self,
        kind: str,
        goal: Goal,
        *,
        count: int,
        selector: str = "",
        namespace: str = "default",
        timeout: float = PATIENCE,  # noqa: ASYNC109
    ) -> list[Object]:
        """Wait until there are so many objects, neither more nor fewer, all of which reached it."""
        known = self._kind(kind)
        scope = _scope(known, namespace, labels=selector)
        what = f"there are not {count} {known.plural} that reached {spelled(goal)}"
        return await self._until(
            known, scope,
            lambda all_: len(all_) == count and all(has_reached(one, goal) for one in all_),
            timeout, what,
        )  # fmt: skip

    async def wait_gone(
        self,
        kind: str,
        name: str,
        *,
        namespace: str = "default",
        timeout: float = PATIENCE,  # noqa: ASYNC109
    ) -> None:
        """Wait until there is no such object."""
        known = self._kind(kind)
        scope = _scope(known, namespace, name=name)
        what = f"{known.name} {_key(known, namespace, name)} is not gone"
        await self._until(known, scope, lambda all_: not all_, timeout, what)

    async def why(self, what: str, *, namespace: str = "default") -> str:
        """What `phalanx why` says of a pod or a group, such as `podgroup/train`."""
        return await told(self.client, what, namespace)

    async def wrongs(self) -> list[str]:
        """What must never be the case, and is: one sentence each."""
        pods = (await self.client.list(POD, Pod)).items
        nodes = (await self.client.list(NODE, Node)).items
        # Where pods are placed one by one, gangs need not be whole.
        whole = by_gates(self.plane.server.context.gates).groups
        groups = (await self.client.list(POD_GROUP, PodGroup)).items if whole else ()
        return check(pods, nodes, groups)

    async def _apply(self, wanted: Object, namespace: str) -> Object:
        kind = self._kind_of(wanted)
        meta = wanted.setdefault("metadata", {})
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
        if not meta.get("name"):
            return await self.client.create(kind, wanted)
        query = {"fieldManager": MANAGER, "force": "true"}
        key = Key(meta.get("namespace", ""), meta["name"])
        request = build("patch", kind, key, query=query, body=wanted, content=APPLY_PATCH)
        answer = await self._way.send(request)
        assert isinstance(answer, Reply)
        return read(answer, dict)

    async def _until(
        self,
        kind: Kind,
        scope: Scope,
        enough: Callable[[Sequence[Object]], bool],
        seconds: float,
        complaint: str,
    ) -> list[Object]:
        """Look at a part of a collection at each of its changes, until it is as it should be."""
        found: list[Object] = []
        try:
            async with asyncio.timeout(seconds), aclosing(self._views(kind, scope)) as views:
                async for found in views:
                    if enough(found):
                        break
        except TimeoutError:
            told_of = described(list(islice(found, _TOLD)))
            raise NotReached(f"{complaint} after {seconds:g} s:\n{told_of}") from None
        return found

    async def _views(self, kind: Kind, scope: Scope) -> AsyncGenerator[list[Object], None]:
        """A part of a collection as it is and as it becomes; a watch that ends is begun anew."""
        while True:
            listing = await self.client.list(kind, **scope)
            there = {_identity(one): one for one in _kinded(kind, listing.items)}
            yield list(there.values())
            try:
                async with aclosing(
                    self.client.watch(kind, since=listing.revision, **scope)
                ) as watch:
                    async for event in watch:
                        there.pop(_identity(event.object), None)
                        if event.type != "DELETED":
                            there[_identity(event.object)] = event.object
                        yield list(there.values())
            except Expired:
                continue

    def _kind(self, word: str) -> Kind:
        """The kind that goes by a name, in the version that discovery shows first."""
        for kind in self.plane.server.context.registry.kinds:
            names = (kind.name, kind.plural, kind.singular, kind.resource, *kind.short_names)
            if word.lower() in map(str.lower, names):
                return kind
        raise NotFound(f'the server has no kind "{word}"')

    def _kind_of(self, wanted: Object) -> Kind:
        version, name = wanted.get("apiVersion"), wanted.get("kind")
        for kind in self.plane.server.context.registry.kinds:
            if (kind.api_version, kind.name) == (version, name):
                return kind
        raise NotFound(f'no matches for kind "{name}" in version "{version}"')


@asynccontextmanager
async def cluster(
    settings: Settings,
    store: MemoryStore,
    clock: Clock,
    chance: Chance,
    tokens: Tokens | None = None,
) -> AsyncIterator[Cluster]:
    """A control plane that runs while the context lasts, with the nodes that are asked for."""
    staff = Staff(without=(*settings.without, "nodes"), gates=settings.switched)
    plane = ControlPlane(store, clock, chance, staff, tokens)
    machines = Machines(plane.client("system:nodes"), clock, chance)
    tasks: list[asyncio.Task[Any]] = []
    async with plane.running(), asyncio.TaskGroup() as group:

        def start(program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            tasks.append(group.create_task(program))
            return tasks[-1]

        try:
            if "nodes" not in settings.without:
                start(machines.run())
            found = Cluster(plane, machines, start)
            await found.nodes(settings.nodes, room=settings.room)
            yield found
        finally:
            for task in tasks:
                task.cancel()


@contextmanager
def plainly() -> Iterator[None]:
    """Raise what goes wrong inside without the task groups that it comes through."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first(group)
    else:
        return
    raise error


def _key(kind: Kind, namespace: str, name: str) -> Key:
    return Key(namespace if kind.namespaced else "", name)


def _scope(kind: Kind, namespace: str, *, labels: str = "", name: str = "") -> Scope:
    return Scope(
        namespace=namespace if kind.namespaced else "",
        label_selector=labels,
        field_selector=f"metadata.name={name}" if name else "",
    )


def _identity(found: Object) -> Key:
    return Key(found["metadata"].get("namespace", ""), found["metadata"]["name"])


def _kinded(kind: Kind, listed: Sequence[Object]) -> list[Object]:
    """Objects of a list say what they are, as those that come alone do."""
    return [{"apiVersion": kind.api_version, "kind": kind.name, **one} for one in listed]
