"""What is waited for: words and predicates about objects, and what to say when it does not come.

Manifests as tests give them: objects, YAML or files, one or many in each.

A control plane of a test's own, and what the test does to it and sees of it: the async verbs.

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
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from phalanx.api.core import Node, Pod
from phalanx.api.errors import Expired, NotFound
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import APPLY_PATCH, Object, Reply, UserInfo
from phalanx.cli.why import explain_pending
from phalanx.client.protocol import ListScope, build_request, decode_reply
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY
from phalanx.randomness import Random
from phalanx.scheduler.configuration.profiles import apply_feature_gates
from phalanx.server.security.authorization import MASTERS, Tokens
from phalanx.server.serialization import parse_manifests
from phalanx.sim.driver import ScenarioNodes
from phalanx.sim.events import ScenarioNode
from phalanx.sim.invariants import check_cluster
from phalanx.sim.simulation import first_error
from phalanx.store.memory import MemoryStore
from phalanx.testing.settings import Settings

#: A condition that is True or a phase, by its name; or whatever a function makes of an object.
WaitGoal = str | Callable[[Object], object]


class NotReached(AssertionError):
    """What was waited for did not come about in time; the text says what was there instead."""


def has_reached(found: Object, goal: WaitGoal) -> bool:
    """Whether an object is where somebody wants it; while a field is missing, it is not."""
    if callable(goal):
        with suppress(LookupError):
            return bool(goal(found))
        return False
    status = _status(found)
    true = [one.get("type") for one in _conditions(status) if one.get("status") == "True"]
    return goal in (status.get("phase"), *true)


def describe_goal(goal: WaitGoal) -> str:
    """A goal as a word of a sentence."""
    return goal if isinstance(goal, str) else "what the test waits for"


def describe_objects(found: Sequence[Object]) -> str:
    """Objects in the words of their status, one line each."""
    return (
        "\n".join(f"  {_object_name(one)}: {_describe_status(one)}" for one in found)
        or "  there is none"
    )


def _object_name(found: Object) -> str:
    meta = found["metadata"]
    return f"{found.get('kind', '')} {meta.get('namespace', '')}/{meta['name']}".replace(" /", " ")


def _describe_status(found: Object) -> str:
    status = _status(found)
    phase = [f"phase {status['phase']}"] if status.get("phase") else []
    return "; ".join([*phase, *map(_describe_condition, _conditions(status))]) or f"status {status}"


def _describe_condition(found: Object) -> str:
    why = [str(found[name]) for name in ("reason", "message") if found.get(name)]
    said = f"{found.get('type')}={found.get('status')}"
    return f"{said} ({': '.join(why)})" if why else said


def _status(found: Object) -> Object:
    status: Any = found.get("status")
    return status if isinstance(status, dict) else {}


def _conditions(status: Object) -> list[Object]:
    listed: Any = status.get("conditions") or ()
    return [one for one in listed if isinstance(one, dict)]


#: An object, YAML of several lines, or the name of a file of it.
ManifestSource = Object | str | Path


def load_objects(manifest: ManifestSource) -> Iterator[Object]:
    """The objects of a manifest, in their order; those of a List one by one."""
    if not isinstance(manifest, dict):
        yield from parse_manifests(_read_text(manifest))
    elif manifest.get("kind") == "List":
        yield from manifest.get("items") or ()
    else:
        yield manifest


def _read_text(manifest: str | Path) -> str:
    is_yaml = isinstance(manifest, str) and "\n" in manifest
    return str(manifest) if is_yaml else Path(manifest).read_text()


T = TypeVar("T")

#: By whom fields are owned that a test applies, and who it is for the server.
FIELD_MANAGER = "phalanx-test"
#: Seconds that is waited unless a test says otherwise, in either time.
DEFAULT_TIMEOUT = 10.0
#: Objects that are told of when something does not come about.
_MAX_DESCRIBED = 10


class Cluster:
    """The verbs of a test. Kinds go by any name that kubectl knows: `Job`, `jobs`, `jobs.batch`."""

    def __init__(
        self, plane: ControlPlane, machines: ScenarioNodes, start: Callable[..., asyncio.Task[Any]]
    ) -> None:
        self.plane = plane
        #: In this process and with every right; a controller of a test may have one too.
        self.client = plane.client(FIELD_MANAGER)
        self._machines, self._start = machines, start
        self._transport = InProcessTransport(
            plane.server.handle, UserInfo(FIELD_MANAGER, (MASTERS,))
        )
        self._node_counts: Counter[str] = Counter()

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
        has = {**DEFAULT_CAPACITY, **{resource: str(amount) for resource, amount in said.items()}}
        first = self._node_counts[name]
        self._node_counts[name] += count
        names = [f"{name}-{n}" for n in range(first, first + count)]
        await self._machines.add([ScenarioNode(one, has, labels or {}) for one in names])
        return names

    async def apply(self, *manifests: ManifestSource, namespace: str = "default") -> list[Object]:
        """Apply objects, YAML texts or files, as `kubectl apply --server-side` does."""
        wanted = [deepcopy(one) for manifest in manifests for one in load_objects(manifest)]
        return [await self._apply(one, namespace) for one in wanted]

    async def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """An object as it is. Raises NotFound."""
        known = self._find_kind(kind)
        return await self.client.get(known, _object_key(known, namespace, name))

    async def find(
        self, kind: str, *, selector: str = "", namespace: str = "default"
    ) -> list[Object]:
        """All objects of a kind, or those with certain labels."""
        known = self._find_kind(kind)
        scope = _list_scope(known, namespace, labels=selector)
        return _with_kind(known, (await self.client.list(known, **scope)).items)

    async def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        """Delete an object; what it owns goes with it, in the background."""
        known = self._find_kind(kind)
        key = _object_key(known, namespace, name)
        await self.client.delete(known, key, propagation="Background")

    async def wait_for(
        self,
        kind: str,
        name: str,
        goal: WaitGoal,
        *,
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> Object:
        """Wait until an object is there and has reached a goal; it is given then.

        A goal is the name of a condition that is to be True, a phase, or a function of the object.
        """
        known = self._find_kind(kind)
        scope = _list_scope(known, namespace, name=name)
        what = f"{known.name} {_object_key(known, namespace, name)} has not reached {describe_goal(goal)}"
        [found] = await self._wait_until(
            known, scope, lambda all_: any(has_reached(one, goal) for one in all_), timeout, what
        )
        return found

    async def wait_for_all(
        self,
        kind: str,
        goal: WaitGoal,
        *,
        count: int,
        selector: str = "",
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> list[Object]:
        """Wait until there are so many objects, neither more nor fewer, all of which reached it."""
        known = self._find_kind(kind)
        scope = _list_scope(known, namespace, labels=selector)
        what = f"there are not {count} {known.plural} that reached {describe_goal(goal)}"
        return await self._wait_until(
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
        timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Wait until there is no such object."""
        known = self._find_kind(kind)
        scope = _list_scope(known, namespace, name=name)
        what = f"{known.name} {_object_key(known, namespace, name)} is not gone"
        await self._wait_until(known, scope, lambda all_: not all_, timeout, what)

    async def why(self, what: str, *, namespace: str = "default") -> str:
        """What `phalanx why` says of a pod or a group, such as `podgroup/train`."""
        return await explain_pending(self.client, what, namespace)

    async def wrongs(self) -> list[str]:
        """What must never be the case, and is: one sentence each."""
        pods = (await self.client.list(POD, Pod)).items
        nodes = (await self.client.list(NODE, Node)).items
        # Where pods are placed one by one, gangs need not be whole.
        whole = apply_feature_gates(self.plane.server.context.gates).groups
        groups = (await self.client.list(POD_GROUP, PodGroup)).items if whole else ()
        return check_cluster(pods, nodes, groups)

    async def _apply(self, wanted: Object, namespace: str) -> Object:
        kind = self._kind_of_object(wanted)
        meta = wanted.setdefault("metadata", {})
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
        if not meta.get("name"):
            return await self.client.create(kind, wanted)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        key = Key(meta.get("namespace", ""), meta["name"])
        request = build_request("patch", kind, key, query=query, body=wanted, content=APPLY_PATCH)
        answer = await self._transport.send(request)
        assert isinstance(answer, Reply)
        return decode_reply(answer, dict)

    async def _wait_until(
        self,
        kind: Kind,
        scope: ListScope,
        is_done: Callable[[Sequence[Object]], bool],
        seconds: float,
        failure_message: str,
    ) -> list[Object]:
        """Look at a part of a collection at each of its changes, until it is as it should be."""
        found: list[Object] = []
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self._watch_objects(kind, scope)) as views,
            ):
                async for found in views:
                    if is_done(found):
                        break
        except TimeoutError:
            told_of = describe_objects(list(islice(found, _MAX_DESCRIBED)))
            raise NotReached(f"{failure_message} after {seconds:g} s:\n{told_of}") from None
        return found

    async def _watch_objects(
        self, kind: Kind, scope: ListScope
    ) -> AsyncGenerator[list[Object], None]:
        """A part of a collection as it is and as it becomes; a watch that ends is begun anew."""
        while True:
            listing = await self.client.list(kind, **scope)
            there = {_key_of(one): one for one in _with_kind(kind, listing.items)}
            yield list(there.values())
            try:
                async with aclosing(
                    self.client.watch(kind, since=listing.revision, **scope)
                ) as watch:
                    async for event in watch:
                        there.pop(_key_of(event.object), None)
                        if event.type != "DELETED":
                            there[_key_of(event.object)] = event.object
                        yield list(there.values())
            except Expired:
                continue

    def _find_kind(self, word: str) -> Kind:
        """The kind that goes by a name, in the version that discovery shows first."""
        for kind in self.plane.server.context.registry.kinds:
            names = (kind.name, kind.plural, kind.singular, kind.resource, *kind.short_names)
            if word.lower() in map(str.lower, names):
                return kind
        raise NotFound(f'the server has no kind "{word}"')

    def _kind_of_object(self, wanted: Object) -> Kind:
        version, name = wanted.get("apiVersion"), wanted.get("kind")
        for kind in self.plane.server.context.registry.kinds:
            if (kind.api_version, kind.name) == (version, name):
                return kind
        raise NotFound(f'no matches for kind "{name}" in version "{version}"')


