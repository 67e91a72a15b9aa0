"""`phalanx controllers` as a process with a `phalanx up`."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest

from phalanx.api.kinds import JOB, LEASE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    first_line,
    next_log_line,
    phalanx,
    split_log,
    start_component,
    start_up,
)
from tests.controllers.jobs.job_controller_harness import job

ALONE = ("--without", "controllers", "--nodes", "1", "--data", ":memory:")


controllers = partial(start_component, "controllers")


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Stop a process; return its exit code and the rest of stderr."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    return process.returncode, errors


def submit(config: Path, job: Object) -> list[str]:
    """Create a Job and wait until it has its pods; return the names of their groups."""

    async def run() -> list[str]:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        try:
            listing = await client.list(JOB)
            await client.create(JOB, job)
            async with aclosing(client.watch(JOB, since=listing.revision)) as events:
                async for event in events:
                    status = event.object.get("status", {})
                    if status.get("active") == job["spec"]["parallelism"]:
                        break
            lease = await client.get(LEASE, Key("kube-system", "phalanx-controllers"))
            assert lease["spec"]["holderIdentity"]
            pods = (await client.list(POD)).items
            groups = [pod["spec"].get("schedulingGroup") or {} for pod in pods]
            return sorted(group.get("podGroupName", "") for group in groups)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(run(), COMMAND_TIMEOUT))


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=COMMAND_TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_standalone_controllers_replace_those_of_the_control_plane(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with controllers(config, "--controllers", "*,-garbage") as process:
            line = first_line(process)
            url = kubeconfig.load([config]).server
            assert re.fullmatch(rf"ready {url} controllers podgroup-protection,.*\bjob,.*\n", line)
            assert "garbage" not in line
            groups = submit(config, job(gang=True, parallelism=2, completions=2))
            assert len(set(groups)) == 1
            assert groups[0].startswith("train-")
            code, errors = stop(process)
            lines, other = split_log(errors)
            assert (code, other) == (0, "")
            assert {line.level for line in lines} == {"INFO"}


def test_controllers_serve_health_and_metrics(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with controllers(config, "--listen", "127.0.0.1:0") as process:
            assert first_line(process).startswith("ready ")
            line = next_log_line(process, "serving metrics")
            base = line.text.removeprefix("serving metrics url=").removesuffix("/metrics")
            assert get(f"{base}/livez") == (200, "ok")
            assert get(f"{base}/readyz") == (200, "ok")
            code, text = get(f"{base}/metrics")
            assert code == 200
            for name in ("job", "garbage", "namespace", "podgroup_protection", "replica_groups"):
                assert f'workqueue_depth{{name="{name}"}} ' in text
            assert get(f"{base}/elsewhere")[0] == 404
            plane.terminate()
            plane.communicate(timeout=COMMAND_TIMEOUT)
            deadline = time.monotonic() + COMMAND_TIMEOUT
            while get(f"{base}/readyz")[0] == 200:
                assert time.monotonic() < deadline
            assert "cannot reach " in get(f"{base}/readyz")[1]
            assert get(f"{base}/livez") == (200, "ok")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ((), 1, "there is no kubeconfig at "),
        (("--controllers", "*,-nonsense"), 2, 'unknown controller "nonsense"; available: '),
        (("--feature-gates", "Nonsense=true"), 2, "Nonsense"),
        (("--basic-workloads", "sometimes"), 2, "'sometimes' is not one of"),
    ],
)  # fmt: skip
def test_controllers_reject_wrong_usage_in_one_line(
    tmp_path: Path, args: tuple[str, ...], code: int, why: str
) -> None:
    done = phalanx("controllers", "--kubeconfig", str(tmp_path / "none"), *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
