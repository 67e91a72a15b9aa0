from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.wire import Object
from phalanx.controllers.nodes.container_process import (
    ContainerCommand,
    UnsupportedContainer,
    build_container_command,
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


def test_a_program_is_a_command_with_its_arguments_and_never_a_shell() -> None:
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
def test_variables_are_put_in_as_kubernetes_does(text: str, expanded: str) -> None:
    env = [{"name": "A", "value": "one"}, {"name": "X", "value": text}]
    found = build(args=[text], env=env)
    assert (found.argv[1], found.env["X"]) == (expanded, expanded)


def test_a_variable_sees_only_those_before_it() -> None:
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
def test_a_pod_is_told_about_itself(path: str, value: str) -> None:
    assert environment_value(fieldRef={"fieldPath": path}) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [("limits.cpu", "0", "2"), ("limits.cpu", "1m", "1500"), ("requests.memory", "1Mi", "64")],
)
def test_a_container_is_told_what_it_has(resource: str, divisor: str, value: str) -> None:
    has = {"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}
    source = {"resourceFieldRef": {"resource": resource, "divisor": divisor}}
    found = build(resources=has, env=[{"name": "X", "valueFrom": source}])
    assert found.env["X"] == value


def test_limits_of_a_container_are_limits_of_its_process() -> None:
    found = build(resources={"limits": {"memory": "64Mi", "ephemeral-storage": "1Ki", "cpu": "1"}})
    assert (found.limits["AS"], found.limits["FSIZE"]) == (64 * 2**20, 1024)


@pytest.mark.parametrize(("given", "folder"), [("/data/in", "data/in"), ("x", "x"), ("/", ".")])
def test_a_process_begins_within_its_folder(given: str, folder: str) -> None:
    assert build(workingDir=given).working_directory == folder


def test_an_optional_value_that_cannot_be_had_is_left_out() -> None:
    source = {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}
    assert "X" not in build(env=[{"name": "X", "valueFrom": source}]).env


@pytest.mark.parametrize(
    ("container", "fault"),
    [
        ({"command": []}, "it has no command"),
        ({"workingDir": "../x"}, "its workingDir leads out"),
        ({"workingDir": "/a/../../b"}, "its workingDir leads out"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "process nodes mount no volumes"),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "process nodes mount no volumes"),
        ({"restartPolicy": "Always"}, "process nodes have no sidecars"),
        ({"args": ["\0"]}, "a word of its command"),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            "variable X: process nodes read no configMapKeyRef",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            "it has no limits.cpu",
        ),
        (
            {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.priority"}}}]},
            "there is no field spec.priority",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(container: dict[str, Any], fault: str) -> None:
    with pytest.raises(UnsupportedContainer) as told:
        build(**container)
    assert str(told.value).startswith(fault)
