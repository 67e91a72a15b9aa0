"""Process nodes: a control plane whose pods run as processes of this machine."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from phalanx.api.wire import Object
from phalanx.cli.main import main
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    ROOT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    is_alive,
    start_up,
    wait_until_dead,
)
from tests.cli.test_nodes import nodes

EXAMPLES = ROOT / "examples" / "06-barrier"
BARRIER = EXAMPLES / "barrier.yaml"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl of a control plane whose nodes run processes of the default service account."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    home = tmp_path_factory.mktemp("processes")
    config = home / "kubeconfig"
    options = ("--run-processes", "--programs", str(EXAMPLES), "--kubeconfig", str(config))
    devices = ("--devices", "gpu.example.com=4")
    with start_up("--data", ":memory:", *options, *devices, env={"SECRET": "ours"}) as process:
        assert first_line(process).startswith("ready ")
        kubectl = Kubectl(config, "default", home)
        role, binding, _ = yaml.safe_load_all(BARRIER.read_text())
        kubectl.apply(role, binding)
        yield kubectl


def pod(name: str, *command: str, spec: Object | None = None, **container: object) -> Object:
    main = {"name": "main", "image": "none", "command": list(command), **container}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [main], **(spec or {})},
    }  # fmt: skip


def python(text: str) -> tuple[str, ...]:
    return ("python3", "-c", text)


def run_to_end(kubectl: Kubectl, made: Object, phase: str = "Succeeded") -> Object:
    """Run a pod until it has a phase; return its status."""
    kubectl.apply(made)
    name = made["metadata"]["name"]
    kubectl("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{name}", WAIT_LIMIT)
    status: Object = kubectl.get(f"pod/{name}")["status"]
    return status


# ---- the example ---------------------------------------------------------------------------------


def test_workers_of_a_gang_meet_at_a_barrier_and_add_up_a_number(running: Kubectl) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    objects = list(yaml.safe_load_all(BARRIER.read_text()))
    (container,) = objects[-1]["spec"]["template"]["spec"]["containers"]
    container["env"][1]["value"] = str(port)
    running.apply(*objects)
    running("wait", "--for=condition=complete", "job/barrier", WAIT_LIMIT)
    logs = running("logs", "-l", "batch.kubernetes.io/job-name=barrier").splitlines()
    assert sorted(logs) == sorted(
        line
        for rank, number in enumerate((1, 4, 9, 16))
        for line in (f"rank {rank} of 4 brings {number}", f"rank {rank}: the sum is 30")
    )


# ---- what a process gets -------------------------------------------------------------------------


def test_process_gets_its_arguments_variables_and_directory_only(running: Kubectl) -> None:
    shown = python(
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['HOME']);"
        "print({k: v for k, v in os.environ.items() if k not in ('PATH', 'HOME', 'TMPDIR')})"
    )
    env = [
        {"name": "A", "value": "one"},
        {"name": "B", "value": "$(A) and $(UNKNOWN) for $$(A)"},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "MOST", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    limits = {"limits": {"cpu": "1500m"}}
    made = pod(
        "words", *shown, args=["$(A)", "; echo $HOME"], env=env, workingDir="/deep/down",
        resources=limits,
    )  # fmt: skip
    run_to_end(running, made)
    first, second = running("logs", "words").splitlines()
    words, _, rest = first.partition("] ")
    assert words == "['one', '; echo $HOME'"
    folder, home = rest.split()
    assert folder == f"{home}/deep/down"
    assert not Path(home).exists()
    assert yaml.safe_load(second) == {
        "A": "one", "B": "one and $(UNKNOWN) for $(A)", "ME": "words", "APP": "words", "MOST": "2",
        "LANG": "C.UTF-8", "HOSTNAME": "words",
    }  # fmt: skip


def test_process_gets_the_devices_of_its_claims_and_extended_resources(running: Kubectl) -> None:
    selected = {"cel": {"expression": 'device.driver == "gpu.example.com"'}}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    api_version = "resource.k8s.io/v1"
    running.apply(
        {"apiVersion": api_version, "kind": "DeviceClass", "metadata": {"name": "gpu"},
         "spec": {"selectors": [selected], "extendedResourceName": "example.com/gpu"}},
        {"apiVersion": api_version, "kind": "ResourceClaimTemplate", "metadata": {"name": "one"},
         "spec": {"spec": {"devices": {"requests": requests}}}},
    )  # fmt: skip
    shown = python(
        "import os; print(*sorted(f'{k} {v}' for k, v in os.environ.items() if 'CDI' in k))"
    )
    resources = {"claims": [{"name": "my-gpu"}], "limits": {"example.com/gpu": 1}}
    spec = {"resourceClaims": [{"name": "my-gpu", "resourceClaimTemplateName": "one"}]}
    run_to_end(running, pod("devices", *shown, spec=spec, resources=resources))
    found = re.fullmatch(
        "CDI_DEVICES_EXAMPLE_COM_GPU gpu.example.com/container-0-request-0=(gpu-[0-3]) "
        "CDI_DEVICES_MY_GPU gpu.example.com/gpu=(gpu-[0-3])",
        running("logs", "devices").strip(),
    )
    assert found is not None
    assert found[1] != found[2]


def test_process_has_limits_and_a_session_and_no_open_files(running: Kubectl) -> None:
    shown = python(
        "import os, resource as r\n"
        "print(r.getrlimit(r.RLIMIT_AS)[1], r.getrlimit(r.RLIMIT_CORE)[1])\n"
        "print(os.getsid(0) == os.getpid(), len(os.listdir('/proc/self/fd')) - 1)"
    )
    run_to_end(running, pod("limited", *shown, resources={"limits": {"memory": "1Gi"}}))
    assert running("logs", "limited") == f"{2**30} 0\nTrue 3\n"


def test_exit_code_and_missing_command_are_reported(running: Kubectl) -> None:
    failed = run_to_end(running, pod("three", *python("raise SystemExit(3)")), "Failed")
    assert failed["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    missing = run_to_end(running, pod("missing", "no-such-program"), "Failed")
    assert missing["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 127
    assert running("logs", "missing") == "no-such-program: No such file or directory\n"


def test_init_containers_run_first_and_all_share_a_directory(running: Kubectl) -> None:
    first = {"name": "first", "image": "none", "command": [*python("open('made', 'w').write('x')")]}
    main_ = python("import os; print(os.listdir('.'))")
    run_to_end(running, pod("inits", *main_, spec={"initContainers": [first]}))
    assert running("logs", "inits") == "['made']\n"


def test_output_of_a_container_is_bounded(running: Kubectl) -> None:
    flood = python("for n in range(5000): print('y' * 999)\nprint('end')")
    run_to_end(running, pod("flood", *flood))
    output = running("logs", "flood")
    assert len(output) <= 1024 * 1024
    assert output.endswith("\nend\n")


# ---- restarts and ends ---------------------------------------------------------------------------


def test_process_gets_sigterm_and_its_grace_period(running: Kubectl) -> None:
    polite = python(
        "import signal, sys, time\n"
        "def end(*_):\n  print('goodbye', flush=True); time.sleep(0.5); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    running.apply(pod("polite", *polite))
    running("wait", "--for=condition=ready", "pod/polite", WAIT_LIMIT)
    read_logs(running, "polite", "up\n")
    begin = time.monotonic()
    running("delete", "pod", "polite", "--grace-period=200")
    # The process ends by itself after half a second: nothing waits for the grace period.
    assert 0.4 < time.monotonic() - begin < 200


def test_process_that_ignores_sigterm_is_killed_with_its_children(running: Kubectl) -> None:
    stubborn = python(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(60)"
    )
    running.apply(pod("stubborn", *stubborn))
    running("wait", "--for=condition=ready", "pod/stubborn", WAIT_LIMIT)
    child = int(read_logs(running, "stubborn"))
    running("delete", "pod", "stubborn", "--grace-period=1")
    assert not is_alive(child)


@pytest.mark.slow
def test_kubectl_top_shows_the_usage_of_a_process(running: Kubectl) -> None:
    busy = python("import time; kept = b'x' * 50_000_000\nwhile time.process_time() < 60: pass")
    running.apply(pod("busy", *busy))
    deadline = time.monotonic() + COMMAND_TIMEOUT
    while (shown := running.run("top", "pod", "busy", "--no-headers")).returncode:
        assert time.monotonic() < deadline, shown.stderr
    name, cpu, memory = shown.stdout.split()
    assert name == "busy"
    assert int(cpu.removesuffix("m")) > 0
    assert 50 <= int(memory.removesuffix("Mi")) < 200
    running("delete", "pod", "busy", "--grace-period=1")


def read_logs(kubectl: Kubectl, name: str, text: str = "") -> str:
    """Wait until a pod has logged something; return its log, which must be `text` if given."""
    deadline = time.monotonic() + COMMAND_TIMEOUT
    while not (found := kubectl("logs", name)):
        assert time.monotonic() < deadline
    assert text in ("", found)
    return found


def test_failed_container_restarts_if_the_policy_says_so(
    running: Kubectl,
) -> None:
    made = pod("again", *python("raise SystemExit(1)"), spec={"restartPolicy": "OnFailure"})
    running.apply(made)
    path = "{.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff"
    running("wait", f"--for=jsonpath={path}", "pod/again", WAIT_LIMIT)
    assert running.get("pod/again")["status"]["phase"] == "Running"
    running("delete", "pod", "again", "--grace-period=1")


def test_pod_fails_after_its_active_deadline(running: Kubectl) -> None:
    made = pod("slow", *python("import time; time.sleep(60)"), spec={"activeDeadlineSeconds": 1})
    assert run_to_end(running, made, "Failed")["reason"] == "DeadlineExceeded"


# ---- what is rejected ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bare", {"command": []}, "container main: it has no command"),
        ("out", {"workingDir": "/a/../../.."}, "container main: its workingDir is outside"),
        (
            "keys",
            {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "container main: variable K: process nodes do not support secretKeyRef",
        ),
    ],
)
def test_unsupported_pod_fails_with_a_reason(
    running: Kubectl, name: str, change: Object, message: str
) -> None:
    status = run_to_end(running, pod(name, "true", **change), "Failed")
    assert status["reason"] == "Refused"
    assert status["message"].startswith(message)


@pytest.mark.slow
def test_account_without_permission_runs_nothing(running: Kubectl) -> None:
    running.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "limited"}})
    made = pod("forbidden", "true", spec={"serviceAccountName": "limited"})
    status = run_to_end(running, made, "Failed")
    assert status["message"].startswith("service account default/limited may not run processes")
    assert "containerStatuses" not in status


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["up", "--listen", "0.0.0.0:0", "--run-processes"], "0.0.0.0 is not a loopback address"),
        (["up", "--programs", "."], "--programs needs --run-processes"),
    ],
)
def test_run_processes_needs_a_loopback_address(args: list[str], message: str) -> None:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert message in done.stderr


def test_standalone_process_nodes_need_a_loopback_server(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster],
                "contexts": [context], "users": [user],
            }
        )
    )  # fmt: skip
    config.chmod(0o600)
    done = CliRunner().invoke(main, ["nodes", "--kubeconfig", str(config), "--run-processes"])
    assert done.exit_code == 2
    assert "192.0.2.1 is not a loopback address" in done.stderr


# ---- standalone process nodes --------------------------------------------------------------------


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_end_with_their_node(tmp_path: Path, is_killed: bool) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config = tmp_path / "kubeconfig"
    with start_up("--nodes", "0", "--data", ":memory:", "--kubeconfig", str(config)) as process:
        first_line(process)
        kubectl = Kubectl(config, "default", tmp_path)
        role, binding, _ = yaml.safe_load_all(BARRIER.read_text())
        with nodes(config, "--nodes", "1", "--run-processes") as process_nodes:
            assert first_line(process_nodes).endswith(" nodes 1\n")
            text = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
            kubectl.apply(role, binding, pod("a", *python(text)))
            kubectl("wait", "--for=condition=ready", "pod/a", WAIT_LIMIT)
            pid = int(read_logs(kubectl, "a"))
            assert is_alive(pid)
            process_nodes.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
            assert process_nodes.wait(COMMAND_TIMEOUT) == (-signal.SIGKILL if is_killed else 0)
        wait_until_dead(pid)
        if is_killed:
            return
        status = kubectl.get("pod/a")["status"]
        assert status["phase"] == "Failed"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