@asynccontextmanager
async def running_cluster(
    settings: Settings,
    store: MemoryStore,
    clock: Clock,
    random: Random,
    tokens: Tokens | None = None,
) -> AsyncIterator[Cluster]:
    """A control plane that runs while the context lasts, with the nodes that are asked for."""
    staff = ComponentConfig(without=(*settings.without, "nodes"), gates=settings.switched)
    plane = ControlPlane(store, clock, random, staff, tokens)
    machines = ScenarioNodes(plane.client("system:nodes"), clock, random)
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
def unwrap_exception_group() -> Iterator[None]:
    """Raise what goes wrong inside without the task groups that it comes through."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first_error(group)
    else:
        return
    raise error


def _object_key(kind: Kind, namespace: str, name: str) -> Key:
    return Key(namespace if kind.namespaced else "", name)


def _list_scope(kind: Kind, namespace: str, *, labels: str = "", name: str = "") -> ListScope:
    return ListScope(
        namespace=namespace if kind.namespaced else "",
        label_selector=labels,
        field_selector=f"metadata.name={name}" if name else "",
    )


def _key_of(found: Object) -> Key:
    return Key(found["metadata"].get("namespace", ""), found["metadata"]["name"])


def _with_kind(kind: Kind, listed: Sequence[Object]) -> list[Object]:
    """Objects of a list say what they are, as those that come alone do."""
    return [{"apiVersion": kind.api_version, "kind": kind.name, **one} for one in listed]
