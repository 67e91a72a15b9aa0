"""`phalanx simulate`."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phalanx.cli import simulate as simulate_module
from phalanx.cli.main import main
from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.sim.core_engine import CoreEngine

SAMPLE = Path(__file__).parents[1] / "sim" / "data" / "kth-sp2-sample.swf"
SMALL = """\
; MaxProcs: 4
1 0 -1 100 3 -1 -1 3 100 -1 1 1 1 -1 -1 -1 -1 -1
2 1 -1 50 4 -1 -1 4 60 -1 1 2 1 -1 -1 -1 -1 -1
3 2 -1 90 1 -1 -1 1 95 -1 1 2 1 -1 -1 -1 -1 -1
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A log of three jobs."""
    path = tmp_path / "small.swf"
    path.write_text(SMALL)
    return path


def simulate(*args: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, args)])


def report_of(*args: object) -> dict[str, object]:
    result = simulate(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    report: dict[str, object] = json.loads(result.stdout)
    return report


def test_log_alone_is_simulated_with_easy_on_its_own_machine(small: Path) -> None:
    report = report_of("-f", small)
    assert report["wait"]["meanSeconds"] == 33  # type: ignore[index]
    assert (report["jobs"], report["unfinished"], report["nodes"]) == (3, 0, 4)
    assert (report["engine"], report["seed"], report["preemptions"]) == ("core", 0, 0)
    assert set(report["utilisation"]) == {"cpu"}  # type: ignore[call-overload]
    assert list(report["inputs"]) == ["small.swf"]  # type: ignore[call-overload]


def test_both_engines_give_the_same_report(small: Path) -> None:
    core, full = report_of("-f", small, "--place-pods"), report_of("-f", small, "--engine", "full")
    assert full == {**core, "engine": "full", "decisions": full["decisions"]}


def test_report_says_whether_free_nodes_were_counted(small: Path) -> None:
    counted, placed = report_of("-f", small), report_of("-f", small, "--place-pods")
    assert counted == {**placed, "isCounted": True, "decisions": counted["decisions"]}
    assert placed["isCounted"] is False
    assert "core (free nodes counted), seed 0" in simulate("-f", small).output


def test_summary_is_readable(small: Path) -> None:
    result = simulate("-f", small)
    assert result.exit_code == 0
    assert "wait               mean 33 s, p50 0 s, p95 99 s, p99 99 s, max 99 s" in result.output


def test_strict_reservation_is_first_come_first_served(small: Path) -> None:
    report = report_of("-f", small, "--reservation", "strict")
    assert report["wait"]["maxSeconds"] == 148  # type: ignore[index]


def test_other_nodes_and_configuration_replace_those_of_the_trace(
    small: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    )
    pools = tmp_path / "cluster.yaml"
    pools.write_text("pools:\n- {name: big, count: 2, shape: {cpu: 4}}\n")
    assert report_of("-f", small, "--nodes", 8)["wait"]["meanSeconds"] == 0  # type: ignore[index]
    report = report_of("-f", small, "--nodes", pools, "--config", config)
    assert report["nodes"] == 2
    assert set(report["inputs"]) == {"small.swf", "cluster.yaml", "config.yaml"}  # type: ignore[call-overload]


def test_jobs_that_are_larger_than_the_cluster_are_counted_and_left_out(small: Path) -> None:
    report = report_of("-f", small, "--nodes", 3, "--shape", "cpu=1")
    assert (report["jobs"], report["unfinished"], report["isCounted"]) == (2, 0, True)
    assert report["skipped"] == {"larger than the machine": 1}
    result = simulate("-f", small, "--nodes", 4, "--shape", "cpu=500m")
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {small}: all jobs are larger than the cluster; give it more or larger nodes\n",
    )


def test_resource_that_no_node_has_is_named(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    job = "{runTime: 1h, requests: {cpu: 1, nvidia.com/gpus: 1}}"
    path.write_text(f"workload: [{job}]\ncluster: 4\n")
    result = simulate("-f", path)
    message = (
        f"Error: {path}: no job fits: no node has nvidia.com/gpus; describe the nodes by `shape` "
        "or --shape, as cpu=64,memory=256Gi,nvidia.com/gpu=8\n"
    )
    assert (result.exit_code, result.output) == (1, message)
    path.write_text(f"workload: [{job}, {{runTime: 1h, requests: {{cpu: 1}}}}]\ncluster: 4\n")
    assert report_of("-f", path)["skipped"] == {"no node has nvidia.com/gpus": 1}


def test_reservation_sets_the_mode_of_a_configuration_too(small: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    kind = "kind: KubeSchedulerConfiguration"
    config.write_text(f"apiVersion: kubescheduler.config.k8s.io/v1\n{kind}\n")
    setups = [
        load_simulation(small, SimulationOptions(policy=config, reservation=mode)).setup
        for mode in ("", "Strict")
    ]
    modes = [one.profiles.policies["default-scheduler"].reservation.mode for one in setups]
    assert modes == ["Easy", "Strict"]
    # The order of the queue is that of the configuration.
    assert not any(one.profiles.keeps_arrival_order for one in setups)


def test_log_without_a_size_needs_nodes(small: Path) -> None:
    small.write_text(SMALL.replace("; MaxProcs: 4", "; Computer: x"))
    result = simulate("-f", small)
    assert result.exit_code == 1
    assert (
        "states no machine; name one with `cluster` and `shape`, or with --nodes 16"
        in result.output
    )
    assert report_of("-f", small, "--nodes", 4, "--shape", "cpu=1")["unfinished"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "-4"), "--nodes: must be a whole number from 1 to 1000000"),
        (("--nodes", "0"), "--nodes: must be a whole number from 1 to 1000000"),
        (("--nodes", "nope.yaml"), "--nodes: cannot read nope.yaml: No such file or directory"),
        (("--nodes", "4", "--shape", "cpu=x"), '--shape: invalid quantity "x"'),
        (("--shape", "cpu=8"), "--shape: describes the nodes of --nodes or of `cluster`"),
    ],
)
def test_wrong_nodes_are_wrong_usage_of_the_option(
    small: Path, options: tuple[str, ...], message: str
) -> None:
    result = simulate("-f", small, *options)
    assert result.exit_code == 2
    assert f"Error: Invalid value for {message}" in result.output


@pytest.mark.parametrize("engine", ["core", "full"])
def test_horizon_leaves_jobs_unfinished_and_the_summary_says_which(
    small: Path, engine: str
) -> None:
    options = ("-f", small, "--horizon", "95s", "--engine", engine)
    report = report_of(*options)
    assert (report["unfinished"], report["end"], report["isPartial"]) == (2, "horizon", False)
    absent = {"jobs": 1, "meanSeconds": 94, "maxSeconds": 94}
    assert report["wait"]["notStarted"] == absent  # type: ignore[index]
    lines = simulate(*options).output.splitlines()
    assert lines[0] == "state              cut by the horizon at 95 s: figures of the time so far"
    assert "not started        1 job, not in the means: so far mean 94 s, max 94 s" in lines


def test_compressed_log_is_read(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.swf.gz"
    path.write_bytes(gzip.compress(SMALL.encode()))
    assert report_of("-f", path)["jobs"] == 3
    path.write_bytes(gzip.compress(SMALL.encode())[:40])
    result = simulate("-f", path)
    assert result.exit_code == 1
    assert "small.swf.gz: the compressed file is incomplete" in result.output
    path.write_bytes(gzip.compress(SMALL.encode())[:10] + b"x" * 40)
    assert "cannot be decompressed" in simulate("-f", path).output


def test_bad_line_names_file_line_and_reason(small: Path) -> None:
    small.write_text(SMALL + "4 x\n")
    result = simulate("-f", small)
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {small}, line 5: has 2 of the 18 fields of SWF; correct it, or count and skip "
        "such lines by --lenient\n"
    )
    report = report_of("-f", small, "--lenient")
    assert report["skipped"] == {"line cannot be read": 1}


def test_case_of_scheduler_perf_is_simulated_from_its_file_and_templates() -> None:
    path = SAMPLE.parent / "scheduler-perf" / "gangscheduling" / "performance-config.yaml"
    report = report_of("-f", path, "--case", "10Nodes_3Gangs")
    assert (report["jobs"], report["unfinished"], report["nodes"]) == (3, 0, 10)
    assert set(report["inputs"]) == {  # type: ignore[call-overload]
        "performance-config.yaml",
        "podgroup.yaml",
        "gang-pod.yaml",
    }
    result = simulate("-f", path)
    assert result.exit_code == 1
    assert "has 8 cases; select one with --case: GangScheduling/10Nodes_3Gangs" in result.output


def test_generator_of_kueue_may_be_given_alone(tmp_path: Path) -> None:
    path = tmp_path / "generator.yaml"
    path.write_text(
        """\
