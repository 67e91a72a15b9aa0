from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.core import TOKEN_MOUNT_PATH
from phalanx.api.wire import Object
from phalanx.controllers.nodes.container_process import (
    ContainerCommand,
    UnsupportedContainer,
    build_container_command,
    claim_names,
    device_variables,
    extended_claim_name,
    extended_resource_variables,
)

USUAL = {"PATH": "/bin", "HOME": "/home"}
POD: Object = {
    "metadata": {
        "name": "a", "namespace": "lab", "uid": "u1", "labels": {"app": "train"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
    },
    "spec": {"nodeName": "n0"},
}  # fmt: skip


def build(**container: Any) -> ContainerCommand:
    return build_container_command(POD, {"name": "main", "command": ["run"], **container}, USUAL)


def environment_value(**source: Any) -> str:
    return build(env=[{"name": "X", "valueFrom": source}]).env["X"]


def test_argv_is_command_and_args_without_a_shell() -> None:
    found = build(args=["a b", "; rm", "$HOME"])
    assert found == ContainerCommand(
        ("run", "a b", "; rm", "$HOME"), USUAL, ".",
        {"CORE": 0, "NOFILE": 1024, "FSIZE": 2**30},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "one"), ("<$(A)$(A)>", "<oneone>"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"),
        ("$A ${A}", "$A ${A}"), ("100$", "100$"), ("$()", "$()"),
    ],
)  # fmt: skip
def test_variable_references_expand_as_in_kubernetes(text: str, expanded: str) -> None:
    env = [{"name": "A", "value": "one"}, {"name": "X", "value": text}]
    found = build(args=[text], env=env)
    assert (found.argv[1], found.env["X"]) == (expanded, expanded)


def test_a_variable_may_refer_only_to_earlier_ones() -> None:
    env = [{"name": "X", "value": "$(A)"}, {"name": "A", "value": "one"}]
    assert build(env=env).env["X"] == "$(A)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"), ("metadata.namespace", "lab"), ("metadata.uid", "u1"),
        ("metadata.labels['app']", "train"), ("metadata.labels['none']", ""),
        ("metadata.annotations['batch.kubernetes.io/job-completion-index']", "3"),
        ("spec.nodeName", "n0"), ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.0.0.1"), ("status.hostIP", "127.0.0.1"),
    ],
)  # fmt: skip
def test_field_refs_are_resolved(path: str, value: str) -> None:
    assert environment_value(fieldRef={"fieldPath": path}) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [("limits.cpu", "0", "2"), ("limits.cpu", "1m", "1500"), ("requests.memory", "1Mi", "64")],
)
def test_resource_field_refs_are_resolved(resource: str, divisor: str, value: str) -> None:
    has = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}
    source = {"resourceFieldRef": {"resource": resource, "divisor": divisor}}
    found = build(resources=has, env=[{"name": "X", "valueFrom": source}])
    assert found.env["X"] == value


def test_container_limits_become_process_limits() -> None:
    found = build(resources={"limits": {"memory": "64Mi", "ephemeral-storage": "1Ki", "cpu": "1"}})
    assert (found.limits["AS"], found.limits["FSIZE"]) == (64 * 2**20, 1024)


@pytest.mark.parametrize(("given", "folder"), [("/data/in", "data/in"), ("x", "x"), ("/", ".")])
def test_the_working_directory_is_below_the_directory_of_the_pod(given: str, folder: str) -> None:
    assert build(workingDir=given).working_directory == folder


def test_the_mount_of_a_token_is_ignored() -> None:
    mount = {"name": "kube-api-access-x", "mountPath": TOKEN_MOUNT_PATH}
    assert build(volumeMounts=[mount]).argv == build().argv


def test_an_optional_unsupported_value_is_left_out() -> None:
    source = {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}
    assert "X" not in build(env=[{"name": "X", "valueFrom": source}]).env


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({"command": []}, "it has no command"),
        ({"workingDir": "../x"}, "its workingDir is outside"),
        ({"workingDir": "/a/../../b"}, "its workingDir is outside"),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
            "process nodes support neither volumeMounts",
        ),
        (
            {"envFrom": [{"configMapRef": {"name": "c"}}]},
            "process nodes support neither volumeMounts",
        ),
        ({"restartPolicy": "Always"}, "process nodes do not support sidecars"),
        ({"args": ["\0"]}, "its command or environment contains a zero byte"),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            "variable X: process nodes do not support configMapKeyRef",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            "it has no limits.cpu",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.priority"}}}]},
            "unsupported fieldPath spec.priority",
        ),
    ],
)
def test_unsupported_features_are_rejected(container: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedContainer) as error:
        build(**container)
    assert str(error.value).startswith(message)


def test_process_gets_the_cdi_names_of_its_devices() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "my-gpu", "resourceClaimTemplateName": "t"},
                {"name": "net", "resourceClaimName": "fabric"},
                {"name": "later", "resourceClaimTemplateName": "t"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "my-gpu", "resourceClaimName": "p-x"}]},
    }
    assert claim_names(pod) == {"my-gpu": "p-x", "net": "fabric"}
    results = [
        {"driver": "gpu.example.com", "request": "gpu/large", "pool": "n1", "device": "gpu-0"},
        {"driver": "gpu.example.com", "request": "aux", "pool": "n1", "device": "gpu-1"},
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    container = {"resources": {"claims": [{"name": "my-gpu"}, {"name": "net"}]}}
    assert device_variables(container, {"my-gpu": claim}) == {
        "CDI_DEVICES_MY_GPU": "gpu.example.com/gpu-large=gpu-0,gpu.example.com/aux=gpu-1"
    }
    one = {"resources": {"claims": [{"name": "my-gpu", "request": "gpu"}]}}
    assert device_variables(one, {"my-gpu": claim}) == {
        "CDI_DEVICES_MY_GPU": "gpu.example.com/gpu-large=gpu-0"
    }
    assert device_variables({}, {"my-gpu": claim}) == {}


def test_process_gets_the_devices_that_serve_its_extended_resources() -> None:
    def mapping(container: str, resource: str, request: str) -> dict[str, str]:
        return {"containerName": container, "resourceName": resource, "requestName": request}

    mappings = [
        mapping("main", "example.com/gpu", "container-0-request-0"),
        mapping("main", "example.com/nic", "container-0-request-1"),
        mapping("other", "example.com/gpu", "container-1-request-0"),
    ]
    extended = {"resourceClaimName": "p-extended-resources-x", "requestMappings": mappings}
    pod = {"spec": {}, "status": {"extendedResourceClaimStatus": extended}}
    results = [
        {"driver": "gpu.example.com", "request": request, "pool": "n1", "device": device}
        for request, device in [
            ("container-0-request-0", "gpu-0"),
            ("container-0-request-0", "gpu-1"),
            ("container-0-request-1", "nic-0"),
            ("container-1-request-0", "gpu-2"),
        ]
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert extended_claim_name(pod) == "p-extended-resources-x"
    assert extended_resource_variables({"name": "main"}, pod, claim) == {
        "CDI_DEVICES_EXAMPLE_COM_GPU": (
            "gpu.example.com/container-0-request-0=gpu-0,"
            "gpu.example.com/container-0-request-0=gpu-1"
        ),
        "CDI_DEVICES_EXAMPLE_COM_NIC": "gpu.example.com/container-0-request-1=nic-0",
    }
    assert extended_resource_variables({"name": "third"}, pod, claim) == {}
    assert extended_claim_name({"spec": {}}) == ""
    assert extended_resource_variables({"name": "main"}, {"spec": {}}, {}) == {}
