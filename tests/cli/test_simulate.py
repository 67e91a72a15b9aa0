"""`phalanx simulate`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phalanx.cli.main import main

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


def test_summary_is_readable(small: Path) -> None:
    result = simulate("-f", small)
    assert result.exit_code == 0
    assert "wait               mean 33 s, p50 0 s, p95 99 s, max 99 s" in result.output


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


def test_horizon_leaves_jobs_unfinished(small: Path) -> None:
    assert report_of("-f", small, "--horizon", "95s")["unfinished"] == 2


def test_compressed_log_is_read(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.swf.gz"
    path.write_bytes(gzip.compress(SMALL.encode()))
    assert report_of("-f", path)["jobs"] == 3
    path.write_bytes(gzip.compress(SMALL.encode())[:40])
    result = simulate("-f", path)
    assert result.exit_code == 1
    assert "cannot be decompressed" in result.output


def test_bad_line_names_file_line_and_reason(small: Path) -> None:
    small.write_text(SMALL + "4 x\n")
    result = simulate("-f", small)
    assert result.exit_code == 1
    assert result.output == f"Error: {small}, line 5: has 2 of the 18 fields of SWF\n"
    report = report_of("-f", small, "--lenient")
    assert report["skipped"] == {"line cannot be read": 1}


def test_same_input_gives_the_same_bytes_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "sample.swf"
    path.write_text("".join(SAMPLE.read_text().splitlines(keepends=True)[:90]))
    code = "from phalanx.cli.main import main; main()"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, "simulate", "-f", str(path), "-o", "json"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("simulate-*/*.txt"))


def test_every_example_has_an_expected_report() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("expected", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_example_gives_its_expected_report(expected: Path) -> None:
    result = simulate("-f", expected.with_suffix(".yaml"))
    assert result.output == expected.read_text()


def test_page_is_written_beside_the_summary(small: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert simulate("-f", small, "--html", page).exit_code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
