"""`kubectl explain` against the real server: every field tells what it is for."""

from __future__ import annotations

import re

import pytest

from phalanx.api.definitions import TYPE_META_DESCRIPTIONS, field_descriptions
from phalanx.api.kinds import KINDS
from tests.cli.commands import Kubectl


def told(kubectl: Kubectl, *args: str) -> str:
    """What is explained, without the breaks of its lines."""
    return " ".join(kubectl("explain", *args).split())


def test_a_field_is_explained_however_deep_it_stands(kubectl: Kubectl) -> None:
    text = told(kubectl, "workload.spec.podGroupTemplates.schedulingPolicy.gang.minCount")
    assert "KIND: Workload" in text
    assert "FIELD: minCount <integer>" in text
    assert field_descriptions("scheduling.v1beta1.GangSchedulingPolicy")["minCount"] in text


def test_a_field_and_its_type_and_the_fields_of_that_are_explained(kubectl: Kubectl) -> None:
    version = "scheduling.k8s.io/v1alpha3"
    text = told(kubectl, "compositepodgroup.spec", "--api-version", version)
    own = field_descriptions("scheduling.v1alpha3.CompositePodGroupSpec")
    assert field_descriptions("scheduling.v1alpha3.CompositePodGroup")["spec"] in text
    assert [sentence for sentence in own.values() if sentence not in text] == []


def test_the_tree_of_fields_is_shown(kubectl: Kubectl) -> None:
    text = kubectl("explain", "job.spec.scheduling", "--recursive")
    assert field_descriptions("batch.v1.JobSpec")["scheduling"] in text
    assert re.search(r"schedulingPolicy\t.*\n    basic\t.*\n    gang\t.*\n      minCount\t", text)


@pytest.mark.parametrize(
    "path", ["pod.spec", "pod.spec.schedulingGroup", "node.status", "podgroup.spec", "jobset.spec"]
)
def test_no_field_is_without_a_description(kubectl: Kubectl, path: str) -> None:
    text = kubectl("explain", path)
    assert "FIELDS:" in text
    assert "<no description>" not in text


def test_every_version_of_a_kind_is_explained(kubectl: Kubectl) -> None:
    kinds = [kind for kind in KINDS if kind.group == "scheduling.k8s.io"]
    assert len({kind.version for kind in kinds}) > 1
    for kind in kinds:
        text = told(kubectl, kind.plural, "--api-version", kind.api_version)
        assert f"KIND: {kind.name} VERSION: {kind.version}" in text
        sentences = (field_descriptions(kind.schema)[""], *TYPE_META_DESCRIPTIONS.values())
        assert [sentence for sentence in sentences if sentence not in text] == []


def test_fields_are_explained_to_clients_that_know_only_the_older_form(kubectl: Kubectl) -> None:
    text = told(kubectl, "pod.spec.schedulingGroup", "--output=plaintext-openapiv2")
    assert "RESOURCE: schedulingGroup <Object>" in text
    assert field_descriptions("core.v1.PodSpec")["schedulingGroup"] in text
