"""Rules that hold only while a gate is on."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.gates import DEFAULT, gated
from phalanx.api.kinds import JOB, POD
from phalanx.api.rules.gated import gated_faults
from phalanx.api.wire import Object

ON = gated({"JobGangInference": True})


def job(parallelism: int, completions: int, mode: str = "Indexed", **more: Any) -> Object:
    spec: Object = {"parallelism": parallelism, "completions": completions, "completionMode": mode}
    return {"metadata": {"name": "j"}, "spec": {**spec, **more}}


GANG: Object = {"schedulingPolicy": {"gang": {}}}


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        (job(4, 4), job(5, 5), True),
        (job(2, 4), job(4, 4), True),
        (job(4, 4), job(4, 4), False),
        (job(4, 4), job(2, 4), False),
        (job(4, 4), job(1, 1), False),
        (job(4, 4, "NonIndexed"), job(5, 5, "NonIndexed"), False),
        (job(4, 4, scheduling=GANG), job(5, 5, scheduling=GANG), False),
        (job(4, 4, gangPolicy={"policy": "JobAsGang"}),
         job(5, 5, gangPolicy={"policy": "JobAsGang"}), False),
    ],
)  # fmt: skip
def test_what_becomes_a_gang_by_its_shape_keeps_its_parallelism_while_the_gate_is_on(
    old: Object, new: Object, is_refused: bool
) -> None:
    found = gated_faults(ON, JOB, new, old)
    assert [cause.field for cause in found] == (["spec.parallelism"] if is_refused else [])
    assert gated_faults(DEFAULT, JOB, new, old) == []


def test_what_is_made_is_not_judged_by_what_it_was() -> None:
    assert gated_faults(ON, JOB, job(4, 4), None) == []
    assert gated_faults(ON, POD, {"metadata": {"name": "p"}, "spec": {}}, None) == []
