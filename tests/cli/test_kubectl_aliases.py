"""kubectl with manifests that use other names of fields: what it computes itself must work too."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from phalanx.api.conversion.workload_references import TEMPLATE_ANNOTATION
from phalanx.api.wire import Object
from tests.cli.commands import Kubectl

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
WAYS = {"client": {}, "server": {"server_side": "true"}}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    """Applied by kubectl's own arithmetic, or by the server's."""
    found: dict[str, str] = WAYS[request.param]
    return found


def job(name: str, scheduling: Object) -> Object:
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": 4, "completions": 4, "scheduling": scheduling, "template": TEMPLATE,
        },
    }  # fmt: skip


def cron_job(reference: Object) -> Object:
    template = {"spec": {**TEMPLATE["spec"], **reference}}
    return {
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "x"},
        "spec": {"schedule": "@yearly", "jobTemplate": {"spec": {"template": template}}},
    }  # fmt: skip


def aliased(count: int) -> Object:
    return {
        "policy": {"gang": {"minCount": count}},
        "constraints": {"topology": [{"level": "topology.kubernetes.io/zone"}]},
        "disruption": {"all": {}},
    }


def stored(count: int) -> Object:
    return {
        "schedulingPolicy": {"gang": {"minCount": count}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
    }


def scheduling(kubectl: Kubectl) -> Any:
    return kubectl.get("job/x")["spec"]["scheduling"]


def test_edited_manifest_with_aliases_is_applied(kubectl: Kubectl, way: dict[str, str]) -> None:
    kubectl.apply(job("x", aliased(2)), **way)
    assert scheduling(kubectl) == stored(2)
    kubectl.apply(job("x", aliased(3)), **way)
    assert scheduling(kubectl) == stored(3)


@pytest.mark.mostly_slow(quick_every=2)
def test_manifest_may_switch_to_aliases_and_back(kubectl: Kubectl, way: dict[str, str]) -> None:
    for count, spelled in ((2, aliased), (2, stored), (3, aliased), (4, stored)):
        kubectl.apply(job("x", spelled(count)), **way)
        assert scheduling(kubectl) == stored(count)


def diff(kubectl: Kubectl, manifest: Object) -> list[str]:
    """The lines that would change, as kubectl shows them."""
    done = kubectl.run("diff", "-f", "-", text=yaml.safe_dump(manifest))
    assert done.returncode in (0, 1), done.stderr
    lines = [line[1:].strip() for line in done.stdout.splitlines() if line[:1] in ("+", "-")]
    return [line for line in lines if line[:2] not in ("++", "--")]


@pytest.mark.slow
def test_switch_to_aliases_is_no_difference(kubectl: Kubectl) -> None:
    for applied, other in ((aliased, stored), (stored, aliased)):
        kubectl.apply(job("x", applied(2)))
        assert diff(kubectl, job("x", applied(2))) == []
        assert diff(kubectl, job("x", other(2))) == []
        changes = diff(kubectl, job("x", other(3)))
        assert changes == ["generation: 1", "generation: 2", "minCount: 2", "minCount: 3"]


def test_workload_may_switch_to_the_field_names_of_its_version(kubectl: Kubectl) -> None:
    def workload(templates: str, policy: str, **of: str) -> Object:
        template = {"name": "a", policy: {"basic": {}}}
        return {
            "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload",
            "metadata": {"name": "x"},
            "spec": {"controllerRef": {"kind": "Job", "name": "j", **of}, templates: [template]},
        }  # fmt: skip

    kubectl.apply(workload("podGroupTemplates", "schedulingPolicy", apiVersion="batch/v1"))
    new = workload("podGroups", "policy", apiGroup="batch")
    assert diff(kubectl, new) == []
    kubectl.apply(new)
    assert diff(kubectl, new) == []


def test_removed_reference_leaves_no_field_behind(kubectl: Kubectl, way: dict[str, str]) -> None:
    kubectl.apply(cron_job({"workloadRef": {"name": "w", "podGroup": "t"}}), **way)
    kubectl.apply(cron_job({"schedulingGroup": {"podGroupName": "other"}}), **way)
    template = kubectl.get("cronjob/x")["spec"]["jobTemplate"]["spec"]["template"]
    assert template["spec"]["schedulingGroup"] == {"podGroupName": "other"}
    assert "annotations" not in template["metadata"]


@pytest.mark.mostly_slow(quick_every=2)
def test_an_edited_reference_to_a_group_is_applied(kubectl: Kubectl, way: dict[str, str]) -> None:
    def template() -> Any:
        return kubectl.get("cronjob/x")["spec"]["jobTemplate"]["spec"]["template"]

    replica = {"name": "w", "podGroup": "t", "podGroupReplicaKey": "1"}
    kubectl.apply(cron_job({"workloadRef": replica}), **way)
    assert template()["spec"]["schedulingGroup"] == {"podGroupName": "w-t-1"}
    assert template()["metadata"]["annotations"][TEMPLATE_ANNOTATION] == "t"
    kubectl.apply(cron_job({"workloadRef": {"name": "w", "podGroup": "t"}}), **way)
    assert template()["spec"]["schedulingGroup"] == {"podGroupName": "w-t"}
    kubectl.apply(cron_job({"workloadRef": {"name": "w", "podGroupName": "g"}}), **way)
    assert template()["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert "annotations" not in template()["metadata"]
    kubectl.apply(cron_job({}), **way)
    assert "schedulingGroup" not in template()["spec"]


def test_kubectl_prints_warnings_about_aliases(kubectl: Kubectl) -> None:
    manifest = yaml.safe_dump(job("x", {"policy": {"basic": {}}}))
    done = kubectl.run("create", "-f", "-", text=manifest)
    assert done.returncode == 0
    assert done.stderr == (
        "Warning: spec.scheduling.policy: deprecated; "
        "use spec.scheduling.schedulingPolicy instead\n"
    )


def test_explain_describes_aliases_and_the_gang_policy(kubectl: Kubectl) -> None:
    assert "Another name of schedulingPolicy" in kubectl("explain", "job.spec.scheduling.policy")
    assert "Another name of schedulingGroup" in kubectl("explain", "pod.spec.workloadRef")
    assert "JobAsGang, NoGang" in kubectl("explain", "job.spec.gangPolicy")
    level = "job.spec.scheduling.constraints.topology.level"
    assert "Another name of key" in kubectl("explain", level)
    assert "The Workload that" in kubectl("explain", "pod.spec.workloadRef.name")
