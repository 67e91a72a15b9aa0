"""Shapes that proposals printed under v1alpha1, turned into the one that it has."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.versions.oldshapes import (
    turn_api_version,
    turn_spec_template_name,
    turn_template_name,
    turn_workload_reference,
)
from phalanx.api.versions.turning import Turn, Turned


@pytest.mark.parametrize(
    ("turn", "said", "stored"),
    [
        (turn_api_version, "batch/v1", "batch"),
        (turn_api_version, "jobset.x-k8s.io/v1alpha2", "jobset.x-k8s.io"),
        (turn_api_version, "v1", ""),
        (turn_template_name, "t", {"podGroupTemplateName": "t"}),
        (turn_spec_template_name, "t", {"workload": {"podGroupTemplateName": "t"}}),
        (turn_workload_reference, {"name": "w"}, {"workload": {"workloadName": "w"}}),
        (
            turn_workload_reference,
            {
                "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "name": "w",
                "uid": "u", "resourceVersion": "1", "fieldPath": "spec",
            },
            {"workload": {"workloadName": "w"}},
        ),
        (turn_workload_reference, {"colour": "red"}, {"workload": {"colour": "red"}}),
        (turn_workload_reference, {}, {"workload": {}}),
    ],
)  # fmt: skip
def test_what_was_printed_is_turned(turn: Turn, said: Any, stored: Any) -> None:
    assert turn(said) == Turned(stored)


def test_the_namespace_of_a_reference_is_told_of() -> None:
    turned = turn_workload_reference({"name": "w", "namespace": "n"})
    assert turned == Turned({"workload": {"workloadName": "w"}}, namespace="n")


@pytest.mark.parametrize(
    ("turn", "said", "place"),
    [
        (turn_api_version, 1, ""),
        (turn_workload_reference, "w", ""),
        (turn_workload_reference, {"name": "w", "kind": "Job"}, "kind"),
        (turn_workload_reference, {"name": "w", "apiVersion": "batch/v1"}, "apiVersion"),
        (turn_workload_reference, {"name": "w", "apiVersion": 1}, "apiVersion"),
    ],
)
def test_what_cannot_be_meant_is_told_where_it_stands(turn: Turn, said: Any, place: str) -> None:
    causes = turn(said)
    assert not isinstance(causes, Turned)
    assert [cause.field for cause in causes] == [place]
