"""Nothing grows for ever: containers, memory and the database file under churn.

`make soak ARGS="-k churn"` and `make soak ARGS="-k memory"` run the long tests and print what they
measure.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import sys
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sized
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from phalanx.api import batch, normalization, protobuf, protobuf_encoder
from phalanx.api import kinds as k
from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, parse_run_time
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.resources import USAGE_ANNOTATION, BadUsage, parse_usage_annotation
from phalanx.api.schema import schema
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers import event_recorder
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.scheduling import report_limits
from phalanx.randomness import SeededRandom
from phalanx.scheduler.reservation import run_times
from phalanx.server.event_expiry import EVENT_TTL
from phalanx.sim.virtual_time import run_virtual
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore
from tests.builders import in_virtual_time, priority_class
from tests.store.sqlite_stores import InlineWriter

EPOCH = 1_800_000_000.0
HOUR, MIB = 3600.0, 1 << 20
NODES = [SimulatedNode(f"n{n}", {"cpu": "64", "memory": "256Gi", "pods": "250"}) for n in range(4)]


def job(
    name: str, namespace: str, *, is_gang: bool, seconds: int, ttl: int | None = None
) -> Object:
    """A Job of two pods."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {RUN_SECONDS: str(seconds)}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    spec: Object = {
        "parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template,
    }  # fmt: skip
    if is_gang:
        spec["gangPolicy"] = {"policy": "JobAsGang"}
    if ttl is not None:
        spec["ttlSecondsAfterFinished"] = ttl
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


@asynccontextmanager
async def control_plane(
    store: Store, *, event_ttl: float = EVENT_TTL
) -> AsyncIterator[ControlPlane]:
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    config = ComponentConfig(NODES)
    plane = ControlPlane(store, clock, SeededRandom(1), config, event_ttl=event_ttl)
    async with plane.running():
        yield plane


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a measurement while the test runs."""

    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return write


# ---- containers ----------------------------------------------------------------------------------


async def churn_every_kind(client: Client, name: str) -> None:
    """Create objects that every cache and index of the control plane sees, and delete them."""
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    unplaceable = {"nodeSelector": {"never": name}, "containers": [{"name": "c", "image": "i"}]}
    capacity = {"cpu": "1", "pods": "10"}
    cluster_scoped: list[tuple[Kind, Object]] = [
        (k.NAMESPACE, {}),
        (k.PRIORITY_CLASS, priority_class(name, 100)),
        (k.NODE, {"status": {"allocatable": capacity, "capacity": capacity}}),
    ]
    namespaced: list[tuple[Kind, Object]] = [
        (k.RESOURCE_QUOTA, {"spec": {"hard": {"pods": "100"}}}),
        (k.CONFIG_MAP, {"data": {"a": name}}),
        (k.SECRET, {"stringData": {"a": name}}),
        (k.LEASE, {"spec": {}}),
        (k.ROLE, {"metadata": {"name": "r"}, "rules": [rule]}),
        (k.ROLE_BINDING, {"roleRef": role, "subjects": [user]}),
        (
            k.POD_DISRUPTION_BUDGET,
            {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": name}}}},
        ),
        (k.JOB, job(f"gang-{name}", name, is_gang=True, seconds=5)),
        (k.JOB, job(f"basic-{name}", name, is_gang=False, seconds=5)),
        (k.POD, {"spec": unplaceable}),
    ]
    for kind, obj in cluster_scoped:
        obj["metadata"] = {"name": name, **obj.get("metadata", {})}
        await client.create(kind, obj)
    # The service account of the namespace comes first.
    await asyncio.sleep(1)
    for kind, obj in namespaced:
        obj["metadata"] = {"name": name, "namespace": name, **obj.get("metadata", {})}
        await client.create(kind, obj)
    await asyncio.sleep(20)
    for kind, _ in cluster_scoped:
        await client.delete(kind, Key("", name))


async def churn_until_events_expire(client: Client, *names: str) -> None:
    for name in names:
        await churn_every_kind(client, name)
    await asyncio.sleep(HOUR + 60)
    left = {one["metadata"]["name"] for one in (await client.list(k.NAMESPACE)).items}
    assert left.isdisjoint(names)
    assert not (await client.list(k.EVENT)).items


#: A function with `cache` or `lru_cache`.
CachedFunction = type(lru_cache(len))


class Container(NamedTuple):
    """A container, its size, and how it is reached."""

    object: Sized
    size: int
    path: str


def reachable_containers(*roots: object) -> dict[int, Container]:
    """Find all containers that are reachable from objects, through attributes, frames and caches.

    Cached functions are left out: `test_cached_functions_of_objects_have_a_maximum_size`.
    """
    found: dict[int, Container] = {}
    pending: deque[tuple[object, str]] = deque((root, type(root).__name__) for root in roots)
    seen = {id(root) for root in roots}
    while pending:
        obj, path = pending.popleft()
        if isinstance(obj, dict | list | set | deque):
            found[id(obj)] = Container(obj, len(obj), path)
        for child in gc.get_referents(obj):
            if id(child) not in seen and _is_followed(child):
                seen.add(id(child))
                pending.append((child, f"{path} > {_label(obj, child)}"))
    return found


def _is_followed(obj: object) -> bool:
    if isinstance(obj, logging.Handler):
        # pytest keeps every captured log line.
        return False
    if isinstance(obj, str | bytes | int | float | asyncio.AbstractEventLoop | None):
        return False
    if isinstance(obj, types.ModuleType | type | types.FunctionType):
        return str(getattr(obj, "__module__", None) or obj.__name__).startswith("phalanx")
    if isinstance(obj, dict) and "__builtins__" in obj:
        return str(obj.get("__name__")).startswith("phalanx")
    return not isinstance(obj, CachedFunction)


def _label(parent: object, child: object) -> str:
    if isinstance(parent, dict):
        return next((f"[{str(key)[:40]}]" for key, value in parent.items() if value is child), "?")
    return f"{type(child).__module__}.{type(child).__qualname__}"


@pytest.fixture
def _small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bounded caches of events and of run times reach their bounds at once."""
    monkeypatch.setattr(event_recorder, "_MAX_AGGREGATED", 1)
    monkeypatch.setattr(report_limits, "_MAX_REMEMBERED", 1)
    monkeypatch.setattr(run_times, "_HISTORY_LIMIT", 1)


