from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import CRON_JOB, DEPLOYMENT, JOB, POD, POD_TEMPLATE, Kind
from phalanx.api.strategy import BuiltinStrategy
from phalanx.api.wire import Object

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def container(**fields: Any) -> Object:
    return {"name": "c", "image": "i", **fields}


def with_ports(*ports: Object) -> Object:
    return {"containers": [container(ports=[{"protocol": "TCP", **port} for port in ports])]}


def places(kind: Kind, obj: Object, old: Object | None = None) -> list[str]:
    """Return the field or volume that each warning begins with."""
    return [text.partition(": ")[0] for text in BuiltinStrategy(kind).warnings(obj, old)]


def pod(spec: Object, **metadata: Any) -> Object:
    return {"metadata": {"name": "p", **metadata}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"containers": [container()]}, []),
        ({"nodeSelector": {"beta.kubernetes.io/os": "linux"}},
         ["spec.nodeSelector[beta.kubernetes.io/os]"]),
        ({"topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": {}}]}, []),
        ({"topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}]},
         ["spec.topologySpreadConstraints[0].topologyKey",
          "spec.topologySpreadConstraints[0].labelSelector"]),
        ({"affinity": {"podAffinity": {REQUIRED: [{"labelSelector": {}}, {}]}}},
         [f"spec.affinity.podAffinity.{REQUIRED}[1].labelSelector"]),
        ({"affinity": {"podAntiAffinity": {PREFERRED: [{"podAffinityTerm": {}}]}}},
         [f"spec.affinity.podAntiAffinity.{PREFERRED}[0].podAffinityTerm.labelSelector"]),
        ({"hostAliases": [{"ip": "127.0.0.1"}, {"ip": "127.0.0.1"}]}, ["spec.hostAliases[1].ip"]),
        ({"hostAliases": [{"ip": "2001:DB8::1"}]}, ["spec.hostAliases[0].ip"]),
        ({"imagePullSecrets": [{"name": "s"}, {"name": "s"}]}, ["spec.imagePullSecrets[1].name"]),
        ({"imagePullSecrets": [{}]}, ["spec.imagePullSecrets[0].name"]),
        ({"volumes": [{"name": "v", "gitRepo": {}}]}, ["spec.volumes[0].gitRepo"]),
        ({"volumes": [{"name": "v", "projected": {"sources": [{}, {}]}}]},
         ['volume "v" (Projected) has no sources provided'] * 2),
        ({"containers": [container(resources={"limits": {"memory": "1500m"}})]},
         ["spec.containers[0].resources.limits[memory]"]),
    ],
)  # fmt: skip
def test_pod_with_a_doubtful_field_is_warned_of(spec: Object, fields: list[str]) -> None:
    assert places(POD, pod(spec)) == fields


@pytest.mark.parametrize(
    ("second", "warned"),
    [
        ({"name": "A", "value": "2"}, True),
        ({"name": "A", "value": "$(A)"}, True),
        ({"name": "A", "valueFrom": {}}, True),
        ({"name": "A", "value": "$(A):2"}, False),
        ({"name": "B", "value": "2"}, False),
    ],
)
def test_variable_that_replaces_an_earlier_one_is_warned_of(second: Object, warned: bool) -> None:
    spec = {"containers": [container(env=[{"name": "A", "value": "1"}, second])]}
    assert places(POD, pod(spec)) == ["spec.containers[0].env[1]"] * warned


@pytest.mark.parametrize(
    ("ports", "details"),
    [
        ([{"containerPort": 1, "hostIP": "10.0.0.1"}], ["hostIP set without hostPort"]),
        ([{"containerPort": 1}, {"containerPort": 2}], []),
        ([{"containerPort": 1}, {"containerPort": 1}], ["duplicate port definition"]),
        ([{"containerPort": 1}, {"containerPort": 1, "hostPort": 5}],
         ["overlapping port definition"]),
        ([{"containerPort": 1, "hostPort": 5},
          {"containerPort": 1, "hostPort": 5, "hostIP": "10.0.0.1"}],
         ["dangerously ambiguous port definition"]),
        ([{"containerPort": 1, "hostPort": 5}, {"containerPort": 1, "hostPort": 6}], []),
        ([{"containerPort": 1, "name": "web"}, {"containerPort": 2, "name": "web"}],
         ['duplicate port name "web"']),
    ],
)  # fmt: skip
def test_ports_that_overlap_are_warned_of(ports: list[Object], details: list[str]) -> None:
    found = BuiltinStrategy(POD).warnings(pod(with_ports(*ports)), None)
    assert [text.partition(": ")[2].partition(" with spec")[0] for text in found] == details


def test_annotations_that_have_become_fields_are_warned_of() -> None:
    seccomp = "container.seccomp.security.alpha.kubernetes.io/c"
    armor = "container.apparmor.security.beta.kubernetes.io/c"
    annotations = {seccomp: "x", armor: "x", "scheduler.alpha.kubernetes.io/critical-pod": ""}
    spec = {"containers": [container()]}
    assert places(POD, pod(spec, annotations=annotations)) == [
        "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]",
        f"metadata.annotations[{seccomp}]",
    ]
    template = {"metadata": {"annotations": {armor: "x"}}, "spec": spec}
    assert places(POD_TEMPLATE, {"metadata": {}, "template": template}) == [
        f"template.metadata.annotations[{armor}]"
    ]


@pytest.mark.parametrize("kind", [CRON_JOB, DEPLOYMENT, JOB], ids=str)
def test_name_that_pods_cannot_have_as_hostname_is_warned_of_on_creation(kind: Kind) -> None:
    obj = {"metadata": {"name": "a.b"}, "spec": {}}
    assert places(kind, obj) == ["metadata.name"]
    assert places(kind, obj, obj) == []


def test_template_is_warned_of_again_only_if_its_generation_rises() -> None:
    spec: Object = {"template": {"spec": {"imagePullSecrets": [{}]}}}
    old = {"metadata": {"name": "j", "generation": 1}, "spec": spec}
    new = {"metadata": {"name": "j", "generation": 2}, "spec": spec}
    assert places(JOB, new, old) == ["spec.template.spec.imagePullSecrets[0].name"]
    assert places(JOB, old, old) == []
    assert places(POD, pod(spec["template"]["spec"]), old) == []
