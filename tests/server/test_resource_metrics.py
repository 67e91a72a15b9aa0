"""Resource metrics: annotated usage of simulated pods, measured usage of processes."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.api.kinds import NODE, NODE_METRICS, POD, POD_METRICS
from phalanx.api.resources import USAGE_ANNOTATION, Amounts
from phalanx.api.wire import Object
from phalanx.server.kubelet_reports import UsageSample, UsageSamples
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api, ApiResponse

TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


async def cluster(**sorts: str) -> Api:
    """A server with nodes of these names and types."""
    api = await Api.start()
    for name, node_type in sorts.items():
        machine = node(name)
        machine["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: node_type} if node_type else {}
        await api.create(NODE, machine)
    return api


async def run_pod(api: Api, made: Object) -> str:
    """Create a running pod; return its uid."""
    (found,) = await api.create(POD, made)
    answer = await api.patch(POD, made["metadata"]["name"], {"status": {"phase": "Running"}},
                           part="status")  # fmt: skip
    assert answer.code == 200, answer.body
    uid: str = found["metadata"]["uid"]
    return uid


async def pod_usage(api: Api, name: str) -> Object:
    found = await api.get(POD_METRICS, name)
    (container,) = found["containers"]
    usage: Object = container["usage"]
    return usage


async def node_usage(api: Api, name: str) -> Object:
    found = await api.get(NODE_METRICS, name, "")
    usage: Object = found["usage"]
    return usage


async def report(api: Api, name: str, uid: str, **usage: str) -> ApiResponse:
    body = {
        "metadata": {"name": name, "uid": uid}, "window": "5s",
        "containers": [{"name": "main", "usage": usage}],
    }  # fmt: skip
    headers = {"content-type": "application/json"}
    return await api.ask("POST", POD_METRICS.url_path("default"), body, headers=headers)


@in_virtual_time
async def test_a_simulated_pod_uses_its_requests() -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE)
    await run_pod(api, pod("a", on="n0", cpu="1500m", memory="1Gi"))
    assert await pod_usage(api, "a") == {"cpu": "1500m", "memory": "1073741824"}


@in_virtual_time
async def test_a_simulated_pod_uses_its_annotated_usage() -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE)
    meta = {"annotations": {USAGE_ANNOTATION: "cpu=2"}}
    await run_pod(api, pod("a", on="n0", cpu="1", memory="1k", meta=meta))
    assert await pod_usage(api, "a") == {"cpu": "2", "memory": "1k"}


@in_virtual_time
async def test_a_node_uses_the_sum_of_its_pods() -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE, n1=SIMULATED_NODE_TYPE)
    await run_pod(api, pod("a", on="n0", cpu="1", memory="1k"))
    await run_pod(api, pod("b", on="n0", cpu="500m"))
    await api.create(POD, pod("pending", cpu="1"))
    assert await node_usage(api, "n0") == {"cpu": "1500m", "memory": "1k"}
    assert await node_usage(api, "n1") == {"cpu": "0", "memory": "0"}


@in_virtual_time
async def test_there_are_no_metrics_for_pending_pods_and_foreign_nodes() -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE, foreign="")
    await api.create(POD, pod("pending", on="n0"))
    await run_pod(api, pod("elsewhere", on="foreign", cpu="1"))
    assert (await api.list_default(POD_METRICS))["items"] == []
    answer = await api.ask("GET", POD_METRICS.url_path("default", "elsewhere"))
    assert (answer.code, answer.body["message"]) == (
        404, 'pods.metrics.k8s.io "elsewhere" not found',
    )  # fmt: skip
    listed = await api.ask("GET", NODE_METRICS.url_path())
    assert [one["metadata"]["name"] for one in listed.body["items"]] == ["n0"]
    assert (await api.ask("GET", NODE_METRICS.url_path("", "foreign"))).code == 404


@in_virtual_time
async def test_lists_are_selected_and_shown_as_tables() -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE)
    await run_pod(api, pod("a", on="n0", cpu="1", meta={"labels": {"app": "x"}}))
    await run_pod(api, pod("b", on="n0", cpu="1"))
    cases: tuple[tuple[dict[str, str], list[str]], ...] = (
        ({"labelSelector": "app=x"}, ["a"]),
        ({"fieldSelector": "metadata.name=b"}, ["b"]),
        ({}, ["a", "b"]),
    )
    for query, names in cases:
        found = await api.list_default(POD_METRICS, query)
        assert found["kind"] == "PodMetricsList"
        assert [one["metadata"]["name"] for one in found["items"]] == names
    table = await api.ask("GET", NODE_METRICS.url_path(), headers=TABLE)
    assert [row["cells"] for row in table.body["rows"]] == [["n0", "2", "0", "15s"]]


@pytest.mark.parametrize("verb", ["watch", "DELETE", "PUT"])
@in_virtual_time
async def test_metrics_are_read_only(verb: str) -> None:
    api = await cluster(n0=SIMULATED_NODE_TYPE)
    await run_pod(api, pod("a", on="n0", cpu="1"))
    if verb == "watch":
        answer = await api.ask("GET", POD_METRICS.url_path("default"), query={"watch": 1})
    else:
        answer = await api.ask(verb, POD_METRICS.url_path("default", "a"), {})
    assert answer.code == 405


@in_virtual_time
async def test_a_process_uses_the_latest_sample_while_it_is_fresh() -> None:
    api = await cluster(n0=PROCESS_NODE_TYPE)
    uid = await run_pod(api, pod("a", on="n0", cpu="4"))
    assert (await api.ask("GET", POD_METRICS.url_path("default", "a"))).code == 404
    for cpu in ("1", "250m"):
        assert (await report(api, "a", uid, cpu=cpu, memory="4096")).code == 201
    assert await pod_usage(api, "a") == {"cpu": "250m", "memory": "4096"}
    assert await node_usage(api, "n0") == {"cpu": "250m", "memory": "4096"}
    await asyncio.sleep(61)
    assert (await api.ask("GET", POD_METRICS.url_path("default", "a"))).code == 404


@in_virtual_time
async def test_an_invalid_report_is_refused() -> None:
    api = await cluster(n0=PROCESS_NODE_TYPE, n1=SIMULATED_NODE_TYPE)
    await run_pod(api, pod("a", on="n0"))
    uid = await run_pod(api, pod("simulated", on="n1"))
    assert (await report(api, "a", "another", cpu="1")).code == 409
    assert (await report(api, "missing", "x", cpu="1")).code == 404
    assert (await report(api, "simulated", uid, cpu="1")).code == 400
    assert (await report(api, "a", "x", cpu="much")).code == 400
    headers = {"content-type": "application/json"}
    assert (await api.ask("POST", POD_METRICS.url_path("default"), {}, headers=headers)).code == 400


def test_the_oldest_of_too_many_samples_is_dropped() -> None:
    kept, used = UsageSamples(max_pods=2), Amounts(cpu=1)
    for moment, uid in enumerate(("a", "b", "a", "c")):
        kept.add(uid, UsageSample(float(moment), "5s", {"main": used}))
    assert [bool(kept.latest(uid, since=0)) for uid in ("a", "b", "c")] == [True, False, True]
    assert kept.latest("a", since=3) is None
