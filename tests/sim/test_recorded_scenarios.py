"""Scenarios that a real Kubernetes was recorded in, acted out in virtual time.

And those that it fails and ours must pass, which are written rather than recorded.
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


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_recorded_scenario_ends_as_recorded(file: Path) -> None:
    case = json.loads(file.read_text())
    assert loop.run_virtual(lambda: run_recorded_scenario(case)) == []


def short_gang() -> Object:
    """A recorded scenario of a gang that does not fit and says so."""
    case: Object = json.loads((FOLDER / "scenarios" / "gang-short-by-one-pod.json").read_text())
    return case


@pytest.mark.parametrize(
    ("part", "key", "other"),
    [
        ("groups", "train", {"bound": 4}),
        ("groups", "nobody", {"bound": 0}),
        ("conditions", "PodGroup/train", [["PodGroupInitiallyScheduled", "True", "Scheduled"]]),
        ("gone", "train", 1),
        ("podgroups", "train", {"schedulingPolicy": {"basic": {}}}),
    ],
)
def test_an_outcome_that_is_not_the_recorded_one_is_told(part: str, key: str, other: Any) -> None:
    case = short_gang()
    case["outcome"][part][key] = other
    (sentence,) = loop.run_virtual(lambda: run_recorded_scenario(case))
    assert sentence.startswith(f"{part} {key}: wanted {json.dumps(other)}, got ")


def test_a_request_that_is_refused_is_told_unless_it_was_recorded_as_refused() -> None:
    case = short_gang()
    case["steps"][0]["create"].insert(0, {"kind": "Node", "metadata": {"name": "Not a name"}})
    (sentence,) = loop.run_virtual(lambda: run_recorded_scenario(case))
    assert sentence.startswith("recorded as refused [], here ['create Node Not a name: 422 ")
    case["outcome"]["refused"] = ["create Node Not a name: 422 Invalid"]
    assert loop.run_virtual(lambda: run_recorded_scenario(case)) == []
