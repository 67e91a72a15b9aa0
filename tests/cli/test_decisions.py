from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.wire import Object
from phalanx.cli.decisions import decisions_command
from phalanx.client import kubeconfig
from phalanx.controllers.scheduling.decision_log import DecisionLog, DecisionLogFile, write_inline
from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario
from tests.builders import gang
from tests.cli.commands import COMMAND_TIMEOUT, first_line, phalanx, split_log, start_up

SCENARIO = """
nodes: {each: {gpu: 4}}
at 0: [{gang: a, pods: 3, each: {gpu: 1}}, {gang: b, pods: 3, each: {gpu: 1}}]
at 20: {finish: a}
until: 60
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "decisions.jsonl"
    run_scenario(parse_scenario(SCENARIO), DecisionLog(write_inline(DecisionLogFile(file).write)))
    return file


def decisions(*args: object) -> Result:
    return CliRunner().invoke(decisions_command, [str(arg) for arg in args])


def test_decisions_are_listed_with_their_time_and_reason(log: Path) -> None:
    done = decisions(log)
    head, first, second, *_, last = done.stdout.splitlines()
    assert done.exit_code == 0
    assert head.split() == ["TIME", "ENTITY", "ATTEMPT", "OUTCOME", "MESSAGE"]
    assert first.startswith("2026-01-01T00:00:0")
    assert first.split()[1:] == ["podgroup/default/a", "1", "Placed", "3", "pods", "on", "node-0"]
    assert "Waiting" in second
    assert "minCount (3) cannot be satisfied: 1 scheduled" in second
    assert "podgroup/default/b" in last
    assert "Placed" in last


def test_check_replays_decisions(log: Path) -> None:
    done = decisions(log, "--check")
    assert done.exit_code == 0, done.output
    *_, last = done.stdout.splitlines()
    count = len(decisions(log).stdout.splitlines()) - 1
    assert last == f"{count} decisions replayed, 0 differ"


def test_check_shows_decisions_that_differ(log: Path) -> None:
    text = log.read_bytes()
    assert text.count(b'"bindings":[[["default","a-0"]') == 1
    log.write_bytes(text.replace(b'"node-0"],[["default","a-1"]', b'"node-9"],[["default","a-1"]'))
    done = decisions(log, "--check")
    assert done.exit_code == 1
    assert "was changed, or a line before it is missing" in done.stderr
    assert "now:" in done.stdout
    assert not done.stdout.endswith(" 0 differ\n")


def test_changed_line_is_reported_without_a_replay(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"nvidia.com/gpu":"4"', b'"nvidia.com/gpu":"5"', 1))
    done = decisions(log)
    assert done.exit_code == 1
    assert "was changed, or a line before it is missing" in done.stderr


def test_truncated_last_line_is_ignored(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-10])
    assert decisions(log, "--check").exit_code == 0


def test_decisions_are_printed_as_json(log: Path) -> None:
    done = decisions(log, "--check", "-o", "json")
    first, *_ = (json.loads(line) for line in done.stdout.splitlines())
    assert first["entity"]["key"] == ["default", "a"]
    assert first["differs"] is False
    assert first["decision"] == first["now"]
    assert len(first["decision"]["Placed"]["bindings"]) == 3


def test_missing_decision_log_is_wrong_usage(tmp_path: Path) -> None:
    assert decisions(tmp_path / "nothing").exit_code == 2


async def create(config: Path, objects: list[Object]) -> None:
    client = kubeconfig.create_client(kubeconfig.load([config]))
    for obj in objects:
        await client.create(POD_GROUP if obj["kind"] == "PodGroup" else POD, obj)
    await client.close()


def test_control_plane_writes_a_decision_log(tmp_path: Path) -> None:
    config, log = tmp_path / "kubeconfig", tmp_path / "decisions.jsonl"
    options = ("--nodes", "2", "--data", ":memory:", "--decision-log", str(log))
    with start_up(*options, "--kubeconfig", str(config)) as process:
        assert first_line(process).startswith("ready ")
        asyncio.run(create(config, gang("train", 3, cpu="1")))
        process.terminate()
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
        other = split_log(errors)[1]
        assert (process.returncode, other.count("\n"), other[:5]) == (0, 1, "page ")
    done = phalanx("decisions", str(log), "--check")
    assert done.returncode == 0, done.stderr
    assert "0 differ" in done.stdout


def test_decision_log_needs_an_existing_directory(tmp_path: Path) -> None:
    done = phalanx("up", "--decision-log", str(tmp_path / "nowhere" / "log"))
    assert done.returncode == 2
    assert "its directory does not exist" in done.stderr
