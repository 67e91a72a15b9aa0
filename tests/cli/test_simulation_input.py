"""What simulate, compare and replay read: each file once, and nothing in vain."""

from __future__ import annotations

import gzip
import os
import threading
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phalanx.cli import input_files
from phalanx.cli.main import main
from phalanx.cli.simulate import simulate_command
from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.sim.simulation_setup import FaultRate, TooManyFaults

JOBS = "workload:\n- {runTime: 100, pods: 4, requests: {cpu: 1}, owner: a}\n"
FILE = f"{JOBS}cluster: 4\n"
LOG = "; MaxProcs: 4\n1 0 -1 9 1" + " -1" * 13 + "\n"
POOLS = "- {name: gpu, count: 3}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a simulation file and a log."""
    monkeypatch.chdir(tmp_path)
    Path("ok.yaml").write_text(FILE)
    Path("log.swf").write_text(LOG)
    return tmp_path


def run(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def load_error(text: str) -> str:
    Path("one.yaml").write_text(text)
    with pytest.raises(click.ClickException) as error:
        load_simulation(Path("one.yaml"), SimulationOptions())
    assert error.value.exit_code == 1
    return error.value.message


# ---- the page ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all.yaml", "log.swf", "nodes.yaml", "policy.yaml", "link"])
def test_page_never_replaces_an_input(name: str) -> None:
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    Path("nodes.yaml").write_text(POOLS)
    Path("policy.yaml").write_text(head)
    Path("all.yaml").write_text("workload: log.swf\ncluster: nodes.yaml\npolicy: policy.yaml\n")
    Path("link").symlink_to("policy.yaml")
    before = Path(name).read_bytes()
    for command in (("simulate", "-f", "all.yaml"), ("compare", "ok.yaml", "all.yaml")):
        Path("ok.yaml").write_text("workload: log.swf\ncluster: 2\n")
        code, output = run(*command, "--html", name)
        assert code == 2
        assert f"Invalid value for --html: {name} is the input file " in output
        assert output.endswith("; name another file\n")
    assert Path(name).read_bytes() == before


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("", "must name the file to write, for example report.html"),
        ("-", "must name the file to write, for example report.html"),
        (".", "is a directory"),
        ("loop", "cannot write loop: Too many levels of symbolic links"),
    ],
)
def test_page_that_is_no_file_is_wrong_usage(page: str, reason: str) -> None:
    Path("loop").symlink_to("loop")
    code, output = run("simulate", "-f", "ok.yaml", "--html", page)
    assert (code, reason in output) == (2, True), output


def test_completion_creates_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Path]()
    monkeypatch.setattr(Path, "open", lambda path, *_: opened.append(path))
    arguments = ["-f", "ok.yaml", "--html", "new.html"]
    simulate_command.make_context("simulate", arguments, resilient_parsing=True)
    assert opened == []


# ---- what has no effect --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("-f ok.yaml --engine full --place-pods", "--place-pods is for --engine core"),
        ("-f ok.yaml --case foo", "--case: is for traces; this file lists its jobs"),
        ("-f log.swf --case foo", "--case: only files of scheduler-perf have cases; log.swf is of"),
        ("-f ok.yaml --format swf", "--format: is for traces; this file lists its jobs"),
        ("-f ok.yaml --horizon 99999999999999h", "--horizon: 3.599999999999964e+17 is out of"),
        ("-f ok.yaml --seed " + "9" * 30, "--seed: must be a whole number from 0 to 1000000000"),
    ],
)
def test_option_without_effect_is_wrong_usage(arguments: str, reason: str) -> None:
    code, output = run("simulate", *arguments.split())
    assert (code, reason in output) == (2, True), output