cohorts:
- className: cohort
  count: 1
  queuesSets:
  - className: cq
    count: 2
    nominalQuota: 20
    workloadsSets:
    - count: 3
      creationIntervalMs: 100
      workloads: [{className: small, runtimeMs: 200, priority: 50, request: 1}]
"""
    )
    report = report_of("-f", path)
    assert (report["jobs"], report["unfinished"], report["nodes"]) == (6, 0, 2)


@pytest.mark.slow
def test_same_input_gives_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "sample.swf"
    path.write_text("".join(SAMPLE.read_text().splitlines(keepends=True)[:90]))
    code = "from phalanx.cli.main import main; main()"
    outputs, pages = list[bytes](), list[bytes]()
    for command in (["simulate", "-f", str(path)], ["compare", str(path), str(path)]):
        for seed in ("1", "2"):
            page = tmp_path / f"{seed}.html"
            done = subprocess.run(
                [sys.executable, "-c", code, *command, "-o", "json", "--html", str(page)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            )
            outputs.append(done.stdout)
            pages.append(page.read_bytes())
    assert (outputs[0], outputs[2]) == (outputs[1], outputs[3])
    assert (pages[0], pages[2]) == (pages[1], pages[3])


class InterruptedEngine(CoreEngine):
    """Presses ^C as soon as the first job has started."""

    def _run_cycles(self, now: float) -> None:
        super()._run_cycles(now)
        if now == 0:
            signal.raise_signal(signal.SIGINT)


def test_interrupt_gives_a_report_of_the_time_so_far(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_module, "build_core_engine", InterruptedEngine)
    before = signal.getsignal(signal.SIGINT)
    report = report_of("-f", small)
    assert (report["isPartial"], report["simulatedSeconds"], report["unfinished"]) == (True, 0, 3)
    assert "state              interrupted at 0 s: figures" in simulate("-f", small).output
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupted_comparison_compares_nothing(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_module, "build_core_engine", InterruptedEngine)
    result = CliRunner().invoke(main, ["compare", str(small), str(small)])
    assert result.exit_code == 130
    assert f"Error: stopped at 0 s of {small}: only whole simulations are compared" in result.output


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("simulate-*/*.txt"))


def test_every_example_has_an_expected_report() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("expected", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_example_gives_its_expected_report(expected: Path) -> None:
    result = simulate("-f", expected.with_suffix(".yaml"))
    assert result.output == expected.read_text()


DOCUMENTS = Path(__file__).parents[2] / "docs"
CAPACITY = (DOCUMENTS / "capacity.md").read_text()


def test_document_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (DOCUMENTS / "simulation.md").read_text()
    (block,) = re.findall(r"```text\n\$ phalanx (.*?)```", text, re.DOTALL)
    command, _, shown = block.partition("\n")
    with gzip.open(SAMPLE.with_name("KTH-SP2-1996-2.1-cln.swf.gz"), "rt") as log:
        (tmp_path / command.split()[-1]).write_text("".join(islice(log, 630)))
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, command.split()).output == shown


@pytest.mark.parametrize("block", re.findall(r"```text\n\$ phalanx (.*?)```", CAPACITY, re.DOTALL))
def test_tutorial_shows_what_the_commands_print(
    block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    command, _, shown = block.partition("\n")
    result = CliRunner().invoke(main, command.split())
    assert result.output.rstrip() == shown.rstrip()


def test_tutorial_ends_with_jobs_of_the_reader(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", CAPACITY, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    report = report_of("-f", path)
    assert (report["jobs"], report["unfinished"]) == (101, 0)
    assert report["wait"]["maxSeconds"] == 3600  # type: ignore[index]


def test_page_is_written_beside_the_summary(small: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert simulate("-f", small, "--html", page).exit_code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("command", [("simulate", "-f"), ("compare",), ("replay",)])
def test_page_that_cannot_be_written_is_wrong_usage_before_anything_runs(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(simulate_module, "build_core_engine", None)
    page = tmp_path / "absent" / "report.html"
    result = CliRunner().invoke(main, [*command, str(small), "--html", str(page)])
    assert result.exit_code == 2
    message = f"Invalid value for '--html': cannot write {page}: No such file or directory"
    assert message in result.output


def test_check_of_the_page_leaves_no_file_and_keeps_an_old_one(small: Path, tmp_path: Path) -> None:
    small.write_text("4 x\n")
    new, old = tmp_path / "new.html", tmp_path / "old.html"
    old.write_text("<p>old</p>")
    for page in (new, old):
        assert simulate("-f", small, "--html", page).exit_code == 1
    assert not new.exists()
    assert old.read_text() == "<p>old</p>"


@pytest.mark.parametrize("command", [("simulate", "-f"), ("compare", str(SAMPLE))])
def test_figures_are_printed_although_the_page_cannot_be_written(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*command, str(SAMPLE), "--html", "/dev/full"])
    assert result.exit_code == 1
    assert "bounded slowdown" in result.output or "SLOWDOWN" in result.output
    assert result.output.endswith("Error: cannot write /dev/full: No space left on device\n")


def test_page_replaces_the_target_of_a_link(small: Path, tmp_path: Path) -> None:
    link, target = tmp_path / "link.html", tmp_path / "target.html"
    link.symlink_to(target)
    assert simulate("-f", small, "--html", link).exit_code == 0
    assert link.is_symlink()
    assert "<svg" in target.read_text()
