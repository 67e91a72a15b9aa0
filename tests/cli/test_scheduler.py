"""`phalanx scheduler` as a process with a `phalanx up`."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from phalanx.api.kinds import LEASE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from tests.builders import gang, pod
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    first_line,
    next_log_line,
    phalanx,
    split_log,
    start_component,
    start_up,
)

ALONE = ("--without", "scheduler", "--nodes", "2", "--shape", "cpu=4")


scheduler = partial(start_component, "scheduler")


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Stop a process; return its exit code and the rest of stderr."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    return process.returncode, errors


def place(config: Path, *objects: Object, count: int) -> list[str]:
    """Create objects and wait until `count` pods have a node; return the nodes."""

    async def run() -> list[str]:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        nodes: dict[str, str] = {}
        try:
            listing = await client.list(POD)
            for found in objects:
                await client.create(POD_GROUP if found["kind"] == "PodGroup" else POD, found)
            async with aclosing(client.watch(POD, since=listing.revision)) as events:
                async for event in events:
                    name, spec = event.object["metadata"]["name"], event.object["spec"]
                    nodes |= {name: spec["nodeName"]} if spec.get("nodeName") else {}
                    if len(nodes) == count:
                        break
        finally:
            await client.close()
        return sorted(nodes.values())

    return asyncio.run(asyncio.wait_for(run(), COMMAND_TIMEOUT))


def get_lease(config: Path, name: str) -> Object:
    async def run() -> Object:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        try:
            found: Object = (await client.get(LEASE, Key("kube-system", name)))["spec"]
            return found
        finally:
            await client.close()

    return asyncio.run(run())


def test_standalone_scheduler_replaces_that_of_the_control_plane(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config) as process:
            line = first_line(process)
            url = kubeconfig.load([config]).server
            assert line == f"ready {url} schedulerName default-scheduler\n"
            assert get_lease(config, "default-scheduler")["holderIdentity"]
            nodes = place(config, *gang("a", 4, cpu="2"), count=4)
            assert nodes == ["node-0", "node-0", "node-1", "node-1"]
            code, errors = stop(process)
            lines, other = split_log(errors)
            assert (code, other) == (0, "")
            assert {line.level for line in lines} == {"INFO"}
        assert "holderIdentity" not in get_lease(config, "default-scheduler")


def test_scheduler_writes_a_decision_log_and_serves_metrics(tmp_path: Path) -> None:
    config, log = tmp_path / "kubeconfig", tmp_path / "decisions.jsonl"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config, "--decision-log", str(log), "--listen", "127.0.0.1:0") as process:
            line = next_log_line(process, "serving metrics")
            assert re.fullmatch(r"serving metrics url=http://127\.0\.0\.1:\d+/metrics", line.text)
            assert first_line(process).startswith("ready ")
            place(config, *gang("a", 2, cpu="1"), count=2)
            with urllib.request.urlopen(
                line.text.rpartition("=")[2], timeout=COMMAND_TIMEOUT
            ) as answer:
                assert "scheduler_podgroup_schedule_attempts_total" in answer.read().decode()
            assert stop(process)[0] == 0
        done = phalanx("decisions", str(log), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "podgroup/default/a" in done.stdout


def test_scheduler_waits_for_a_server_until_a_signal(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kubeconfig.write(config, f"http://127.0.0.1:{port}", "", token="token")
    with scheduler(config) as process:
        line = next_log_line(process, "waiting for the API server")
        assert (line.level, line.component) == ("WARNING", "scheduler")
        assert f'reason="cannot reach http://127.0.0.1:{port}: Connection refused"' in line.text
        code, errors = stop(process)
        assert (code, split_log(errors)[1]) == (0, "")


@pytest.mark.slow
def test_scheduler_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    config, data = tmp_path / "kubeconfig", tmp_path / "data"
    options = (*ALONE, "--data", str(data), "--kubeconfig", str(config))
    with start_up(*options) as plane:
        port = re.findall(r":(\d+) ", first_line(plane))[0]
        with scheduler(config, "--no-leader-elect") as process:
            assert first_line(process).startswith("ready ")
            place(config, *gang("a", 2, cpu="1"), count=2)
            plane.terminate()
            plane.communicate(timeout=COMMAND_TIMEOUT)
            assert "cannot reach " in next_log_line(process, "API server unreachable").text
            with start_up(*options, "--listen", f"127.0.0.1:{port}") as again:
                assert first_line(again).startswith("ready ")
                place(config, *gang("b", 2, cpu="1"), count=2)
                assert stop(process)[0] == 0


@pytest.mark.slow
def test_scheduler_name_selects_pods_and_lease(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config, "--scheduler-name", "mine") as process:
            assert first_line(process).endswith("schedulerName mine\n")
            theirs, mine = pod("theirs"), pod("mine", spec={"schedulerName": "mine"})
            place(config, theirs, mine, count=1)
            assert get_lease(config, "mine")["holderIdentity"]


def test_rejected_credential_ends_the_scheduler(tmp_path: Path) -> None:
    config, wrong = tmp_path / "kubeconfig", tmp_path / "wrong"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        access = kubeconfig.load([config])
        kubeconfig.write(wrong, access.server, access.ca, token="no such token")
        done = phalanx("scheduler", "--kubeconfig", str(wrong))
    assert (done.returncode, done.stdout) == (1, "")
    assert split_log(done.stderr)[1] == (
        f"Error: {access.server} rejects the credential of the kubeconfig\n"
    )


TERMS = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaseDuration: 5s, renewDeadline: 10s}
"""


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ((), 1, "there is no kubeconfig at "),
        (("--config", "terms.yaml", "--scheduler-name", "mine"), 2, "leave out --scheduler-name"),
        (("--config", "terms.yaml"), 2, "retryPeriod below renewDeadline below leaseDuration"),
        (("--config", "nowhere.yaml"), 2, "cannot read "),
        (("--feature-gates", "Nonsense=true"), 2, "Nonsense"),
        (("--decision-log", "/no/such/folder/log"), 2, "cannot write --decision-log"),
        (("--listen", "here"), 2, "use HOST:PORT"),
    ],
)  # fmt: skip
def test_scheduler_rejects_wrong_usage_in_one_line(
    tmp_path: Path, args: tuple[str, ...], code: int, why: str
) -> None:
    (tmp_path / "terms.yaml").write_text(TERMS)
    words = [str(tmp_path / word) if word.endswith(".yaml") else word for word in args]
    done = phalanx("scheduler", "--kubeconfig", str(tmp_path / "none"), *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
