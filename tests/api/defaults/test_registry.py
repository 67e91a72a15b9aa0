"""Defaults of objects, and their initial status."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.defaults.pod import default_pod_status
from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    KINDS,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.schema import schema
from phalanx.api.wire import Object
from tests.api.schema_strategies import objects

NOW = "2026-01-01T00:00:00Z"


def with_defaults(kind: Kind, obj: Object) -> Object:
    apply_defaults(kind, obj)
    return obj


def prepare_new(kind: Kind, obj: Object) -> Object:
    apply_defaults(kind, obj)
    prepare_for_create(kind, obj, NOW)
    return obj


def pod(*containers: Object, **spec: Any) -> Object:
    some = list(containers) or [{"name": "c", "image": "i:1"}]
    return {"metadata": {"name": "p"}, "spec": {"containers": some, **spec}}


def container(**fields: Any) -> Object:
    obj = with_defaults(POD, pod({"name": "c", "image": "i:1", **fields}))
    result: Object = obj["spec"]["containers"][0]
    return result


def test_a_small_pod_gets_its_defaults() -> None:
    spec = with_defaults(POD, pod())["spec"]
    assert spec == {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("app", "Always"),
        ("app:latest", "Always"),
        ("host:5000/app", "Always"),
        ("host:5000/app:1", "IfNotPresent"),
        ("app@sha256:00", "IfNotPresent"),
        ("", "IfNotPresent"),
    ],
)
def test_an_image_that_may_have_changed_is_always_pulled(image: str, policy: str) -> None:
    assert container(image=image)["imagePullPolicy"] == policy


def test_limits_become_requests() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
    assert container(resources=resources)["resources"]["requests"] == {
        "cpu": "500m",
        "memory": "1Gi",
    }


def test_limits_of_a_pod_become_its_requests() -> None:
    obj = with_defaults(POD, pod(resources={"limits": {"cpu": "2"}}))
    assert obj["spec"]["resources"]["requests"] == {"cpu": "2"}


def requesting_container(restart: str = "", **requests: str) -> Object:
    policy = {"restartPolicy": restart} if restart else {}
    return {"name": "c", "image": "i:1", "resources": {"requests": requests}, **policy}


@pytest.mark.parametrize(
    ("whole", "containers", "first", "requests"),
    [
        ({"limits": {"cpu": "2"}}, [requesting_container(cpu="1")], [], {"cpu": "1"}),
        (
            {"limits": {"cpu": "2"}},
            [requesting_container(cpu="300m"), requesting_container(cpu="0.7")],
            [],
            {"cpu": "1"},
        ),
        (
            {"limits": {"cpu": "2", "memory": "4Gi"}},
            [requesting_container(memory="1Gi"), requesting_container(memory="512Mi")],
            [],
            {"cpu": "2", "memory": "1536Mi"},
        ),
        (
            {"limits": {"memory": "9M"}},
            [requesting_container(memory="1M")] * 2,
            [],
            {"memory": "2M"},
        ),
        (
            {"limits": {"cpu": "9"}},
            [requesting_container(cpu="1")],
            [requesting_container(cpu="3")],
            {"cpu": "3"},
        ),
        (
            {"limits": {"cpu": "9"}},
            [requesting_container(cpu="1")],
            [requesting_container("Always", cpu="3")],
            {"cpu": "4"},
        ),
        # What containers ask for counts even where the pod has no limit of it.
        (
            {"limits": {"cpu": "9"}},
            [requesting_container(memory="1Gi")],
            [],
            {"cpu": "9", "memory": "1Gi"},
        ),
        ({"limits": {"cpu": "9"}}, [requesting_container(gpu="1")], [], {"cpu": "9"}),
        (
            {"limits": {"hugepages-2Mi": "4Mi"}},
            [requesting_container()],
            [],
            {"hugepages-2Mi": "4Mi"},
        ),
        (
            {"limits": {"cpu": "9"}, "requests": {"cpu": "5"}},
            [requesting_container(cpu="1")],
            [],
            {"cpu": "5"},
        ),
        ({"requests": {"cpu": "5"}}, [requesting_container(memory="1Gi")], [], {"cpu": "5"}),
    ],
)
def test_pod_level_requests_default_to_the_sum_of_containers(
    whole: Object, containers: list[Object], first: list[Object], requests: Object
) -> None:
    spec = {"resources": whole, "containers": containers, "initContainers": first}
    obj = with_defaults(POD, pod(**copy.deepcopy(spec)))
    assert obj["spec"]["resources"]["requests"] == requests


def test_probes_and_hooks_get_their_defaults() -> None:
    probe = container(readinessProbe={"httpGet": {"port": 80}})["readinessProbe"]
    assert probe == {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    hook = container(lifecycle={"preStop": {"httpGet": {"port": 80, "path": "/bye"}}})["lifecycle"]
    assert hook["preStop"]["httpGet"] == {"port": 80, "path": "/bye", "scheme": "HTTP"}


def test_ports_on_the_network_of_the_node_are_the_nodes() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]
    obj = with_defaults(POD, pod({"name": "c", "ports": ports}, hostNetwork=True))
    assert [port["hostPort"] for port in obj["spec"]["containers"][0]["ports"]] == [80, 82]


def test_volumes_get_their_defaults() -> None:
    token = {"serviceAccountToken": {"path": "t"}}
    fields = {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}
    volumes = [
        {"name": "scratch"},
        {"name": "config", "configMap": {"name": "m"}},
        {"name": "all", "projected": {"sources": [token, fields]}},
        {"name": "down", **fields},
        {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
    ]
    scratch, config, everything, down, own = with_defaults(
        POD, pod(volumes=copy.deepcopy(volumes))
    )["spec"]["volumes"]
    assert scratch["emptyDir"] == {}
    assert config["configMap"]["defaultMode"] == 420
    assert everything["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600
    assert everything["projected"]["sources"][1]["downwardAPI"]["items"][0]["fieldRef"] == {
        "fieldPath": "metadata.name",
        "apiVersion": "v1",
    }
    assert down["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] == "v1"
    assert own["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"] == "Filesystem"


def test_variables_from_fields_name_a_version() -> None:
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    assert container(env=env)["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"


def test_an_account_has_both_of_its_names() -> None:
    spec = with_defaults(POD, pod(serviceAccount="robot"))["spec"]
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "robot"


def test_an_address_stands_in_both_of_its_places() -> None:
    one = {**pod(), "status": {"podIP": "10.0.0.1"}}
    other = {**pod(), "status": {"podIPs": [{"ip": "10.0.0.2"}], "qosClass": "BestEffort"}}
    assert with_defaults(POD, one)["status"]["podIPs"] == [{"ip": "10.0.0.1"}]
    assert with_defaults(POD, other)["status"]["podIP"] == "10.0.0.2"
    assert one["status"]["qosClass"] == "BestEffort"


def test_new_pod_is_pending_whatever_its_status() -> None:
    obj = prepare_new(POD, {**pod(), "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert obj["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


def test_new_pod_with_gates_has_the_scheduling_gated_condition() -> None:
    obj = prepare_new(POD, pod(schedulingGates=[{"name": "g"}]))
    assert obj["status"]["conditions"] == [
        {
            "type": "PodScheduled",
            "status": "False",
            "lastTransitionTime": NOW,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
    ]


FULL = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ([{}], "BestEffort"),
        ([{"limits": {"example.com/gpu": "1"}}], "BestEffort"),
        ([{"requests": {"cpu": "0"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": FULL}], "Guaranteed"),
        ([{"limits": FULL, "requests": {"cpu": "1000m", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": FULL, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"limits": FULL}, {}], "Burstable"),
    ],
)
def test_the_quality_of_service_follows_from_requests_and_limits(
    resources: list[Object], quality: str
) -> None:
    containers = [{"name": f"c{n}", "resources": r} for n, r in enumerate(resources)]
    assert prepare_new(POD, pod(*containers))["status"]["qosClass"] == quality


def test_pod_level_resources_determine_the_qos_class() -> None:
    obj = prepare_new(POD, pod(resources={"limits": dict(FULL)}))
    assert obj["status"]["qosClass"] == "Guaranteed"


def test_terms_that_name_labels_by_key_take_the_values_of_the_pod() -> None:
    term = {"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["app"]}
    apart = {**term, "matchLabelKeys": [], "mismatchLabelKeys": ["app", "absent"]}
    weighted = [{"weight": 1, "podAffinityTerm": term}]
    obj = pod(
        affinity={
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
        topologySpreadConstraints=[{"topologyKey": "zone", "matchLabelKeys": ["app"]}],
    )
    obj["metadata"]["labels"] = {"app": "x"}
    spec = prepare_new(POD, obj)["spec"]
    (near,) = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"]["matchExpressions"] == [
        {"key": "app", "operator": "In", "values": ["x"]}
    ]
    (far,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert far["labelSelector"] == {
        "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]
    }
    assert "labelSelector" not in spec["topologySpreadConstraints"][0]


def test_a_node_allocates_what_it_has() -> None:
    node = with_defaults(NODE, {"status": {"capacity": {"cpu": "8"}}})
    assert node["status"]["allocatable"] == {"cpu": "8"}
    kept = with_defaults(NODE, {"status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"}}})
    assert kept["status"]["allocatable"] == {"cpu": "7"}


def test_a_range_of_addresses_stands_in_both_of_its_places() -> None:
    assert with_defaults(NODE, {"spec": {"podCIDR": "10.0.0.0/24"}})["spec"] == {
        "podCIDR": "10.0.0.0/24",
        "podCIDRs": ["10.0.0.0/24"],
    }
    assert with_defaults(NODE, {"spec": {"podCIDRs": ["10.0.0.0/24"]}})["spec"]["podCIDR"]


def test_a_namespace_is_active_and_bears_its_name_as_label() -> None:
    assert prepare_new(NAMESPACE, {"metadata": {"name": "n"}}) == {
        "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
    assert prepare_new(NAMESPACE, {"metadata": {"generateName": "n-"}})["metadata"] == {
        "generateName": "n-"
    }


@pytest.mark.parametrize("kind", [POD_GROUP, COMPOSITE_POD_GROUP], ids=lambda kind: kind.name)
def test_a_group_is_disrupted_one_by_one_and_has_no_status_yet(kind: Kind) -> None:
    group = {"metadata": {}, "spec": {"schedulingPolicy": {"basic": {}}}, "status": {"x": 1}}
    assert prepare_new(kind, group) == {
        "metadata": {},
        "spec": {
            "schedulingPolicy": {"basic": {}},
            "disruptionMode": {"single": {}},
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def test_workload_templates_get_no_defaults() -> None:
    template = {"name": "a", "schedulingPolicy": {"basic": {}}}
    workload = {"metadata": {}, "spec": {"podGroupTemplates": [template]}}
    assert prepare_new(WORKLOAD, copy.deepcopy(workload)) == workload


def test_a_priority_class_preempts_and_is_worth_nothing() -> None:
    assert prepare_new(PRIORITY_CLASS, {"metadata": {}}) == {
        "metadata": {},
        "value": 0,
        "preemptionPolicy": "PreemptLowerPriority",
    }


@pytest.mark.mostly_slow(quick_every=8)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(data=st.data())
def test_defaults_once_are_defaults_for_ever(kind: Kind, data: st.DataObject) -> None:
    obj = data.draw(objects(kind.schema))
    schema(kind.schema).normalize(obj)
    once = with_defaults(kind, obj)
    assert with_defaults(kind, copy.deepcopy(once)) == once


@pytest.mark.parametrize(
    ("kind", "phase"), [(NAMESPACE, "Active"), (PERSISTENT_VOLUME_CLAIM, "Pending")], ids=str
)
def test_status_without_a_phase_has_the_first_one(kind: Kind, phase: str) -> None:
    obj: Object = {"metadata": {"name": "a"}, "spec": {}, "status": {}}
    apply_defaults(kind, obj)
    assert obj["status"] == {"phase": phase}


@pytest.mark.parametrize(("reference", "policy"), [("r", "Always"), ("r:1", "IfNotPresent")])
def test_volume_with_an_image_is_pulled_as_its_tag_says(reference: str, policy: str) -> None:
    volume: Object = {"name": "v", "image": {"reference": reference}}
    pod: Object = {"metadata": {}, "spec": {"containers": [], "volumes": [volume]}, "status": {}}
    apply_defaults(POD, pod)
    assert pod["spec"]["volumes"][0]["image"]["pullPolicy"] == policy


def test_empty_status_of_a_pod_has_no_defaults() -> None:
    status: Object = {}
    schema("core.v1.PodStatus").apply_defaults(status)
    default_pod_status(status, {"containers": []})
    assert status == {}, "apply_defaults skips an empty status"
