from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from phalanx.api.wire import Object
from phalanx.cli.run import run_command
from tests.builders import gang, pod
from tests.cli.cli_user import gang_job
from tests.cli.commands import COMMAND_TIMEOUT, phalanx, start_command

#: Allows the default service account to run processes.
ALLOW = Path(__file__).parents[2] / "examples/tutorial/allow.yaml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "objects.yaml"


def run(
    file: Path, *objects: Object, options: str = "--nodes 2 --shape cpu=8"
) -> tuple[int, str, str]:
    file.write_text(yaml.safe_dump_all(objects))
    done = phalanx("run", "-f", str(file), *options.split())
    return done.returncode, done.stdout, done.stderr


def test_run_prints_progress_and_a_summary(file: Path) -> None:
    code, output, progress = run(
        file, gang_job("short", 2, seconds=4, cpu="5"), *gang("long", 2, namespace="new", cpu="1")
    )
    assert code == 0
    assert "Job/short: running 2/2 on 2 nodes" in progress.splitlines()
    assert "Job/short: ended 2/2" in progress.splitlines()
    summary, *gangs = output.splitlines()
    assert summary.startswith("2 gangs ran, 0 did not, in ")
    assert gangs == [
        "  Job/short  ended 2/2 on node-0 (1), node-1 (1)",
        "  long       running 2/2 on node-0 (1), node-1 (1)",
    ]


def test_one_gang_runs_after_the_other_has_ended(file: Path) -> None:
    code, _, progress = run(
        file, gang_job("first", 2, seconds=2, cpu="8"), gang_job("second", 2, seconds=1, cpu="8")
    )
    assert code == 0
    assert ": waiting 0/2: 0 of 2 members fit: " in progress


def test_run_fails_with_the_reason_of_a_gang_that_cannot_run(file: Path) -> None:
    code, output, progress = run(file, gang_job("fits", 1, cpu="1"), gang_job("big", 3, cpu="8"))
    assert code == 1
    summary, why, *_ = output.splitlines()
    assert summary.startswith("1 gang ran, 1 did not")
    # Progress and summary have the sentence of `phalanx why` about nodes as they are.
    sentence = why.partition("  Job/big   waiting 0/3: ")[2]
    assert sentence.startswith(("0 of 3 members fit: ", "1 of 3 members fit: "))
    assert f"Job/big: waiting 0/3: {sentence}" in progress
    # The end is what `phalanx why` says, and that about empty nodes.
    never = "\n\nJob default/big never fits on these nodes: 2 of 3 members fit: "
    assert f"{never}all nodes run out of cpu.\n" in output
    assert "\nPossible fixes (verified):\n  - " in output


def test_files_may_be_submitted_in_turn(tmp_path: Path) -> None:
    important = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 10,
        "metadata": {"name": "important"},
    }  # fmt: skip
    urgent = gang_job("urgent", 1, seconds=1, cpu="8")
    urgent["spec"]["template"]["spec"]["priorityClassName"] = "important"
    batch = gang_job("batch", 2, seconds=5, cpu="8")
    for number, objects in enumerate(([important, batch], [urgent])):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump_all(objects))
    options = ("--in-turn", "--nodes", "2", "--shape", "cpu=8")
    done = phalanx("run", "-f", str(tmp_path), *options)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
    assert ", interrupted 1 time\n" in done.stdout


def test_run_reports_jobs_without_pods(file: Path) -> None:
    held, stuck = gang_job("held", 1), gang_job("stuck", 1)
    held["spec"]["suspend"] = True
    stuck["metadata"]["namespace"] = "tight"
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}},
        "metadata": {"name": "none", "namespace": "tight"},
    }  # fmt: skip
    code, output, _ = run(file, quota, held, stuck, gang_job("fine", 1))
    assert code == 1
    assert "\n  Job/held is suspended\n" in output
    assert "\n  Job/stuck has no pods: 1 pod is needed at once: exceeded quota: none" in output


def test_summary_names_the_domain_of_a_gang(file: Path) -> None:
    options = "--nodes 4 --shape cpu=8 --topology block=1,rack=2"
    job = gang_job("near", 2, cpu="8")
    key = "topology.kubernetes.io/rack"
    job["spec"]["scheduling"]["schedulingConstraints"] = {"topology": [{"key": key}]}
    code, output, _ = run(file, job, options=options)
    assert code == 0
    assert output.splitlines()[1] == "  Job/near  running 2/2 on node-0 (1), node-1 (1) in rack-0-0"


def test_logs_of_containers_are_printed_at_the_end(file: Path) -> None:
    code, output, _ = run(file, pod("alone", cpu="1"), options="--logs")
    assert (code, output.splitlines()[2]) == (
        0, "alone | default/alone: main started on simulated node node-0",
    )  # fmt: skip
    _, output, _ = run(file, pod("alone", cpu="1"), options="--logs -o json")
    assert len(json.loads(output)["logs"]["alone"]) == 2


