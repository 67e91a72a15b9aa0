"""Simulation files, and `phalanx compare` of them."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from phalanx.cli import input_files
from phalanx.cli.main import main
from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.sim.simulation_setup import NodeFault, SimulationSetup

JOBS = """\
workload:
- {submit: 10, runTime: 100, pods: 4, requests: {cpu: 1}, owner: a}
- {submit: 20, runTime: 1m, requests: {cpu: 1}, estimate: 2m, priority: 5, count: 3, every: 30}
"""


def write(folder: Path, text: str, name: str = "simulation.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load(folder: Path, text: str, **options: Any) -> SimulationSetup:
    return load_simulation(write(folder, text), SimulationOptions(**options)).setup


def test_jobs_of_a_list_are_repeated_and_begin_at_zero(tmp_path: Path) -> None:
    setup = load(tmp_path, JOBS + "cluster: 4\nshape: cpu=1\nseed: 7\nhorizon: 2h\n")
    assert [job.submit for job in setup.workload.jobs] == [0, 10, 40, 70]
    assert setup.workload.jobs[1].estimate == 120
    assert (len(setup.nodes), setup.seed, setup.horizon) == (4, 7, 7200)
    assert setup.profiles.keeps_arrival_order


def test_file_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "simulation.yaml.gz"
    path.write_bytes(gzip.compress(f"{JOBS}cluster: 4\n".encode()))
    assert len(load_simulation(path, SimulationOptions()).setup.workload.jobs) == 4
    path.write_bytes(gzip.compress(b"workload: 3\n"))
    with pytest.raises(click.ClickException, match=r"simulation\.yaml\.gz, line 1: workload: must"):
        load_simulation(path, SimulationOptions())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{JOBS}cluster: 4\n", "jobs               4 (0 unfinished)"),
        (f"; MaxProcs: 4\n{' '.join(['1'] * 18)}\n", "jobs               1 (0 unfinished)"),
        ("workload: 3\n", "Error: stdin, line 1: workload: must be the path"),
        ("; MaxProcs: 4\n1 2 x", "Error: stdin, line 2: "),
        ("", "Error: stdin: the file is empty"),
        ("a,b\n", "Error: stdin: neither a simulation file"),
    ],
)
def test_stdin_is_a_simulation_file_or_a_trace(text: str, found: str) -> None:
    result = CliRunner().invoke(main, ["simulate", "-f", "-"], input=text)
    assert result.exit_code == found.startswith("Error")
    assert found in result.output, result.output


def test_jobs_may_merge_the_fields_of_an_anchor(tmp_path: Path) -> None:
    one = "{runTime: 1m, requests: {cpu: 1}}"
    text = f"workload:\n- &small {one}\n- {{<<: *small, runTime: 2m}}\ncluster: 4\n"
    jobs = load(tmp_path, text).workload.jobs
    assert [(job.run_time, job.requests) for job in jobs] == [
        (60, {"cpu": "1"}),
        (120, {"cpu": "1"}),
    ]


def test_jobs_may_need_a_topology_and_labels(tmp_path: Path) -> None:
    one = "{runTime: 1m, requests: {cpu: 1}, pods: 2, "
    text = (
        f"workload:\n- {one} topology: example.com/row}}\n"
        f'- {one} topology: "rack, block+x after 30s, *", nodeSelector: {{disk: ssd}}}}\n'
        "cluster: 4\n"
    )
    jobs, label = load(tmp_path, text).workload.jobs, "topology.kubernetes.io"
    assert [(job.topology, job.node_labels) for job in jobs] == [
        ("example.com/row", {}),
        (f"{label}/rack, {label}/block+x after 30s, *", {"disk": ("ssd",)}),
    ]


def test_first_rule_that_applies_sets_the_priority(tmp_path: Path) -> None:
    text = JOBS + (
        "- {submit: 30, runTime: 1h, pods: 2, requests: {cpu: 1}, priority: 9, owner: b}\n"
        "- {submit: 31, runTime: 1h, pods: 2, requests: {cpu: 1}, owner: c}\n"
        "cluster: 4\n"
        "priorities:\n"
        "- {priority: 100, owner: a, minPods: 5}\n"
        "- {priority: 80, owner: [a, c], minPods: 2}\n"
        "- {priority: -1, maxPods: 1, maxEstimate: 90s}\n"
        "- {priority: 7, maxEstimate: 2m}\n"
    )
    found = [(job.owner, job.priority) for job in load(tmp_path, text).workload.jobs]
    # The job of b declares no run time: no rule applies to it.
    assert found == [("a", 80), ("", 7), ("b", 9), ("c", 80), ("", 7), ("", 7)]


def test_overhead_lengthens_every_job(tmp_path: Path) -> None:
    jobs = load(tmp_path, JOBS + "cluster: 4\noverhead: 90s\n").workload.jobs
    assert [(job.run_time, job.estimate) for job in jobs] == [(190, None), *[(150, 210)] * 3]


def test_options_replace_fields(tmp_path: Path) -> None:
    text = JOBS + "cluster: 4\nreservation: Strict\nseed: 7\nhorizon: 2h\n"
    setup = load(tmp_path, text, nodes="2", reservation="Off", seed=9, horizon=5.0)
    (policy,) = setup.profiles.policies.values()
    assert policy.reservation.mode == ReservationMode.OFF
    assert (len(setup.nodes), setup.seed, setup.horizon) == (2, 9, 5.0)


def test_files_are_relative_to_the_simulation_file(tmp_path: Path) -> None:
    write(tmp_path, "; MaxProcs: 2\n1 0 -1 9 1" + " -1" * 13, "log.swf")
    write(tmp_path, "pools:\n- {name: gpu, count: 3, shape: {cpu: 4}}\n", "cluster.yaml")
    config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    write(tmp_path, config, "policy.yaml")
    text = "workload: log.swf\ncluster: cluster.yaml\npolicy: policy.yaml\n"
    loaded = load_simulation(write(tmp_path, text), SimulationOptions())
    assert [node.metadata.name for node in loaded.setup.nodes] == ["gpu-0", "gpu-1", "gpu-2"]
    assert list(loaded.inputs) == ["simulation.yaml", "log.swf", "cluster.yaml", "policy.yaml"]
    assert not loaded.setup.profiles.keeps_arrival_order


def test_inputs_of_one_name_in_two_folders_are_both_named(tmp_path: Path) -> None:
    log = "; MaxProcs: 2\n1 0 -1 9 1" + " -1" * 13
    (tmp_path / "jobs").mkdir()
    write(tmp_path / "jobs", log, "a.csv")
    write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\na,8000,1,0,\n", "a.csv")
    path = write(tmp_path, "workload: jobs/a.csv\ncluster: a.csv\n")
    inputs = load_simulation(path, SimulationOptions()).inputs
    assert list(inputs) == ["simulation.yaml", "a.csv", f"{tmp_path.name}/a.csv"]
    assert len(set(inputs.values())) == 3


def test_faults_come_from_a_script_and_from_a_rate(tmp_path: Path) -> None:
    script = "faults: {script: [{at: 1h, node: node-1, repair: 5m}]}\n"
    assert load(tmp_path, JOBS + "cluster: 4\n" + script).faults == (
        NodeFault(3600, "node-1", 300),
    )
    rate = "faults: {rate: {meanTimeBetweenFailures: 1m, repair: 10s}}\n"
    faults = load(tmp_path, JOBS + "cluster: 4\n" + rate).faults
    assert faults == load(tmp_path, JOBS + "cluster: 4\n" + rate).faults
    assert len(faults) > 20
    assert faults != load(tmp_path, JOBS + "cluster: 4\n" + rate, seed=1).faults


def test_nodes_of_faults_need_no_leading_zeros(tmp_path: Path) -> None:
    script = "faults: {script: [{at: 1h, node: node-1}, {at: 2h, node: node-11}]}\n"
    faults = load(tmp_path, JOBS + "cluster: 12\n" + script).faults
    assert [fault.node for fault in faults] == ["node-01", "node-11"]


def test_faults_by_rate_last_as_long_as_the_simulation(tmp_path: Path) -> None:
    text = (
        "workload: [{runTime: 240h, pods: 2, requests: {cpu: 1}}]\ncluster: 4\n"
        "faults: {rate: {meanTimeBetweenFailures: 24h, repair: 10m}}\n"
    )
    setup = load(tmp_path, text)
    assert setup.horizon == 5 * (240 + 120) * 3600
    assert setup.faults[-1].at > setup.horizon - 5 * 24 * 3600
    short = load(tmp_path, text + "horizon: 48h\n")
    assert (short.horizon, short.faults[-1].at < 48 * 3600) == (48 * 3600, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "workload: []\ncolour: red\n",
            "line 2: colour: unknown field; available: workload, format, case, cluster",
        ),
        (
            "jobs: 5\njobTemplate: {minAvailable: 10}\n",
            "neither a simulation file, whose field workload is required, nor a trace in a known "
            "format (philly, openb, kalos, kueue, scheduler-perf, swf, recording, batsim)",
        ),
        ("- 1\n", "neither a simulation file, whose field workload is required, nor a trace"),
        ("workload: 3\n", "workload: must be the path of a trace or a list of jobs"),
        ("workload: [3]\n", "workload[0]: must be a map"),
        ("workload: missing.swf\n", "line 1: workload: cannot read"),
        ("workload: [{runTime: 1, requests: {cpu: x}}]\n", 'requests.cpu: invalid quantity "x"'),
        ("workload: [{runTime: 1}]\n", "workload[0].requests: must be a map of resources"),
        ("workload: [{requests: {cpu: 1}}]\n", "workload[0].runTime: must be more than 0"),
        (
            "workload: [{submit: -1, runTime: 1, requests: {cpu: 1}}]\n",
            "workload[0].submit: must not be negative: -1",
        ),
        (
            "workload: [{runTime: soon, requests: {cpu: 1}}]\n",
            'workload[0].runTime: invalid duration "soon"',
        ),
        ("workload: [{runTime: 1, requests: {cpu: 1}, pods: 0}]\n", "pods: must be a whole number"),
        (
            "workload: [{runTime: 1, requests: {cpu: 1}, priority: x}]\n",
            "priority: must be a whole number",
        ),
        (JOBS, "the trace states no machine"),
        (JOBS + "cluster: missing.yaml\n", "line 4: cluster: cannot read"),
        (JOBS + "cluster: 4\npolicy: missing.yaml\n", "line 5: policy: cannot read"),
        (JOBS + "cluster: 4\npolicy: simulation.yaml\n", "line 5: policy: "),
        (JOBS + "cluster: 4\nhorizon: 0\n", "line 5: horizon: must be more than 0"),
        (JOBS + "cluster: 0\n", "line 4: cluster: must be a whole number from 1"),
        (JOBS + "cluster: -3\n", "line 4: cluster: must be a whole number from 1"),
        (JOBS + "cluster: 4\nshape: cpu=-1\n", 'line 5: shape: invalid quantity "-1"'),
        (
            JOBS + "cluster: 4\nseed: -1\n",
            "line 5: seed: must be a whole number from 0 to 1000000000",
        ),
        (JOBS + "cluster: 4\ncluster: 5\n", 'line 5, column 1: duplicate field "cluster"'),
        (JOBS + "cluster: 4\nhorizon: .inf\n", "line 5: horizon: inf is out of range"),
        ("[" * 3000, "nested too deeply"),
        ("a: 1\nwhen: 2026-13-45\n", 'line 2, column 7: "2026-13-45" is no valid timestamp'),
        (JOBS + "cluster: 4\nhorizon: 1" + "0" * 400 + "\n", "line 5: horizon: 1000"),
        (JOBS + "cluster: 4\nreservation: Perhaps\n", 'unknown mode "Perhaps"; available: Easy'),
        (JOBS + "cluster: 4\nshape: {<<: [1]}\n", "expected a mapping for merging"),
        (JOBS + "cluster: 4\nfaults: 3\n", "faults: must be a map with rate or script"),
        (
            JOBS + "cluster: 4\nfaults: {rate: {repair: 1}}\n",
            "faults.rate: both times must be more than 0",
        ),
        (
            JOBS + "cluster: 4\nfaults: {script: [{node: x}]}\n",
            'faults.script[0].node: there is no node "x"; there are node-0 to node-3',
        ),
        (
            "workload: [{runTime: 1, requests: {cpu: 1}, nodeSelector: ssd}]\n",
            "line 1: workload[0].nodeSelector: must be a map of node labels, such as {disk: ssd}",
        ),
        (
            'workload: [{runTime: 1, requests: {cpu: 1}, topology: "rack then block"}]\n',
            'topology: must be a node label, or levels as in "rack, block after 30s, * after 5m"',
        ),
        (JOBS + "cluster: 4\npriorities: high\n", "line 5: priorities: must be a list of maps"),
        (
            JOBS + "cluster: 4\npriorities: [{owner: a}]\n",
            "line 5: priorities[0].priority: is missing",
        ),
        (
            JOBS + "cluster: 4\npriorities: [{priority: 1, user: a}]\n",
            "line 5: priorities[0].user: unknown field; available: priority, owner, minPods",
        ),
        (JOBS + "cluster: 4\noverhead: -2s\n", "line 5: overhead: "),
        ("workload: [\n", "line 2"),
        ("workload: \x00\n", "line 1, column 11: unacceptable character #x0000"),
        ("", "the file is empty"),
    ],
)
def test_invalid_file_is_named_with_its_field(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(click.ClickException) as error:
        load(tmp_path, text)
    assert reason in error.value.message
    assert str(tmp_path) in error.value.message


def test_invalid_field_is_named_with_its_line(tmp_path: Path) -> None:
    text = JOBS + "cluster: 4\nfaults:\n  script:\n  - {at: 1h, node: x}\n"
    with pytest.raises(click.ClickException) as error:
        load(tmp_path, text)
    message = f"{tmp_path / 'simulation.yaml'}, line 7: faults.script[0].node: there is no node"
    assert error.value.message.startswith(message)
    with pytest.raises(
        click.ClickException, match=r"simulation.yaml, line 3: workload\[1\].pods: "
    ):
        load(tmp_path, JOBS.replace("runTime: 1m", "runTime: 1m, pods: -4"))


def test_lenient_loader_counts_and_skips_jobs_and_nodes_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    text = JOBS + "- {submit: -5, runTime: 1m, requests: {cpu: 1}}\n- {colour: red}\n"
    write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\na,8000,1,0,\nb,-1,1,0,\n", "nodes.csv")
    with pytest.raises(click.ClickException, match=r"line 4: workload\[2\].submit: must not be"):
        load(tmp_path, text + "cluster: nodes.csv\n")
    setup = load(tmp_path, text + "cluster: nodes.csv\n", is_lenient=True)
    assert len(setup.workload.jobs) == 4
    assert setup.workload.skipped == {"entry cannot be read": 2, "node cannot be read": 1}
    assert len(setup.nodes) == 1


def test_decompression_ends_at_the_largest_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_files, "_MAX_BYTES", 1 << 20)
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(click.ClickException, match="larger than 1 MiB"):
            load_simulation(path, SimulationOptions())
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_lines_end_where_editors_end_them(tmp_path: Path) -> None:
    rows = [
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-01 00:00:00,9,1,9,a\x0b\u2028b",
    ]
    write(tmp_path, "\r".join([*rows, "2017-10-01 00:00:00,x,1,9,c"]), "jobs.csv")
    text = "workload: jobs.csv\ncluster: 1\nshape: nvidia.com/gpu=8\n"
    with pytest.raises(click.ClickException, match=r"jobs\.csv, line 3: duration"):
        load(tmp_path, text)
    assert load(tmp_path, text, is_lenient=True).workload.jobs[0].owner == "a\x0b\u2028b"


def test_invalid_cluster_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "pools: 3\n", "cluster.yaml")
    with pytest.raises(click.ClickException, match=r"cluster\.yaml: line 1: pools: must be a list"):
        load(tmp_path, JOBS + "cluster: cluster.yaml\n")


def compare(*args: object) -> Any:
    return CliRunner().invoke(main, ["compare", *map(str, args)])


def test_compare_shows_each_file_and_its_difference_to_the_first(tmp_path: Path) -> None:
    jobs = JOBS.replace("priority: 5, ", "")
    small = write(tmp_path, jobs + "cluster: 4\nshape: cpu=1\n", "small.yaml")
    large = write(tmp_path, jobs + "cluster: 8\nshape: cpu=1\n", "large.yaml")
    result = compare(small, large, "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["report"]["nodes"] for one in found["simulations"]] == [4, 8]
    assert found["differences"][0]["waitSeconds"]["mean"] < 0
    table = compare(small, large)
    assert table.exit_code == 0
    assert "AGAINST THE FIRST" in table.output
    assert str(large) in table.output


def test_compare_leaves_out_jobs_that_are_larger_than_one_of_the_clusters(tmp_path: Path) -> None:
    small = write(tmp_path, JOBS + "cluster: 3\nshape: cpu=1\n", "small.yaml")
    large = write(tmp_path, JOBS + "cluster: 4\nshape: cpu=1\n", "large.yaml")
    result = compare(large, small, "--seeds", 2, "-o", "json")
    assert result.exit_code == 0, result.output
    for one in json.loads(result.stdout)["simulations"]:
        assert [report["jobs"] for report in one["reports"]] == [3, 3]
        assert one["report"]["skipped"] == {"larger than the machine": 1}


def test_compare_says_what_its_figures_leave_out(tmp_path: Path) -> None:
    small = write(tmp_path, JOBS + "cluster: 3\nshape: cpu=1\nhorizon: 35s\n", "small.yaml")
    large = write(tmp_path, JOBS + "cluster: 4\nshape: cpu=1\n", "large.yaml")
    page = tmp_path / "page.html"
    skipped, cut = "larger than the machine (1)", "cut by the horizon at 35 s"
    lines = compare(large, small, "--html", page).output.splitlines()
    assert lines[-2:] == [
        f"state     {small}: {cut}: figures of the time so far",
        f"skipped   {skipped}",
    ]
    assert skipped in page.read_text()
    assert cut in page.read_text()
    remarks = json.loads(compare(large, small, "-o", "json").output)["remarks"]
    assert [(one["kind"], one["files"]) for one in remarks] == [
        ("state", [str(small)]),
        ("skipped", [str(large), str(small)]),
    ]
    assert remarks[1]["text"] == skipped


def test_compare_takes_other_priorities_and_topologies_of_the_same_jobs(tmp_path: Path) -> None:
    first = write(tmp_path, JOBS + "cluster: 4\nshape: cpu=1\n", "a.yaml")
    rules = "priorities: [{priority: 50, minPods: 2}]\n"
    second = write(tmp_path, JOBS + rules + "cluster: 4\nshape: cpu=1\n", "b.yaml")
    result = CliRunner().invoke(main, ["compare", str(first), str(second), "-o", "json"])
    assert result.exit_code == 0, result.output
    reports = [row["report"] for row in json.loads(result.stdout)["simulations"]]
    assert [report["preemptions"] for report in reports] == [1, 0]


def test_compare_refuses_other_jobs_and_a_single_file(tmp_path: Path) -> None:
    small = write(tmp_path, JOBS + "cluster: 4\n", "small.yaml")
    other = write(tmp_path, JOBS.replace("runTime: 100", "runTime: 101") + "cluster: 4\n", "b.yaml")
    assert "has other jobs than" in compare(small, other).output
    assert compare(small).exit_code == 2


FAULTY = """
workload:
- {submit: 0, runTime: 2h, pods: 2, requests: {cpu: 1}, estimate: 3h, count: 6, every: 10m}
cluster: CLUSTER
shape: cpu=2
faults: {rate: {meanTimeBetweenFailures: 4h, repair: 10m}}
"""


def test_compare_over_seeds_has_intervals_and_a_page_with_plots(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("two.yaml", "four.yaml")]
    for path, count in zip(files, ("2", "4"), strict=True):
        path.write_text(FAULTY.replace("CLUSTER", count))
    page = tmp_path / "page.html"
    result = compare(*files, "--seeds", 3, "--html", page, "-o", "json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert [len(one["reports"]) for one in data["simulations"]] == [3, 3]
    assert [one["seed"] for one in data["simulations"][0]["reports"]] == [0, 1, 2]
    wait = data["differences"][0]["waitSeconds"]
    assert wait["low"] < wait["mean"] < 0
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert all(part in text for part in ('class="interval"', "<polyline", "four.yaml"))
    assert "<script" not in text
    assert "http" not in text
    again = tmp_path / "again.html"
    assert compare(*files, "--seeds", 3, "--html", again, "-o", "json").output == result.output
    assert again.read_bytes() == page.read_bytes()
