"""ValidatingAdmissionPolicies: which requests they see, what they deny, and with which message."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
)
from phalanx.api.wire import Object
from phalanx.clock import WallClock
from phalanx.server.security.audit import AuditLog
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api, ApiResponse
from tests.server.webhook_server import condition, config_map, post, rule

RULE = rule("configmaps")


async def add_policy(
    api: Api, *validations: Object, binding: Object | None = None, **spec: Any
) -> None:
    """Create a policy with a binding that denies."""
    body = {"matchConstraints": {"resourceRules": [RULE]}, "validations": list(validations), **spec}
    await api.create(VALIDATING_ADMISSION_POLICY, {"metadata": {"name": "p"}, "spec": body})
    bound = {"policyName": "p", "validationActions": ["Deny"], **(binding or {})}
    await api.create(
        VALIDATING_ADMISSION_POLICY_BINDING, {"metadata": {"name": "b"}, "spec": bound}
    )


def must(expression: str, **facts: Any) -> Object:
    return {"expression": expression, **facts}


@in_virtual_time
async def test_violated_policy_denies_with_the_message_of_kubernetes() -> None:
    api = await Api.start()
    await add_policy(api, must("object.data.a == 'c'"))
    answer = await post(api, config_map())
    denied = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request"
    assert answer.code == 422
    assert answer.body["message"] == (
        f"configmaps \"c\" is forbidden: {denied}: failed expression: object.data.a == 'c'"
    )
    assert answer.body["reason"] == "Invalid"
    assert answer.body["details"]["name"] == "c"
    assert (await post(api, {**config_map(), "data": {"a": "c"}})).code == 201


@pytest.mark.parametrize(
    ("validation", "code", "message"),
    [
        (must("false", message=" no! "), 422, "no!"),
        (must("false", reason="Forbidden"), 403, "failed expression: false"),
        (must("false", reason="Unauthorized"), 401, "failed expression: false"),
        (must("false", reason="RequestEntityTooLarge"), 413, "failed expression: false"),
        (must("false", messageExpression="'a is ' + object.data.a"), 422, "a is b"),
        (must("false", message="m", messageExpression="object.zzz"), 422, "m"),
        (must("false", message="m", messageExpression="'two\\nlines'"), 422, "m"),
        (
            must("object.zzz == 1"), 422,
            "expression 'object.zzz == 1' resulted in error: no such key: zzz",
        ),
    ],
)  # fmt: skip
def test_message_and_reason(validation: Object, code: int, message: str) -> None:
    @in_virtual_time
    async def trial() -> ApiResponse:
        api = await Api.start()
        await add_policy(api, validation)
        return await post(api, config_map())

    answer = trial()
    assert (answer.code, answer.body["message"].partition("denied request: ")[2]) == (code, message)


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("request.operation == 'CREATE' && oldObject == null", True),
        ("request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps'", True),
        ("namespaceObject.metadata.name == 'default'", True),
        ("params == null", True),
        ("variables.letters.size() == 1 && variables.first == 'a'", True),
        ("has(object.metadata.labels)", False),
        ("object.data.all(k, object.data[k] != 'b')", False),
        ("authorizer.group('').resource('pods').namespace('x').check('create').allowed()", True),
        ("authorizer.path('/healthz').check('get').allowed()", True),
        ("authorizer.requestResource.check('create').allowed()", True),
        (
            "authorizer.serviceAccount('x', 'y').group('').resource('pods').subresource('log')"
            ".name('p').check('get').allowed()",
            False,
        ),
        ("authorizer.requestResource.check('get').errored()", False),
        ("authorizer.requestResource.check('get').reason() == ''", True),
        ("authorizer.requestResource.check('get').error() == ''", True),
        ("variables.broken == 1", False),
        ("[1, 2, 3].map(x, [1, 2, 3].map(y, x * y)).size() == 3", True),
    ],
)
def test_variables_of_expressions(expression: str, holds: bool) -> None:
    variables = [
        {"name": "letters", "expression": "object.data.map(k, k)"},
        {"name": "first", "expression": "variables.letters[0]"},
        {"name": "broken", "expression": "object.nothing"},
    ]

    @in_virtual_time
    async def trial() -> int:
        api = await Api.start()
        await add_policy(api, must(expression), variables=variables)
        return (await post(api, config_map())).code

    assert trial() == (201 if holds else 422)


@pytest.mark.parametrize(
    ("facts", "seen"),
    [
        ({"matchConditions": condition("object.data.a == 'b'")}, True),
        ({"matchConditions": condition("object.data.a == 'c'")}, False),
        ({"matchConditions": condition("object.zzz == 'c'")}, True),
        ({"matchConditions": condition("object.zzz == 'c'"), "failurePolicy": "Ignore"}, False),
        ({"matchConstraints": {"resourceRules": [rule("pods")]}}, False),
        ({"matchConstraints": {"resourceRules": [rule("*")]}}, True),
        ({"matchConstraints": {"resourceRules": [{**RULE, "resourceNames": ["c"]}]}}, True),
        ({"matchConstraints": {"resourceRules": [{**RULE, "resourceNames": ["d"]}]}}, False),
        (
            {"matchConstraints": {"resourceRules": [rule("*")], "excludeResourceRules": [RULE]}},
            False,
        ),
        (
            {
                "matchConstraints": {
                    "resourceRules": [RULE], "objectSelector": {"matchLabels": {"x": "y"}},
                }
            },
            False,
        ),
        ({"binding": {"matchResources": {"resourceRules": [rule("pods")]}}}, False),
        ({"binding": {"matchResources": {"namespaceSelector": {}}}}, True),
        (
            {"binding": {"matchResources": {"namespaceSelector": {"matchLabels": {"x": "y"}}}}},
            False,
        ),
    ],
)  # fmt: skip
def test_policy_and_binding_select_requests(facts: Any, seen: bool) -> None:
    @in_virtual_time
    async def trial() -> int:
        api = await Api.start()
        await add_policy(api, must("false"), **facts)
        return (await post(api, config_map())).code

    assert trial() == (422 if seen else 201)


@in_virtual_time
async def test_failure_policy_ignore_admits_what_cannot_be_evaluated() -> None:
    api = await Api.start()
    await add_policy(api, must("object.zzz == 1"), failurePolicy="Ignore")
    assert (await post(api, config_map())).code == 201


@in_virtual_time
async def test_expression_beyond_its_cost_limit_is_an_error() -> None:
    api = await Api.start()
    loop = "[0,1,2,3,4,5,6,7,8,9]"
    nested = f"{loop}.all(a, {loop}.all(b, {loop}.all(c, {loop}.all(d, {loop}.all(e, true)))))"
    await add_policy(api, must(f"{loop}.all(z, {nested})"))
    answer = await post(api, config_map())
    assert answer.code == 422
    assert "cost limit exceeded" in answer.body["message"]


@in_virtual_time
async def test_warn_and_audit_do_not_deny() -> None:
    api = await Api.start()
    annotations = [
        {"key": "value", "valueExpression": "'a=' + object.data.a"},
        {"key": "none", "valueExpression": "null"},
    ]
    actions = {"validationActions": ["Warn", "Audit"]}
    await add_policy(api, must("false"), binding=actions, auditAnnotations=annotations)
    lines: list[bytes] = []
    api.server.audit = AuditLog(lines.extend, WallClock())
    answer = await post(api, config_map())
    api.server.audit.close()
    assert answer.code == 201
    text = "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': "
    assert answer.header_values("warning") == [f'299 - "{text}failed expression: false"']
    found = orjson.loads(lines[0])["annotations"]
    assert found["p/value"] == "a=b"
    assert "p/none" not in found
    (failure,) = orjson.loads(found["validation.policy.admission.k8s.io/validation_failure"])
    assert (failure["policy"], failure["binding"]) == ("p", "b")


@in_virtual_time
async def test_update_delete_and_binding_are_checked() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config_map())
    (one,) = await api.create(POD, pod("a"))
    rules = [RULE, rule("pods/binding")]
    await add_policy(
        api,
        must("request.operation != 'DELETE' && object.?data.?a != optional.of('x')"),
        must("!has(request.subResource)"),
        matchConstraints={"resourceRules": rules},
    )
    assert (await api.patch(CONFIG_MAP, "c", {"data": {"a": "x"}})).code == 422
    assert (await api.patch(CONFIG_MAP, "c", {"data": {"a": "y"}})).code == 200
    assert (await api.delete(CONFIG_MAP, "c")).code == 422
    assert (await api.bind("a", "n")).code == 422
    assert (await api.bind_group((one, "n"))).code == 422


# ---- parameters ----------------------------------------------------------------------------------

PARAM_KIND = {"apiVersion": "v1", "kind": "ConfigMap"}


@pytest.mark.parametrize(
    ("reference", "kind", "message"),
    [
        ({"name": "limits"}, PARAM_KIND, "too long"),
        ({"name": "limits", "namespace": "default"}, PARAM_KIND, "too long"),
        ({"selector": {"matchLabels": {"is": "limit"}}}, PARAM_KIND, "too long"),
        ({"selector": {"matchLabels": {"is": "other"}}}, PARAM_KIND, ""),
        ({"name": "missing"}, PARAM_KIND, ""),
        (
            {"name": "missing", "parameterNotFoundAction": "Deny"}, PARAM_KIND,
            "failed to configure binding: no params found for policy binding with `Deny` "
            "parameterNotFoundAction",
        ),
        (
            {"name": "x"}, {"apiVersion": "example.com/v1", "kind": "Limit"},
            "failed to configure binding: paramKind kind `example.com/v1, Kind=Limit` not found",
        ),
        (
            {"name": "x", "namespace": "default"}, {"apiVersion": "v1", "kind": "Node"},
            "failed to configure binding: paramRef.namespace must not be provided for a "
            "cluster-scoped `paramKind`",
        ),
    ],
)  # fmt: skip
def test_parameters(reference: Object, kind: Object, message: str) -> None:
    reference = {"parameterNotFoundAction": "Allow", **reference}

    @in_virtual_time
    async def trial() -> ApiResponse:
        api = await Api.start()
        limits = config_map("limits", labels={"is": "limit"})
        await api.create(CONFIG_MAP, {**limits, "data": {"length": "1"}})
        size = must("params == null || object.data.a.size() <= int(params.data.length)")
        await add_policy(
            api,
            {**size, "message": "too long"},
            paramKind=kind,
            binding={"paramRef": reference},
        )
        return await post(api, {**config_map(), "data": {"a": "bcd"}})

    answer = trial()
    assert answer.code == (422 if message else 201)
    assert answer.body.get("message", "").partition("denied request: ")[2] == message


@in_virtual_time
async def test_namespaced_parameters_of_cluster_scoped_objects_are_refused() -> None:
    api = await Api.start()
    reference = {"name": "x", "parameterNotFoundAction": "Allow"}
    await add_policy(
        api,
        must("true"),
        paramKind=PARAM_KIND,
        binding={"paramRef": reference},
        matchConstraints={"resourceRules": [rule("nodes", "namespaces")]},
    )
    answer = await api.ask("POST", "/api/v1/nodes", node("n"))
    assert "cannot use namespaced paramRef" in answer.body["message"]
    # A Namespace has its own name as the namespace of the request.
    assert (await api.ask("POST", NAMESPACE.url_path(), {"metadata": {"name": "n"}})).code == 201


# ---- validation of policies ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({"validations": [must("object.")]}, "spec.validations[0].expression", "Syntax error"),
        ({"validations": [must("1")]}, "spec.validations[0].expression", "must evaluate to bool"),
        ({"validations": [must("zzz")]}, "spec.validations[0].expression", "undeclared reference"),
        (
            {"validations": [must("true", messageExpression="1")]},
            "spec.validations[0].messageExpression", "must evaluate to string",
        ),
        (
            {"matchConditions": condition("1 + 1")},
            "spec.matchConditions[0].expression", "must evaluate to bool",
        ),
        (
            {"variables": [{"name": "a", "expression": "variables.b"}]},
            "spec.variables[0].expression", "undefined field 'b'",
        ),
        (
            {"auditAnnotations": [{"key": "k", "valueExpression": "true"}]},
            "spec.auditAnnotations[0].valueExpression", "must evaluate to string or null",
        ),
    ],
)  # fmt: skip
def test_expressions_that_do_not_compile_are_refused(spec: Object, field: str, text: str) -> None:
    @in_virtual_time
    async def trial() -> ApiResponse:
        api = await Api.start()
        full = {
            "matchConstraints": {"resourceRules": [RULE]}, "validations": [must("true")], **spec,
        }  # fmt: skip
        body = {"metadata": {"name": "p"}, "spec": full}
        return await api.ask("POST", VALIDATING_ADMISSION_POLICY.url_path(), body)

    answer = trial()
    assert answer.code == 422
    assert answer.cause_reasons == [(field, "FieldValueInvalid")]
    assert text in answer.body["message"]
