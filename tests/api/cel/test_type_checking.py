"""Expressions of admission policies are checked against the schemas of the kinds they match."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.cel.type_checking import (
    CheckedKind,
    check_types,
    definition_type,
    matched_resources,
)
from phalanx.api.kinds import KINDS
from phalanx.api.wire import Object

DEPLOYMENT = CheckedKind("apps/v1, Kind=Deployment", definition_type("apps.v1.Deployment"))
REPLICA_SET = CheckedKind("apps/v1, Kind=ReplicaSet", definition_type("apps.v1.ReplicaSet"))
POD = CheckedKind("/v1, Kind=Pod", definition_type("core.v1.Pod"))


def warnings(expression: str, *kinds: CheckedKind, **spec: Any) -> list[Object]:
    policy = {"validations": [{"expression": expression}], **spec}
    return check_types(policy, kinds or (DEPLOYMENT,), None)


def test_a_misspelt_field_is_reported_for_each_kind() -> None:
    expected = "\n".join(
        f"apps/v1, Kind={kind}: ERROR: <input>:1:7: undefined field 'replicas'\n"
        " | object.replicas > 1\n"
        " | ......^"
        for kind in ("Deployment", "ReplicaSet")
    )
    assert warnings("object.replicas > 1", DEPLOYMENT, REPLICA_SET) == [
        {"fieldRef": "spec.validations[0].expression", "warning": expected}
    ]


@pytest.mark.parametrize(
    "expression",
    [
        "object.spec.replicas > 1",
        "object.metadata.name.startsWith('web') && object.metadata.namespace == 'a'",
        "has(object.spec.template.spec.containers)",
        "object.spec.template.spec.containers.all(c, c.image.contains('@'))",
        "object.spec.template.spec.containers.all(c, quantity(c.resources.limits['cpu'])"
        ".isLessThan(quantity('2')))",
        "object.metadata.?labels[?'team'].orValue('') != ''",
        "'team' in object.metadata.labels",
        "object.metadata.creationTimestamp < timestamp('2030-01-01T00:00:00Z')",
        "object.spec.strategy.rollingUpdate.maxSurge == 1",
        "oldObject == null || oldObject.spec.replicas <= object.spec.replicas",
        "namespaceObject.metadata.labels['a'] == 'b'",
        "request.userInfo.username != '' && authorizer.group('').resource('pods')"
        ".check('get').allowed()",
        "params.anything.goes == 1",
        "dyn(object).whatever == 1",
        "object.apiVersion == 'apps/v1' && object.kind == 'Deployment'",
    ],
)
def test_right_expressions_give_no_warning(expression: str) -> None:
    assert warnings(expression) == []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("object.spec.replicas == 'x'", "found no matching overload for '_==_'"),
        ("object.spec.template.spec.containers.all(c, c.imag == '')", "undefined field 'imag'"),
        ("object.metadata.labels.size() > 'a'", "found no matching overload for '_>_'"),
        ("variables.limit > 'x'", "found no matching overload for '_>_'"),
        ("namespaceObject.metadata.label == {}", "undefined field 'label'"),
    ],
)
def test_wrong_types_are_reported(expression: str, text: str) -> None:
    variables = [{"name": "limit", "expression": "object.spec.replicas * 2"}]
    (warning,) = warnings(expression, variables=variables)
    assert text in warning["warning"]


def test_message_expressions_and_parameters_are_checked() -> None:
    validation = {"expression": "params.data['a'] == 'b'", "messageExpression": "object.spec.x"}
    params = definition_type("core.v1.ConfigMap")
    (warning,) = check_types({"validations": [validation]}, [DEPLOYMENT], params)
    assert warning["fieldRef"] == "spec.validations[0].messageExpression"
    (warning,) = check_types({"validations": [validation]}, [DEPLOYMENT], POD.object_type)[:1]
    assert "undefined field 'data'" in warning["warning"]


def test_rules_with_wildcards_and_subresources_name_no_resource() -> None:
    rules = [
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "*/scale"]},
        {"apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["pods"]},
        {"apiGroups": ["b", "a"], "apiVersions": ["v2", "v1"], "resources": ["y", "x/status"]},
    ]
    assert list(matched_resources({"matchConstraints": {"resourceRules": rules}})) == [
        ("apps", "v1", "deployments"),
        ("a", "v1", "y"), ("a", "v2", "y"), ("b", "v1", "y"), ("b", "v2", "y"),
    ]  # fmt: skip


def test_every_kind_has_a_type_with_its_metadata() -> None:
    for kind in KINDS:
        if "create" in kind.verbs and kind.schema:
            found = definition_type(kind.schema)
            assert found.fields["metadata"].value_type.fields["name"], kind.name
