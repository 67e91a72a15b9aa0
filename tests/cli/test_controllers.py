"""`phalanx controllers` as a process beside a `phalanx up`: how it begins, goes on, and ends."""

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
from tests.cli.commands import COMMAND_TIMEOUT, first_line, phalanx, start_component, start_up
from tests.controllers.jobs.job_controller_harness import job

ALONE = ("--without", "controllers", "--nodes", "1", "--data", ":memory:")


controllers = partial(start_component, "controllers")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, float]:
    """Have it stop: its exit code, what it said and how long that took."""
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    return process.returncode, errors, time.monotonic() - begin


def submitted(config: Path, made: Object) -> list[str]:
    """Make a Job and wait until it has its pods; in which groups those are."""

    async def ask() -> list[str]:
        client = kubeconfig.create_client(kubeconfig.load([config]))
        try:
            listing = await client.list(JOB)
            await client.create(JOB, made)
            async with aclosing(client.watch(JOB, since=listing.revision)) as events:
                async for event in events:
                    status = event.object.get("status", {})
                    if status.get("active") == made["spec"]["parallelism"]:
                        break
            lease = await client.get(LEASE, Key("kube-system", "phalanx-controllers"))
            assert lease["spec"]["holderIdentity"]
            pods = (await client.list(POD)).items
            groups = [pod["spec"].get("schedulingGroup") or {} for pod in pods]
            return sorted(group.get("podGroupName", "") for group in groups)
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(ask(), COMMAND_TIMEOUT))


def page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_beside_a_control_plane_they_do_what_those_inside_would(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with controllers(config, "--controllers", "*,-garbage") as process:
            line = first_line(process)
            url = kubeconfig.load([config]).server
            assert re.fullmatch(rf"ready {url} controllers podgroup-protection,.*\bjob,.*\n", line)
            assert "garbage" not in line
            groups = submitted(config, job(gang=True, parallelism=2, completions=2))
            assert len(set(groups)) == 1
            assert groups[0].startswith("train-")
            code, errors, took = ended(process)
            assert (code, errors) == (0, "")
            assert took < 2


def test_it_answers_how_it_is_and_what_it_has_measured(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--kubeconfig", str(config)) as plane:
        assert first_line(plane).startswith("ready ")
        with controllers(config, "--listen", "127.0.0.1:0") as process:
            assert first_line(process).startswith("ready ")
            assert process.stderr is not None
            told = process.stderr.readline()
            base = told.removeprefix("metrics at ").removesuffix("/metrics\n")
            assert page(f"{base}/livez") == (200, "ok")
            assert page(f"{base}/readyz") == (200, "ok")
            code, text = page(f"{base}/metrics")
            assert code == 200
            for name in ("job", "garbage", "namespace", "podgroup_protection", "replica_groups"):
                assert f'workqueue_depth{{name="{name}"}} ' in text
            assert page(f"{base}/elsewhere")[0] == 404
            plane.terminate()
            plane.communicate(timeout=10)
            deadline = time.monotonic() + COMMAND_TIMEOUT
            while page(f"{base}/readyz")[0] == 200:
                assert time.monotonic() < deadline
            assert "cannot reach " in page(f"{base}/readyz")[1]
            assert page(f"{base}/livez") == (200, "ok")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ((), 1, "there is no kubeconfig at "),
        (("--controllers", "*,-nonsense"), 2, "'nonsense' is no controller; there are "),
        (("--feature-gates", "Nonsense=true"), 2, "Nonsense"),
        (("--basic-workloads", "sometimes"), 2, "'sometimes' is not one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, args: tuple[str, ...], code: int, why: str
) -> None:
    done = phalanx("controllers", "--kubeconfig", str(tmp_path / "none"), *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr
