from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import POD
from phalanx.api.meta import Key, find_condition, parse_timestamp
from phalanx.api.resources import USAGE_ANNOTATION
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.nodes.node_pool import HostedNodePool
from phalanx.controllers.nodes.simulated_kubelet import STAGES, SimulatedKubelets, parse_stage_rules
from phalanx.controllers.reconcile_loop import Informers
from phalanx.randomness import SeededRandom
from phalanx.server.security.users import authenticated_user
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import EPOCH, Cluster, cluster, simulated_nodes
from tests.recording_log import captured_lines

WITHOUT = ("scheduler", "controllers")
HERE = Key("default", "a")


def staged(text: str, name: str = "a") -> Object:
    return pod(name, on="n0", meta={"annotations": {STAGES: text}})


async def seen(c: Cluster, key: Key = HERE) -> tuple[str, str]:
    """The phase of a pod and its Ready status."""
    found = await c.client.get(POD, key, Pod)
    ready = find_condition(found.status.conditions, "Ready")
    return found.status.phase, ready.status if ready else ""


async def container(c: Cluster) -> Object:
    found = await c.client.get(POD, HERE)
    (status,) = found["status"]["containerStatuses"]
    assert isinstance(status, dict)
    return status


@in_virtual_time
async def test_a_pod_is_creating_before_it_runs() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{start: 5, run: 10}"))
        await asyncio.sleep(1)
        assert await seen(c) == ("Pending", "False")
        assert (await container(c))["state"] == {"waiting": {"reason": "ContainerCreating"}}
        await asyncio.sleep(3.5)
        assert await seen(c) == ("Pending", "False")
        await asyncio.sleep(1)
        assert await seen(c) == ("Running", "True")
        await asyncio.sleep(9)
        assert await seen(c) == ("Running", "True")
        await asyncio.sleep(1)
        assert await seen(c) == ("Succeeded", "False")
        ended = (await container(c))["state"]["terminated"]
        assert parse_timestamp(ended["startedAt"]) == EPOCH + 5
        assert parse_timestamp(ended["finishedAt"]) == EPOCH + 15


@in_virtual_time
async def test_a_pod_is_ready_after_its_ready_stage() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{start: 2, ready: 5}"))
        await asyncio.sleep(3)
        assert await seen(c) == ("Running", "False")
        status = await container(c)
        assert (status["ready"], status["started"]) == (False, True)
        await asyncio.sleep(5)
        assert await seen(c) == ("Running", "True")
        assert (await container(c))["ready"] is True


@in_virtual_time
async def test_a_pod_that_ends_before_its_ready_stage_is_never_ready() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{ready: 50, run: 5}"))
        await asyncio.sleep(6)
        assert await seen(c) == ("Succeeded", "False")


@in_virtual_time
async def test_a_pod_fails_at_its_active_deadline() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0", spec={"activeDeadlineSeconds": 10}))
        await asyncio.sleep(9)
        assert await seen(c) == ("Running", "True")
        await asyncio.sleep(2)
        found = await c.client.get(POD, HERE)
        assert found["status"]["phase"] == "Failed"
        assert found["status"]["reason"] == "DeadlineExceeded"


@in_virtual_time
async def test_a_running_pod_has_addresses_and_an_observed_generation() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{start: 1}"), staged("{start: 1}", "b"))
        await asyncio.sleep(3)
        first, second = [
            (await c.client.get(POD, Key("default", name)))["status"] for name in ("a", "b")
        ]
        assert first["podIP"] != second["podIP"]
        assert first["podIPs"] == [{"ip": first["podIP"]}]
        assert first["hostIP"] == second["hostIP"]
        assert first["observedGeneration"] == 1


