"""The control plane of one test: its settings, and its async methods apply, get, wait_for, why, ….

`Settings` are the arguments of `@pytest.mark.phalanx`. `blocking` runs a cluster in virtual time or
on a port, and offers the same methods to tests that are not async. All methods go through the API,
except that the server itself says which kinds it serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from phalanx.api.core import Node, Pod
from phalanx.api.errors import BadRequest, Expired, NotFound
from phalanx.api.feature_gates import FeatureGates, resolve_gates
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import APPLY_PATCH, Object, Reply, UserInfo
from phalanx.cli.options import COMPONENTS
from phalanx.cli.why import explain_pending
from phalanx.client.protocol import ListScope, build_request, decode_reply
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY
from phalanx.randomness import Random
from phalanx.scheduler.policy import apply_feature_gates
from phalanx.server.security.authorization import MASTERS, Tokens
from phalanx.server.serialization import parse_manifests
from phalanx.sim.driver import ScenarioNodes
from phalanx.sim.events import ScenarioNode
from phalanx.sim.invariants import check_cluster
from phalanx.sim.simulation import first_error
from phalanx.store.memory import MemoryStore
from phalanx.testing.failure_report import (
    MAX_SHOWN,
    describe_objects,
    describe_surroundings,
    object_status,
    status_conditions,
)

T = TypeVar("T")

#: A goal of wait_for: the type of a condition that must be True, a phase, or a predicate.
WaitGoal = str | Callable[[Object], object]
#: An object, a YAML text with at least two lines, or the path of a YAML file.
ManifestSource = Object | str | Path

#: The field manager of a test, and its user name.
FIELD_MANAGER = "phalanx-test"
#: Seconds that the wait methods wait by default, in real or virtual time.
DEFAULT_TIMEOUT = 60.0

#: The types of the settings that tests get wrong most often, and an example of each.
_SETTING_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "nodes": (int, "a number such as 3"),
    "room": (Mapping, 'a dict such as {"cpu": 8}'),
    "gates": (Mapping, 'a dict such as {"GangScheduling": False}'),
    "without": ((list, tuple, set, frozenset), 'a list such as ["controllers"]'),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a control plane. Raises ValueError for an unknown name or a wrong type.

    `nodes` is the number of nodes at the start; `room` is the capacity of each, on top of the
    default. `gates` switch feature gates. `without` leaves out components: "scheduler",
    "controllers", or "nodes" (Node objects exist, but nothing runs their pods). `invariants` says
    whether the cluster's invariants are checked after the test. With `virtual` time all randomness
    comes from the `seed`.
    """

    nodes: int = 0
    room: Mapping[str, str | int] = field(default_factory=dict)
    gates: Mapping[str, bool] = field(default_factory=dict)
    without: Collection[str] = ()
    invariants: bool = True
    virtual: bool = False
    seed: int = 1

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Settings:
        """Create settings from keyword arguments of markers."""
        names = [setting.name for setting in fields(cls)]
        for name in arguments:
            if name not in names:
                raise ValueError(f'unknown setting "{name}"; available: {", ".join(names)}')
        return cls(**arguments)

    def __post_init__(self) -> None:
        for name, (types, example) in _SETTING_TYPES.items():
            if not isinstance(value := getattr(self, name), types):
                raise ValueError(f"{name} must be {example}, not {value!r}")
        for name in self.without:
            if name not in COMPONENTS:
                raise ValueError(f'unknown component "{name}"; available: {", ".join(COMPONENTS)}')
        resolve_gates(self.gates)

    @property
    def feature_gates(self) -> FeatureGates:
        """Return the feature gates with the settings applied."""
        return resolve_gates(self.gates)


class NotReached(AssertionError):
    """A goal was not reached in time; the message describes the objects and what is around them."""


def has_reached(obj: Object, goal: WaitGoal) -> bool:
    """Return whether an object has reached a goal; a predicate that lacks a field is False."""
    if callable(goal):
        with suppress(LookupError):
            return bool(goal(obj))
        return False
    status = object_status(obj)
    true = [
        condition.get("type")
        for condition in status_conditions(status)
        if condition.get("status") == "True"
    ]
    return goal in (status.get("phase"), *true)


def describe_goal(goal: WaitGoal) -> str:
    """Return a goal as a word for an error message."""
    return goal if isinstance(goal, str) else "the goal of the test"


def load_objects(manifest: ManifestSource) -> Iterator[Object]:
    """Yield the objects of a manifest in order, and the items of a List one by one."""
    if isinstance(manifest, str) and "\n" in manifest:
        yield from parse_manifests(manifest)
    elif not isinstance(manifest, dict):
        if not Path(manifest).exists():
            raise FileNotFoundError(f"there is no file {manifest} in {Path.cwd()}")
        yield from parse_manifests(Path(manifest).read_text())
    elif manifest.get("kind") == "List":
        yield from manifest.get("items") or ()
    else:
        yield manifest


