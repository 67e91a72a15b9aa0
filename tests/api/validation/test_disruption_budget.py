"""Rules of PodDisruptionBudgets."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD_DISRUPTION_BUDGET as BUDGET
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        ({"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}, []),
        ({"maxUnavailable": "100%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}, []),
        ({"minAvailable": "0000100%"}, []),
        ({"minAvailable": 1, "maxUnavailable": 1}, [": Invalid"]),
        ({"minAvailable": -1}, ["minAvailable: Invalid"]),
        ({"minAvailable": "150%"}, ["minAvailable: Invalid"]),
        ({"maxUnavailable": "9" * 5000 + "%"}, ["maxUnavailable: Invalid"]),
        ({"maxUnavailable": "half"}, ["maxUnavailable: Invalid"]),
        ({"unhealthyPodEvictionPolicy": "Maybe"}, ["unhealthyPodEvictionPolicy: NotSupported"]),
        ({"selector": {"matchLabels": {"a b": "c"}}}, ["selector.matchLabels: Invalid"]),
    ],
)
def test_a_budget_is_a_number_or_a_share(spec: Object, causes: CauseSummaries) -> None:
    assert creation_causes(BUDGET, {"spec": spec}) == prefix_summaries("spec", causes)


def test_a_new_budget_allows_nothing_yet() -> None:
    new = make_stored(BUDGET, {"spec": {"minAvailable": 1}, "status": {"disruptionsAllowed": 5}})
    assert new["status"] == {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    }


def test_the_number_of_a_budget_may_change() -> None:
    old = make_stored(BUDGET, {"spec": {"minAvailable": 1}})
    assert (
        find_causes(BUDGET, change_stored(BUDGET, old, spec={"maxUnavailable": "50%"}), old) == []
    )


def test_counts_of_a_status_are_natural() -> None:
    old = make_stored(BUDGET, {"spec": {"minAvailable": 1}})
    new = change_stored(BUDGET, old, status={"disruptionsAllowed": -1, "currentHealthy": -1})
    assert find_causes(BUDGET, new, old, "status") == [
        "status.disruptionsAllowed: Invalid",
        "status.currentHealthy: Invalid",
    ]
