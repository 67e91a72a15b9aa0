"""Jobs run on a real server: pods are claimed, made, deleted and let go, and events tell of it."""

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
    """A Job that chooses its pods by a label of its user's."""
    one = job(manualSelector=True, selector={"matchLabels": {"app": "a"}}, **more)
    one["spec"]["template"]["metadata"] = {"labels": {"app": "a"}}
    return one


def quota(pods: int) -> Object:
    return {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": "default"}, "spec": {"hard": {"pods": str(pods)}},
    }  # fmt: skip


def labelled(name: str) -> Object:
    return bare_pod(name, meta={"labels": {"app": "a"}})


async def controllers(stage: TrialCluster) -> list[str]:
    """Who controls each pod, in the order of their ages."""
    metas = [one["metadata"] for one in await stage.list_objects(POD)]
    return [(meta.get("ownerReferences") or [{"name": ""}])[0]["name"] for meta in metas]


async def finalizers(stage: TrialCluster) -> list[list[str]]:
    return [one["metadata"].get("finalizers", []) for one in await stage.list_objects(POD)]


@in_virtual_time
async def test_a_pod_of_nobody_that_fits_is_adopted_and_counted() -> None:
    async with running_job_controller() as stage:
        await stage.create(labelled("free"), selecting(parallelism=2, completions=2))
        await stage.wait_until_idle()
        assert await controllers(stage) == ["train", "train"]
        assert await finalizers(stage) == [FINALIZERS, FINALIZERS]
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert (await stage.get_only(JOB))["status"]["succeeded"] == 2


@in_virtual_time
async def test_a_pod_that_comes_later_is_adopted_too_and_another_is_dismissed() -> None:
    async with running_job_controller() as stage:
        await stage.create(selecting())
        await stage.wait_until_idle()
        await stage.create(labelled("late"))
        await stage.wait_until_idle()
        assert await controllers(stage) == ["train"]


@in_virtual_time
async def test_a_pod_that_fits_no_more_is_let_go_and_replaced() -> None:
    async with running_job_controller() as stage:
        await stage.create(selecting())
        await stage.wait_until_idle()
        name = (await stage.get_only(POD))["metadata"]["name"]
        await stage.patch(POD, name, {"metadata": {"labels": {"app": "other"}}})
        await stage.wait_until_idle()
        assert await controllers(stage) == ["", "train"]
        assert await finalizers(stage) == [[], FINALIZERS]


@in_virtual_time
async def test_no_pod_is_adopted_by_a_job_that_has_ended_or_is_another_managers() -> None:
    async with running_job_controller() as stage:
        await stage.create(selecting(managedBy="example.com/other"))
        await stage.create(labelled("free"))
        await stage.wait_until_idle()
        assert await controllers(stage) == [""]


@in_virtual_time
async def test_jobs_of_other_managers_are_left_alone() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(managedBy="example.com/other"))
        before = stage.store.revision
        await stage.wait_until_idle()
        assert stage.store.revision == before
    async with running_job_controller(managers=["example.com/other"]) as stage:
        await stage.create(job("theirs", managedBy="example.com/other"), job("nobodys"))
        await stage.wait_until_idle()
        assert await controllers(stage) == ["theirs"]


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
@in_virtual_time
async def test_with_a_job_goes_all_that_is_its(policy: str) -> None:
    async with running_job_controller() as stage:
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.wait_until_idle()
        await stage.delete(JOB, "train", policy)
        await stage.wait_until_idle()
        for kind in (JOB, POD, WORKLOAD, POD_GROUP):
            assert await stage.list_objects(kind) == []


@in_virtual_time
async def test_orphaned_pods_run_on_and_are_held_no_more() -> None:
    async with running_job_controller() as stage:
        await stage.create(job(parallelism=2, completions=2))
        await stage.wait_until_idle()
        await stage.delete(JOB, "train", "Orphan")
        await stage.wait_until_idle()
        assert (await controllers(stage), await finalizers(stage)) == (["", ""], [[], []])
        assert {one["status"]["phase"] for one in await stage.list_objects(POD)} == {"Running"}


@in_virtual_time
async def test_pods_of_a_job_that_went_while_nobody_looked_are_let_go() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(), kubelets):
        await stage.create(job(parallelism=2, completions=2))
        await stage.wait_until_idle()
    await stage.delete(JOB, "train", "Background")
    async with running_parts(stage, job_controller(), kubelets, garbage_collectors):
        await stage.wait_until_idle()
        assert await stage.list_objects(POD) == []


@in_virtual_time
async def test_a_namesake_neither_counts_nor_holds_the_pods_of_the_job_before_it() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with running_parts(stage, job_controller(), kubelets):
        await stage.create(job())
        await stage.wait_until_idle()
        await stage.finish("Failed")
        await stage.delete(JOB, "train", "Background")
        await stage.create(job())
        await stage.wait_until_idle()
        status = (await stage.get_only(JOB))["status"]
        assert (status.get("failed", 0), status["active"]) == (0, 1)
        assert await finalizers(stage) == [[], FINALIZERS]


