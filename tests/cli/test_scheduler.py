"""`phalanx scheduler` as a process beside a `phalanx up`: how it begins, goes on, and ends."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import time
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
from tests.cli.commands import COMMAND_TIMEOUT, first_line, phalanx, start_component, start_up

ALONE = ("--without", "scheduler", "--nodes", "2", "--shape", "cpu=4")


scheduler = partial(start_component, "scheduler")


def first_error(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Have it stop: its exit code, what it said and how long that took."""
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    return process.returncode, errors, time.monotonic() - begin


def placed(config: Path, *objects: Object, count: int) -> list[str]:
    """Make these objects and wait until so many pods have a node; which nodes."""

    async def ask() -> list[str]:
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

    return asyncio.run(asyncio.wait_for(ask(), COMMAND_TIMEOUT))


def lease(config: Path, name: str) -> Object:
    async def ask() -> Object:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        try:
            found: Object = (await client.get(LEASE, Key("kube-system", name)))["spec"]
            return found
        finally:
            await client.close()

    return asyncio.run(ask())


def test_beside_a_control_plane_it_does_what_the_scheduler_inside_would(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config) as process:
            line = first_line(process)
            url = kubeconfig.load([config]).server
            assert line == f"ready {url} schedulerName default-scheduler\n"
            assert lease(config, "default-scheduler")["holderIdentity"]
            nodes = placed(config, *gang("a", 4, cpu="2"), count=4)
            assert nodes == ["node-0", "node-0", "node-1", "node-1"]
            code, errors, took = ended(process)
            assert (code, errors) == (0, "")
            assert took < 2
        assert "holderIdentity" not in lease(config, "default-scheduler")


def test_what_it_decides_can_be_read_afterwards(tmp_path: Path) -> None:
    config, log = tmp_path / "kubeconfig", tmp_path / "decisions.jsonl"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config, "--decision-log", str(log), "--listen", "127.0.0.1:0") as process:
            told = first_error(process)
            assert re.fullmatch(r"metrics at http://127\.0\.0\.1:\d+/metrics\n", told)
            assert first_line(process).startswith("ready ")
            placed(config, *gang("a", 2, cpu="1"), count=2)
            with urllib.request.urlopen(told.split()[-1], timeout=5) as answer:
                assert "scheduler_podgroup_schedule_attempts_total" in answer.read().decode()
            assert ended(process)[0] == 0
        done = phalanx("decisions", str(log), "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "podgroup/default/a" in done.stdout


def test_it_waits_for_a_server_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kubeconfig.write(config, f"http://127.0.0.1:{port}", "", "token")
    with scheduler(config) as process:
        assert first_error(process) == (
            "waiting for the API server: "
            f"cannot reach http://127.0.0.1:{port}: Connection refused\n"
        )
        code, errors, took = ended(process)
        assert (code, errors) == (0, "")
        assert took < 2


def test_it_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    config, data = tmp_path / "kubeconfig", tmp_path / "data"
    options = (*ALONE, "--data", str(data), "--kubeconfig", str(config))
    with start_up(*options) as plane:
        port = re.findall(r":(\d+) ", first_line(plane))[0]
        with scheduler(config, "--no-leader-elect") as process:
            assert first_line(process).startswith("ready ")
            placed(config, *gang("a", 2, cpu="1"), count=2)
            plane.terminate()
            plane.communicate(timeout=10)
            assert first_error(process).startswith("lost the API server: cannot reach ")
            with start_up(*options, "--listen", f"127.0.0.1:{port}") as again:
                assert first_line(again).startswith("ready ")
                placed(config, *gang("b", 2, cpu="1"), count=2)
                assert ended(process)[0] == 0


def test_its_name_can_be_chosen(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with scheduler(config, "--scheduler-name", "mine") as process:
            assert first_line(process).endswith("schedulerName mine\n")
            theirs, mine = pod("theirs"), pod("mine", spec={"schedulerName": "mine"})
            placed(config, theirs, mine, count=1)
            assert lease(config, "mine")["holderIdentity"]


def test_a_credential_that_the_server_does_not_know_ends_it(tmp_path: Path) -> None:
    config, wrong = tmp_path / "kubeconfig", tmp_path / "wrong"
    with start_up(*ALONE, "--data", ":memory:", "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        access = kubeconfig.load([config])
        kubeconfig.write(wrong, access.server, access.ca, "no such token")
        done = phalanx("scheduler", "--kubeconfig", str(wrong))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {access.server} does not accept the credential\n"


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
        (("--decision-log", "/no/such/folder/log"), 2, "there is no folder for --decision-log"),
        (("--listen", "here"), 2, "is no HOST:PORT"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, args: tuple[str, ...], code: int, why: str
) -> None:
    (tmp_path / "terms.yaml").write_text(TERMS)
    words = [str(tmp_path / word) if word.endswith(".yaml") else word for word in args]
    done = phalanx("scheduler", "--kubeconfig", str(tmp_path / "none"), *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
