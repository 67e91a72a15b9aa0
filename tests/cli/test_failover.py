"""Schedulers that are killed or stopped while they bind gangs on a foreign server."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    start_component,
    start_up,
)
from tests.cli.test_foreign_servers import FORMS, NO_WORKLOAD_APIS, gang

#: Short terms, so that a standby takes over within seconds.
CONFIGURATION = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaseDuration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"},
    "profiles": [{"schedulerName": "phalanx-scheduler"}],
}
GANGS, SIZE = 4, 3


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(0)
def test_every_gang_is_whole_after_each_failover(rounds: int, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config, policy = tmp_path / "kubeconfig", tmp_path / "scheduler.yaml"
    policy.write_text(yaml.safe_dump(CONFIGURATION))
    form = FORMS["custom resources"]
    with ExitStack() as stack:
        up = stack.enter_context(
            start_up(
                "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", "12",
                "--shape", "cpu=4", "--feature-gates", NO_WORKLOAD_APIS,
                "--kubeconfig", str(config),
            )
        )  # fmt: skip
        assert first_line(up).startswith("ready")
        kubectl = Kubectl(config, "default", tmp_path)
        kubectl.apply(*workload_definitions())

        def start() -> subprocess.Popen[str]:
            return stack.enter_context(
                start_component("scheduler", config, "--config", str(policy))
            )

        leader = start()
        # Only a leader prints the line.
        assert first_line(leader).startswith("ready")
        for number in range(rounds):
            standby = start()
            names = [f"gang-{number}-{one}" for one in range(GANGS)]
            kubectl.apply(*(one for name in names for one in gang(form, name, SIZE, "1")))
            # A stopped leader still believes to lead when it goes on.
            leader.send_signal(signal.SIGKILL if number % 2 else signal.SIGSTOP)
            assert first_line(standby).startswith("ready")
            leader.send_signal(signal.SIGCONT)
            pods = [f"pod/{name}-{member}" for name in names for member in range(SIZE)]
            kubectl("wait", "--for=condition=Ready", *pods, WAIT_LIMIT)
            loads = Counter(one["spec"]["nodeName"] for one in kubectl.get("pods")["items"])
            assert max(loads.values()) <= 4
            kubectl("delete", "--wait=false", "podgroups.scheduling.phalanx.dev", *names)
            kubectl("delete", *pods)
            leader.kill()
            leader.wait(COMMAND_TIMEOUT)
            leader = standby