@in_virtual_time
async def test_a_failed_pod_has_its_exit_code() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{run: 3, failure: 1, exitCode: 42}"))
        await asyncio.sleep(4)
        assert await seen(c) == ("Failed", "False")
        ended = (await container(c))["state"]["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (42, "Error")


@pytest.mark.parametrize(
    ("stop", "grace", "takes", "code"), [(4, 30, 4, 143), (40, 10, 10, 137), (0, 30, 0, 143)]
)
@in_virtual_time
async def test_a_deleted_pod_stops_within_its_grace_period(
    stop: int, grace: int, takes: int, code: int
) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged(f"{{stop: {stop}}}"))
        await asyncio.sleep(2)
        since = c.store.revision
        await c.client.delete(POD, HERE, grace=grace)
        if takes:
            await asyncio.sleep(takes - 0.5)
            assert (await seen(c))[0] == "Running"
        await asyncio.sleep(1)
        with pytest.raises(NotFound):
            await seen(c)
        last = [change.before for change in c.store.changes(since, POD.store_prefix())][-1]
        assert last is not None
        assert f'"exitCode":{code}'.encode() in last.value


@in_virtual_time
async def test_a_pod_deleted_without_grace_is_removed_at_once() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{stop: 100}"))
        await asyncio.sleep(2)
        await c.client.delete(POD, HERE, grace=0)
        await asyncio.sleep(0.1)
        with pytest.raises(NotFound):
            await seen(c)


@in_virtual_time
async def test_a_pod_with_an_invalid_usage_annotation_fails_with_the_reason() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0", meta={"annotations": {USAGE_ANNOTATION: "a lot"}}))
        await asyncio.sleep(1)
        found = (await c.client.get(POD, HERE))["status"]
        assert (found["phase"], found["reason"]) == ("Failed", "InvalidUsage")
        assert found["message"] == (
            "annotation phalanx.dev/usage: 'a lot' is not of the form cpu=250m,memory=1Gi"
        )


@in_virtual_time
async def test_a_pod_with_invalid_stages_fails_with_the_reason() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{run: soon}"))
        await asyncio.sleep(1)
        found = (await c.client.get(POD, HERE))["status"]
        assert (found["phase"], found["reason"]) == ("Failed", "InvalidStages")
        assert found["message"] == (
            "annotation phalanx.dev/stages: run: 'soon' is not a number of seconds"
        )
        await c.delete(POD, "a")
        await asyncio.sleep(1)
        with pytest.raises(NotFound):
            await seen(c)


@in_virtual_time
async def test_a_restarted_kubelet_continues_in_every_stage() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(staged("{start: 100, ready: 100, run: 300}"))
        await asyncio.sleep(50)
    for phase, ready in (("Pending", "False"), ("Running", "False"), ("Running", "True")):
        async with c.plane.running():
            await asyncio.sleep(1)
            assert await seen(c) == (phase, ready)
            await asyncio.sleep(99)
    async with c.plane.running():
        await asyncio.sleep(100)
        assert await seen(c) == ("Succeeded", "False")


@in_virtual_time
async def test_rules_apply_to_pods_without_stages() -> None:
    async with cluster(without=("scheduler", "controllers", "nodes")) as c:
        informers = Informers(c.client, SeededRandom(1))
        found = parse_stage_rules([{"labels": {"app": "short"}, "run": 5}])
        nodes = HostedNodePool(
            c.client, informers, c.clock, nodes=simulated_nodes(1, cpu="8"), rules=found
        )
        informers.of(Node)
        assert await nodes.register() == []
        tasks = _running([informers, nodes])
        await c.create(pod("a", on="n0", meta={"labels": {"app": "short"}}), pod("b", on="n0"))
        await asyncio.sleep(7)
        assert (await seen(c))[0] == "Succeeded"
        assert (await seen(c, Key("default", "b")))[0] == "Running"
        # The starts of pods that have ended are forgotten.
        assert isinstance(nodes._kubelet, SimulatedKubelets)
        assert len(nodes._kubelet._started) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_pod_runs_for_a_fraction_of_a_second() -> None:
    """The API keeps the start in whole seconds; a pod that started at 0.9 must not end at once."""
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        for start in (0.3, 1.9):
            await asyncio.sleep(start - c.clock.now() % 1)
            name = f"p{start:.0f}"
            await c.create(staged("{run: 0.4}", name))
            await asyncio.sleep(0.35)
            assert (await c.pods())[name].status.phase == "Running"
            await asyncio.sleep(0.2)
            assert (await c.pods())[name].status.phase == "Succeeded"


