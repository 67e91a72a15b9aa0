"""Rules that hold only while a gate is on. Rows, beside those of `table.py`."""

from __future__ import annotations

from typing import NamedTuple

from phalanx.api.errors import Cause
from phalanx.api.gates import JOB_GANG_INFERENCE, Gates
from phalanx.api.kinds import JOB, Kind
from phalanx.api.rules.checks import CREATED, Check, present, struct
from phalanx.api.rules.gangpolicy import check_inferred
from phalanx.api.wire import Object


class GatedRule(NamedTuple):
    """A rule of a kind, and the gate without which it is none."""

    gate: str
    kind: Kind
    check: Check


GATED_RULES = (GatedRule(JOB_GANG_INFERENCE, JOB, struct(("spec", present(check_inferred)))),)


def gated_faults(gates: Gates, kind: Kind, new: Object, old: Object | None) -> list[Cause]:
    """What is wrong with an object by the rules that are on."""
    return [
        cause
        for rule in GATED_RULES
        if rule.kind is kind and gates.is_on(rule.gate)
        for cause in rule.check(new, CREATED if old is None else old)
    ]
