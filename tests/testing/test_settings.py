from __future__ import annotations

from typing import Any

import pytest

from phalanx.testing import Settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"nods": 3},
            'unknown setting "nods"; available: '
            "nodes, room, gates, without, invariants, virtual, seed",
        ),
        (
            {"without": ["kubelets"]},
            'unknown component "kubelets"; available: scheduler, controllers, nodes',
        ),
        ({"nodes": "3"}, "nodes must be a number such as 3, not '3'"),
        ({"without": "nodes"}, r"without must be a list such as \["),
        ({"gates": {"Nonsense": True}}, "unrecognized feature gate: Nonsense"),
    ],
)
def test_wrong_setting_is_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.of(given)


def test_feature_gates_are_resolved() -> None:
    assert not Settings(gates={"GenericWorkload": False}).feature_gates.is_enabled(
        "WorkloadWithJob"
    )
