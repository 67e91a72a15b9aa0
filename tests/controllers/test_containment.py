"""One object's failure stays one object's failure, in a control plane that contains errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED
from phalanx.api.wire import Object
from phalanx.client.error_containment import RECONCILE_ERRORS
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.jobs.controller import JobController
from phalanx.controllers.leadership import LeaderElectedRunner, LeaderTask, RunnerSpec
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling import binder
from phalanx.controllers.scheduling.binder import RequestError
from phalanx.controllers.scheduling.event_handlers import EventHandlers
from phalanx.controllers.scheduling.evictor import Eviction, Evictor
from phalanx.controllers.scheduling.pending_status import PendingStatusReporter
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from phalanx.scheduler.decision import Victim
from phalanx.scheduler.plugins.plugin import Filter, Rejections
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from tests.builders import gang, in_virtual_time, pod, pod_group, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.recording_log import RecordingLog, captured_lines

#: The resource that the planted plugin fails on.
CURSED = {"cpu": "1", "example.com/cursed": "1"}


def fail_on_cursed(context: PluginContext) -> Rejections:
    if "example.com/cursed" in dict(context.shape.requests):
        raise ZeroDivisionError("planted")
    return iter(())


PLANTED = Profiles({
    DEFAULT_SCHEDULER: replace(
        DEFAULT_POLICY, filters={"Planted": Filter(reject=fail_on_cursed), **DEFAULT_POLICY.filters}
    )
})  # fmt: skip


def cursed_gang(name: str, pods: int) -> list[Object]:
    return [pod_group(name, pods), *(pod(f"{name}-{n}", name, asks=CURSED) for n in range(pods))]


def job(name: str) -> Object:
    container = {"name": "main", "image": "busybox"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"template": template},
    }  # fmt: skip


def errors_of(c: Cluster, controller: str) -> float:
    return c.client.metrics.series(RECONCILE_ERRORS, controller).value


@in_virtual_time
async def test_a_gang_on_which_a_plugin_raises_is_pending_and_other_gangs_are_placed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = simulated_nodes(2, cpu="8", **{"example.com/cursed": "8"})
    async with cluster(nodes=nodes, profiles=PLANTED, raise_errors=False) as c:
        await c.create(*cursed_gang("bad", 2), *gang("good", 3, cpu="1"))
        assert await c.until_placed(*(f"good-{n}" for n in range(3))) < 1
        await c.create(*gang("later", 3, cpu="1"))
        assert await c.until_placed(*(f"later-{n}" for n in range(3))) < 1
        await asyncio.sleep(5)
        for condition in (
            await c.group_condition("bad", POD_GROUP_INITIALLY_SCHEDULED),
            await c.pod_condition("bad-0"),
        ):
            assert condition is not None
            assert (condition.status, condition.reason) == ("False", "SchedulerError")
            assert "ZeroDivisionError: planted" in condition.message
            assert "the traceback is in the log of the scheduler" in condition.message
        failures = [line for line in captured_lines(caplog, "scheduler") if line.level == "ERROR"]
        assert {line.fields["key"] for line in failures} == {"default/bad"}
        assert errors_of(c, "scheduler") == len(failures)
    assert "fail_on_cursed" in caplog.text


@in_virtual_time
async def test_a_gang_on_which_a_plugin_raises_is_retried_with_back_off_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_broken = True

    def fail_for_a_while(context: PluginContext) -> Rejections:
        return fail_on_cursed(context) if is_broken else iter(())

    filters = {"Planted": Filter(reject=fail_for_a_while), **DEFAULT_POLICY.filters}
    profiles = Profiles({DEFAULT_SCHEDULER: replace(DEFAULT_POLICY, filters=filters)})
    nodes = simulated_nodes(2, cpu="8", **{"example.com/cursed": "8"})
    async with cluster(nodes=nodes, profiles=profiles, raise_errors=False) as c:
        await c.create(*cursed_gang("bad", 2))
        await asyncio.sleep(60)
        # One attempt each 1, 2, 4, 8 and then 10 seconds or so.
        assert 4 <= errors_of(c, "scheduler") <= 12
        is_broken = False
        await c.until_placed("bad-0", "bad-1", seconds=30)


@in_virtual_time
async def test_by_default_a_cycle_that_raises_ends_the_control_plane() -> None:
    nodes = simulated_nodes(1, cpu="8", **{"example.com/cursed": "8"})

    async def run() -> None:
        async with cluster(nodes=nodes, profiles=PLANTED) as c:
            await c.create(*cursed_gang("bad", 1))
            await asyncio.sleep(5)

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ZeroDivisionError)


@in_virtual_time
async def test_a_job_on_which_the_controller_raises_is_retried_and_other_jobs_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reconcile = JobController.reconcile
    times: list[float] = []

    async def fail_on_bad(self: JobController, key: Key) -> float | None:
        if key.name == "bad":
            times.append(asyncio.get_running_loop().time())
            raise ZeroDivisionError("planted")
        return await reconcile(self, key)

    monkeypatch.setattr(JobController, "reconcile", fail_on_bad)
    async with cluster(nodes=simulated_nodes(1, cpu="8"), raise_errors=False) as c:
        await c.create(job("bad"), job("good"))

        async def is_active() -> bool:
            found = await c.client.get(JOB, Key("default", "good"))
            return bool(found.get("status", {}).get("active"))

        assert await c.until(is_active) < 2
        await asyncio.sleep(10)
        assert 5 <= len(times) <= 20
        assert errors_of(c, "job") == len(times)
        line = next(line for line in captured_lines(caplog, "controllers") if line.level == "ERROR")
        assert line.message == "reconcile failed, retrying"
        assert line.fields["key"] == "default/bad"
        assert "fail_on_bad" in caplog.text
        monkeypatch.setattr(JobController, "reconcile", reconcile)


@in_virtual_time
async def test_a_pod_on_which_an_event_handler_of_the_scheduler_raises_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_pod = EventHandlers._on_pod

    def fail_on_bad(self: EventHandlers, old: object, new: object) -> None:
        found = new or old
        if found.metadata.name == "bad":  # type: ignore[attr-defined]
            raise ZeroDivisionError("planted")
        on_pod(self, old, new)  # type: ignore[arg-type]

    monkeypatch.setattr(EventHandlers, "_on_pod", fail_on_bad)
    async with cluster(nodes=simulated_nodes(1, cpu="8"), raise_errors=False) as c:
        await c.create(pod("bad", asks={"cpu": "1"}), pod("good", asks={"cpu": "1"}))
        assert await c.until_placed("good") < 1
        assert errors_of(c, "informer") >= 1


@in_virtual_time
async def test_a_bind_that_raises_is_rolled_back_and_other_gangs_are_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = binder.GroupBinder._group_reference
    attempts: list[str] = []

    def fail_on_bad(self: binder.GroupBinder, group: object) -> Object:
        name: str = group.metadata.name  # type: ignore[attr-defined]
        attempts.append(name)
        if name == "bad" and attempts.count("bad") < 4:
            raise ZeroDivisionError("planted")
        return build(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(binder.GroupBinder, "_group_reference", fail_on_bad)
    async with cluster(nodes=simulated_nodes(2, cpu="8"), raise_errors=False) as c:
        await c.create(*gang("bad", 2, cpu="1"), *gang("good", 2, cpu="1"))
        assert await c.until_placed("good-0", "good-1") < 1
        condition = await c.pod_condition("bad-0")
        assert condition is None or condition.status == "False"
        await c.until_placed("bad-0", "bad-1")


@in_virtual_time
async def test_an_entity_that_cannot_be_reported_does_not_hide_the_status_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = PendingStatusReporter._report_group

    def fail_on_bad(self: PendingStatusReporter, entry: QueuedEntityInfo, *args: object) -> None:
        if entry.key.name == "bad":
            raise ZeroDivisionError("planted")
        report(self, entry, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PendingStatusReporter, "_report_group", fail_on_bad)
    async with cluster(raise_errors=False) as c:
        for name in ("bad", "good"):
            await c.create(pod_group(name, 2), pod(f"{name}-0", name, asks={"cpu": "1"}))
        await asyncio.sleep(3)
        condition = await c.group_condition("good", POD_GROUP_SCHEDULED)
        assert condition is not None
        assert condition.reason == "NotReadyForScheduling"
        assert await c.group_condition("bad", POD_GROUP_SCHEDULED) is None
        assert errors_of(c, "scheduler") == 1


@in_virtual_time
async def test_a_task_of_the_scheduler_that_ends_by_an_exception_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster(without=("scheduler",), nodes=simulated_nodes(1, cpu="8")) as c:
        client = c.plane.client("scheduler")
        client.errors.raise_errors = False
        informers = Informers(client, SeededRandom(2))
        scheduler = Scheduler(client, informers, c.clock, random=SeededRandom(2))
        pop: Callable[[float], object] = scheduler._state.pop
        failures = iter([ZeroDivisionError("planted")])

        def fail_once(now: float) -> object:
            if (failure := next(failures, None)) is not None:
                raise failure
            return pop(now)

        monkeypatch.setattr(scheduler._state, "pop", fail_once)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(informers.run()), group.create_task(scheduler.run())]
            await c.create(pod("a", asks={"cpu": "1"}))
            assert await c.until_placed("a") < 3
            assert client.metrics.series(RECONCILE_ERRORS, "scheduler").value == 1
            for task in tasks:
                task.cancel()
        assert len((await c.client.list(POD)).items) == 1


@in_virtual_time
async def test_an_eviction_that_raises_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    evict = Evictor._evict_groups
    failures = iter([ZeroDivisionError("planted")])

    async def fail_once(self: Evictor, eviction: Eviction) -> Mapping[Victim, RequestError]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await evict(self, eviction)

    monkeypatch.setattr(Evictor, "_evict_groups", fail_once)
    async with cluster(nodes=simulated_nodes(1, cpu="1"), raise_errors=False) as c:
        await c.create(priority_class("high", 1000), pod("low", asks={"cpu": "1"}))
        await c.until_placed("low")
        spec = {"priorityClassName": "high"}
        await c.create(pod("urgent", asks={"cpu": "1"}, spec=spec))
        await c.until_placed("urgent", seconds=120)
        assert errors_of(c, "scheduler") == 1


@in_virtual_time
async def test_an_event_that_cannot_be_written_is_dropped_and_others_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = EventRecorder._repeat_or_create

    async def fail_on_bad(
        self: EventRecorder, event: ObjectEvent, at: str, times: int
    ) -> tuple[Key, int]:
        if event.regarding.name == "bad":
            raise ZeroDivisionError("planted")
        return await write(self, event, at, times)

    monkeypatch.setattr(EventRecorder, "_repeat_or_create", fail_on_bad)
    async with cluster(nodes=simulated_nodes(1, cpu="8"), raise_errors=False) as c:
        await c.create(pod("bad", asks={"cpu": "99"}), pod("good", asks={"cpu": "99"}))
        await asyncio.sleep(10)
        assert {name for name, _ in await c.events("FailedScheduling")} == {"good"}
        assert errors_of(c, DEFAULT_SCHEDULER) >= 1


@in_virtual_time
async def test_a_term_that_ends_by_an_exception_is_followed_by_another() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        client, has_led = c.plane.client("runner"), asyncio.Event()
        client.errors.raise_errors = False
        failures = iter([ZeroDivisionError("planted")])

        async def discover() -> bool:
            if (failure := next(failures, None)) is not None:
                raise failure
            return True

        async def lead() -> None:
            has_led.set()
            await asyncio.Event().wait()

        spec = RunnerSpec(discover, lambda capabilities, informers: LeaderTask("task", lead), {})
        log = RecordingLog()
        runner = LeaderElectedRunner(client, c.clock, SeededRandom(1), log=log, spec=spec)
        running = asyncio.create_task(runner.run())
        async with asyncio.timeout(240):
            await has_led.wait()
        assert log.messages() == ["task failed, starting again: ZeroDivisionError: planted"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
