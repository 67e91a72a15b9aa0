"""The Job controller against a server: claims, creates, deletes and untracks pods; events."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from phalanx.api.errors import Invalid, ServerError
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD, POD_GROUP, RESOURCE_QUOTA, WORKLOAD
from phalanx.api.meta import Key
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.transports import Transport, Unreachable
from phalanx.controllers.jobs.job_pods import TRACKING_FINALIZER
from phalanx.controllers.namespaces import NamespaceController
from phalanx.server.app import error_reply
from tests.builders import in_virtual_time
from tests.builders import pod as bare_pod
from tests.controllers.jobs.job_controller_harness import (
    conditions_of,
    garbage_collectors,
    indexed,
    job,
    job_controller,
    running_job_controller,
)
from tests.controllers.trial_cluster import Runnable, TrialCluster, kubelets, running_parts

FINALIZERS = [TRACKING_FINALIZER]


def selecting(**more: Any) -> Object:
    """Build a Job with a selector of the user."""
    one = job(manualSelector=True, selector={"matchLabels": {"app": "a"}}, **more)
    one["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    return one


def quota(pods: int) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": "default"},
        "spec": {"hard": {"pods": str(pods)}},
    }


def labelled(name: str) -> Object:
    return bare_pod(name, meta={"labels": {"app": "a"}})


async def controllers(cluster: TrialCluster) -> list[str]:
    """Return the controller of each pod, oldest pod first; "" for none."""
    metas = [one["metadata"] for one in await cluster.list_objects(POD)]
    return [(meta.get("ownerReferences") or [{"name": ""}])[0]["name"] for meta in metas]


async def finalizers(cluster: TrialCluster) -> list[list[str]]:
    return [one["metadata"].get("finalizers", []) for one in await cluster.list_objects(POD)]


@in_virtual_time
async def test_matching_orphan_pod_is_adopted_and_counted() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(labelled("free"), selecting(parallelism=2, completions=2))
        await cluster.wait_until_idle()
        assert await controllers(cluster) == ["train", "train"]
        assert await finalizers(cluster) == [FINALIZERS, FINALIZERS]
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert (await cluster.get_only(JOB))["status"]["succeeded"] == 2


@in_virtual_time
async def test_later_orphan_pod_is_adopted_and_a_surplus_pod_is_deleted() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(selecting())
        await cluster.wait_until_idle()
        await cluster.create(labelled("late"))
        await cluster.wait_until_idle()
        assert await controllers(cluster) == ["train"]


@in_virtual_time
async def test_pod_that_matches_no_longer_is_released_and_replaced() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(selecting())
        await cluster.wait_until_idle()
        name = (await cluster.get_only(POD))["metadata"]["name"]
        await cluster.patch(POD, name, {"metadata": {"labels": {"app": "other"}}})
        await cluster.wait_until_idle()
        assert await controllers(cluster) == ["", "train"]
        assert await finalizers(cluster) == [[], FINALIZERS]


@in_virtual_time
async def test_job_of_another_manager_adopts_no_pod() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(selecting(managedBy="example.com/other"))
        await cluster.create(labelled("free"))
        await cluster.wait_until_idle()
        assert await controllers(cluster) == [""]


@in_virtual_time
async def test_jobs_of_other_managers_are_never_written() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(managedBy="example.com/other"))
        before = cluster.store.revision
        await cluster.wait_until_idle()
        assert cluster.store.revision == before
    async with running_job_controller(managers=["example.com/other"]) as cluster:
        await cluster.create(job("theirs", managedBy="example.com/other"), job("unmanaged"))
        await cluster.wait_until_idle()
        assert await controllers(cluster) == ["theirs"]


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
@in_virtual_time
async def test_deleting_a_job_deletes_its_pods_workload_and_group(policy: str) -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait_until_idle()
        await cluster.delete(JOB, "train", policy)
        await cluster.wait_until_idle()
        for kind in (JOB, POD, WORKLOAD, POD_GROUP):
            assert await cluster.list_objects(kind) == []


@in_virtual_time
async def test_orphaned_pods_keep_running_without_finalizer() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job(parallelism=2, completions=2))
        await cluster.wait_until_idle()
        await cluster.delete(JOB, "train", "Orphan")
        await cluster.wait_until_idle()
        assert (await controllers(cluster), await finalizers(cluster)) == (["", ""], [[], []])
        assert {one["status"]["phase"] for one in await cluster.list_objects(POD)} == {"Running"}


@in_virtual_time
async def test_pods_of_a_job_that_was_deleted_while_the_controller_was_down_are_removed() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.create(job(parallelism=2, completions=2))
        await cluster.wait_until_idle()
    await cluster.delete(JOB, "train", "Background")
    async with running_parts(cluster, job_controller(), kubelets, garbage_collectors):
        await cluster.wait_until_idle()
        assert await cluster.list_objects(POD) == []


@in_virtual_time
async def test_new_job_of_the_same_name_does_not_count_or_track_pods_of_the_old_job() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with running_parts(cluster, job_controller(), kubelets):
        await cluster.create(job())
        await cluster.wait_until_idle()
        await cluster.finish("Failed")
        await cluster.delete(JOB, "train", "Background")
        await cluster.create(job())
        await cluster.wait_until_idle()
        status = (await cluster.get_only(JOB))["status"]
        assert (status.get("failed", 0), status["active"]) == (0, 1)
        assert await finalizers(cluster) == [[], FINALIZERS]


@in_virtual_time
async def test_basic_job_over_quota_tries_one_pod_and_a_gang_none() -> None:
    """A Job in the group of its JobSet tries some pods: its gang waits for the last of them."""
    member = job(parallelism=40)
    member["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "workers"}
    gang = job(gang=True, parallelism=40)
    for one, tries in ((job(parallelism=40), 1), (gang, 0), (member, 16)):
        cluster = TrialCluster()
        await cluster.server.start()
        transport = _CountingTransport(cluster.transport("jobs"))
        await cluster.create(quota(0), one)
        async with running_parts(cluster, job_controller(), client=Client(transport)):
            await cluster.wait(0.2)
            assert next(iter(transport.tried.values()), 0) == tries


@in_virtual_time
async def test_failed_creation_is_recorded_and_retried_with_backoff_until_it_succeeds() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(quota(1), job(parallelism=3, activeDeadlineSeconds=9999))
        await cluster.wait(300)
        status = (await cluster.get_only(JOB))["status"]
        assert (status["active"], "startTime" in status) == (1, True)
        events = await cluster.events("FailedCreate")
        assert all(event["message"].startswith("Error creating: pods ") for event in events)
        assert sum(event.get("count", 1) for event in events) < 25
        await cluster.patch(RESOURCE_QUOTA, "few", {"spec": {"hard": {"pods": "9"}}})
        await cluster.wait(70)
        assert len(await cluster.list_objects(POD)) == 3


@in_virtual_time
async def test_terminating_namespace_causes_no_failure_events() -> None:
    def namespace_controller(
        client: Client, informers: Any, clock: Any, random: Any
    ) -> list[Runnable]:
        return [NamespaceController(client, informers, clock).run]

    async with running_job_controller() as cluster, running_parts(cluster, namespace_controller):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        await cluster.create(
            namespace, job(meta={"namespace": "team"}, parallelism=2, completions=2)
        )
        await cluster.wait_until_idle()
        reasons: list[str] = []
        cluster.store.subscribe(
            lambda changes: reasons.extend(
                c.key for c in changes if b"FailedCreate" in (c.after.value if c.after else b"")
            )
        )
        await cluster.client.delete(NAMESPACE, Key("", "team"))
        await cluster.wait_until_idle()
        namespaces = [one["metadata"]["name"] for one in await cluster.list_objects(NAMESPACE)]
        assert ("team" in namespaces, reasons) == (False, [])


@in_virtual_time
async def test_every_event_is_recorded_once() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(indexed(3, gang=True, backoffLimit=0))
        await cluster.wait_until_idle()
        await cluster.finish("Failed", indexes=[1])
        await cluster.wait_until_idle()
        counts = {
            (one["reason"], one["message"]): one.get("count", 1) for one in await cluster.events()
        }
        assert set(counts.values()) == {1}
        reasons = sorted(reason for reason, _ in counts)
        assert reasons == sorted(
            [
                "WorkloadCreated",
                "PodGroupCreated",
                *["SuccessfulCreate"] * 3,
                *["SuccessfulDelete"] * 2,
                "BackoffLimitExceeded",
            ]
        )


@in_virtual_time
async def test_pod_created_after_its_job_finished_is_deleted() -> None:
    async with running_job_controller() as cluster:
        await cluster.create(job())
        await cluster.wait_until_idle()
        late = await cluster.get_only(POD)
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert "Complete" in conditions_of(await cluster.get_only(JOB))
        meta = {k: late["metadata"][k] for k in ("namespace", "labels", "ownerReferences")}
        meta |= {"name": "late", "finalizers": FINALIZERS}
        await cluster.create({"kind": "Pod", "metadata": meta, "spec": late["spec"]})
        await cluster.wait_until_idle()
        assert [one["metadata"]["name"] for one in await cluster.list_objects(POD)] == [
            late["metadata"]["name"]
        ]


@in_virtual_time
async def test_invalid_status_is_recorded_and_retried_with_backoff() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    transport = _StatusRejectingTransport(cluster.transport("jobs"))
    async with running_parts(cluster, job_controller(), kubelets, client=Client(transport)):
        await cluster.create(job())
        await cluster.wait(300)
        (event,) = await cluster.events("FailedStatusUpdate")
        assert event["message"] == "no"
        assert transport.count < 20
        assert len(await cluster.list_objects(POD)) == 1


@in_virtual_time
async def test_failed_deletion_is_recorded_and_retried() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    transport = _DeleteRejectingTransport(cluster.transport("jobs"))
    async with (
        running_parts(cluster, job_controller(), client=Client(transport)),
        running_parts(cluster, kubelets),
    ):
        await cluster.create(job(parallelism=2, completions=2))
        await cluster.wait_until_idle()
        transport.rejects_deletes = True
        await cluster.patch(JOB, "train", {"spec": {"suspend": True}})
        await cluster.wait(30)
        status = (await cluster.get_only(JOB))["status"]
        assert (status["active"], len(await cluster.events("FailedDelete"))) == (2, 1)
        transport.rejects_deletes = False
        await cluster.wait(70)
        assert (
            await cluster.list_objects(POD),
            (await cluster.get_only(JOB))["status"].get("active", 0),
        ) == ([], 0)


@in_virtual_time
async def test_writes_that_the_caches_do_not_show_yet_are_not_repeated() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    async with (
        running_parts(
            cluster, job_controller(), client=Client(_DelayingTransport(cluster.transport("jobs")))
        ),
        running_parts(cluster, kubelets),
    ):
        await cluster.create(job(gang=True, parallelism=4, completions=4))
        await cluster.wait_until_idle()
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
        assert len(await cluster.list_objects(POD)) == 4
        assert (await cluster.get_only(JOB))["status"]["succeeded"] == 4
        created = [
            one for one in await cluster.list_objects(EVENT) if one["reason"] == "WorkloadCreated"
        ]
        assert [one.get("count", 1) for one in created] == [1]


@pytest.mark.parametrize("writes", [0, 1, 2])
@in_virtual_time
async def test_outage_delays_new_jobs_and_leaves_running_pods_alone(writes: int) -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    transport = _FailingTransport(cluster.transport("jobs"))
    async with (
        running_parts(cluster, job_controller(), client=Client(transport)),
        running_parts(cluster, kubelets),
    ):
        await cluster.create(job("before", gang=True))
        await cluster.wait_until_idle()
        (running,) = await cluster.list_objects(POD)
        transport.left = writes
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait(300)
        made = [len(await cluster.list_objects(kind)) - 1 for kind in (WORKLOAD, POD_GROUP, POD)]
        assert (made, await cluster.list_objects(POD)) == (
            [*[1] * writes, *[0] * (3 - writes)],
            [running],
        )
        assert transport.tried <= 60
        transport.left = None
        await cluster.wait_until_idle()
        made = [len(await cluster.list_objects(kind)) - 1 for kind in (WORKLOAD, POD_GROUP, POD)]
        assert made == [1, 1, 2]


@in_virtual_time
async def test_syncs_and_created_objects_are_measured() -> None:
    cluster = TrialCluster()
    await cluster.server.start()
    client = cluster.client_for("jobs")
    async with running_parts(cluster, job_controller(), kubelets, client=client):
        await cluster.create(job(gang=True, parallelism=2, completions=2))
        await cluster.wait_until_idle()
        await cluster.finish("Succeeded")
        await cluster.wait_until_idle()
    text = client.metrics.render()
    for line in (
        'job_controller_job_pods_creation_total{reason="new",status="succeeded"} 2',
        'job_controller_job_gang_workload_creation_total{policy="gang",status="succeeded"} 1',
        "job_controller_workload_creation_duration_seconds_count 1",
        'job_controller_job_pods_finished_total{completion_mode="NonIndexed",result="succeeded"} 2',
        'job_controller_jobs_finished_total{completion_mode="NonIndexed",result="succeeded",'
        'reason="CompletionsReached"} 1',
    ):
        assert f"\n{line}\n" in text
    for name in ("job_controller_job_syncs_total", 'workqueue_adds_total{name="job"}'):
        assert name in text


class _ForwardingTransport:
    """Forwards every request."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | StreamReply:
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing to close."""


class _CountingTransport(_ForwardingTransport):
    """Counts the pods that the controller tries to create at each time."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.tried: Counter[float] = Counter()

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.tried[asyncio.get_running_loop().time()] += 1
        return await super().send(request)