#: Cached functions of our own definitions and files: no client chooses their arguments.
CACHED_TABLES = {
    "phalanx.api.definitions._load_file",
    "phalanx.api.definitions.load_additions",
    "phalanx.api.definitions.load_glossary",
    "phalanx.api.feature_gates._disabled_fields",
    "phalanx.api.field_management.field_types._definition_type",
    "phalanx.api.field_management.field_types.empty_object_of_definition",
    "phalanx.api.protobuf._load_messages",
    "phalanx.api.protobuf._message_decoder",
    "phalanx.api.protobuf_encoder._field_rows",
    "phalanx.api.schema._compile_filler",
    "phalanx.api.schema._has_defaults",
    "phalanx.api.schema.schema",
    "phalanx.api.validation.job._known_time_zones",
    "phalanx.api.validation.pod_template._pod_spec_site",
    "phalanx.server.web_ui._load_files",
    "phalanx.store.revision_log._insert_statement",
}

#: Containers with a maximum size that the test does not reach: the last part of their path.
BOUNDED = ("[_memo]",)


@pytest.mark.slow
@pytest.mark.usefixtures("_small_caches")
@in_virtual_time
async def test_caches_and_indexes_are_empty_after_objects_are_deleted() -> None:
    modules = [one for name, one in sys.modules.items() if name.startswith("phalanx")]
    async with control_plane(MemoryStore(history=1)) as plane:
        client = plane.client("tester")
        await churn_until_events_expire(client, "first", "second")
        gc.collect()
        before = reachable_containers(plane, *asyncio.all_tasks(), *modules)
        await churn_until_events_expire(client, "third", "fourth", "fifth")
        # A leak has an entry per object at least; lists of a frame may be in use right now.
        leaks = [
            f"{one.size} -> {len(one.object)}: {one.path}: {str(one.object)[-300:]}"
            for one in before.values()
            if len(one.object) - one.size >= 3 and not one.path.endswith(BOUNDED)
        ]
        assert leaks == []
        assert len(before) > 1000


def test_cached_functions_of_objects_have_a_maximum_size() -> None:
    functions = {
        f"{function.__module__}.{function.__qualname__}": function
        for name, module in list(sys.modules.items())
        for function in (vars(module).values() if name.startswith("phalanx") else ())
        if isinstance(function, CachedFunction)
    }
    unbounded = {
        name for name, one in functions.items() if one.cache_parameters()["maxsize"] is None
    }
    assert len(functions) > 20
    assert unbounded <= CACHED_TABLES


