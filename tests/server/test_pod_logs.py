from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from urllib.parse import urlencode

import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.api.kinds import NODE, POD
from phalanx.api.wire import Object, Request, StreamReply
from phalanx.server import pod_logs
from phalanx.server.kubelet_reports import MAX_RUN_LOG_BYTES, ContainerLogs, ContainerRun
from phalanx.server.objects import decode_record
from phalanx.server.security.authorization import ADMIN
from phalanx.store.kv import KeyValue
from tests.builders import in_virtual_time, node, pod
from tests.server.api import EPOCH, Api, ApiResponse

RUNNING: Object = {"running": {"startedAt": "2027-01-15T08:00:00Z"}}
LOG = POD.url_path("default", "a", "log")


async def start_api_with_pod(node_type: str, **state: object) -> tuple[Api, str]:
    """A server with a pod whose container has a state on a node of a type; the uid of the pod."""
    api = await Api.start()
    machine = node("n0")
    machine["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: node_type} if node_type else {}
    await api.create(NODE, machine)
    made = pod("a", on="n0")
    made["spec"]["containers"][0]["command"] = ["train", "--fast"]
    (found,) = await api.create(POD, made)
    await set_status(api, state or RUNNING)
    return api, found["metadata"]["uid"]


async def set_status(api: Api, state: Object, restarts: int = 0) -> None:
    name = (await api.get(POD, "a"))["spec"]["containers"][0]["name"]
    status = {
        "name": name, "image": "i", "imageID": "", "ready": False, "restartCount": restarts,
        "state": state,
    }  # fmt: skip
    answer = await api.patch(POD, "a", {"status": {"containerStatuses": [status]}}, part="status")
    assert answer.code == 200, answer.body


async def log(api: Api, **query: object) -> str:
    answer = await api.ask("GET", LOG, query=query)
    assert answer.code == 200, answer.body
    return answer.text.decode()


async def write(api: Api, uid: str, text: str, **more: object) -> ApiResponse:
    name = (await api.get(POD, "a"))["spec"]["containers"][0]["name"]
    said: Object = {"uid": uid, "container": name, "text": text, **more}
    headers = {"content-type": "application/json"}
    return await api.ask("POST", LOG, said, headers=headers)


# ---- simulated nodes -----------------------------------------------------------------------------


@in_virtual_time
async def test_a_simulated_container_has_a_constant_log() -> None:
    api, _ = await start_api_with_pod(SIMULATED_NODE_TYPE)
    answer = await log(api)
    assert answer.splitlines() == [
        "default/a: main started on simulated node n0",
        "image registry.example/main:1, nothing is executed: train --fast",
    ]
    assert await log(api) == answer
    assert (await log(api, tailLines=1)).startswith("image ")
    assert (await log(api, limitBytes=7)) == "default"
    assert (await log(api, timestamps="true")).startswith("2027-01-15T08:00:00.000000Z default/a")


@in_virtual_time
async def test_the_log_of_a_simulated_container_ends_with_its_exit_code() -> None:
    end = {
        "exitCode": 3, "startedAt": "2027-01-15T08:00:00Z", "finishedAt": "2027-01-15T08:01:00Z",
    }  # fmt: skip
    api, _ = await start_api_with_pod(SIMULATED_NODE_TYPE, terminated=end)
    assert (await log(api, sinceTime="2027-01-15T08:00:30Z")) == "ended with exit code 3\n"


@in_virtual_time
async def test_the_log_on_a_foreign_node_is_empty() -> None:
    api, uid = await start_api_with_pod("")
    assert await log(api) == ""
    assert (await write(api, uid, "x\n")).code == 405


@in_virtual_time
async def test_a_container_that_has_not_started_has_no_log() -> None:
    api, _ = await start_api_with_pod(SIMULATED_NODE_TYPE, waiting={"reason": "ContainerCreating"})
    answer = await api.ask("GET", LOG)
    assert (answer.code, answer.body["message"]) == (
        400, 'container "main" in pod "a" is waiting to start',
    )  # fmt: skip


# ---- process nodes -------------------------------------------------------------------------------


@in_virtual_time
async def test_what_a_process_wrote_is_read_back() -> None:
    api, uid = await start_api_with_pod(PROCESS_NODE_TYPE)
    assert (await write(api, uid, "one\ntwo\n")).code == 201
    await asyncio.sleep(60)
    await write(api, uid, "three\n")
    assert await log(api) == "one\ntwo\nthree\n"
    assert await log(api, tailLines=2) == "two\nthree\n"
    assert await log(api, tailLines=0) == ""
    assert await log(api, sinceSeconds=30) == "three\n"


@in_virtual_time
async def test_the_previous_run_can_be_read() -> None:
    api, uid = await start_api_with_pod(PROCESS_NODE_TYPE)
    refused = await api.ask("GET", LOG, query={"previous": "true"})
    assert refused.body["message"] == 'previous terminated container "main" in pod "a" not found'
    await write(api, uid, "first\n")
    await set_status(api, RUNNING, restarts=1)
    await write(api, uid, "second\n", restart=1)
    assert await log(api) == "second\n"
    assert await log(api, previous="true") == "first\n"


@pytest.mark.parametrize(("tail", "first"), [(1, b"two\n"), (0, b"")])
@in_virtual_time
async def test_a_log_is_followed_to_its_end(tail: int, first: bytes) -> None:
    api, uid = await start_api_with_pod(PROCESS_NODE_TYPE)
    await write(api, uid, "one\ntwo\n")
    request = Request("GET", LOG, urlencode({"follow": "true", "tailLines": tail}), user=ADMIN)
    answer = await api.server.handle(request)
    assert isinstance(answer, StreamReply)

    async def go_on() -> None:
        await asyncio.sleep(5)
        await write(api, uid, "three\nfour\n")
        await set_status(api, {"terminated": {"exitCode": 0}})

    going = asyncio.create_task(go_on())
    async with aclosing(answer.chunks) as chunks:
        assert b"".join([chunk async for chunk in chunks]) == first + b"three\nfour\n"
    await going


@pytest.mark.parametrize("node_type", [SIMULATED_NODE_TYPE, PROCESS_NODE_TYPE])
@in_virtual_time
async def test_a_followed_pod_is_decoded_only_when_it_has_changed(
    node_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, _ = await start_api_with_pod(node_type)
    decoded: list[str] = []

    def decode(record: KeyValue) -> Object:
        decoded.append(record.key)
        return decode_record(record)

    request = Request("GET", LOG, "follow=true", user=ADMIN)
    answer = await api.server.handle(request)
    assert isinstance(answer, StreamReply)
    monkeypatch.setattr(pod_logs, "decode_record", decode)

    async def end() -> None:
        await asyncio.sleep(60)
        times = {"startedAt": "2027-01-15T08:00:00Z", "finishedAt": "2027-01-15T08:01:00Z"}
        await set_status(api, {"terminated": {"exitCode": 0, **times}})

    ending = asyncio.create_task(end())
    async with aclosing(answer.chunks) as chunks:
        assert len([chunk async for chunk in chunks]) == (node_type == SIMULATED_NODE_TYPE) * 2
    await ending
    # The pod and its node, at the beginning and at the end.
    assert len(decoded) == 4


@in_virtual_time
async def test_output_is_accepted_only_for_the_pod_with_the_given_uid() -> None:
    api, uid = await start_api_with_pod(PROCESS_NODE_TYPE)
    assert (await write(api, "another", "x\n")).code == 409
    assert (await write(api, uid, "x\n", container="missing")).code == 400
    assert (await write(api, uid, "x\n", restart="soon")).code == 400
    assert (await api.ask("POST", LOG, b"x=1", headers={"content-type": "text/plain"})).code == 415
    assert await log(api) == ""


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"tailLines": -1}, "tailLines"), ({"limitBytes": 0}, "limitBytes"),
        ({"sinceSeconds": 0}, "sinceSeconds"),
        ({"sinceSeconds": 1, "sinceTime": "2027-01-15T08:00:00Z"}, "[]"),
    ],
)  # fmt: skip
@in_virtual_time
async def test_invalid_options_are_refused(query: Object, field: str) -> None:
    api, _ = await start_api_with_pod(SIMULATED_NODE_TYPE)
    answer = await api.ask("GET", LOG, query=query)
    assert (answer.code, answer.cause_reasons[0][0]) == (422, field)


