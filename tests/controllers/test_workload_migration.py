"""Groups of our custom resources that move to `scheduling.k8s.io` after an upgrade."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.errors import NotFound
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CUSTOM_RESOURCE_DEFINITION,
    JOB,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import BINDING_INTENT_ANNOTATION
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.api.workload_sources import (
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
    POLICY_ANNOTATION,
)
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport, Transport
from phalanx.controllers.controller_manager import ControllerManager, ControllerManagerConfig
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from phalanx.controllers.workload_migration import (
    DELETED,
    LEFT,
    MOVABLE,
    MOVED,
    MigrationReport,
    NothingToMigrateTo,
    WorkloadMigration,
)
from phalanx.randomness import SeededRandom
from phalanx.server.app import error_reply
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster
from tests.controllers.custom_groups import (
    custom_cluster,
    custom_group,
    labelled_pods,
    running_scheduler,
)
from tests.controllers.foreign_cluster import ScriptedTransport

#: A server after its upgrade: it serves the workload APIs, and has our definitions.
UPGRADED = resolve_gates({"GroupBinding": False})
#: A write of each phase of a move: a copy, its status, a finalizer, a deletion.
QUICK = ((0, False), (3, True), (8, False), (11, True))
CUSTOM_KINDS = (CUSTOM_WORKLOAD, CUSTOM_COMPOSITE_POD_GROUP, CUSTOM_POD_GROUP)


class OldServerTransport:
    """Shows an upgraded server as it was: without the workload APIs and the field of pods."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.path.startswith(f"/apis/{POD_GROUP.api_version}"):
            return error_reply(NotFound("the server could not find the requested resource"))
        body = request.body
        if request.method == "POST" and isinstance(body, dict) and request.path.endswith("/pods"):
            spec = {name: body["spec"][name] for name in body["spec"] if name != "schedulingGroup"}
            request = replace(request, body={**body, "spec": spec})
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def upgraded_cluster(nodes: int = 3) -> AsyncIterator[Cluster]:
    """An upgraded server with a garbage collector, as every cluster has one."""
    async with (
        custom_cluster(*workload_definitions(), gates=UPGRADED, nodes=nodes) as c,
        running_manager(c, "garbage"),
    ):
        yield c


@asynccontextmanager
async def running_manager(
    c: Cluster, *names: str, transport: Transport | None = None
) -> AsyncIterator[None]:
    """Run controllers beside the server."""
    manager = ControllerManager(
        Client(transport or InProcessTransport(c.plane.server.handle, ADMIN)),
        c.clock,
        SeededRandom(2),
        on_ready=lambda names: None,
        config=ControllerManagerConfig(ControllerSelection(names)),
    )
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or task.exception() is None


async def migrate(c: Cluster, *, dry_run: bool = False, namespace: str = "") -> MigrationReport:
    return await WorkloadMigration(c.client, dry_run=dry_run, namespace=namespace).run()


def states(report: MigrationReport) -> dict[str, str]:
    return {f"{one.kind.name}/{one.key.name}": one.state for one in report.results}


async def list_names(c: Cluster, *kinds: Kind) -> list[str]:
    return [one["metadata"]["name"] for kind in kinds for one in (await c.client.list(kind)).items]


async def pod_identities(c: Cluster, prefix: str) -> dict[str, tuple[str, str]]:
    """Return uid and node of pods by name."""
    return {
        name: (one.metadata.uid, one.spec.node_name)
        for name, one in (await c.pods()).items()
        if name.startswith(prefix)
    }


async def create_gang(c: Cluster, name: str, count: int, cpu: str) -> None:
    await c.client.create(CUSTOM_POD_GROUP, custom_group(name, count))
    await c.create(*labelled_pods(name, count, cpu=cpu))