class Cluster:
    """The async methods of a test.

    `kind` is any name that kubectl accepts: `Job`, `jobs`, `jobs.batch`.
    """

    def __init__(
        self,
        plane: ControlPlane,
        node_driver: ScenarioNodes,
        start: Callable[..., asyncio.Task[Any]],
    ) -> None:
        self.plane = plane
        #: A client in this process with all permissions; a controller under test may use it too.
        self.client = plane.client(FIELD_MANAGER)
        self._node_driver, self._start = node_driver, start
        self._transport = InProcessTransport(
            plane.server.handle, UserInfo(FIELD_MANAGER, (MASTERS,))
        )
        self._node_counts: Counter[str] = Counter()

    def start(self, program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a controller until the test ends. A controller that raises fails the test."""
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
        """Add equal, ready nodes that run the pods bound to them; return their names.

        Keyword arguments change the default capacity; `room` is for resources whose name is not a
        Python identifier.
        """
        resources = {**(room or {}), **amounts}
        capacity = {**DEFAULT_CAPACITY, **{name: str(amount) for name, amount in resources.items()}}
        first = self._node_counts[name]
        self._node_counts[name] += count
        names = [f"{name}-{n}" for n in range(first, first + count)]
        await self._node_driver.add(
            [ScenarioNode(node_name, capacity, labels or {}) for node_name in names]
        )
        return names

    async def apply(self, *manifests: ManifestSource, namespace: str = "default") -> list[Object]:
        """Apply objects, YAML texts or files, as `kubectl apply --server-side` does."""
        objects = [deepcopy(obj) for manifest in manifests for obj in load_objects(manifest)]
        return [await self._apply(obj, namespace) for obj in objects]

    async def get(self, kind: str, name: str, *, namespace: str = "default") -> Object:
        """Return an object. Raises NotFound."""
        found = self._find_kind(kind)
        return await self.client.get(found, _object_key(found, namespace, name))

    async def find(
        self, kind: str, *, selector: str = "", namespace: str = "default"
    ) -> list[Object]:
        """List the objects of a kind, all or those that a label selector selects."""
        known = self._find_kind(kind)
        scope = _list_scope(known, namespace, labels=selector)
        return _with_kind(known, (await self.client.list(known, **scope)).items)

    async def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        """Delete an object; the garbage collector deletes its dependents in the background."""
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
        """Wait until an object exists and has reached a goal; return the object.

        A goal is the type of a condition that must be True, a phase, or a function of the object.
        """
        known = self._find_kind(kind)
        key = _object_key(known, namespace, name)
        [found] = await self._wait_until(
            known,
            _list_scope(known, namespace, name=name),
            lambda objects: any(has_reached(one, goal) for one in objects),
            seconds=timeout,
            failure=f"{known.name} {key} has not reached {describe_goal(goal)}",
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
        """Wait until exactly `count` objects exist and all have reached a goal; return them."""
        known = self._find_kind(kind)
        return await self._wait_until(
            known,
            _list_scope(known, namespace, labels=selector),
            lambda objects: (
                len(objects) == count and all(has_reached(one, goal) for one in objects)
            ),
            seconds=timeout,
            failure=f"there are not {count} {known.plural} that reached {describe_goal(goal)}",
        )

    async def wait_gone(
        self,
        kind: str,
        name: str,
        *,
        namespace: str = "default",
        timeout: float = DEFAULT_TIMEOUT,  # noqa: ASYNC109
    ) -> None:
        """Wait until an object does not exist."""
        known = self._find_kind(kind)
        await self._wait_until(
            known,
            _list_scope(known, namespace, name=name),
            lambda objects: not objects,
            seconds=timeout,
            failure=f"{known.name} {_object_key(known, namespace, name)} is not gone",
        )

    async def why(self, what: str, *, namespace: str = "default") -> str:
        """Return what `phalanx why` prints about a pod or group such as `podgroup/train`."""
        return await explain_pending(self.client, what, namespace)

    async def wrongs(self) -> list[str]:
        """Return the violated invariants of the cluster, one sentence each."""
        pods = (await self.client.list(POD, Pod)).items
        nodes = (await self.client.list(NODE, Node)).items
        # Without the feature gate the scheduler places pods one by one, so gangs may be partial.
        has_gangs = apply_feature_gates(self.plane.server.context.gates).groups
        groups = (await self.client.list(POD_GROUP, PodGroup)).items if has_gangs else ()
        return check_cluster(pods, nodes, groups)

    async def _apply(self, obj: Object, namespace: str) -> Object:
        kind = self._kind_of_object(obj)
        meta = obj.setdefault("metadata", {})
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
        if not meta.get("name"):
            return await self.client.create(kind, obj)
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        key = Key(meta.get("namespace", ""), meta["name"])
        request = build_request("patch", kind, key, query=query, body=obj, content=APPLY_PATCH)
        answer = await self._transport.send(request)
        assert isinstance(answer, Reply)
        return decode_reply(answer, dict)

    async def _wait_until(
        self,
        kind: Kind,
        scope: ListScope,
        is_done: Callable[[Sequence[Object]], bool],
        *,
        seconds: float,
        failure: str,
    ) -> list[Object]:
        """Evaluate `is_done` on the objects in a scope after each change until it is True."""
        found: list[Object] = []
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self._watch_objects(kind, scope)) as states,
            ):
                async for found in states:
                    if is_done(found):
                        break
        except TimeoutError:
            described = describe_objects(found[:MAX_SHOWN])
            around = await describe_surroundings(
                self.client, kind, found, namespace=scope.get("namespace", "")
            )
            message = f"{failure} after {seconds:g} s:\n{described}\n{around}".rstrip()
            raise NotReached(message) from None
        return found

    async def _watch_objects(
        self, kind: Kind, scope: ListScope
    ) -> AsyncGenerator[list[Object], None]:
        """Yield the objects in a scope, now and after each change; an expired watch restarts."""
        while True:
            listing = await self.client.list(kind, **scope)
            objects = {_key_of(one): one for one in _with_kind(kind, listing.items)}
            yield list(objects.values())
            try:
                async with aclosing(
                    self.client.watch(kind, since=listing.revision, **scope)
                ) as watch:
                    async for event in watch:
                        objects.pop(_key_of(event.object), None)
                        if event.type != "DELETED":
                            objects[_key_of(event.object)] = event.object
                        yield list(objects.values())
            except Expired:
                continue

    def _find_kind(self, word: str) -> Kind:
        """The kind with a name, in the version that discovery lists first."""
        for kind in self.plane.server.context.registry.kinds:
            names = (kind.name, kind.plural, kind.singular, kind.resource, *kind.short_names)
            if word.lower() in map(str.lower, names):
                return kind
        raise NotFound(f'the server has no kind "{word}"')

    def _kind_of_object(self, obj: Object) -> Kind:
        version, name = obj.get("apiVersion"), obj.get("kind")
        if not version or not name:
            raise BadRequest("not a Kubernetes object: apiVersion or kind is missing")
        for kind in self.plane.server.context.registry.kinds:
            if (kind.api_version, kind.name) == (version, name):
                return kind
        raise NotFound(f'no matches for kind "{name}" in version "{version}"')


@asynccontextmanager
async def running_cluster(
    settings: Settings,
    store: MemoryStore,
    clock: Clock,
    *,
    random: Random,
    tokens: Tokens | None = None,
) -> AsyncIterator[Cluster]:
    """Run a control plane with the nodes of the settings for the duration of the context."""
    config = ComponentConfig(without=(*settings.without, "nodes"), gates=settings.feature_gates)
    plane = ControlPlane(store, clock, random, config=config, tokens=tokens)
    node_driver = ScenarioNodes(plane.client("system:nodes"), clock, random)
    tasks: list[asyncio.Task[Any]] = []
    async with plane.running(), asyncio.TaskGroup() as group:

        def start(program: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            tasks.append(group.create_task(program))
            return tasks[-1]

        try:
            if "nodes" not in settings.without:
                start(node_driver.run())
            cluster = Cluster(plane, node_driver, start)
            await cluster.nodes(settings.nodes, room=settings.room)
            yield cluster
        finally:
            for task in tasks:
                task.cancel()


@contextmanager
def unwrap_exception_group() -> Iterator[None]:
    """Raise the first error of an exception group instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first_error(group)
    else:
        return
    # Without the group as its context, which would be printed before it.
    raise error from error.__cause__


def _object_key(kind: Kind, namespace: str, name: str) -> Key:
    return Key(namespace if kind.namespaced else "", name)


def _list_scope(kind: Kind, namespace: str, *, labels: str = "", name: str = "") -> ListScope:
    return ListScope(
        namespace=namespace if kind.namespaced else "",
        label_selector=labels,
        field_selector=f"metadata.name={name}" if name else "",
    )


def _key_of(obj: Object) -> Key:
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _with_kind(kind: Kind, listed: Sequence[Object]) -> list[Object]:
    """Add apiVersion and kind, which the items of a list do not have."""
    return [{"apiVersion": kind.api_version, "kind": kind.name, **obj} for obj in listed]
