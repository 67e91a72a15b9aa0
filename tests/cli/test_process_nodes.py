"""Process nodes in earnest: a control plane as a process, and pods that really run."""

from __future__ import annotations

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
from tests.cli.commands import ROOT, Kubectl, first_line, is_alive, start_up, wait_until_dead
from tests.cli.test_nodes import nodes

EXAMPLES = ROOT / "examples" / "06-barrier"
BARRIER = EXAMPLES / "barrier.yaml"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A control plane whose nodes run processes, of whom the default account may."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    home = tmp_path_factory.mktemp("processes")
    config = home / "kubeconfig"
    options = ("--run-processes", "--programs", str(EXAMPLES), "--kubeconfig", str(config))
    with start_up("--data", ":memory:", *options, env={"SECRET": "ours"}) as process:
        assert first_line(process).startswith("ready ")
        kubectl = Kubectl(config, "default", home)
        role, binding, _ = yaml.safe_load_all(BARRIER.read_text())
        kubectl.apply(role, binding)
        yield kubectl


def pod(name: str, *command: str, spec: Object | None = None, **container: object) -> Object:
    own = {"name": "main", "image": "none", "command": list(command), **container}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [own], **(spec or {})},
    }  # fmt: skip


def python(text: str) -> tuple[str, ...]:
    return ("python3", "-c", text)


def ended(kubectl: Kubectl, made: Object, phase: str = "Succeeded") -> Object:
    """Run a pod to its end; what became of it."""
    kubectl.apply(made)
    name = made["metadata"]["name"]
    kubectl("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{name}", "--timeout=15s")
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
    running("wait", "--for=condition=complete", "job/barrier", "--timeout=15s")
    logs = running("logs", "-l", "batch.kubernetes.io/job-name=barrier").splitlines()
    assert sorted(logs) == sorted(
        line
        for rank, number in enumerate((1, 4, 9, 16))
        for line in (f"rank {rank} of 4 brings {number}", f"rank {rank}: the sum is 30")
    )


# ---- what a process gets -------------------------------------------------------------------------


def test_a_process_gets_its_words_variables_and_folder_and_nothing_else(running: Kubectl) -> None:
    shown = python(
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['HOME']);"
        "print({k: v for k, v in os.environ.items() if k not in ('PATH', 'HOME', 'TMPDIR')})"
    )
    env = [
        {"name": "A", "value": "one"},
        {"name": "B", "value": "$(A) and $(NOBODY) for $$(A)"},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "MOST", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
    ]
    limits = {"limits": {"cpu": "1500m"}}
    made = pod(
        "words", *shown, args=["$(A)", "; echo $HOME"], env=env, workingDir="/deep/down",
        resources=limits,
    )  # fmt: skip
    ended(running, made)
    first, second = running("logs", "words").splitlines()
    words, _, rest = first.partition("] ")
    assert words == "['one', '; echo $HOME'"
    folder, home = rest.split()
    assert folder == f"{home}/deep/down"
    assert not Path(home).exists()
    assert yaml.safe_load(second) == {
        "A": "one", "B": "one and $(NOBODY) for $(A)", "ME": "words", "APP": "words", "MOST": "2",
        "LANG": "C.UTF-8", "HOSTNAME": "words",
    }  # fmt: skip


def test_a_process_is_limited_and_has_a_session_and_no_descriptors(running: Kubectl) -> None:
    shown = python(
        "import os, resource as r\n"
        "print(r.getrlimit(r.RLIMIT_AS)[1], r.getrlimit(r.RLIMIT_CORE)[1])\n"
        "print(os.getsid(0) == os.getpid(), len(os.listdir('/proc/self/fd')) - 1)"
    )
    ended(running, pod("limited", *shown, resources={"limits": {"memory": "1Gi"}}))
    assert running("logs", "limited") == f"{2**30} 0\nTrue 3\n"


