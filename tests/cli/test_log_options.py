"""`--log-format`, `--log-file` and `-v` of the commands that run components."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import (
    COMMAND_TIMEOUT,
    first_line,
    phalanx,
    split_log,
    start_component,
    start_up,
)

QUICK = ("--nodes", "1", "--data", ":memory:")
FIELDS = {"time", "level", "component", "message"}


def stop_up(*options: str) -> str:
    """Run `phalanx up` until it is ready, stop it, and return stderr."""
    with start_up(*QUICK, *options) as process:
        assert first_line(process).startswith("ready ")
        process.terminate()
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 0, errors
    return errors


def stop_component(name: str, config: Path, *options: str) -> str:
    """Run a component until it is ready, stop it, and return stderr."""
    with start_component(name, config, *options) as process:
        assert first_line(process).startswith("ready ")
        process.terminate()
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 0, errors
    return errors


def test_up_logs_text_to_stderr_at_info(tmp_path: Path) -> None:
    lines, other = split_log(stop_up("--kubeconfig", str(tmp_path / "kubeconfig")))
    assert other.startswith("page https://")
    assert other.count("\n") == 1
    assert {line.level for line in lines} == {"INFO"}
    assert "server" in {line.component for line in lines}


def test_both_processes_of_up_log_json_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "phalanx.log"
    options = ("--log-format", "json", "--log-file", str(file), "--verbose")
    errors = stop_up("--kubeconfig", str(tmp_path / "kubeconfig"), *options)
    assert split_log(errors)[0] == []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(row.keys() >= FIELDS for row in rows)
    # The server process logs as "server", the component process as all others.
    assert {"server", "nodes"} <= {row["component"] for row in rows}
    assert {"DEBUG", "INFO"} == {row["level"] for row in rows}


@pytest.mark.slow
def test_log_file_is_appended_to(tmp_path: Path) -> None:
    file, config = tmp_path / "phalanx.log", str(tmp_path / "kubeconfig")
    counts = []
    for _ in range(2):
        stop_up("--kubeconfig", config, "--log-file", str(file))
        counts.append(len(split_log(file.read_text())[0]))
    assert 0 < counts[0] < counts[1]


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("component", ["scheduler", "controllers", "nodes"])
def test_component_logs_json_and_debug_lines(component: str, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    with start_up(*QUICK, "--kubeconfig", str(config), "--without", component) as plane:
        assert first_line(plane).startswith("ready ")
        text = stop_component(component, config)
        rows = [
            json.loads(line)
            for line in stop_component(component, config, "--log-format", "json", "-v").splitlines()
        ]
    lines, other = split_log(text)
    assert (other, {line.level for line in lines}) == ("", {"INFO"})
    assert all(row.keys() >= FIELDS for row in rows)
    assert {row["component"] for row in rows} >= {component}
    assert "DEBUG" in {row["level"] for row in rows}


@pytest.mark.parametrize("command", ["up", "scheduler", "controllers", "nodes"])
def test_log_options_are_in_the_help(command: str) -> None:
    text = phalanx(command, "--help").stdout
    assert all(option in text for option in ("--log-format", "--log-file", "-v, --verbose"))


def test_log_file_in_a_missing_directory_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "log"
    done = phalanx("up", *QUICK, "--log-file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        f"Error: cannot open --log-file {file}: No such file or directory\n"
    )
