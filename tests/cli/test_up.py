"""`phalanx up` as a process: start, end, log lines and errors."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from phalanx.client import kubeconfig
from tests.builders import gang, pod
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    next_log_line,
    phalanx,
    split_log,
    start_up,
    wait_until_dead,
)

EXPECTED = {
    ("INFO", "server"),
    ("WARNING", "watchdog"),
}
QUICK = ("--nodes", "0", "--data", ":memory:")


@pytest.fixture(autouse=True)
def own_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The PID file of a control plane in memory is not that of another one on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_ready_line_names_the_server_and_a_private_kubeconfig(
    tmp_path: Path,
) -> None:
    data, config = tmp_path / "data", tmp_path / "kubeconfig"
    with start_up("--nodes", "3", "--data", str(data), "--kubeconfig", str(config)) as process:
        line = first_line(process)
        url = re.fullmatch(rf"ready (https://127\.0\.0\.1:\d+) kubeconfig {config}\n", line)
        assert url is not None, line
        assert kubeconfig.load([config]).server == url[1]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (config, *data.iterdir())}
        assert {mode & 0o077 for mode in modes.values()} == {0}
        assert modes["kubeconfig"] == 0o600
        assert stat.S_IMODE(data.stat().st_mode) == 0o700


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "^C"])
def test_up_stops_at_a_signal_without_an_error_or_a_timeout(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A timeout that is used up is a warning. `make bench` measures the seconds."""
    options = ("--nodes", "50", "--data", str(tmp_path / "data"))
    with start_up(*options) as process:
        url = first_line(process).split()[1]
        process.send_signal(number)
        _, errors = process.communicate()
        lines, other = split_log(errors)
        assert (process.returncode, without_code(other)) == (0, page_line(url))
        # On a busy machine the watchdog may have a report.
        assert [line for line in lines if (line.level, line.component) not in EXPECTED] == []


@pytest.mark.slow
def test_limit_critical_pods_refuses_system_classes_outside_kube_system(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with start_up("--nodes", "0", "--data", str(data), "--limit-critical-pods") as process:
        assert first_line(process).startswith("ready ")
        admin = Kubectl(data / "kubeconfig", "default", tmp_path)
        manifest = pod("p", spec={"priorityClassName": "system-node-critical"})
        del manifest["metadata"]["namespace"]
        text = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **manifest})
        refused = admin.run("create", "-f", "-", text=text)
        assert "insufficient quota to match these scopes: [{PriorityClass In" in refused.stderr
        assert admin.run("-n", "kube-system", "create", "-f", "-", text=text).returncode == 0


def page_line(url: str) -> str:
    """The line about the web page on stderr, without its sign-in code."""
    return f"page {url}/ui/#/sign-in/CODE (signs in once, within 10 min)\n"


def without_code(errors: str) -> str:
    """Replace the sign-in code."""
    return re.sub(r"(?<=/sign-in/)[\w-]{32} ", "CODE ", errors)


