"""Conversion of group references of pods, and of the forms of v1alpha1 that the KEPs show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.conversion.workload_references import (
    TEMPLATE_ANNOTATION,
    WORKLOAD_ANNOTATION,
    AliasConverter,
    ConvertedValue,
    convert_api_version,
    convert_spec_template_name,
    convert_template_name,
    convert_workload_ref,
    convert_workload_reference,
    is_replica_group,
    replica_group_name,
)
from phalanx.api.formats import validate_dns_subdomain
from tests.api.cause_summaries import summarize


@pytest.mark.parametrize(
    ("reference", "group", "marks"),
    [
        ({"name": "w", "podGroupName": "g"}, "g", {}),
        ({"podGroupName": "g"}, "g", {}),
        ({"name": "w", "podGroupTemplateName": "g"}, "g", {}),
        (
            {"name": "w", "podGroup": "t"},
            "w-t",
            {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"},
        ),
        (
            {"name": "w", "podGroup": "t", "podGroupReplicaKey": "7"},
            "w-t-7",
            {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"},
        ),
        ({"name": "w", "podGroup": "t", "podGroupName": "g"}, "g", {}),
        ({"name": "w", "podGroup": None, "podGroupName": "g"}, "g", {}),
    ],
)
def test_reference_of_any_form_becomes_a_group_name(
    reference: dict[str, Any], group: str, marks: dict[str, str]
) -> None:
    assert convert_workload_ref(reference) == ConvertedValue({"podGroupName": group}, marks)


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
def test_reference_without_group_is_refused(reference: Any, findings: list[str]) -> None:
    found = convert_workload_ref(reference)
    assert not isinstance(found, ConvertedValue)
    assert summarize(found) == findings


def test_unknown_fields_are_kept_for_the_schema_check() -> None:
    found = convert_workload_ref({"name": "w", "podGroupName": "g", "color": "red"})
    assert isinstance(found, ConvertedValue)
    assert found.value == {"podGroupName": "g", "color": "red"}


def test_group_names_are_valid_and_distinct_whatever_their_length() -> None:
    long = "w" * 200
    names = [replica_group_name(long, "t" * 63, key) for key in ("", "1", "2")]
    names.append(replica_group_name(f"{'w' * 240}.{'-' * 10}", "t" * 63, ""))
    assert len(set(names)) == len(names)
    assert [validate_dns_subdomain(name) for name in names] == [[]] * len(names)


@given(st.integers(1, 253), st.integers(1, 63), st.integers(0, 63))
def test_replica_group_is_recognized_by_annotations(workload: int, template: int, key: int) -> None:
    marks = {WORKLOAD_ANNOTATION: "w" * workload, TEMPLATE_ANNOTATION: "t" * template}
    name = replica_group_name(marks[WORKLOAD_ANNOTATION], marks[TEMPLATE_ANNOTATION], "k" * key)
    assert is_replica_group(name, marks)


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("other", {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}),
        ("w-tt", {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}),
        ("w", {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}),
        ("", {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}),
        ("w-t", {WORKLOAD_ANNOTATION: "w"}),
        ("w-t", {TEMPLATE_ANNOTATION: "t"}),
        ("w-t", {}),
    ],
)
def test_other_groups_are_not_replica_groups(name: str, marks: dict[str, str]) -> None:
    assert not is_replica_group(name, marks)


@pytest.mark.parametrize(
    ("convert", "value", "stored"),
    [
        (convert_api_version, "batch/v1", "batch"),
        (convert_api_version, "jobset.x-k8s.io/v1alpha2", "jobset.x-k8s.io"),
        (convert_api_version, "v1", ""),
        (convert_template_name, "t", {"podGroupTemplateName": "t"}),
        (convert_spec_template_name, "t", {"workload": {"podGroupTemplateName": "t"}}),
        (convert_workload_reference, {"name": "w"}, {"workload": {"workloadName": "w"}}),
        (
            convert_workload_reference,
            {
                "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "name": "w",
                "uid": "u", "resourceVersion": "1", "fieldPath": "spec",
            },
            {"workload": {"workloadName": "w"}},
        ),
        (convert_workload_reference, {"colour": "red"}, {"workload": {"colour": "red"}}),
        (convert_workload_reference, {}, {"workload": {}}),
    ],
)  # fmt: skip
def test_older_forms_are_converted(convert: AliasConverter, value: Any, stored: Any) -> None:
    assert convert(value) == ConvertedValue(stored)


def test_namespace_of_a_reference_is_returned() -> None:
    turned = convert_workload_reference({"name": "w", "namespace": "n"})
    assert turned == ConvertedValue({"workload": {"workloadName": "w"}}, namespace="n")


@pytest.mark.parametrize(
    ("convert", "value", "path"),
    [
        (convert_api_version, 1, ""),
        (convert_workload_reference, "w", ""),
        (convert_workload_reference, {"name": "w", "kind": "Job"}, "kind"),
        (convert_workload_reference, {"name": "w", "apiVersion": "batch/v1"}, "apiVersion"),
        (convert_workload_reference, {"name": "w", "apiVersion": 1}, "apiVersion"),
    ],
)
def test_invalid_reference_is_refused_with_its_path(
    convert: AliasConverter, value: Any, path: str
) -> None:
    causes = convert(value)
    assert not isinstance(causes, ConvertedValue)
    assert [cause.field for cause in causes] == [path]