@in_virtual_time
async def test_a_plain_job_that_is_refused_tries_one_pod_and_a_gang_all() -> None:
    for one, tries in ((job(parallelism=40), 1), (job(gang=True, parallelism=40), 40)):
        stage = TrialCluster()
        await stage.server.start()
        way = _CountingTransport(stage.transport("jobs"))
        await stage.create(quota(0), one)
        async with running_parts(stage, job_controller(), client=Client(way)):
            await stage.wait(0.2)
            assert next(iter(way.tried.values())) == tries


@in_virtual_time
async def test_what_is_refused_is_told_tried_again_less_and_less_often_and_made_in_the_end() -> (
    None
):
    async with running_job_controller() as stage:
        await stage.create(quota(1), job(parallelism=3, activeDeadlineSeconds=9999))
        await stage.wait(300)
        status = (await stage.get_only(JOB))["status"]
        assert (status["active"], "startTime" in status) == (1, True)
        told = await stage.events("FailedCreate")
        assert all(event["message"].startswith("Error creating: pods ") for event in told)
        assert sum(event.get("count", 1) for event in told) < 25
        await stage.patch(RESOURCE_QUOTA, "few", {"spec": {"hard": {"pods": "9"}}})
        await stage.wait(70)
        assert len(await stage.list_objects(POD)) == 3


@in_virtual_time
async def test_a_namespace_that_goes_takes_its_jobs_along_without_complaints() -> None:
    def emptying(client: Client, informers: Any, clock: Any, chance: Any) -> list[Runnable]:
        return [NamespaceController(client, informers).run]

    async with running_job_controller() as stage, running_parts(stage, emptying):
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        await stage.create(space, job(meta={"namespace": "team"}, parallelism=2, completions=2))
        await stage.wait_until_idle()
        reasons: list[str] = []
        stage.store.subscribe(lambda changes: reasons.extend(
            c.key for c in changes if b"FailedCreate" in (c.after.value if c.after else b"")
        ))  # fmt: skip
        await stage.client.delete(NAMESPACE, Key("", "team"))
        await stage.wait_until_idle()
        spaces = [one["metadata"]["name"] for one in await stage.list_objects(NAMESPACE)]
        assert ("team" in spaces, reasons) == (False, [])


@in_virtual_time
async def test_nothing_is_told_twice() -> None:
    async with running_job_controller() as stage:
        await stage.create(indexed(3, gang=True, backoffLimit=0))
        await stage.wait_until_idle()
        await stage.finish("Failed", indexes=[1])
        await stage.wait_until_idle()
        told = {
            (one["reason"], one["message"]): one.get("count", 1) for one in await stage.events()
        }
        assert set(told.values()) == {1}
        reasons = sorted(reason for reason, _ in told)
        assert reasons == sorted([
            "WorkloadCreated", "PodGroupCreated", *["SuccessfulCreate"] * 3,
            *["SuccessfulDelete"] * 2, "BackoffLimitExceeded",
        ])  # fmt: skip


@in_virtual_time
async def test_a_pod_that_comes_after_the_end_of_its_job_is_dismissed() -> None:
    async with running_job_controller() as stage:
        await stage.create(job())
        await stage.wait_until_idle()
        late = await stage.get_only(POD)
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert "Complete" in conditions_of(await stage.get_only(JOB))
        meta = {k: late["metadata"][k] for k in ("namespace", "labels", "ownerReferences")}
        meta |= {"name": "late", "finalizers": FINALIZERS}
        await stage.create({"kind": "Pod", "metadata": meta, "spec": late["spec"]})
        await stage.wait_until_idle()
        assert [one["metadata"]["name"] for one in await stage.list_objects(POD)] == [
            late["metadata"]["name"]
        ]


@in_virtual_time
async def test_a_status_that_is_refused_is_told_and_not_tried_for_ever_in_a_row() -> None:
    stage = TrialCluster()
    await stage.server.start()
    way = _StatusRejectingTransport(stage.transport("jobs"))
    async with running_parts(stage, job_controller(), kubelets, client=Client(way)):
        await stage.create(job())
        await stage.wait(300)
        (event,) = await stage.events("FailedStatusUpdate")
        assert event["message"] == "no"
        assert way.count < 20
        assert len(await stage.list_objects(POD)) == 1


