"""Scenarios recorded on a real Kubernetes, run in virtual time.

`wanted/` holds scenarios that the real Kubernetes fails and ours must pass; they are written by
hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.api.wire import Object
from phalanx.sim import virtual_time as loop
from tests.sim.recorded_scenario import run_recorded_scenario

FOLDER = Path(__file__).parent.parent / "recorded"
FILES = sorted([*FOLDER.glob("scenarios/*.json"), *FOLDER.glob("wanted/*.json")])


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_recorded_scenario_gives_its_recorded_outcome(file: Path) -> None:
    case = json.loads(file.read_text())
    assert loop.run_virtual(lambda: run_recorded_scenario(case)) == []


def load_gang_that_does_not_fit() -> Object:
    """Load a recorded scenario of a gang that does not fit."""
    case: Object = json.loads((FOLDER / "scenarios" / "gang-short-by-one-pod.json").read_text())
    return case


@pytest.mark.parametrize(
    ("part", "key", "expected"),
    [
        ("groups", "train", {"bound": 4}),
        ("groups", "missing", {"bound": 0}),
        ("conditions", "PodGroup/train", [["PodGroupInitiallyScheduled", "True", "Scheduled"]]),
        ("gone", "train", 1),
        ("podgroups", "train", {"schedulingPolicy": {"basic": {}}}),
    ],
)
def test_different_outcome_is_reported(part: str, key: str, expected: Any) -> None:
    case = load_gang_that_does_not_fit()
    case["outcome"][part][key] = expected
    (difference,) = loop.run_virtual(lambda: run_recorded_scenario(case))
    assert difference.startswith(f"{part} {key}: wanted {json.dumps(expected)}, got ")


def test_rejected_request_is_reported_unless_it_was_recorded_as_rejected() -> None:
    case = load_gang_that_does_not_fit()
    case["steps"][0]["create"].insert(0, {"kind": "Node", "metadata": {"name": "Not a name"}})
    (difference,) = loop.run_virtual(lambda: run_recorded_scenario(case))
    assert difference.startswith("recorded as refused [], here ['create Node Not a name: 422 ")
    case["outcome"]["refused"] = ["create Node Not a name: 422 Invalid"]
    assert loop.run_virtual(lambda: run_recorded_scenario(case)) == []