def component_pid(process: subprocess.Popen[str]) -> int:
    """The number of the component process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not list child processes")
    return int(children.read_text())


@pytest.mark.slow
def test_killed_component_process_is_started_again_while_the_server_goes_on(tmp_path: Path) -> None:
    data, config, away = tmp_path / "data", tmp_path / "config.yaml", tmp_path / "away.yaml"
    config.write_text(
        "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration}"
    )
    with start_up("--nodes", "2", "--data", str(data), "--config", str(config)) as process:
        assert first_line(process).startswith("ready ")
        admin = Kubectl(data / "kubeconfig", "default", tmp_path)
        assert "[+]scheduler ok" in admin("get", "--raw", "/readyz?verbose")
        # No other component process can start without the file.
        config.rename(away)
        os.kill(component_pid(process), signal.SIGKILL)
        ended = next_log_line(process, "component process has ended, starting it again")
        assert 'status="killed by SIGKILL"' in ended.text
        refused = admin.run("get", "--raw", "/readyz")
        assert "[-]scheduler failed: no scheduler is running" in refused.stderr
        assert admin("get", "--raw", "/livez") == "ok"
        queue = phalanx("queue", "--kubeconfig", str(data / "kubeconfig"))
        assert "Warning: no scheduler is running" in queue.stderr
        admin.apply(*gang("train", 2, cpu="1"))
        assert 'status="exit code 2"' in next_log_line(process, "component process has ended").text
        away.rename(config)
        next_log_line(process, "component process is ready again")
        for name in ("train-0", "train-1"):
            admin("wait", f"pod/{name}", "--for=condition=PodScheduled", WAIT_LIMIT)
        assert admin("get", "--raw", "/readyz") == "ok"
        restarted = component_pid(process)
        process.kill()
        process.wait(COMMAND_TIMEOUT)
        wait_until_dead(restarted)


def test_component_process_ends_when_the_server_process_is_killed() -> None:
    with start_up(*QUICK) as process:
        assert first_line(process).startswith("ready ")
        components = component_pid(process)
        process.kill()
        process.wait(COMMAND_TIMEOUT)
        wait_until_dead(components)


def test_up_without_components_has_no_component_process() -> None:
    with start_up(*QUICK, "--without", "scheduler,controllers,nodes") as process:
        assert first_line(process).startswith("ready ")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert not children.exists() or children.read_text() == ""


def test_metrics_of_both_processes_are_served(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*QUICK, "--kubeconfig", str(config)) as process:
        assert first_line(process).startswith("ready ")
        text = Kubectl(config, "default", tmp_path)("get", "--raw", "/metrics")
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert {"apiserver_request_total", "scheduler_pending_pods"} <= set(families)
    assert len(families) == len(set(families))


def test_restart_keeps_certificates_and_tokens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    credentials: list[bytes] = []
    for nodes in (["--nodes", "2"], ["--nodes", "0", "--recreate-nodes"]):
        with start_up(*nodes, "--data", str(data)) as process:
            assert first_line(process).startswith("ready ")
            found = phalanx("why", "pod/missing", "--kubeconfig", str(data / "kubeconfig"))
            assert "there is no pod" in found.stderr
            process.terminate()
            process.communicate(timeout=COMMAND_TIMEOUT)
        credentials.append((data / "ca.crt").read_bytes() + (data / "tokens.json").read_bytes())
    assert credentials[0] == credentials[1]


def test_in_memory_control_plane_leaves_only_a_kubeconfig(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    with start_up(*QUICK, env=home) as process:
        folder = tmp_path / "phalanx" / "clusters" / "memory"
        assert first_line(process).endswith(f" kubeconfig {folder}/kubeconfig\n")
        process.terminate()
        process.communicate(timeout=COMMAND_TIMEOUT)
    files = [path for path in (tmp_path / "phalanx").rglob("*") if path.is_file()]
    assert files == [folder / "kubeconfig"]


@pytest.mark.slow
def test_feature_gate_switches_off_pod_groups(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    gates = ("--feature-gates", "GenericWorkloadPodGroup=false")
    with start_up(*QUICK, "--kubeconfig", str(config), *gates) as process:
        url = first_line(process).split()[1]
        found = phalanx("why", "podgroup/g", "--kubeconfig", str(config))
        assert 'there is no pod group "g"' in found.stderr
        process.terminate()
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    warning = "feature gate GenericWorkloadPodGroup is now called GenericWorkload"
    expected = (0, f"Warning: {warning}\n{page_line(url)}")
    assert (process.returncode, without_code(split_log(errors)[1])) == expected


def test_basic_workloads_is_always_or_never() -> None:
    done = phalanx("up", *QUICK, "--basic-workloads", "sometimes")
    assert done.returncode == 2
    assert "'sometimes' is not one of 'always', 'never'" in done.stderr


def test_port_in_use_is_an_error_with_advice(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = phalanx("up", "--listen", where, "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert split_log(done.stderr)[1] == (
        f"Error: cannot listen on {where}: Address already in use; choose another with --listen\n"
    )


def test_directory_that_others_may_enter_is_an_error_with_advice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    done = phalanx("up", "--listen", "127.0.0.1:0", "--data", str(data))
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: {data} holds keys but others may enter it; run: chmod 700 {data}\n"
    )
    assert list(data.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = phalanx("up", "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def assert_one_error(stderr: str) -> None:
    lines = stderr.strip().splitlines()
    assert "Traceback" not in stderr
    assert lines[-1].startswith("Error: ")


def test_kubeconfig_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    place = str(tmp_path / "missing" / "kubeconfig")
    done = phalanx("up", "--listen", "127.0.0.1:0", *QUICK, "--kubeconfig", place)
    assert done.returncode == 1
    assert_one_error(done.stderr)
    assert place in done.stderr


def test_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = phalanx("up", "--data", str(file))
    assert done.returncode == 1
    assert_one_error(done.stderr)


@pytest.mark.parametrize(
    "content", ["- {name: No Name}", "- {name: a, room: {cpu: lots}}"], ids=["name", "quantity"]
)
def test_invalid_nodes_are_an_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(content)
    done = phalanx("up", "--listen", "127.0.0.1:0", "--data", ":memory:", "--nodes", str(file),
                   env={"XDG_STATE_HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode in (1, 2)
    assert_one_error(done.stderr)