def test_an_exit_code_and_a_command_that_is_not_there_are_told(running: Kubectl) -> None:
    failed = ended(running, pod("three", *python("raise SystemExit(3)")), "Failed")
    assert failed["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    missing = ended(running, pod("missing", "no-such-program"), "Failed")
    assert missing["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 127
    assert running("logs", "missing") == "no-such-program: No such file or directory\n"


def test_init_containers_come_first_and_all_share_a_folder(running: Kubectl) -> None:
    first = {"name": "first", "image": "none", "command": [*python("open('made', 'w').write('x')")]}
    main_ = python("import os; print(os.listdir('.'))")
    ended(running, pod("inits", *main_, spec={"initContainers": [first]}))
    assert running("logs", "inits") == "['made']\n"


def test_a_flood_of_output_is_bounded(running: Kubectl) -> None:
    flood = python("for n in range(5000): print('y' * 999)\nprint('end')")
    ended(running, pod("flood", *flood))
    told = running("logs", "flood")
    assert len(told) <= 1024 * 1024
    assert told.endswith("\nend\n")


# ---- restarts and ends ---------------------------------------------------------------------------


def test_a_process_is_asked_to_end_and_given_its_time(running: Kubectl) -> None:
    polite = python(
        "import signal, sys, time\n"
        "def end(*_):\n  print('goodbye', flush=True); time.sleep(0.5); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    running.apply(pod("polite", *polite))
    running("wait", "--for=condition=ready", "pod/polite", "--timeout=15s")
    said(running, "polite", "up\n")
    begin = time.monotonic()
    running("delete", "pod", "polite", "--grace-period=10")
    assert 0.4 < time.monotonic() - begin < 5


def test_a_process_that_does_not_end_is_ended_with_all_that_it_started(running: Kubectl) -> None:
    stubborn = python(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\nif child: print(child, flush=True)\ntime.sleep(60)"
    )
    running.apply(pod("stubborn", *stubborn))
    running("wait", "--for=condition=ready", "pod/stubborn", "--timeout=15s")
    child = int(said(running, "stubborn"))
    running("delete", "pod", "stubborn", "--grace-period=1")
    assert not is_alive(child)


def test_top_shows_what_a_process_really_uses(running: Kubectl) -> None:
    busy = python("import time; kept = b'x' * 50_000_000\nwhile time.process_time() < 60: pass")
    running.apply(pod("busy", *busy))
    deadline = time.monotonic() + 20
    while (shown := running.run("top", "pod", "busy", "--no-headers")).returncode:
        assert time.monotonic() < deadline, shown.stderr
    name, cpu, memory = shown.stdout.split()
    assert name == "busy"
    assert int(cpu.removesuffix("m")) > 0
    assert 50 <= int(memory.removesuffix("Mi")) < 200
    running("delete", "pod", "busy", "--grace-period=1")


def said(kubectl: Kubectl, name: str, text: str = "") -> str:
    """What a pod has said, once that is something."""
    deadline = time.monotonic() + 10
    while not (found := kubectl("logs", name)):
        assert time.monotonic() < deadline
    assert text in ("", found)
    return found


def test_a_container_that_fails_is_started_again_where_the_policy_says_so(
    running: Kubectl,
) -> None:
    made = pod("again", *python("raise SystemExit(1)"), spec={"restartPolicy": "OnFailure"})
    running.apply(made)
    path = "{.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff"
    running("wait", f"--for=jsonpath={path}", "pod/again", "--timeout=15s")
    assert running.get("pod/again")["status"]["phase"] == "Running"
    running("delete", "pod", "again", "--grace-period=1")


def test_a_pod_that_was_active_for_too_long_fails(running: Kubectl) -> None:
    made = pod("slow", *python("import time; time.sleep(60)"), spec={"activeDeadlineSeconds": 1})
    assert ended(running, made, "Failed")["reason"] == "DeadlineExceeded"


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("bare", {"command": []}, "container main: it has no command"),
        ("out", {"workingDir": "/a/../../.."}, "container main: its workingDir leads out"),
        (
            "keys",
            {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            "container main: variable K: process nodes read no secretKeyRef",
        ),
    ],
)
def test_what_a_process_node_does_not_have_is_refused_with_a_reason(
    running: Kubectl, name: str, change: Object, told: str
) -> None:
    status = ended(running, pod(name, "true", **change), "Failed")
    assert status["reason"] == "Refused"
    assert status["message"].startswith(told)


def test_whoever_was_not_allowed_to_runs_nothing(running: Kubectl) -> None:
    running.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}})
    made = pod("forbidden", "true", spec={"serviceAccountName": "nobody"})
    status = ended(running, made, "Failed")
    assert status["message"].startswith("service account default/nobody may not run processes")
    assert "containerStatuses" not in status


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["up", "--listen", "0.0.0.0:0", "--run-processes"], "0.0.0.0 is no loopback address"),
        (["up", "--programs", "."], "--programs is of use with --run-processes only"),
    ],
)
def test_processes_are_refused_where_others_could_send_them(args: list[str], told: str) -> None:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    assert told in done.stderr


def test_nodes_that_run_processes_stay_away_from_servers_elsewhere(tmp_path: Path) -> None:
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
    assert "192.0.2.1 is no loopback address" in done.stderr


# ---- as a process of their own -------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
def test_processes_end_with_the_nodes_that_run_them(tmp_path: Path, is_killed: bool) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config = tmp_path / "kubeconfig"
    with start_up("--nodes", "0", "--data", ":memory:", "--kubeconfig", str(config)) as process:
        first_line(process)
        kubectl = Kubectl(config, "default", tmp_path)
        role, binding, _ = yaml.safe_load_all(BARRIER.read_text())
        with nodes(config, "--nodes", "1", "--run-processes") as own:
            assert first_line(own).endswith(" nodes 1\n")
            text = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
            kubectl.apply(role, binding, pod("a", *python(text)))
            kubectl("wait", "--for=condition=ready", "pod/a", "--timeout=15s")
            pid = int(said(kubectl, "a"))
            assert is_alive(pid)
            own.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
            assert own.wait(timeout=5) == (-signal.SIGKILL if is_killed else 0)
        wait_until_dead(pid)
        if is_killed:
            return
        status = kubectl.get("pod/a")["status"]
        assert status["phase"] == "Failed"
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
