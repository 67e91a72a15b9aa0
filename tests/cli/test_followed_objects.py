"""Runs on a cluster are followed to their end: what counts as the end, and what fails a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy

import pytest

from phalanx.api.errors import ApiError, Forbidden, ServerError
from phalanx.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    JOB_SET,
    POD,
    PRIORITY_CLASS,
    STATEFUL_SET,
    Kind,
)
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.cli.cluster_run import ClusterRun
from phalanx.cli.manifests import Manifest
from phalanx.cli.run_outcome import RunOutcome
from phalanx.cli.sandbox import ManifestRejected
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport, Unreachable
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes

TIMEOUT = 300.0


def manifest(kind: Kind, name: str, **spec: object) -> Manifest:
    meta = {"name": name, "namespace": "default"}
    head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta}
    return Manifest(kind, {**head, "spec": spec} if spec else head)


def template(cpu: int, **annotations: str) -> Object:
    requests = {"requests": {"cpu": str(cpu)}}
    return {
        "metadata": {"labels": {"app": "a"}, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": requests}]},
    }


def job(name: str, seconds: int = 5, count: int = 2, **spec: object) -> Manifest:
    pods = template(1, **{"phalanx.dev/run-seconds": str(seconds)})
    pods["spec"]["restartPolicy"] = "Never"
    size = {"parallelism": count, "completions": count, "backoffLimit": 0}
    return manifest(JOB, name, **{**size, **spec}, template=pods)


def replicated(kind: Kind, replicas: int, **annotations: str) -> Manifest:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}}
    return manifest(kind, "web", **spec, template=template(3, **annotations))


class FailingTransport:
    """A transport to a server; a request for which `fail` returns an error fails with it."""

    def __init__(self, c: Cluster, fail: Callable[[Request], Exception | None]) -> None:
        self._inner, self._fail = InProcessTransport(c.plane.server.handle, ADMIN), fail

    async def send(self, request: Request) -> Reply | StreamReply:
        if error := self._fail(request):
            raise error
        return await self._inner.send(request)

    async def close(self) -> None:
        """Do nothing."""


def prepare_run(
    c: Cluster,
    *batches: Manifest,
    fail: Callable[[Request], Exception | None] = lambda request: None,
    timeout: float = TIMEOUT,
) -> ClusterRun:
    """A run that submits each object in its turn."""
    return ClusterRun(
        Client(FailingTransport(c, fail)),
        [[one._replace(content=deepcopy(one.content))] for one in batches],
        timeout,
        on_progress=lambda gangs: None,
        with_logs=False,
        submitted=[],
    )


def states(outcome: RunOutcome) -> list[str]:
    return sorted(f"{gang.title} {gang.state.value}" for gang in outcome.gangs)


def refuse(verb: str, resource: str) -> Callable[[Request], ApiError | None]:
    def fail(request: Request) -> ApiError | None:
        is_refused = request.method == verb and request.path.endswith(resource)
        return Forbidden(f"cannot list {resource}") if is_refused else None

    return fail


@in_virtual_time
async def test_job_that_is_deleted_while_it_runs_fails_the_run() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        running = asyncio.create_task(prepare_run(c, job("short"), job("long", 60)).run())
        await asyncio.sleep(10)
        await c.delete(JOB, "long")
        outcome = await running
    assert not outcome.is_success
    assert outcome.failed_jobs == {"Job/long": "was deleted while it was followed"}
    assert "Job/short ended" in states(outcome)


@pytest.mark.parametrize(
    "first",
    [
        manifest(CONFIG_MAP, "settings"),
        job("first", ttlSecondsAfterFinished=0),
        job("first", count=0),
        replicated(DEPLOYMENT, 0),
    ],
    ids=["no pods", "deleted by its TTL", "no completions", "no replicas"],
)
@in_virtual_time
async def test_next_file_is_submitted_after_one_with_nothing_to_wait_for(first: Manifest) -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, first, job("after")).run()
    assert outcome.is_success
    assert "Job/after ended" in states(outcome)
    assert outcome.seconds < TIMEOUT / 2


@in_virtual_time
async def test_suspended_job_does_not_hold_up_the_next_file() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, job("first", suspend=True), job("after")).run()
    assert outcome.failed_jobs == {"Job/first": "is suspended"}
    assert states(outcome) == ["Job/after ended"]


@in_virtual_time
async def test_job_that_its_ttl_deletes_has_run_and_was_not_interrupted() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, job("train", ttlSecondsAfterFinished=0)).run()
    assert outcome.is_success
    assert states(outcome) == ["Job/train ended"]
    assert not outcome.interruptions


@in_virtual_time
async def test_failed_job_that_its_ttl_deletes_fails_the_run() -> None:
    broken = job("train", ttlSecondsAfterFinished=0)
    annotations = broken.content["spec"]["template"]["metadata"]["annotations"]
    annotations.clear()
    annotations["phalanx.dev/stages"] = "{run: 5, failure: 1.0}"
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, broken, job("after")).run()
    assert not outcome.is_success
    assert list(outcome.failed_jobs) == ["Job/train"]


@in_virtual_time
async def test_stateful_set_has_run_once_all_its_pods_run() -> None:
    web = replicated(STATEFUL_SET, 3, **{"phalanx.dev/stages": "{ready: 10}"})
    async with cluster(nodes=simulated_nodes(3, cpu="4")) as c:
        outcome = await prepare_run(c, web).run()
    assert outcome.is_success
    assert len(outcome.gangs) == 3
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, web, timeout=60.0).run()
    assert outcome.timed_out
    assert [gang.has_run for gang in outcome.gangs].count(False) == 1


@pytest.mark.parametrize(
    "error",
    [Unreachable("the server", "connection refused"), ServerError("etcd is not there")],
    ids=["unreachable", "500"],
)
@in_virtual_time
async def test_outage_does_not_end_a_run(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.get_running_loop()
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        begin = loop.time()

        def fail(request: Request) -> Exception | None:
            is_down = 3 < loop.time() - begin < 30
            return error if is_down and request.method == "GET" else None

        outcome = await prepare_run(c, job("train", 40), fail=fail).run()
    assert outcome.is_success
    assert capsys.readouterr().err.count("warning: ") == 1


@in_virtual_time
async def test_run_is_refused_whose_jobs_may_not_be_listed() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        run = prepare_run(c, job("train"), fail=refuse("GET", "/jobs"))
        with pytest.raises(ManifestRejected, match="a Job of this run could not be followed"):
            await run.run()
        assert not (await c.client.list(JOB)).items


@in_virtual_time
async def test_run_ends_with_a_summary_though_events_may_not_be_listed() -> None:
    foreign = job("train", managedBy="example.com/other")
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        run = prepare_run(c, foreign, fail=refuse("GET", "/events"), timeout=5.0)
        outcome = await run.run()
    assert outcome.failed_jobs == {"Job/train": "has no pods: its events may not be read"}


@in_virtual_time
async def test_run_reads_the_namespaces_of_its_files_only() -> None:
    paths = set[str]()

    def note(request: Request) -> None:
        paths.add(request.path)

    low = {**manifest(PRIORITY_CLASS, "low").content, "value": 1}
    low["metadata"] = {"name": "low"}
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        run = prepare_run(c, Manifest(PRIORITY_CLASS, low), job("train"), fail=note)
        assert (await run.run()).is_success
    assert JOB.url_path("default") in paths
    assert not {JOB.url_path(), POD.url_path()} & paths


@in_virtual_time
async def test_run_waits_for_the_end_of_a_job_set() -> None:
    jobs = [
        {"name": name, "template": {"spec": job("x", 5).content["spec"]}} for name in ("a", "b")
    ]
    order = {"startupPolicyOrder": "InOrder"}
    one = manifest(JOB_SET, "train", replicatedJobs=jobs, startupPolicy=order)
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        outcome = await prepare_run(c, one, job("after")).run()
    assert outcome.is_success
    assert {gang.title for gang in outcome.gangs} == {"JobSet/train", "Job/after"}
