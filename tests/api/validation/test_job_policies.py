"""Rules of the failure and success policies of Jobs."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import JOB
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import creation_causes

POD: Object = {
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": "app:1"}],
    "initContainers": [{"name": "first", "image": "app:1"}],
}
TEMPLATE: Object = {"metadata": {}, "spec": POD}
ONE_CODE: Object = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


def create_causes(**spec: Any) -> CauseSummaries:
    return creation_causes(JOB, {"spec": {"template": TEMPLATE, **spec}})


def codes(*values: int, **fields: Any) -> Object:
    return {"action": "Ignore", "onExitCodes": {"operator": "In", "values": list(values), **fields}}


def conditions(*patterns: Object, **fields: Any) -> Object:
    return {"action": "Ignore", "onPodConditions": list(patterns), **fields}


@pytest.mark.parametrize(
    ("rule", "causes"),
    [
        (ONE_CODE, []),
        (codes(1, 2, 5, containerName="first"), []),
        (codes(0, 1, operator="NotIn"), []),
        (conditions(DISRUPTED), []),
        ({**ONE_CODE, "action": "Count"}, []),
        ({**ONE_CODE, "action": ""}, ["action: Required"]),
        ({**ONE_CODE, "action": "Panic"}, ["action: NotSupported"]),
        ({**ONE_CODE, "action": "FailIndex"}, ["action: Invalid"]),
        ({"action": "Ignore"}, [": Invalid"]),
        (conditions(DISRUPTED, onExitCodes=ONE_CODE["onExitCodes"]), [": Invalid"]),
        (codes(1, operator=""), ["onExitCodes.operator: Required"]),
        (codes(1, operator="Like"), ["onExitCodes.operator: NotSupported"]),
        (codes(1, containerName="else"), ["onExitCodes.containerName: Invalid"]),
        (codes(), ["onExitCodes.values: Invalid"]),
        (codes(*range(1, 257)), ["onExitCodes.values: TooMany"]),
        (
            codes(5, 0, 5),
            [
                "onExitCodes.values[1]: Invalid",
                "onExitCodes.values[2]: Duplicate",
                "onExitCodes.values: Invalid",
            ],
        ),
        (
            conditions({"type": "A B", "status": "No"}),
            ["onPodConditions[0].type: Invalid", "onPodConditions[0].status: NotSupported"],
        ),
        (conditions(*[DISRUPTED] * 21), ["onPodConditions: TooMany"]),
    ],
)
def test_a_failure_rule_sorts_failures(rule: Object, causes: CauseSummaries) -> None:
    policy = {"rules": [ONE_CODE, rule]}
    assert create_causes(podFailurePolicy=policy) == prefix_summaries(
        "spec.podFailurePolicy.rules[1]", causes
    )


def test_an_index_fails_alone_only_where_each_has_a_limit() -> None:
    policy = {"rules": [{**ONE_CODE, "action": "FailIndex"}]}
    indexed: Object = {"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1}
    assert create_causes(podFailurePolicy=policy, **indexed) == []


def test_there_are_at_most_twenty_rules() -> None:
    policy = {"rules": [ONE_CODE] * 21}
    assert create_causes(podFailurePolicy=policy) == ["spec.podFailurePolicy.rules: TooMany"]
    enough = {"rules": [{"succeededCount": 1}] * 21}
    found = create_causes(successPolicy=enough, completionMode="Indexed", completions=3)
    assert found == ["spec.successPolicy.rules: TooMany"]


@pytest.mark.parametrize(
    ("rules", "causes"),
    [
        ([{"succeededIndexes": "0,2-3", "succeededCount": 2}], []),
        ([{"succeededCount": 4}], []),
        ([], [": Required"]),
        ([{}], ["[0]: Required"]),
        ([{"succeededIndexes": "0-4"}], ["[0].succeededIndexes: Invalid"]),
        ([{"succeededIndexes": "2,1"}], ["[0].succeededIndexes: Invalid"]),
        (
            [{"succeededIndexes": "0," * 33_000}],
            ["[0].succeededIndexes: TooLong", "[0].succeededIndexes: Invalid"],
        ),
        ([{"succeededCount": -1}], ["[0].succeededCount: Invalid"]),
        ([{"succeededCount": 5}], ["[0].succeededCount: Invalid"]),
        ([{"succeededIndexes": "0-1", "succeededCount": 3}], ["[0].succeededCount: Invalid"]),
    ],
)
def test_success_policy_rules_are_validated(rules: list[Object], causes: CauseSummaries) -> None:
    found = create_causes(successPolicy={"rules": rules}, completionMode="Indexed", completions=4)
    assert found == prefix_summaries("spec.successPolicy.rules", causes)


def test_success_is_counted_by_index() -> None:
    policy = {"rules": [{"succeededCount": 1}]}
    assert create_causes(successPolicy=policy, completions=3) == ["spec.successPolicy: Invalid"]


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"podReplacementPolicy": "Failed"}, []),
        ({"podReplacementPolicy": "TerminatingOrFailed"}, []),
        ({"podReplacementPolicy": "Soon"}, ["spec.podReplacementPolicy: NotSupported"]),
        (
            {"podReplacementPolicy": "TerminatingOrFailed", "podFailurePolicy": {"rules": []}},
            ["spec.podReplacementPolicy: NotSupported"],
        ),
    ],
)
def test_pod_failure_policy_needs_replacement_policy_failed(
    spec: Object, causes: CauseSummaries
) -> None:
    assert create_causes(**spec) == causes