def test_gang_that_fails_is_not_one_that_did_not_run(file: Path) -> None:
    job = gang_job("crash", 2, cpu="1")
    stages = {"phalanx.dev/stages": "{run: 0, failure: 1, exitCode: 42}"}
    job["spec"]["template"].setdefault("metadata", {})["annotations"] = stages
    job["spec"]["backoffLimit"] = 0
    code, output, _ = run(file, job)
    assert code == 1
    head, *_, last = output.splitlines()
    assert head.startswith("0 gangs ran, 1 failed, 0 did not run, in ")
    assert re.search(r"; [12] pods? failed, exit code 42: crash-", last)


@pytest.mark.slow
def test_run_waits_for_the_next_attempt_of_a_job(file: Path) -> None:
    job = gang_job("flaky", 1, cpu="1")
    pods = job["spec"]["template"]
    pods.setdefault("metadata", {}).pop("annotations", None)
    script = 'if [ -e "$0" ]; then exit 0; else touch "$0"; exit 1; fi'
    pods["spec"]["containers"][0] |= {"command": ["sh", "-c", script, str(file.with_name("once"))]}
    job["spec"]["backoffLimit"] = 3
    allowed = yaml.safe_load_all(ALLOW.read_text())
    code, output, _ = run(file, *allowed, job, options="--nodes 1 --shape cpu=8 --run-processes")
    assert code == 0, output
    assert "  Job/flaky  ended" in output


def test_interrupted_run_prints_what_had_happened(file: Path) -> None:
    file.write_text(yaml.safe_dump_all([gang_job("long", 2, seconds=600, cpu="1")]))
    with start_command("run", "-f", str(file), "--nodes", "2", "--shape", "cpu=8") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        while "running 2/2" not in line:
            assert line, "the run has ended"
            line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 130
    assert "Traceback" not in errors
    summary, gang_line, note = output.splitlines()
    assert summary.startswith("1 gang ran, 0 did not, in ")
    assert gang_line == "  Job/long  running 2/2 on node-0 (1), node-1 (1)"
    assert note == "  interrupted: this is what had happened until then"


def test_run_ends_after_the_timeout(file: Path) -> None:
    code, output, _ = run(
        file, gang_job("long", 1, seconds=600, cpu="1"), options="--timeout 500ms"
    )
    assert code == 1
    head, gang, last = output.splitlines()
    assert head.startswith("1 gang ran, 0 did not, in ")
    assert gang.startswith("  Job/long  running 1/1 on node-")
    assert last == "  Job/long ran but did not finish within 0.5 s; allow more time with --timeout"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("1m30s", 90), ("0.5", 0.5), ("60", 60), ("0", None), ("0s", None), ("-1", None),
     ("soon", None), ("1.5.2", None)],
)  # fmt: skip
def test_timeout_is_a_duration_or_a_number_of_seconds(text: str, seconds: float | None) -> None:
    given = ["-f", "objects.yaml", "--timeout", text]
    if seconds is None:
        with pytest.raises(click.BadParameter):
            run_command.make_context("run", given)
    else:
        assert run_command.make_context("run", given).params["timeout"] == seconds


def test_summary_is_printed_as_json(file: Path) -> None:
    code, output, errors = run(file, pod("alone", cpu="1"), options="-o json")
    answer = json.loads(output)
    assert (code, answer["ran"], answer["timedOut"]) == (0, True, False)
    assert [(one["kind"], one["name"], one["ran"]) for one in answer["items"]] == [
        ("Pod", "alone", True)
    ]
    assert answer["items"][0]["nodes"] == ["node-0"]
    assert "alone: running 1/1 on 1 node" in errors


def test_run_rejects_an_invalid_manifest_in_one_line(file: Path) -> None:
    code, _, errors = run(file, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
    assert (code, errors.count("\n"), "spec.containers" in errors) == (1, 1, True)
    assert phalanx("run").returncode == 2
    assert phalanx("run", "-f", str(file), "--nodes", "some").returncode == 2


@pytest.mark.slow
def test_run_draws_bars_on_a_terminal(file: Path) -> None:
    file.write_text(yaml.safe_dump(gang_job("mine", 2, cpu="1")))
    master, slave = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "phalanx", "run", "-f", str(file)],
            stderr=slave, stdout=subprocess.DEVNULL, timeout=COMMAND_TIMEOUT, check=True,
        )  # fmt: skip
        output = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert "Job/mine  ████████████████████  running 2/2" in output
    assert "\x1b[32m" in output