def test_caches_keep_no_long_texts_that_clients_choose() -> None:
    time = f"2027-01-15T08:00:00.{'0' * 10_000}Z"
    event = {"type": "ADDED", "object": {"kind": "Pod", "apiVersion": "v1", "x": "y" * 20_000}}
    texts: dict[Callable[[], object], Callable[..., object]] = {
        lambda: protobuf.message_name("v1", "P" * 10_000): protobuf._find_message,
        lambda: parse_run_time({EXPECTED_RUN_TIME_ANNOTATION: "1s" * 10_000}): (
            batch._parse_positive_duration
        ),
        lambda: schema("core.v1.Pod").normalize(
            {"metadata": {"name": "a", "creationTimestamp": time}}
        ): normalization._canonical_second,
        lambda: protobuf_encoder.encode_event(orjson.dumps(event)): (
            protobuf_encoder._encode_cached_event
        ),
    }
    for call, cached in texts.items():
        assert isinstance(cached, CachedFunction)
        before = cached.cache_info()
        call()
        assert cached.cache_info() == before, cached
    with pytest.raises(BadUsage):
        parse_usage_annotation({USAGE_ANNOTATION: "cpu=1," * 100 + "cpu=1"})


# ---- the database file ---------------------------------------------------------------------------

#: The load of the churn: Jobs per minute, each with two pods for half a minute, removed after one.
JOBS_PER_MINUTE, RUN, TTL = 50, 30, 60
#: What the database file and its WAL may occupy under this load, for ever: 256 MiB of history, an
#: hour of events, the objects of two minutes, and free pages.
MAX_STORE_BYTES = 512 * MIB


def store_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def churn_jobs(client: Client, minutes: Iterable[int], jobs_per_minute: int) -> None:
    """Create Jobs at a constant rate; the TTL controller deletes them."""
    for minute in minutes:
        for n in range(jobs_per_minute):
            obj = job(f"job-{minute}-{n}", "default", is_gang=n % 2 == 0, seconds=RUN, ttl=TTL)
            await client.create(k.JOB, obj)
            await asyncio.sleep(60 / jobs_per_minute)


def store_on_disk(folder: Path) -> SqliteStore:
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    return SqliteStore(folder, clock=clock, create_writer=partial(InlineWriter, lambda: 0.001))


@pytest.mark.soak
def test_database_file_is_flat_in_hours_of_job_churn(
    tmp_path: Path, show: Callable[[str], None]
) -> None:
    sizes: dict[int, int] = {}

    async def run() -> None:
        store = store_on_disk(tmp_path)
        async with control_plane(store) as plane:
            client = plane.client("tester")
            for hour in range(1, 9):
                await churn_jobs(client, range(60 * hour, 60 * hour + 60), JOBS_PER_MINUTE)
                sizes[hour] = store_bytes(tmp_path)
                jobs = len((await client.list(k.JOB)).items)
                events = len((await client.list(k.EVENT)).items)
                show(
                    f"hour {hour}: {sizes[hour] / MIB:.0f} MiB on disk, {jobs} jobs, {events} "
                    f"events, revision {store.revision}, history since {store.compacted_revision}"
                )

    run_virtual(run, max_iterations=10**9)
    assert max(sizes.values()) <= MAX_STORE_BYTES
    # History and events are complete after two hours.
    assert max(sizes.values()) <= 1.1 * sizes[2]


# ---- the memory of a process ---------------------------------------------------------------------

#: Jobs per minute: in five minutes they fill the history in memory and the bounded caches.
MANY_JOBS_PER_MINUTE = 200


def used_memory() -> int:
    """The memory of this process in bytes; where that is unknown, its maximum so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.soak
def test_memory_is_flat_while_objects_come_and_go(
    tmp_path: Path, show: Callable[[str], None]
) -> None:
    sizes: list[int] = []

    async def run() -> None:
        async with control_plane(store_on_disk(tmp_path), event_ttl=60) as plane:
            client = plane.client("tester")
            for begin in (0, 5, 10, 15):
                await churn_jobs(client, range(begin, begin + 5), MANY_JOBS_PER_MINUTE)
                gc.collect()
                sizes.append(used_memory())
                show(f"after {begin + 5} minutes: {sizes[-1] / MIB:.0f} MiB")

    run_virtual(run, max_iterations=10**9)
    assert max(sizes) <= 1.1 * sizes[0]