def _running(parts: Sequence[Informers | HostedNodePool]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(part.run()) for part in parts]


@in_virtual_time
async def test_pods_that_are_deleted_while_the_kubelet_writes_cause_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node may not write to a pod that is gone, and its cache learns of the deletion later."""
    caplog.set_level(logging.DEBUG, "phalanx")
    nodes = simulated_nodes(1, cpu="8")
    async with cluster(nodes=nodes, without=WITHOUT, latency=lambda: 0.2) as c:
        names = [f"p{number}" for number in range(20)]
        await asyncio.gather(*(c.create(staged("{run: 10}", name)) for name in names))
        await asyncio.sleep(2)
        end = parse_timestamp((await c.pods())["p0"].status.start_time or "") + 10
        await asyncio.sleep(end - 0.1 - c.clock.now())
        # The pods end within the next second: some are deleted just before.
        for name in names:
            await c.client.delete(POD, Key("default", name), grace=0)
        await asyncio.sleep(60)
        assert await c.pods() == {}
    lines = [line for line in captured_lines(caplog, "controllers") if "forbidden" in str(line)]
    assert {line.level for line in lines} == {"DEBUG"}


@in_virtual_time
async def test_denial_that_lasts_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(without=(*WITHOUT, "nodes")) as c:
        stranger = InProcessTransport(c.plane.server.handle, authenticated_user("stranger"))
        informers = Informers(c.client, SeededRandom(1))
        nodes = HostedNodePool(
            c.client, informers, c.clock, nodes=simulated_nodes(1, cpu="8"),
            node_client=lambda name: Client(stranger),
        )  # fmt: skip
        informers.of(Node)
        assert await nodes.register() == []
        tasks = _running([informers, nodes])
        await c.create(pod("a", on="n0"))
        await asyncio.sleep(10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    lines = [line for line in captured_lines(caplog, "controllers") if "forbidden" in str(line)]
    assert {line.level for line in lines} == {"WARNING"}
    assert {line.fields["key"] for line in lines} == {"default/a"}


@in_virtual_time
async def test_a_pod_is_ready_when_its_readiness_gates_are() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        gated = pod("a", on="n0", spec={"readinessGates": [{"conditionType": "example.com/up"}]})
        await c.create(gated)
        await asyncio.sleep(1)
        assert await seen(c) == ("Running", "False")
        ready = find_condition((await c.client.get(POD, HERE, Pod)).status.conditions, "Ready")
        assert ready is not None
        assert ready.reason == "ReadinessGatesNotReady"
        for status in ("True", "False"):
            condition = {"type": "example.com/up", "status": status}
            change: Object = {"status": {"conditions": [condition]}}
            await c.client.patch(POD, HERE, change, subresource="status", content=STRATEGIC_PATCH)
            await asyncio.sleep(1)
            assert await seen(c) == ("Running", status)


@in_virtual_time
async def test_debug_containers_run_in_the_order_in_which_they_are_added() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0"))
        await asyncio.sleep(1)
        containers: list[Object] = []
        for name in ("one", "two"):
            containers.append({"name": name, "image": "i", "terminationMessagePolicy": "File"})
            change: Object = {"spec": {"ephemeralContainers": containers}}
            await c.client.patch(POD, HERE, change, subresource="ephemeralcontainers")
            await asyncio.sleep(1)
        found = (await c.client.get(POD, HERE))["status"]["ephemeralContainerStatuses"]
        assert [one["name"] for one in found] == ["one", "two"]
        started = [parse_timestamp(one["state"]["running"]["startedAt"]) for one in found]
        assert started == [EPOCH + 1, EPOCH + 2]


@in_virtual_time
async def test_a_pod_in_the_network_of_its_node_has_the_address_of_the_node() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="8"), without=WITHOUT) as c:
        await c.create(pod("a", on="n0", spec={"hostNetwork": True}))
        await asyncio.sleep(1)
        status = (await c.client.get(POD, HERE))["status"]
        assert status["podIP"] == status["hostIP"]