class _StatusRejectingTransport(_ForwardingTransport):
    """Rejects every write of a Job status."""

    count = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method == "PATCH" and "/jobs/" in request.path:
            self.count += 1
            return error_reply(Invalid("no"))
        return await super().send(request)


class _FailingTransport(_ForwardingTransport):
    """Fails all writes after the next `left` ones; None: forwards all."""

    left: int | None = None
    tried = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET" and self.left is not None and "/events" not in request.path:
            if not self.left:
                self.tried += 1
                raise Unreachable("the server", "connection refused")
            self.left -= 1
        return await super().send(request)


class _DeleteRejectingTransport(_ForwardingTransport):
    """Rejects deletions while `rejects_deletes`."""

    rejects_deletes = False

    async def send(self, request: Request) -> Reply | StreamReply:
        if self.rejects_deletes and request.method == "DELETE":
            return error_reply(ServerError("not now"))
        return await super().send(request)


class _DelayingTransport(_ForwardingTransport):
    """Delays watch events, each watch by another delay."""

    _count = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        answer = await super().send(request)
        if isinstance(answer, Reply):
            return answer
        _DelayingTransport._count += 1
        delay = 0.4 * (_DelayingTransport._count % 4)

        async def delay_chunks() -> Any:
            async for chunk in answer.chunks:
                await asyncio.sleep(delay)
                yield chunk

        return StreamReply(answer.code, delay_chunks())


@in_virtual_time
async def test_first_count_of_pods_waits_while_pods_are_created_but_not_for_long() -> None:
    is_busy, cluster = True, TrialCluster()
    await cluster.server.start()

    async def active_pods() -> dict[str, int | None]:
        jobs = await cluster.list_objects(JOB)
        return {one["metadata"]["name"]: one["status"].get("active") for one in jobs}

    async with running_parts(cluster, job_controller(is_busy=lambda: is_busy)):
        await cluster.create(indexed(3, name="a"), indexed(1, name="b", activeDeadlineSeconds=60))
        await asyncio.sleep(1.5)
        assert len(await cluster.list_objects(POD)) == 4
        # The deadline of the second Job counts from its start time.
        assert await active_pods() == {"a": None, "b": 1}
        await asyncio.sleep(1.5)
        assert await active_pods() == {"a": 3, "b": 1}
        await cluster.create(indexed(2, name="c"))
        await asyncio.sleep(0.2)
        is_busy = False
        await asyncio.sleep(0.6)
        assert await active_pods() == {"a": 3, "b": 1, "c": 2}
