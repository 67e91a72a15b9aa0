"""`kubectl explain` against the real server: every field has a description."""

from __future__ import annotations

import re

import pytest

from phalanx.api.definitions import TYPE_META_DESCRIPTIONS, field_descriptions
from phalanx.api.kinds import KINDS
from tests.cli.commands import Kubectl


def explain(kubectl: Kubectl, *args: str) -> str:
    """Run `kubectl explain`; return its output without line breaks."""
    return " ".join(kubectl("explain", *args).split())


def test_explain_describes_a_nested_field(kubectl: Kubectl) -> None:
    text = explain(kubectl, "workload.spec.podGroupTemplates.schedulingPolicy.gang.minCount")
    assert "KIND: Workload" in text
    assert "FIELD: minCount <integer>" in text
    assert field_descriptions("scheduling.v1beta1.GangSchedulingPolicy")["minCount"] in text


def test_explain_describes_a_field_its_type_and_its_subfields(kubectl: Kubectl) -> None:
    version = "scheduling.k8s.io/v1alpha3"
    text = explain(kubectl, "compositepodgroup.spec", "--api-version", version)
    own = field_descriptions("scheduling.v1alpha3.CompositePodGroupSpec")
    assert field_descriptions("scheduling.v1alpha3.CompositePodGroup")["spec"] in text
    assert [sentence for sentence in own.values() if sentence not in text] == []


def test_explain_recursive_shows_the_field_tree(kubectl: Kubectl) -> None:
    text = kubectl("explain", "job.spec.scheduling", "--recursive")
    assert field_descriptions("batch.v1.JobSpec")["scheduling"] in text
    assert re.search(r"schedulingPolicy\t.*\n    basic\t.*\n    gang\t.*\n      minCount\t", text)


@pytest.mark.parametrize(
    "path", ["pod.spec", "pod.spec.schedulingGroup", "node.status", "podgroup.spec", "jobset.spec"]
)
def test_every_field_has_a_description(kubectl: Kubectl, path: str) -> None:
    text = kubectl("explain", path)
    assert "FIELDS:" in text
    assert "<no description>" not in text


def test_explain_describes_every_version_of_a_kind(kubectl: Kubectl) -> None:
    kinds = [kind for kind in KINDS if kind.group == "scheduling.k8s.io"]
    assert len({kind.version for kind in kinds}) > 1
    for kind in kinds:
        text = explain(kubectl, kind.plural, "--api-version", kind.api_version)
        assert f"KIND: {kind.name} VERSION: {kind.version}" in text
        sentences = (field_descriptions(kind.schema)[""], *TYPE_META_DESCRIPTIONS.values())
        assert [sentence for sentence in sentences if sentence not in text] == []