# ---- limits --------------------------------------------------------------------------------------


def test_the_end_of_a_long_output_is_kept() -> None:
    outputs, run = ContainerLogs(), ContainerRun("u", "c", 0)
    for number in range(3):
        outputs.append(run, EPOCH, b"x" * (MAX_RUN_LOG_BYTES // 2 - 1) + f"\n{number}\n".encode())
    kept = list(outputs.lines(run))
    assert sum(len(line.text) for line in kept) <= MAX_RUN_LOG_BYTES
    assert kept[-1].text == b"2\n"
    assert [line.number for line in kept] == list(range(kept[0].number, 6))


def test_memory_of_empty_lines_is_limited_too() -> None:
    outputs, run = ContainerLogs(), ContainerRun("u", "c", 0)
    outputs.append(run, EPOCH, b"\n" * 100_000)
    kept = list(outputs.lines(run))
    assert sum(map(sys.getsizeof, kept)) <= MAX_RUN_LOG_BYTES
    assert kept[-1].number == 99_999


def test_the_least_recently_written_logs_are_dropped() -> None:
    outputs = ContainerLogs(max_bytes=1000)
    for uid in "abc":
        outputs.append(ContainerRun(uid, "c", 0), EPOCH, b"x" * 400 + b"\n")
    assert [len(list(outputs.lines(ContainerRun(uid, "c", 0)))) for uid in "abc"] == [0, 1, 1]


def test_the_last_two_runs_are_kept() -> None:
    outputs = ContainerLogs()
    for restart in range(4):
        outputs.append(ContainerRun("a", "c", restart), EPOCH, b"x\n")
    assert [len(list(outputs.lines(ContainerRun("a", "c", n)))) for n in range(4)] == [0, 0, 1, 1]