@in_virtual_time
async def test_gang_that_runs_is_not_touched_and_one_that_waits_is_placed_later() -> None:
    async with upgraded_cluster() as c, running_scheduler(c):
        await create_gang(c, "runs", 3, "3")
        await c.until_placed("runs-0", "runs-1", "runs-2")
        await create_gang(c, "waits", 2, "3")
        await asyncio.sleep(10)
        before = await pod_identities(c, "runs-")
        report = await migrate(c)
        assert states(report) == {"PodGroup/runs": MOVED, "PodGroup/waits": MOVED}
        assert report.labelled_pods == {"pods without a controller in default": 5}
        await asyncio.sleep(30)
        assert await list_names(c, *CUSTOM_KINDS) == []
        assert await pod_identities(c, "runs-") == before
        condition = await c.group_condition("runs", "PodGroupScheduled")
        assert condition is not None
        assert condition.status == "True"
        for number in range(3):
            await c.delete(POD, f"runs-{number}")
        await c.until_placed("waits-0", "waits-1")
        assert await c.violations() == []


@in_virtual_time
async def test_label_names_the_moved_group_also_without_our_definitions() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 3, "3")
        assert states(await migrate(c)) == {"PodGroup/train": MOVED}
        await asyncio.sleep(5)
        for definition in workload_definitions():
            await c.delete(CUSTOM_RESOURCE_DEFINITION, definition["metadata"]["name"])
        await c.delete(POD, "train-2")
        async with running_scheduler(c):
            await asyncio.sleep(10)
            assert await c.node_by_pod() == {}
            await c.create(labelled_pods("train", 3, cpu="3")[2])
            await c.until_placed("train-0", "train-1", "train-2")


@in_virtual_time
async def test_job_of_our_controller_goes_on_with_the_moved_groups() -> None:
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "train", "namespace": "default", "annotations": {POLICY_ANNOTATION: "gang"},
        },
        "spec": {
            "managedBy": "phalanx.dev/job-controller",
            "parallelism": 3,
            "completions": 3,
            "completionMode": "Indexed",
            "template": {
                "spec": pod(
                    "x",
                    spec={"schedulerName": FOREIGN_SCHEDULER, "restartPolicy": "Never"},
                    cpu="3",
                )["spec"]
            },
        },
    }  # fmt: skip
    async with upgraded_cluster() as c:
        inner = InProcessTransport(c.plane.server.handle, ADMIN)
        old = OldServerTransport(inner)
        async with running_scheduler(c, old), running_manager(c, "job", transport=old):
            await c.create(job)
            await c.until(lambda: _has_nodes(c, 3))
        before = await pod_identities(c, "train-")
        async with running_scheduler(c), running_manager(c, "job", "podgroup-protection"):
            await asyncio.sleep(5)
            report = await migrate(c)
            assert sorted(states(report).values()) == [MOVED, MOVED]
            assert report.labelled_pods == {"Job train in default": 3}
            await asyncio.sleep(30)
            assert await list_names(c, *CUSTOM_KINDS) == []
            assert await pod_identities(c, "train-") == before
            (workload,) = (await c.client.list(WORKLOAD)).items
            (group,) = (await c.client.list(POD_GROUP)).items
            owners = {one["uid"] for one in group["metadata"]["ownerReferences"]}
            assert workload["metadata"]["uid"] in owners
            # A member that is replaced names the moved group by the field.
            name = min(before)
            await c.client.delete(POD, Key("default", name), grace=0)
            await c.until(lambda: _has_new_member(c, before))
            (new,) = [
                one
                for one in (await c.client.list(POD)).items
                if one["metadata"]["name"] not in before
            ]
            assert new["spec"]["schedulingGroup"] == {"podGroupName": group["metadata"]["name"]}
            assert (await c.client.get(JOB, Key("default", "train")))["status"]["active"] == 3


async def _has_nodes(c: Cluster, count: int) -> bool:
    return len(await c.node_by_pod()) == count


async def _has_new_member(c: Cluster, before: Collection[str]) -> bool:
    return any(name not in before for name in await c.node_by_pod())