@in_virtual_time
async def test_a_deletion_that_is_refused_is_told_and_tried_again() -> None:
    stage = TrialCluster()
    await stage.server.start()
    way = _DeleteRejectingTransport(stage.transport("jobs"))
    async with (
        running_parts(stage, job_controller(), client=Client(way)),
        running_parts(stage, kubelets),
    ):
        await stage.create(job(parallelism=2, completions=2))
        await stage.wait_until_idle()
        way.keeps = True
        await stage.patch(JOB, "train", {"spec": {"suspend": True}})
        await stage.wait(30)
        status = (await stage.get_only(JOB))["status"]
        assert (status["active"], len(await stage.events("FailedDelete"))) == (2, 1)
        way.keeps = False
        await stage.wait(70)
        assert (
            await stage.list_objects(POD),
            (await stage.get_only(JOB))["status"].get("active", 0),
        ) == ([], 0)


@in_virtual_time
async def test_what_the_caches_have_not_seen_yet_is_not_done_again() -> None:
    stage = TrialCluster()
    await stage.server.start()
    async with (
        running_parts(
            stage, job_controller(), client=Client(_DelayingTransport(stage.transport("jobs")))
        ),
        running_parts(stage, kubelets),
    ):
        await stage.create(job(gang=True, parallelism=4, completions=4))
        await stage.wait_until_idle()
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
        assert len(await stage.list_objects(POD)) == 4
        assert (await stage.get_only(JOB))["status"]["succeeded"] == 4
        created = [
            one for one in await stage.list_objects(EVENT) if one["reason"] == "WorkloadCreated"
        ]
        assert [one.get("count", 1) for one in created] == [1]


@pytest.mark.parametrize("writes", [0, 1, 2])
@in_virtual_time
async def test_an_outage_holds_up_what_was_begun_and_nothing_that_runs(writes: int) -> None:
    stage = TrialCluster()
    await stage.server.start()
    way = _FailingTransport(stage.transport("jobs"))
    async with (
        running_parts(stage, job_controller(), client=Client(way)),
        running_parts(stage, kubelets),
    ):
        await stage.create(job("before", gang=True))
        await stage.wait_until_idle()
        (running,) = await stage.list_objects(POD)
        way.left = writes
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.wait(300)
        made = [len(await stage.list_objects(kind)) - 1 for kind in (WORKLOAD, POD_GROUP, POD)]
        assert (made, await stage.list_objects(POD)) == (
            [*[1] * writes, *[0] * (3 - writes)],
            [running],
        )
        assert way.tried <= 60
        way.left = None
        await stage.wait_until_idle()
        made = [len(await stage.list_objects(kind)) - 1 for kind in (WORKLOAD, POD_GROUP, POD)]
        assert made == [1, 1, 2]


@in_virtual_time
async def test_looks_and_what_they_make_are_measured() -> None:
    stage = TrialCluster()
    await stage.server.start()
    client = stage.client_for("jobs")
    async with running_parts(stage, job_controller(), kubelets, client=client):
        await stage.create(job(gang=True, parallelism=2, completions=2))
        await stage.wait_until_idle()
        await stage.finish("Succeeded")
        await stage.wait_until_idle()
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
    """A way that does nothing of its own."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: Request) -> Reply | StreamReply:
        return await self._inner.send(request)

    async def close(self) -> None:
        """Nothing is held."""


class _CountingTransport(_ForwardingTransport):
    """Counts the pods that are tried at each moment."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.tried: Counter[float] = Counter()

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method == "POST" and request.path.endswith("/pods"):
            self.tried[asyncio.get_running_loop().time()] += 1
        return await super().send(request)


class _StatusRejectingTransport(_ForwardingTransport):
    """Has every status refused."""

    count = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method == "PATCH" and "/jobs/" in request.path:
            self.count += 1
            return error_reply(Invalid("no"))
        return await super().send(request)


class _FailingTransport(_ForwardingTransport):
    """Carries so many writes more, then none, until told otherwise."""

    left: int | None = None
    tried = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        if request.method != "GET" and self.left is not None and "/events" not in request.path:
            if not self.left:
                self.tried += 1
                raise Unreachable("the server", "it is down")
            self.left -= 1
        return await super().send(request)


class _DeleteRejectingTransport(_ForwardingTransport):
    """Has no pod deleted, if so asked."""

    keeps = False

    async def send(self, request: Request) -> Reply | StreamReply:
        if self.keeps and request.method == "DELETE":
            return error_reply(ServerError("not now"))
        return await super().send(request)


class _DelayingTransport(_ForwardingTransport):
    """Has events come late, each kind by another while."""

    _count = 0

    async def send(self, request: Request) -> Reply | StreamReply:
        answer = await super().send(request)
        if isinstance(answer, Reply):
            return answer
        _DelayingTransport._count += 1
        lag = 0.4 * (_DelayingTransport._count % 4)

        async def late() -> Any:
            async for chunk in answer.chunks:
                await asyncio.sleep(lag)
                yield chunk

        return StreamReply(answer.code, late())
