from __future__ import annotations

from typing import Any

import pytest

from phalanx.testing import Settings


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"nods": 3}, "'nods' is none of nodes, room, gates, without, invariants, virtual, seed"),
        ({"without": ["kubelets"]}, "'kubelets' is none of scheduler, controllers, nodes"),
        ({"gates": {"Nonsense": True}}, "unrecognized feature gate: Nonsense"),
    ],
)
def test_what_there_is_not_is_refused(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings.of(said)


def test_gates_are_switched() -> None:
    assert not Settings(gates={"GenericWorkload": False}).switched.is_enabled("WorkloadWithJob")