def tree() -> list[tuple[Kind, Object]]:
    """A Workload, a composite group that it owns, and two gangs below it."""
    policy = {"gang": {"minCount": 1}}
    templates = [{"name": name, "schedulingPolicy": policy} for name in ("a", "b")]
    root = {
        "name": "root",
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        "podGroupTemplates": templates,
    }
    workload = {"metadata": {"name": "tree"}, "spec": {"compositePodGroupTemplates": [root]}}
    composite = {
        "metadata": {"name": "tree-root"},
        "spec": {
            "schedulingPolicy": root["schedulingPolicy"],
            "workloadRef": {"workloadName": "tree", "templateName": "root"},
        },
    }
    groups = [
        {
            "metadata": {"name": f"tree-{name}"},
            "spec": {
                "schedulingPolicy": policy,
                "workloadRef": {"workloadName": "tree", "templateName": name},
                "parentCompositePodGroupName": "tree-root",
            },
        }
        for name in ("a", "b")
    ]
    found: list[tuple[Kind, Object]] = [
        (CUSTOM_WORKLOAD, workload),
        (CUSTOM_COMPOSITE_POD_GROUP, composite),
        *((CUSTOM_POD_GROUP, group) for group in groups),
    ]
    for _, one in found:
        one["metadata"]["namespace"] = "default"
    return found


async def create_tree(c: Cluster) -> None:
    uids: dict[str, Object] = {}
    for kind, obj in tree():
        owner = "tree" if kind is CUSTOM_COMPOSITE_POD_GROUP else "tree-root"
        if owner in uids:
            obj["metadata"]["ownerReferences"] = [uids[owner]]
        made = await c.client.create(kind, obj)
        uids[obj["metadata"]["name"]] = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": obj["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }
    await c.create(*labelled_pods("tree-a", 1, cpu="3"), *labelled_pods("tree-b", 1, cpu="3"))


@in_virtual_time
async def test_tree_moves_with_its_owners_and_is_placed_as_a_whole() -> None:
    async with upgraded_cluster() as c:
        await create_tree(c)
        report = await migrate(c)
        assert set(states(report).values()) == {MOVED}
        assert len(report.results) == 4
        uids = {
            one["metadata"]["name"]: one["metadata"]["uid"]
            for kind in (WORKLOAD, COMPOSITE_POD_GROUP)
            for one in (await c.client.list(kind)).items
        }
        composite = await c.client.get(COMPOSITE_POD_GROUP, Key("default", "tree-root"))
        assert [one["uid"] for one in composite["metadata"]["ownerReferences"]] == [uids["tree"]]
        for group in (await c.client.list(POD_GROUP)).items:
            (owner,) = group["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["apiVersion"]) == (
                uids["tree-root"], COMPOSITE_POD_GROUP.api_version,
            )  # fmt: skip
        async with running_scheduler(c):
            await c.until_placed("tree-a-0", "tree-b-0")


def interruptions() -> list[object]:
    """Return every write of a move, with and without an effect; most of them are slow tests."""
    return [
        pytest.param(number, arrives, marks=[] if (number, arrives) in QUICK else pytest.mark.slow)
        for number in range(14)
        for arrives in (True, False)
    ]


@pytest.mark.parametrize(("last_write", "arrives"), interruptions())
@in_virtual_time
async def test_interrupted_run_is_completed_by_the_next(last_write: int, arrives: bool) -> None:
    async with upgraded_cluster() as c, running_scheduler(c):
        await create_tree(c)
        await c.until_placed("tree-a-0", "tree-b-0")
        before = await pod_identities(c, "tree-")
        killed = ScriptedTransport(c, last_write=last_write, last_arrives=arrives)
        task = asyncio.create_task(WorkloadMigration(Client(killed)).run())
        ending = asyncio.create_task(killed.ended.wait())
        await asyncio.wait([task, ending], return_when=asyncio.FIRST_COMPLETED)
        for one in (task, ending):
            one.cancel()
        report = await migrate(c)
        assert LEFT not in states(report).values(), report.results
        await asyncio.sleep(10)
        assert await list_names(c, *CUSTOM_KINDS) == []
        assert sorted(await list_names(c, POD_GROUP)) == ["tree-a", "tree-b"]
        assert await pod_identities(c, "tree-") == before
        assert states(await migrate(c)) == {}


