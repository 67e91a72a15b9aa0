"""Every command as a process: wrong usage, no cluster, JSON and YAML output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from phalanx.cli.main import COMMANDS
from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane

#: Commands that query a cluster, with their required arguments.
QUERIES = {
    "why": ["why", "job/train"],
    "queue": ["queue"],
    "top": ["top", "--once"],
    "what-if": ["what-if", "--add-nodes", "1"],
    "check": ["check"],
}
#: Exit codes other than 0 alone. What-if answers for all gangs that wait, those of other tests too.
VERDICTS = {"what-if": (0, 3, 4), "why": (0, 3)}


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_wrong_usage(command: str) -> None:
    done = phalanx(command, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("Error: No such option")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", QUERIES)
def test_command_without_a_cluster_fails_in_one_line_with_advice(
    command: str, tmp_path: Path
) -> None:
    done = phalanx(*QUERIES[command], "--kubeconfig", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: there is no kubeconfig at ")
    assert done.stderr.endswith("or name a file with --kubeconfig\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", QUERIES)
def test_json_and_yaml_output_can_be_parsed(plane: ControlPlane, command: str) -> None:
    ann = CliUser(plane.kubeconfig)
    ann.create(gang_job("train", 2, cpu="7"))
    options = ["--kubeconfig", str(plane.kubeconfig)]
    if command != "check":
        options += ["-n", ann.namespace]
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        done = phalanx(*QUERIES[command], *options, "-o", form)
        assert done.returncode in VERDICTS.get(command, (0,)), done.stderr
        assert isinstance(read(done.stdout), dict)


@pytest.mark.parametrize("command", QUERIES)
def test_unknown_output_format_is_wrong_usage(command: str) -> None:
    done = phalanx(*QUERIES[command], "-o", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'xml' is not one of " in done.stderr
