"""`phalanx record` and `phalanx replay` as processes, against a control plane on a port."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phalanx.cli.main import main
from tests.cli.cli_user import CliUser, gang_job
from tests.sim.recording.recorded_cluster import RecordedScenario
from tests.sim.recording.test_replay_check import move, postpone
from tools.control_plane import ControlPlane

TEXT = """
nodes: {count: 2, each: {cpu: 4}}
at 0: {gang: first, pods: 4, each: {cpu: 2}, run: 30s}
at 1: {gang: second, pods: 4, each: {cpu: 2}, run: 20s}
at 2: {gang: third, pods: 1, each: {cpu: 1}, run: 5s}
until: 100
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of three gangs."""
    path = tmp_path_factory.mktemp("recordings") / "monday.jsonl"
    path.write_text("".join(f"{line}\n" for line in RecordedScenario(TEXT).lines))
    return path


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_replay_of_a_recording_equals_it(recording: Path) -> None:
    code, output = run("replay", recording, "--check")
    assert code == 0
    last = "The replay equals the recording: 3 jobs started as recorded, within 2 s."
    assert output.splitlines()[-1] == last


def test_replay_with_another_policy_has_the_report_of_simulate(
    recording: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    options = ("--nodes", 5, "--shape", "cpu=4", "--html", page, "-o", "json")
    code, output = run("replay", recording, *options)
    report = json.loads(output)
    assert (code, report["jobs"], report["unfinished"], report["nodes"]) == (0, 3, 0, 5)
    assert report["wait"]["maxSeconds"] < 1
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert run("replay", recording, "--reservation", "strict")[0] == 0


def test_difference_has_exit_code_1_and_names_its_cause(recording: Path, tmp_path: Path) -> None:
    late = tmp_path / "late.jsonl"
    lines = postpone(recording.read_text().splitlines(), "second", 35.0)
    late.write_text("".join(f"{line}\n" for line in lines))
    code, output = run("replay", late, "--check")
    assert code == 1
    found = output.partition("differ from the recording.\n\n")[2].splitlines()
    assert found[0] == "First difference:"
    assert found[1].endswith(": podgroup/second starts 35 s earlier in the replay")
    cause = "    likely cause: podgroup/third, which is behind it, started before it in the cluster"
    assert found[2].startswith(cause)
    code, output = run("replay", late, "--check", "-o", "json")
    check = json.loads(output)["check"]
    assert (code, check["jobs"], check["differences"][0]["name"]) == (1, 3, "second")
    assert run("replay", late, "--check", "--tolerance", "60s")[0] == 0


def test_check_ends_at_the_horizon(recording: Path, tmp_path: Path) -> None:
    code, output = run("replay", recording, "--check", "--horizon", "5s")
    assert code == 0, output
    last = "The replay equals the recording: 1 job started as recorded, within 2 s."
    assert output.splitlines()[-1] == last
    late = tmp_path / "late.jsonl"
    lines = postpone(recording.read_text().splitlines(), "second", 35.0)
    late.write_text("".join(f"{line}\n" for line in lines))
    code, output = run("replay", late, "--check", "--horizon", "40s")
    assert (code, "podgroup/second starts 35 s earlier in the replay" in output) == (1, True)


def test_page_never_replaces_the_recording(recording: Path) -> None:
    before = recording.read_bytes()
    code, output = run("replay", recording, "--html", recording)
    assert (code, "is the input file" in output) == (2, True)
    assert recording.read_bytes() == before


def test_other_nodes_of_equal_score_decide_the_exit_code_only_if_asked(
    recording: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.jsonl"
    lines = move(recording.read_text().splitlines(), "third-0")
    moved.write_text("".join(f"{line}\n" for line in lines))
    code, output = run("replay", moved, "--check")
    assert code == 0
    sentence = "3 of 3 jobs start in time, within 2 s; 1 of them on other nodes of equal score."
    assert f"\n{sentence}\n\nOn other nodes of equal score:\n" in output
    assert re.search(r"\n  at \S+ s: podgroup/third runs on node-\d instead of node-\d ", output)
    code, output = run("replay", moved, "--check", "--exact-nodes")
    assert (code, "1 of 3 jobs differ from the recording." in output) == (1, True)


def test_file_that_is_no_recording_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    expected = {
        root / "examples/simulate-fragmentation/packed.yaml": "a simulation file",
        root / "tests/sim/data/KTH-SP2-1996-2.1-cln.swf.gz": "a trace in the format swf",
        root / "tests/sim/data/philly-2017-10.csv.gz": "a trace in the format philly",
    }
    for path, what in expected.items():
        message = f"{path} is {what}, not a recording; run: phalanx simulate -f {path}"
        assert run("replay", path) == (1, f"Error: {message}\n")
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(b"\x1f\x8b, and no more")
    code, output = run("replay", damaged)
    assert (code, "cannot be decompressed" in output) == (1, True)


def test_recording_is_a_trace_for_simulate_and_compare(recording: Path, tmp_path: Path) -> None:
    code, output = run("simulate", "-f", recording, "-o", "json")
    assert (code, json.loads(output)["jobs"]) == (0, 3)
    more = tmp_path / "more.yaml"
    more.write_text(f"workload: {recording}\ncluster: 4\nshape: cpu=4\n")
    code, output = run("compare", recording, more, "-o", "json")
    assert code == 0
    assert json.loads(output)["differences"][0]["waitSeconds"]["mean"] < 0


def test_only_pods_of_a_named_scheduler_are_simulated(recording: Path) -> None:
    code, output = run("replay", recording, "--scheduler", "other")
    assert code == 1
    assert "no recorded job names the scheduler other" in output
    assert run("replay", recording, "--scheduler", "default-scheduler", "--check")[0] == 0


def test_wrong_input_is_named(recording: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(recording.read_text() + '{"is":"cat","at":9}\n')
    code, output = run("replay", bad)
    count = len(recording.read_text().splitlines())
    assert code == 1
    assert output.startswith(f"Error: {bad}, line {count + 1}: is: invalid value 'cat'")
    assert run("replay", bad, "--lenient")[0] == 0
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert run("replay", empty) == (1, f"Error: {empty}: the file is empty\n")
    assert run("replay", recording, "--check", "--nodes", 3)[0] == 2
    assert run("replay", tmp_path / "none.jsonl")[0] == 2


@pytest.mark.slow
def test_same_recording_gives_the_same_bytes_under_any_hash_seed(recording: Path) -> None:
    code = "from phalanx.cli.main import main; main()"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, "replay", str(recording), "--check", "-o", "json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


def start_recording(plane: ControlPlane, path: Path, *options: str) -> subprocess.Popen[str]:
    """Start a recorder and wait until it records."""
    config = ("--kubeconfig", str(plane.kubeconfig))
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "record", str(path), *options, *config],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Recording to"):
            return process
    raise AssertionError(f"the recorder ended with {process.wait()}")


def stop(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    _, _ = process.communicate()
    return process.returncode


@pytest.mark.slow
def test_live_control_plane_is_recorded_and_replayed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("all.jsonl", "killed.jsonl", "hidden.jsonl")]
    signals = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
    with ControlPlane("--data", ":memory:", "--nodes", "2") as plane:
        user = CliUser(plane.kubeconfig)
        processes = [
            start_recording(plane, files[0]),
            start_recording(plane, files[1]),
            start_recording(plane, files[2], "-n", user.namespace, "--anonymize"),
        ]
        user.create(gang_job("train", 2, cpu="1", seconds=1))
        # Each look asks the server, so that the recorders have time.
        user.eventually(
            lambda: user.run("queue") and all('"Succeeded"' in one.read_text() for one in files)
        )
        codes = [stop(*pair) for pair in zip(processes, signals, strict=True)]
        again = user.run("record", str(files[0]))
    assert codes == [0, -signal.SIGKILL, 0]
    assert (again.returncode, again.stderr) == (
        1,
        f"Error: {files[0]} exists; choose another name, or delete it\n",
    )
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        code, output = run("replay", file, "--check", "-o", "json")
        assert code == 0, output
        report: dict[str, Any] = json.loads(output)
        assert (report["jobs"], report["check"]["differences"]) == (1, [])
    assert user.namespace not in files[2].read_text()


def test_server_that_disappears_is_reported_and_fails_the_recording(tmp_path: Path) -> None:
    file = tmp_path / "lost.jsonl"
    with ControlPlane("--data", ":memory:", "--nodes", "1") as plane:
        process = start_recording(plane, file)
        url = f"https://127.0.0.1:{plane.access.port}"
    assert process.stderr is not None
    warning = process.stderr.readline()
    assert warning.startswith(f"Warning: cannot reach {url}: ")
    assert warning.endswith("; trying again, changes until then may be missing\n")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 1
    count, error = errors.splitlines()
    assert count.endswith(f" lines in {file}")
    assert error.startswith(f"Error: cannot reach {url}: ")
    assert error.endswith(f"; {file} lacks what has happened since the connection was lost")
    assert '"is":"interrupted"' in file.read_text()


def test_recording_without_nodes_says_why_and_what_to_do(recording: Path, tmp_path: Path) -> None:
    file = tmp_path / "no-nodes.jsonl"
    unseen = '{"is":"unseen","at":0,"resource":"nodes","reason":"forbidden"}'
    header, *lines = recording.read_text().splitlines()
    unseen = json.dumps({**json.loads(unseen), "at": json.loads(header)["at"]})
    kept = [line for line in lines if json.loads(line)["is"] != "node"]
    assert len(kept) < len(lines)
    file.write_text("\n".join([header, unseen, *kept, ""]))
    assert run("replay", file) == (
        1,
        f"Error: {file}: the recording has no nodes, because they could not be read (forbidden); "
        "describe them by --nodes and --shape\n",
    )
    assert run("replay", file, "--nodes", "2", "--shape", "cpu=4")[0] == 0
    code, output = run("replay", file, "--nodes", "0")
    assert (code, "Invalid value for --nodes: must be a whole number from 1" in output) == (2, True)
