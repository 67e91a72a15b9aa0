"""Every command as a process: wrong usage, no cluster, and what it prints for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from phalanx.cli.main import COMMANDS
from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane

#: Commands that ask a cluster, with as much as they need to do so.
ASKING = {
    "why": ["why", "job/train"],
    "queue": ["queue"],
    "top": ["top", "--once"],
    "what-if": ["what-if", "--add-nodes", "1"],
    "check": ["check"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_it_does_not_know_is_wrong_usage(command: str) -> None:
    done = phalanx(command, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("Error: No such option")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ASKING)
def test_without_a_cluster_it_fails_in_one_sentence_with_the_way_out(
    command: str, tmp_path: Path
) -> None:
    done = phalanx(*ASKING[command], "--kubeconfig", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: there is no kubeconfig at ")
    assert done.stderr.endswith("or name a file with --kubeconfig\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ASKING)
def test_what_it_prints_for_programs_they_can_read(plane: ControlPlane, command: str) -> None:
    ann = CliUser(plane.kubeconfig)
    ann.create(gang_job("train", 2, cpu="7"))
    options = ["--kubeconfig", str(plane.kubeconfig)]
    if command != "check":
        options += ["-n", ann.namespace]
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        done = phalanx(*ASKING[command], *options, "-o", form)
        assert done.returncode in (0, 3), done.stderr
        assert isinstance(read(done.stdout), dict)


@pytest.mark.parametrize("command", ASKING)
def test_a_form_that_there_is_none_of_is_wrong_usage(command: str) -> None:
    done = phalanx(*ASKING[command], "-o", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'xml' is not one of " in done.stderr
