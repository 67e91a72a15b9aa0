"""How a pod names its group, in all forms that there were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.fields import dns_subdomain_faults
from phalanx.api.podlinks import (
    TEMPLATE_MARK,
    WORKLOAD_MARK,
    is_replica_group,
    replica_group_name,
    turn_workload_ref,
)
from phalanx.api.versions.turning import Turned
from tests.api.findings import told


@pytest.mark.parametrize(
    ("reference", "group", "marks"),
    [
        ({"name": "w", "podGroupName": "g"}, "g", {}),
        ({"podGroupName": "g"}, "g", {}),
        ({"name": "w", "podGroupTemplateName": "g"}, "g", {}),
        ({"name": "w", "podGroup": "t"}, "w-t", {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}),
        (
            {"name": "w", "podGroup": "t", "podGroupReplicaKey": "7"},
            "w-t-7",
            {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"},
        ),
        ({"name": "w", "podGroup": "t", "podGroupName": "g"}, "g", {}),
        ({"name": "w", "podGroup": None, "podGroupName": "g"}, "g", {}),
    ],
)
def test_a_reference_of_any_form_becomes_the_name_of_a_group(
    reference: dict[str, Any], group: str, marks: dict[str, str]
) -> None:
    assert turn_workload_ref(reference) == Turned({"podGroupName": group}, marks)


@pytest.mark.parametrize(
    ("reference", "findings"),
    [
        ({}, ["podGroupName: Required"]),
        ({"name": "w"}, ["podGroupName: Required"]),
        ({"name": "w", "podGroupReplicaKey": "1"}, ["podGroupName: Required"]),
        ({"podGroup": "t"}, ["name: Required"]),
        ({"name": 1, "podGroup": ["t"]}, ["name: Invalid", "podGroup: Invalid"]),
        (
            {"name": "W_", "podGroup": "t.u", "podGroupReplicaKey": "-"},
            ["name: Invalid", "podGroup: Invalid", "podGroupReplicaKey: Invalid"],
        ),
        ({"podGroupName": "G"}, ["podGroupName: Invalid"]),
        ({"name": "w", "podGroupTemplateName": "t/u"}, ["podGroupTemplateName: Invalid"]),
        ("w", [": Invalid"]),
        ([], [": Invalid"]),
    ],
)
def test_a_reference_that_names_no_group_is_refused(reference: Any, findings: list[str]) -> None:
    found = turn_workload_ref(reference)
    assert not isinstance(found, Turned)
    assert told(found) == findings


def test_what_nobody_knows_is_left_for_the_schema_to_complain_of() -> None:
    found = turn_workload_ref({"name": "w", "podGroupName": "g", "color": "red"})
    assert isinstance(found, Turned)
    assert found.value == {"podGroupName": "g", "color": "red"}


def test_names_stay_legal_and_apart_however_long_their_parts_are() -> None:
    long = "w" * 200
    names = [replica_group_name(long, "t" * 63, key) for key in ("", "1", "2")]
    names.append(replica_group_name(f"{'w' * 240}.{'-' * 10}", "t" * 63, ""))
    assert len(set(names)) == len(names)
    assert [dns_subdomain_faults(name) for name in names] == [[]] * len(names)


@given(st.integers(1, 253), st.integers(1, 63), st.integers(0, 63))
def test_the_group_of_a_replica_is_known_by_the_marks_alone(
    workload: int, template: int, key: int
) -> None:
    marks = {WORKLOAD_MARK: "w" * workload, TEMPLATE_MARK: "t" * template}
    name = replica_group_name(marks[WORKLOAD_MARK], marks[TEMPLATE_MARK], "k" * key)
    assert is_replica_group(name, marks)


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("other", {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}),
        ("w-tt", {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}),
        ("w", {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}),
        ("", {WORKLOAD_MARK: "w", TEMPLATE_MARK: "t"}),
        ("w-t", {WORKLOAD_MARK: "w"}),
        ("w-t", {TEMPLATE_MARK: "t"}),
        ("w-t", {}),
    ],
)
def test_any_other_group_is_not_one_of_a_replica(name: str, marks: dict[str, str]) -> None:
    assert not is_replica_group(name, marks)