@pytest.mark.parametrize("option", [("--exact-nodes",), ("--tolerance", "1s")])
def test_options_of_a_check_need_the_check(option: tuple[str, ...]) -> None:
    code, output = run("replay", "log.swf", *option)
    assert (code, f"{option[0]} is a part of --check" in output) == (2, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{FILE}case: x\n", "line 4: case: is for traces; this file lists its jobs"),
        (f"{FILE}format: swf\n", "line 4: format: is for traces; this file lists its jobs"),
        ("workload: log.swf\nformat: x\n", 'line 2: format: unknown trace format "x"; available:'),
        ("workload: log.swf\ncase: x\n", "line 2: case: only files of scheduler-perf have cases"),
        (
            f"{FILE}priorities: [{{priority: 1, minPods: 5, maxPods: 2}}]\n",
            "line 4: priorities[0].minPods: must not be more than maxPods (2)",
        ),
        (f"{FILE}priorities: [{{priority: 1, owner: {{a: b}}}}]\n", "owner: must be a name"),
        (f"{FILE}priorities: [{{priority: 2147483648}}]\n", "from -1000000000 to 1000000000, not"),
        (FILE.replace("owner: a", "owner: {a: b}"), "line 2: workload[0].owner: must be a name"),
        (
            FILE.replace("owner: a", "nodeSelector: {a: [b]}"),
            "line 2: workload[0].nodeSelector.a: must be a text or a number",
        ),
        (FILE.replace("100", "2026-13-45"), 'line 2, column 13: "2026-13-45" is no valid timest'),
        (f"{FILE}policy: [a]\n", "line 4: policy: must be the path of a KubeSchedulerConfiguratio"),
        *(
            (f"{JOBS}cluster: {found}\n", "to 1000000, or the path of a cluster file")
            for found in ("[1]", "{pools: 3}", "true", "2.5", "-1")
        ),
        *(
            (f"{FILE}faults: {{script: {found}}}\n", "line 4: faults.script: must be a list of map")
            for found in ("5", "abc", "{at: 1}")
        ),
        ("# nothing\n", "the file is empty"),
        ('workload: "a\\0b"\n', "line 1: workload: cannot read a\0b: no file can have this name"),
        (
            f"{JOBS}- runTime: 1\n  requests:\n    cpu: 1\n    nvidia.com/gpu: x\n",
            "line 6: workload[1].requests.nvidia.com/gpu: invalid quantity",
        ),
    ],
)
def test_invalid_field_is_named(text: str, reason: str) -> None:
    assert reason in load_error(text)


def test_node_selector_is_the_text_that_the_file_has() -> None:
    Path("one.yaml").write_text(FILE.replace("owner: a", "nodeSelector: {ssd: true}"))
    (job,) = load_simulation(Path("one.yaml"), SimulationOptions()).setup.workload.jobs
    assert job.node_labels == {"ssd": ("true",)}


def test_reservation_may_have_any_case() -> None:
    Path("one.yaml").write_text(f"{FILE}reservation: strict\n")
    (policy,) = load_simulation(
        Path("one.yaml"), SimulationOptions()
    ).setup.profiles.policies.values()
    assert policy.reservation.mode == "Strict"


def test_rate_of_too_many_faults_is_refused_before_they_are_drawn() -> None:
    rate = "faults: {rate: {meanTimeBetweenFailures: 1ms, repair: 1ms}}\nhorizon: 1000h\n"
    assert (
        "line 4: faults.rate: means about 7200000000 faults until the horizon; at most 1000000"
        in load_error(FILE + rate)
    )
    nodes = load_simulation(Path("ok.yaml"), SimulationOptions()).setup.nodes
    with pytest.raises(TooManyFaults, match="means about inf faults"):
        FaultRate(1.0, 1.0).draw(nodes, 0, float("inf"))


def test_error_of_a_policy_has_its_line() -> None:
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    Path("policy.yaml").write_text(f"{head}workload: 3\n")
    found = load_error(f"{FILE}policy: policy.yaml\n")
    assert "line 4: policy: policy.yaml: line 3: workload: there is no such field" in found


def test_first_difference_of_other_jobs_is_named() -> None:
    for change, reason in (
        ("pods: 3", "the number of pods of job 1 is 3, not 4"),
        ("pods: 4, count: 3", "3 jobs instead of 1"),
    ):
        Path("b.yaml").write_text(FILE.replace("pods: 4", change))
        message = f"Error: b.yaml has other jobs than ok.yaml: {reason}\n"
        assert run("compare", "ok.yaml", "b.yaml") == (1, message)


# ---- files ---------------------------------------------------------------------------------------


