from __future__ import annotations

import pytest

from phalanx.sim.driver import ScenarioRejected
from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario


def event_names(text: str, subject: str) -> list[str]:
    return [
        line.event for line in run_scenario(parse_scenario(text)).lines if line.subject == subject
    ]


def test_request_rejected_by_the_server_ends_the_run_with_a_message() -> None:
    text = "nodes: {}\nat 0: {pod: a}\nat 1: {delete: a}\nat 2: {delete: a}"
    with pytest.raises(
        ScenarioRejected, match=r'^at 2: the API server refused: pods "a" not found$'
    ):
        run_scenario(parse_scenario(text))


def test_single_member_can_finish_or_be_deleted() -> None:
    text = """
    nodes: {}
    at 0: {gang: a, pods: 3}
    at 1: {finish: a-1}
    at 2: {delete: a-2}
    at 3: {finish: a}
    """
    assert event_names(text, "a") == ["Placed", "Running", "Running", "Lost", "Running", "Finished"]


def test_single_pod_runs_finishes_and_is_deleted() -> None:
    text = "nodes: {}\nat 0: {pod: a}\nat 1: {finish: a}\nat 2: {delete: a}"
    assert event_names(text, "a") == ["Placed", "Running", "Finished", "Gone"]


def test_members_of_a_gang_may_have_different_requests() -> None:
    text = """
    nodes: [{name: big, each: {gpu: 4}}, {name: small, each: {gpu: 1}}]
    at 0: {gang: a, pods: 1, min: 2, each: {gpu: 4}}
    at 1: {join: a, each: {gpu: 1}}
    """
    assert "a  Placed   big, small" in run_scenario(parse_scenario(text)).text()


def test_force_deleted_group_is_gone_while_its_members_run() -> None:
    text = """
    nodes: {}
    at 0: {gang: a, pods: 1}
    at 1: {drop group: a}
    at 2: {group: a, min: 1}
    at 3: {join: a}
    """
    assert event_names(text, "a") == ["Placed", "Running", "Joined", "Running"]


def test_gate_is_removed_from_one_pod_or_from_a_gang() -> None:
    text = """
    nodes: {}
    at 0: {gang: a, pods: 2, gates: hold}
    at 1: {ungate: a-0}
    at 20: {ungate: a}
    """
    (placed,) = [
        line for line in run_scenario(parse_scenario(text)).lines if line.event == "Placed"
    ]
    assert placed.time == pytest.approx(20, abs=0.1)


def test_spec_fields_of_an_event_reach_the_pod() -> None:
    text = """
    nodes: {count: 2}
    at 0: {pod: a, spec: {nodeSelector: {kubernetes.io/hostname: node-1}}}
    at 1: {pod: b, spec: {schedulerName: another}}
    """
    timeline = run_scenario(parse_scenario(text)).text()
    assert "a  Placed   node-1" in timeline
    assert "b  " not in timeline
