"""The fixtures as users use them; the documentation quotes the times of the first three."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client

from phalanx.api.errors import BadRequest, NotFound
from phalanx.api.kinds import CONFIG_MAP, JOB
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.testing import (
    Cluster,
    Phalanx,
    ProgramFailed,
    Served,
    Settings,
    Virtual,
    blocking,
    control_plane,
    virtually,
)
from phalanx.testing.cluster import NotReached
from tests.builders import gang, pod
from tests.conformance.official_client import config_map, connected

HOUR = 3600.0


def job(name: str, pods: int, seconds: int) -> Object:
    """A Job whose pods run for some seconds."""
    container = {"name": "main", "image": "registry.example/main:1"}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": pods, "completions": pods,
            "template": {
                "metadata": {"annotations": {"phalanx.dev/run-seconds": str(seconds)}},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }  # fmt: skip


def settings_map(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


# ---- measured times ------------------------------------------------------------------------------


def test_a_test_that_does_nothing(phalanx: Phalanx) -> None:
    assert phalanx.find("nodes") == []


def test_a_job_of_three_pods_ends(phalanx: Phalanx) -> None:
    phalanx.nodes(3)
    phalanx.apply(job("hello", 3, seconds=0))
    phalanx.wait_for("job", "hello", "Complete")


@pytest.mark.phalanx(nodes=3)
async def test_an_hour_of_virtual_time(phalanx_virtual: Cluster) -> None:
    begin = asyncio.get_running_loop().time()
    await asyncio.sleep(HOUR)
    assert asyncio.get_running_loop().time() == begin + HOUR


# ---- real time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attempt", [1, 2])
def test_tests_do_not_see_objects_of_other_tests(phalanx: Phalanx, attempt: int) -> None:
    assert [one["metadata"]["name"] for one in phalanx.find("configmaps")] == []
    phalanx.apply(settings_map("mine"))


@pytest.mark.phalanx(nodes=2, room={"cpu": 3})
def test_any_client_connects_with_the_kubeconfig(phalanx: Served) -> None:
    with connected(phalanx.kubeconfig) as api:
        core: Any = client.CoreV1Api(api)
        nodes = core.list_node().items
        core.create_namespaced_config_map("default", config_map("theirs", a="b"))
        assert api.configuration.host == phalanx.url
    assert [node.status.capacity["cpu"] for node in nodes] == ["3", "3"]
    assert phalanx.get("cm", "theirs")["data"] == {"a": "b"}


def test_program_gets_the_kubeconfig_in_its_environment(phalanx: Served, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(os.environ['KUBECONFIG'])\n"
    )
    with phalanx.program(sys.executable, script) as process:
        assert process.wait() == 0
    assert (tmp_path / "seen").read_text() == str(phalanx.kubeconfig)


def test_program_with_an_exit_code_fails_the_test(phalanx: Served) -> None:
    with pytest.raises(AssertionError, match="ended with exit code 3"):  # noqa: SIM117
        with phalanx.program(sys.executable, "-c", "raise SystemExit(3)") as process:
            process.wait()


def test_program_that_dies_ends_a_wait_with_its_output(phalanx: Served) -> None:
    source = "print('no rights'); raise SystemExit(4)"
    with (
        pytest.raises(ProgramFailed, match=r"ended with exit code 4:\n  no rights"),
        phalanx.program(sys.executable, "-c", source),
    ):
        phalanx.wait_for("pod", "never", "Running", timeout=600)


def test_program_that_ends_well_does_not_end_a_wait(phalanx: Served) -> None:
    phalanx.nodes(1)
    with phalanx.program(sys.executable, "-c", "") as process:
        process.wait()
        phalanx.apply(pod("late"))
        phalanx.wait_for("pod", "late", "Running")


def test_output_of_a_program_is_printed_at_the_end(
    phalanx: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    with phalanx.program(sys.executable, "-c", "print('hello')") as process:
        process.wait()
    assert capsys.readouterr().out == "hello\n"


def test_control_plane_needs_no_pytest() -> None:
    with control_plane(nodes=2) as plane:
        assert plane.kubeconfig.exists()
        assert len(plane.find("nodes")) == 2
    assert not plane.kubeconfig.exists()


def test_program_is_stopped_at_the_end_of_the_context(phalanx: Served) -> None:
    with phalanx.program(sys.executable, "-c", "import time; time.sleep(600)") as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_program_ends_with_everything_that_it_has_started(phalanx: Served, tmp_path: Path) -> None:
    # The pipe is closed when the last process that has opened it has ended.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with phalanx.program("sh", "-c", 'sleep 600 > "$0" & wait', pipe):
        reader = os.open(pipe, os.O_RDONLY)
    with open(reader, "rb") as file:
        is_closed, _, _ = select.select([file], [], [], 30)
    assert is_closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_signal_ends_the_run_and_its_programs(
    phalanx: Served, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    # SIGHUP is ignored in a run that nohup has started.
    request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt), phalanx.program("sleep", "600") as process:
        signal.raise_signal(number)
    assert process.wait() == -signal.SIGTERM
    assert signal.getsignal(number) is signal.SIG_DFL


def run_until_ready(
    phalanx: Served, folder: Path, on_sigterm: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a program that handles SIGTERM; within the context, its handler is set."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    source = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, {on_sigterm})\n"
        "open(sys.argv[1], 'w').close()\n"
        "time.sleep(600)\n"
    )

    @contextmanager
    def run() -> Iterator[subprocess.Popen[bytes]]:
        with phalanx.program(sys.executable, "-c", source, pipe) as process:
            pipe.read_bytes()
            yield process

    return run()


def test_program_has_time_to_end_itself(
    phalanx: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = "lambda *_: (time.sleep(0.2), print('cleaned up'), sys.exit())"
    with run_until_ready(phalanx, tmp_path, handler) as process:
        pass
    assert process.returncode == 0
    assert capsys.readouterr().out == "cleaned up\n"


def test_program_that_does_not_end_is_killed_after_its_time(
    phalanx: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "_TERMINATE_TIMEOUT", 0.1)
    with run_until_ready(phalanx, tmp_path, "signal.SIG_IGN") as process:
        pass
    assert process.wait() == -signal.SIGKILL


def test_second_interrupt_kills_a_program_that_takes_its_time(
    phalanx: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt("second")

    monkeypatch.setattr(blocking, "time", SimpleNamespace(sleep=interrupt, monotonic=monotonic))
    with (
        pytest.raises(KeyboardInterrupt, match="second"),
        run_until_ready(phalanx, tmp_path, "signal.SIG_IGN") as process,
    ):
        raise KeyboardInterrupt
    assert process.wait() == -signal.SIGKILL


def test_program_that_does_not_start_fails_the_test(phalanx: Served) -> None:
    with (
        pytest.raises(ProgramFailed, match=r"\./none does not start: No such file or directory"),
        phalanx.program("./none"),
    ):
        pass


@pytest.mark.phalanx(virtual=True)
def test_object_that_never_appears_is_reported_with_the_others(phalanx: Phalanx) -> None:
    phalanx.apply({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "theirs"}})
    phalanx.apply(settings_map("mine"), namespace="theirs")
    others = (
        r"after 30 s:\n  there is none\nother configmaps \(\d\):\n(.*\n)*  ConfigMap theirs/mine"
    )
    with pytest.raises(NotReached, match=others):
        phalanx.wait_for("configmap", "mine", "Ready", timeout=30)


@pytest.mark.phalanx(virtual=True)
def test_manifest_without_a_kind_is_rejected(phalanx: Phalanx) -> None:
    with pytest.raises(BadRequest, match="not a Kubernetes object: apiVersion or kind is missing"):
        phalanx.apply({"metadata": {"name": "x"}})


@pytest.mark.phalanx(virtual=True)
def test_goal_that_is_not_reached_is_reported_with_the_status(phalanx: Phalanx) -> None:
    phalanx.apply(pod("lonely"))
    phalanx.wait_for("pod", "lonely", lambda found: found["status"]["conditions"])
    with pytest.raises(NotReached) as failed:
        phalanx.wait_for("pod", "lonely", "Running", timeout=30)
    message = str(failed.value)
    assert message.startswith(
        "Pod default/lonely has not reached Running after 30 s:\n"
        "  Pod default/lonely: phase Pending; "
        "PodScheduled=False (Unschedulable: no nodes available to schedule pods)\n"
        "phalanx why pod/lonely:\n  Pod default/lonely never fits: the cluster has no nodes."
    )
    assert "\n  Warning FailedScheduling Pod/lonely" in message


@pytest.mark.phalanx(virtual=True)
def test_failed_wait_for_a_custom_kind_lists_pods_and_events(phalanx: Phalanx) -> None:
    phalanx.apply(pod("lonely"), settings_map("x"))
    phalanx.wait_for("pod", "lonely", lambda found: found["status"]["conditions"])
    with pytest.raises(NotReached, match=r"pods \(1\):\n  Pod default/lonely: phase Pending"):
        phalanx.wait_for("configmap", "x", "Ready", timeout=30)


@pytest.mark.phalanx(nodes=1, gates={"GenericWorkload": False})
def test_feature_gate_is_switched_off(phalanx: Phalanx) -> None:
    with pytest.raises(NotFound, match='the server has no kind "podgroup"'):
        phalanx.find("podgroup")


@pytest.mark.phalanx(nodes=1, without=["nodes"])
def test_without_nodes_the_test_can_act_as_the_kubelet(phalanx: Phalanx) -> None:
    phalanx.apply(pod("idle"))
    phalanx.wait_for("pod", "idle", "PodScheduled")
    assert phalanx.get("pod", "idle")["status"]["phase"] == "Pending"


# ---- virtual time --------------------------------------------------------------------------------


async def test_an_hour_of_work_is_waited_for(phalanx_virtual: Cluster) -> None:
    await phalanx_virtual.nodes(1)
    await phalanx_virtual.apply(job("long", 1, seconds=3600))
    await phalanx_virtual.wait_for("job", "long", "Complete", timeout=2 * HOUR)
    assert asyncio.get_running_loop().time() > HOUR


async def test_a_controller_runs_beside_the_test(phalanx_virtual: Cluster) -> None:
    async def suspend(api: Client) -> None:
        await asyncio.sleep(60)
        await api.patch(JOB, Key("default", "long"), {"spec": {"suspend": True}})

    await phalanx_virtual.nodes(1)
    await phalanx_virtual.apply(job("long", 1, seconds=3600))
    phalanx_virtual.start(suspend(phalanx_virtual.client))
    await phalanx_virtual.wait_for("job", "long", "Suspended", timeout=120)
    await phalanx_virtual.wait_for_all("pods", "Running", count=0)


def test_a_controller_that_fails_fails_the_test() -> None:
    async def fail() -> None:
        raise ValueError("the controller failed")

    async def wait(cluster: Cluster) -> None:
        cluster.start(fail())
        await asyncio.sleep(HOUR)

    with pytest.raises(ValueError, match="the controller failed"):  # noqa: SIM117
        with virtually(Settings()) as found:
            found.drive(wait(found.cluster))


def test_control_plane_that_does_not_start_leaves_no_socket_open() -> None:
    with warnings.catch_warnings(record=True, action="always") as caught:
        with pytest.raises(BadRequest), control_plane(nodes=1, room={"cpu": "many"}):
            pass
        gc.collect()
    assert [one.message for one in caught if one.category is ResourceWarning] == []


def test_virtual_time_is_refused_where_an_event_loop_runs() -> None:
    async def start() -> None:
        with virtually(Settings()):
            pass

    with pytest.raises(RuntimeError, match="an event loop runs in this thread already"):
        asyncio.run(start())


@pytest.mark.phalanx(virtual=True, nodes=1)
def test_virtual_time_without_async(phalanx: Virtual) -> None:
    phalanx.apply(job("long", 1, seconds=600))
    phalanx.sleep(300)
    assert [one["status"]["phase"] for one in phalanx.find("pods")] == ["Running"]
    phalanx.sleep(301)
    phalanx.wait_for("job", "long", "Complete", timeout=1)


def test_same_seed_gives_the_same_names() -> None:
    def names(seed: int) -> list[str]:
        with virtually(Settings(nodes=2, seed=seed)) as found:
            found.apply(job("hello", 2, seconds=0))
            pods = found.wait_for_all("pods", "Succeeded", count=2)
            return [one["metadata"]["name"] for one in pods]

    assert names(1) == names(1) != names(2)


async def test_a_test_may_have_two_clusters(phalanx: Phalanx, phalanx_virtual: Cluster) -> None:
    phalanx.apply(settings_map("mine"))
    await asyncio.sleep(HOUR / 60)
    assert await phalanx_virtual.find("configmaps") == []


# ---- the methods ---------------------------------------------------------------------------------


async def test_a_gang_that_does_not_fit_is_explained(phalanx_virtual: Cluster) -> None:
    await phalanx_virtual.nodes(1, cpu=2)
    await phalanx_virtual.apply(*gang("train", 2, cpu="2"))
    found = await phalanx_virtual.wait_for(
        "pod", "train-0", lambda one: one["status"]["conditions"]
    )
    assert found["status"]["phase"] == "Pending"
    assert "Insufficient cpu" in await phalanx_virtual.why("podgroup/train")


async def test_deleted_job_is_deleted_with_its_pods(phalanx_virtual: Cluster) -> None:
    await phalanx_virtual.nodes(1)
    await phalanx_virtual.apply(job("long", 1, seconds=3600))
    [running] = await phalanx_virtual.wait_for_all("pods", "Running", count=1)
    await phalanx_virtual.delete("job", "long")
    await phalanx_virtual.wait_gone("pod", running["metadata"]["name"], timeout=120)
    assert await phalanx_virtual.find("jobs.batch") == []


async def test_apply_generates_a_name(phalanx_virtual: Cluster) -> None:
    unnamed = {**settings_map(""), "metadata": {"generateName": "mine-"}}
    [made] = await phalanx_virtual.apply(unnamed)
    assert made["metadata"]["name"].startswith("mine-")
    assert unnamed["metadata"] == {"generateName": "mine-"}


async def test_nodes_added_later_get_new_names(phalanx_virtual: Cluster) -> None:
    first = await phalanx_virtual.nodes(2)
    second = await phalanx_virtual.nodes(1, room={"example.com/gpu": 4}, labels={"pool": "gpu"})
    assert (first, second) == (["node-0", "node-1"], ["node-2"])
    [found] = await phalanx_virtual.find("nodes", selector="pool=gpu")
    assert found["status"]["capacity"]["example.com/gpu"] == "4"


async def test_wait_for_an_object_that_appears_and_disappears(phalanx_virtual: Cluster) -> None:
    async def come_and_go() -> None:
        await asyncio.sleep(5)
        await phalanx_virtual.apply(settings_map("late"), namespace="kube-system")
        await asyncio.sleep(5)
        await phalanx_virtual.client.delete(CONFIG_MAP, Key("kube-system", "late"))

    phalanx_virtual.start(come_and_go())
    here = "kube-system"
    await phalanx_virtual.wait_for("configmap", "late", lambda one: True, namespace=here)
    await phalanx_virtual.wait_gone("configmap", "late", namespace=here)
    assert 10 <= asyncio.get_running_loop().time() < 11