def write_to_pipe(path: Path, text: str) -> None:
    """Write a text to a new pipe as soon as it is read, once."""
    os.mkfifo(path)
    threading.Thread(target=path.write_text, args=(text,), daemon=True).start()


def test_every_input_may_be_a_pipe() -> None:
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    for name, text in (("file", FILE), ("nodes", POOLS), ("config", head)):
        write_to_pipe(Path(name), text)
    code, output = run("simulate", "-f", "file", "--nodes", "nodes", "--config", "config")
    assert (code, "jobs               1 (0 unfinished)" in output) == (0, True), output


def test_compared_files_may_be_pipes_with_several_seeds() -> None:
    write_to_pipe(Path("a"), FILE)
    write_to_pipe(Path("b"), FILE.replace("cluster: 4", "cluster: 5"))
    code, output = run("compare", "a", "b", "--seeds", 2)
    assert code == 0, output


def test_recording_may_be_a_pipe() -> None:
    write_to_pipe(Path("pipe"), LOG)
    message = "pipe is a trace in the format swf, not a recording"
    code, output = run("replay", "pipe")
    assert (code, message in output) == (1, True)


@pytest.mark.parametrize("name", ["one.YAML", "one", "one.txt", "one.yml", "one.yaml.GZ"])
def test_simulation_file_may_have_any_name(name: str) -> None:
    content = gzip.compress(FILE.encode()) if name.endswith("GZ") else FILE.encode()
    Path(name).write_bytes(content)
    assert run("simulate", "-f", name)[0] == 0


def test_file_that_is_nothing_known_is_named_with_the_reason() -> None:
    Path("one").write_text("hello: [\n")
    code, output = run("simulate", "-f", "one")
    assert code == 1
    assert "one: neither a simulation file (line 2, column 1: expected the node conte" in output
    assert "nor a trace in a known format (philly, " in output
    Path("one").write_bytes(b"\x00\xff\xfe" * 99)
    assert run("simulate", "-f", "one") == (1, "Error: one is not a text file\n")


def test_cluster_file_may_be_compressed() -> None:
    Path("nodes.yaml.gz").write_bytes(gzip.compress(POOLS.encode()))
    assert run("simulate", "-f", "ok.yaml", "--nodes", "nodes.yaml.gz")[0] == 0


def test_binary_file_is_no_list_of_nodes() -> None:
    Path("nodes.csv").write_bytes(bytes(range(256)) * 4)
    code, output = run("simulate", "-f", "ok.yaml", "--nodes", "nodes.csv")
    assert code == 2
    assert output.endswith("Invalid value for --nodes: nodes.csv is not a list of nodes\n")


@pytest.mark.parametrize("command", [("simulate", "-f"), ("replay",)])
def test_damaged_compressed_file_says_what_to_do(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = Path("one.yaml.gz"), gzip.compress(FILE.encode())
    monkeypatch.setattr(input_files, "_MAX_YAML_BYTES", 1 << 20)
    for damaged, reason in (
        (content[:40], "the compressed file is incomplete; copy or download it again"),
        (content[:10] + b"x" * 40, "cannot be decompressed ("),
        (gzip.compress(b" " * (2 << 20)), "larger than 1 MiB"),
    ):
        path.write_bytes(damaged)
        code, output = run(*command, path)
        expected = "is a simulation file" if command[0] == "replay" else reason
        assert code == 1
        assert reason in output or expected in output, output


def test_compressed_simulation_file_is_no_recording() -> None:
    Path("one.yaml.gz").write_bytes(gzip.compress(FILE.encode()))
    message = "one.yaml.gz is a simulation file, not a recording; run: phalanx simulate -f"
    code, output = run("replay", "one.yaml.gz")
    assert (code, message in output) == (1, True)


def test_bad_rows_are_skipped_without_parsing_the_file_again() -> None:
    rows = "- {runTime: 1, pods: -1}\n" * 800
    Path("one.yaml").write_text(f"workload:\n{rows}{FILE.partition(chr(10))[2]}")
    begin = time.monotonic()
    loaded = load_simulation(Path("one.yaml"), SimulationOptions(is_lenient=True))
    assert loaded.setup.workload.skipped == {"entry cannot be read": 800}
    assert time.monotonic() - begin < 10