@in_virtual_time
async def test_dry_run_writes_nothing_and_shows_what_the_server_would_refuse() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "good", 2, "1")
        odd = custom_group("odd", 2, priorityClassName="absent")
        await c.client.create(CUSTOM_POD_GROUP, odd)
        revision = (await c.client.list(POD_GROUP)).revision
        report = await migrate(c, dry_run=True)
        assert states(report) == {"PodGroup/good": MOVABLE, "PodGroup/odd": LEFT}
        assert not report.is_complete
        (refused,) = [one.reason for one in report.results if one.reason]
        assert "no PriorityClass with name absent was found" in refused
        assert (await c.client.list(POD_GROUP)).revision == revision


@in_virtual_time
async def test_group_gets_the_priority_class_of_its_members() -> None:
    async with upgraded_cluster() as c:
        for name, value in (("high", 1000), ("low", 10)):
            await c.client.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        for group, classes in (("mixed", ["high", "low"]), ("critical", ["system-node-critical"])):
            await c.client.create(CUSTOM_POD_GROUP, custom_group(group, len(classes)))
            for one, name in zip(labelled_pods(group, 2, cpu="1"), classes, strict=False):
                one["spec"]["priorityClassName"] = name
                await c.create(one)
        await c.client.create(CUSTOM_POD_GROUP, custom_group("own", 1, priority=1000))
        await c.client.create(CUSTOM_POD_GROUP, custom_group("unknown", 1, priority=77))
        report = await migrate(c)
        assert states(report) == {
            "PodGroup/critical": LEFT, "PodGroup/mixed": MOVED, "PodGroup/own": MOVED,
            "PodGroup/unknown": LEFT,
        }  # fmt: skip
        reasons = {one.key.name: one.reason for one in report.results}
        assert "has the value 77" in reasons["unknown"]
        found = {one["metadata"]["name"]: one for one in (await c.client.list(POD_GROUP)).items}
        assert {name: one["spec"]["priority"] for name, one in found.items()} == {
            "mixed": 10, "own": 1000,
        }  # fmt: skip
        async with running_scheduler(c):
            await c.until_placed("mixed-0", "mixed-1")


@in_virtual_time
async def test_object_of_a_user_under_the_same_name_is_left_alone() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 2, "1")
        await c.create(pod_group("train", 1))
        report = await migrate(c)
        assert states(report) == {"PodGroup/train": LEFT}
        assert "has an object of this name already" in report.results[0].reason
        assert await list_names(c, CUSTOM_POD_GROUP) == ["train"]


@in_virtual_time
async def test_intent_that_is_opened_during_the_move_stays_open_in_the_copy() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 2, "1")
        moving = asyncio.create_task(migrate(c))
        await c.until(lambda: _exists(c, "train"))
        # A scheduler that has not seen the copy yet.
        change = {"metadata": {"annotations": {BINDING_INTENT_ANNOTATION: "i-1"}}}
        await c.client.patch(CUSTOM_POD_GROUP, Key("default", "train"), change)
        await c.client.patch(
            CUSTOM_POD_GROUP,
            Key("default", "train"),
            {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}},
        )
        assert states(await moving) == {"PodGroup/train": MOVED}
        copy = await c.client.get(POD_GROUP, Key("default", "train"))
        assert copy["metadata"]["annotations"][BINDING_INTENT_ANNOTATION] == "i-1"
        assert copy["spec"]["schedulingPolicy"]["gang"]["minCount"] == 1


@pytest.mark.parametrize("is_protected", [True, False])
@in_virtual_time
async def test_group_whose_copy_is_deleted_during_the_move_is_left(is_protected: bool) -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 2, "1")
        moving = asyncio.create_task(migrate(c))
        await c.until(lambda: _exists(c, "train"))
        await _delete_copy(c, "train", is_protected=is_protected)
        report = await moving
        assert states(report) == {"PodGroup/train": LEFT}
        assert "its copy was deleted meanwhile" in report.results[0].reason
        assert not report.is_complete
        assert await list_names(c, CUSTOM_POD_GROUP) == ["train"]
        if not is_protected:
            assert states(await migrate(c)) == {"PodGroup/train": MOVED}


@in_virtual_time
async def test_group_that_is_deleted_with_its_copy_during_the_move_is_not_reported_as_moved() -> (
    None
):
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 2, "1")
        moving = asyncio.create_task(migrate(c))
        await c.until(lambda: _exists(c, "train"))
        await _delete_copy(c, "train", is_protected=False)
        await c.client.delete(CUSTOM_POD_GROUP, Key("default", "train"))
        report = await moving
        assert states(report) == {"PodGroup/train": DELETED}
        assert report.is_complete


@in_virtual_time
async def test_copy_that_another_object_replaces_during_the_move_is_left_alone() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "train", 2, "1")
        moving = asyncio.create_task(migrate(c))
        await c.until(lambda: _exists(c, "train"))
        await _delete_copy(c, "train", is_protected=False)
        await c.create(pod_group("train", 1))
        assert states(await moving) == {"PodGroup/train": LEFT}
        assert await list_names(c, CUSTOM_POD_GROUP) == ["train"]
        found = await c.client.get(POD_GROUP, Key("default", "train"))
        assert found["spec"]["schedulingPolicy"]["gang"]["minCount"] == 1


async def _delete_copy(c: Cluster, name: str, *, is_protected: bool) -> None:
    """Delete the copy of a group; its finalizer keeps it in deletion if it is protected."""
    key = Key("default", name)
    if not is_protected:
        await c.client.patch(POD_GROUP, key, {"metadata": {"finalizers": None}})
    await c.client.delete(POD_GROUP, key)


class InterferingTransport:
    """Changes the pod `changes` and deletes the pod `ends` right before the first write to each."""

    def __init__(self, c: Cluster) -> None:
        self._cluster, self._left = c, {"changes", "ends"}
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)

    async def send(self, request: Request) -> Reply | StreamReply:
        name = request.path.rpartition("/pods/")[2]
        if request.method == "PATCH" and name in self._left:
            self._left.remove(name)
            key = Key("default", name)
            if name == "ends":
                await self._cluster.client.delete(POD, key, grace=0)
            else:
                change = {"metadata": {"labels": {"seen": "yes"}}}
                await self._cluster.client.patch(POD, key, change)
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


@in_virtual_time
async def test_owned_pods_that_change_or_end_during_the_move_do_not_stop_it() -> None:
    async with upgraded_cluster() as c:
        custom = await c.client.create(CUSTOM_POD_GROUP, custom_group("train", 2))
        owner = {
            "apiVersion": CUSTOM_POD_GROUP.api_version,
            "kind": CUSTOM_POD_GROUP.name,
            "name": "train",
            "uid": custom["metadata"]["uid"],
        }
        pods = [pod("changes"), pod("ends")]
        for one in pods:
            one["metadata"]["ownerReferences"] = [owner]
        await c.create(*pods)
        report = await WorkloadMigration(Client(InterferingTransport(c))).run()
        assert states(report) == {"PodGroup/train": MOVED}
        copy = await c.client.get(POD_GROUP, Key("default", "train"))
        (kept,) = (await c.client.list(POD)).items
        assert kept["metadata"]["labels"]["seen"] == "yes"
        (left,) = kept["metadata"]["ownerReferences"]
        assert left["uid"] == copy["metadata"]["uid"]


async def _exists(c: Cluster, name: str) -> bool:
    return name in await list_names(c, POD_GROUP)


@in_virtual_time
async def test_only_the_chosen_namespace_is_moved() -> None:
    async with upgraded_cluster() as c:
        await create_gang(c, "here", 1, "1")
        other = custom_group("there", 1)
        other["metadata"]["namespace"] = "kube-system"
        await c.client.create(CUSTOM_POD_GROUP, other)
        assert states(await migrate(c, namespace="default")) == {"PodGroup/here": MOVED}
        await asyncio.sleep(5)
        assert await list_names(c, CUSTOM_POD_GROUP) == ["there"]


@in_virtual_time
async def test_server_without_the_workload_apis_is_an_error() -> None:
    async with custom_cluster() as c:
        with pytest.raises(NothingToMigrateTo, match="does not serve podgroups"):
            await migrate(c)
