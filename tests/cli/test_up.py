"""`phalanx up` as a process: how it begins, how it ends, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from phalanx.client import kubeconfig
from tests.cli.commands import Kubectl, first_line, phalanx, start_up, wait_until_dead

QUICK = ("--nodes", "0", "--data", ":memory:")


def test_when_ready_it_says_where_and_writes_a_kubeconfig_for_its_owner_alone(
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "^C"])
def test_it_stops_cleanly_within_two_seconds(tmp_path: Path, number: signal.Signals) -> None:
    options = ("--nodes", "50", "--data", str(tmp_path / "data"))
    with start_up(*options) as process:
        url = first_line(process).split()[1]
        begin = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
        took = time.monotonic() - begin
        assert (process.returncode, errors) == (0, page_line(url))
        assert took < 2


def page_line(url: str) -> str:
    """What people are told besides."""
    return f"page {url}/ui/ (sign in with the token of the kubeconfig)\n"


def crew_of(process: subprocess.Popen[str]) -> int:
    """The process beside the server."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not tell which processes belong together")
    return int(children.read_text())


def test_without_its_crew_it_stops_and_says_so(tmp_path: Path) -> None:
    with start_up("--nodes", "1", "--data", str(tmp_path / "data")) as process:
        assert first_line(process).startswith("ready ")
        os.kill(crew_of(process), signal.SIGKILL)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert errors.endswith("Error: stopped: scheduler, controllers and nodes have ended\n")


def test_its_crew_ends_with_it_however_it_ends() -> None:
    with start_up(*QUICK) as process:
        assert first_line(process).startswith("ready ")
        crew = crew_of(process)
        process.kill()
        process.wait(10)
        wait_until_dead(crew)


def test_alone_it_has_no_crew() -> None:
    with start_up(*QUICK, "--without", "scheduler,controllers,nodes") as process:
        assert first_line(process).startswith("ready ")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert not children.exists() or children.read_text() == ""


def test_it_tells_what_both_of_its_processes_measure(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*QUICK, "--kubeconfig", str(config)) as process:
        assert first_line(process).startswith("ready ")
        text = Kubectl(config, "default", tmp_path)("get", "--raw", "/metrics")
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert {"apiserver_request_total", "scheduler_pending_pods"} <= set(families)
    assert len(families) == len(set(families))


def test_what_was_kept_is_there_again_with_the_same_keys(tmp_path: Path) -> None:
    data = tmp_path / "data"
    kept: list[bytes] = []
    for nodes in ("2", "0"):
        with start_up("--nodes", nodes, "--data", str(data)) as process:
            assert first_line(process).startswith("ready ")
            found = phalanx("why", "pod/nobody", "--kubeconfig", str(data / "kubeconfig"))
            assert "there is no pod" in found.stderr
            process.terminate()
            process.communicate(timeout=10)
        kept.append((data / "ca.crt").read_bytes() + (data / "tokens.json").read_bytes())
    assert kept[0] == kept[1]


def test_in_memory_nothing_is_left_but_a_kubeconfig(tmp_path: Path) -> None:
    home = {"XDG_STATE_HOME": str(tmp_path)}
    with start_up(*QUICK, env=home) as process:
        assert first_line(process).endswith(f"kubeconfig {tmp_path}/phalanx/kubeconfig\n")
        process.terminate()
        process.communicate(timeout=10)
    assert [path.name for path in (tmp_path / "phalanx").iterdir()] == ["kubeconfig"]


def test_features_can_be_switched_off(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    gates = ("--feature-gates", "GenericWorkloadPodGroup=false")
    with start_up(*QUICK, "--kubeconfig", str(config), *gates) as process:
        url = first_line(process).split()[1]
        found = phalanx("why", "podgroup/g", "--kubeconfig", str(config))
        assert 'there is no pod group "g"' in found.stderr
        process.terminate()
        _, errors = process.communicate(timeout=10)
    told = "feature gate GenericWorkloadPodGroup is now called GenericWorkload"
    assert (process.returncode, errors) == (0, f"Warning: {told}\n{page_line(url)}")


def test_whether_basic_jobs_get_workloads_is_always_or_never() -> None:
    done = phalanx("up", *QUICK, "--basic-workloads", "sometimes")
    assert done.returncode == 2
    assert "'sometimes' is not one of 'always', 'never'" in done.stderr


def test_a_port_that_is_taken_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = phalanx("up", "--listen", where, "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: cannot listen on {where}: Address already in use; choose another with --listen\n"
    )


def test_a_folder_that_others_may_enter_is_refused_with_a_way_out(tmp_path: Path) -> None:
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
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = phalanx("up", "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def assert_one_sentence(stderr: str) -> None:
    lines = stderr.strip().splitlines()
    assert "Traceback" not in stderr
    assert lines[-1].startswith("Error: ")


def test_a_kubeconfig_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    place = str(tmp_path / "missing" / "kubeconfig")
    done = phalanx("up", "--listen", "127.0.0.1:0", *QUICK, "--kubeconfig", place)
    assert done.returncode == 1
    assert_one_sentence(done.stderr)
    assert place in done.stderr


def test_a_file_in_place_of_the_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = phalanx("up", "--data", str(file))
    assert done.returncode == 1
    assert_one_sentence(done.stderr)


@pytest.mark.parametrize(
    "content", ["- {name: No Name}", "- {name: a, room: {cpu: lots}}"], ids=["name", "quantity"]
)
def test_nodes_that_cannot_be_are_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(content)
    done = phalanx("up", "--listen", "127.0.0.1:0", "--data", ":memory:", "--nodes", str(file),
                   env={"XDG_STATE_HOME": str(tmp_path)})  # fmt: skip
    assert done.returncode in (1, 2)
    assert_one_sentence(done.stderr)
