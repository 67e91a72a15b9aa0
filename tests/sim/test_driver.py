from __future__ import annotations

import pytest

from phalanx.sim.driver import Refused
from phalanx.sim.run import run
from phalanx.sim.scenario import parse


def words(text: str, subject: str) -> list[str]:
    return [line.word for line in run(parse(text)).lines if line.subject == subject]


def test_what_the_server_refuses_ends_the_run_with_a_sentence() -> None:
    text = "nodes: {}\nat 0: {pod: a}\nat 1: {delete: a}\nat 2: {delete: a}"
    with pytest.raises(Refused, match=r'^at 2: the API server refused: pods "a" not found$'):
        run(parse(text))


def test_one_member_can_be_ended_or_lost_alone() -> None:
    text = """
    nodes: {}
    at 0: {gang: a, pods: 3}
    at 1: {finish: a-1}
    at 2: {delete: a-2}
    at 3: {finish: a}
    """
    assert words(text, "a") == ["Placed", "Running", "Running", "Lost", "Running", "Finished"]


def test_a_pod_alone_runs_ends_and_goes() -> None:
    text = "nodes: {}\nat 0: {pod: a}\nat 1: {finish: a}\nat 2: {delete: a}"
    assert words(text, "a") == ["Placed", "Running", "Finished", "Gone"]


def test_members_of_a_gang_may_ask_for_different_things() -> None:
    text = """
    nodes: [{name: big, each: {gpu: 4}}, {name: small, each: {gpu: 1}}]
    at 0: {gang: a, pods: 1, min: 2, each: {gpu: 4}}
    at 1: {join: a, each: {gpu: 1}}
    """
    assert "a  Placed   big, small" in run(parse(text)).text()
