"""MutatingAdmissionPolicies: objects merged and patched by expressions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    MUTATING_ADMISSION_POLICY,
    MUTATING_ADMISSION_POLICY_BINDING,
    POD,
)
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.server.api import Api, ApiResponse
from tests.server.webhook_server import (
    add,
    condition,
    config_map,
    configure,
    hooked_api,
    patch,
    post,
    rule,
    webhook,
)


def merge(expression: str) -> Object:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def operations(expression: str) -> Object:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


async def add_policy(
    api: Api, *mutations: Object, resource: str = "configmaps", **spec: Any
) -> None:
    rules = {"resourceRules": [rule(resource, operations=("CREATE", "UPDATE"))]}
    body = {
        "matchConstraints": rules, "mutations": list(mutations), "reinvocationPolicy": "Never",
        **spec,
    }  # fmt: skip
    binding = {"policyName": "p", **spec.pop("binding", {})}
    body.pop("binding", None)
    await api.create(MUTATING_ADMISSION_POLICY, {"metadata": {"name": "p"}, "spec": body})
    await api.create(
        MUTATING_ADMISSION_POLICY_BINDING, {"metadata": {"name": "b"}, "spec": binding}
    )


@pytest.mark.parametrize(
    ("mutation", "data"),
    [
        (merge("Object{data: {'x': object.data.a + '!'}}"), {"a": "b", "x": "b!"}),
        (merge("Object{data: Object.data{x: 'y'}}"), {"a": "b", "x": "y"}),
        (merge("Object{?data: optional.none()}"), {"a": "b"}),
        (merge("true ? Object{data: {'a': 'z'}} : Object{}"), {"a": "z"}),
        (operations("[JSONPatch{op: 'add', path: '/data/x', value: 'y'}]"), {"a": "b", "x": "y"}),
        (operations("[JSONPatch{op: 'remove', path: '/data/a'}]"), None),
        (operations("[]"), {"a": "b"}),
        (
            operations(
                "[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('x~y'), value: 'z'}]"
            ),
            None,
        ),
    ],
)
def test_mutations_change_the_object(mutation: Object, data: Object | None) -> None:
    @in_virtual_time
    async def trial() -> ApiResponse:
        api = await Api.start()
        await add_policy(api, mutation)
        return await post(api, config_map())

    answer = trial()
    if "escapeKey" in str(mutation):
        # The key is not valid in a ConfigMap, but the operation has added it.
        assert (answer.code, answer.body["details"]["causes"][0]["field"]) == (422, "data[x~y]")
    else:
        assert (answer.code, answer.body.get("data")) == (201, data)


@in_virtual_time
async def test_lists_are_merged_by_their_keys_and_defaults_follow() -> None:
    api = await Api.start()
    sidecar = (
        "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'mesh', "
        "image: 'mesh:1', restartPolicy: 'Always'}], containers: [Object.spec.containers{"
        "name: object.spec.containers[0].name, workingDir: '/w'}]}}"
    )
    await add_policy(api, merge(sidecar), resource="pods")
    (made,) = await api.create(POD, pod("p"))
    (init,), (main,) = made["spec"]["initContainers"], made["spec"]["containers"]
    assert (init["name"], init["terminationMessagePolicy"]) == ("mesh", "File")
    assert (main["workingDir"], main["image"]) == ("/w", pod("p")["spec"]["containers"][0]["image"])


@in_virtual_time
async def test_mutations_follow_each_other_and_conditions_select() -> None:
    api = await Api.start()
    await add_policy(
        api,
        merge("Object{data: {'x': 'y'}}"),
        merge("Object{data: {'z': object.data.x + variables.suffix}}"),
        variables=[{"name": "suffix", "expression": "object.metadata.name"}],
        matchConditions=condition("object.metadata.name != 'skipped'"),
    )
    (made, skipped) = await api.create(CONFIG_MAP, config_map(), config_map("skipped"))
    assert made["data"] == {"a": "b", "x": "y", "z": "yc"}
    assert skipped["data"] == {"a": "b"}
    answer = await api.patch(CONFIG_MAP, "skipped", {"data": {"q": "r"}})
    assert answer.body["data"] == {"a": "b", "q": "r"}
    assert (await api.delete(CONFIG_MAP, "c")).code == 200


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (merge("Object{data: {'x': object.zzz}}"), "no such key: zzz"),
        (merge("Object{data: {'x': {}}}"), "data"),
        (operations("[JSONPatch{op: 'remove', path: '/zzz'}]"), "zzz"),
        (operations("[JSONPatch{op: 'add', path: '/x', value: duration('1s')}]"), ""),
    ],
)  # fmt: skip
def test_mutation_that_fails_follows_the_failure_policy(mutation: Object, message: str) -> None:
    @in_virtual_time
    async def trial(policy: str) -> ApiResponse:
        api = await Api.start()
        await add_policy(api, mutation, failurePolicy=policy)
        return await post(api, config_map())

    answer = trial("Fail")
    assert answer.code == 422
    start, _, detail = answer.body["message"].partition("denied request: ")
    assert "MutatingAdmissionPolicy 'p' with binding 'b'" in start
    assert message in detail
    assert trial("Ignore").code == 201


@pytest.mark.parametrize(
    ("mutation", "text"),
    [
        (merge("{'data': {}}"), "must evaluate to object"),
        (merge("Object{spec: Object.other{}}"), "unexpected type name 'Object.other'"),
        (merge("Other{}"), "undeclared reference to 'Other'"),
        (operations("JSONPatch{op: 'add'}"), "must evaluate to list"),
        (merge("Object{1: 2}"), "Syntax error"),
        (merge("object{a: 2}"), "undeclared reference to 'object'"),
    ],
)
def test_mutations_that_do_not_compile_are_refused(mutation: Object, text: str) -> None:
    @in_virtual_time
    async def trial() -> ApiResponse:
        api = await Api.start()
        spec = {
            "matchConstraints": {"resourceRules": [rule("configmaps")]}, "mutations": [mutation],
            "reinvocationPolicy": "Never",
        }  # fmt: skip
        body = {"metadata": {"name": "p"}, "spec": spec}
        return await api.ask("POST", MUTATING_ADMISSION_POLICY.url_path(), body)

    answer = trial()
    assert answer.code == 422
    assert text in answer.body["message"]


@in_virtual_time
async def test_missing_parameter_is_refused_if_the_binding_says_so() -> None:
    api = await Api.start()
    reference = {"name": "missing", "parameterNotFoundAction": "Deny"}
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    mutation = merge("Object{data: {'x': params.data.a}}")
    await add_policy(api, mutation, paramKind=kind, binding={"paramRef": reference})
    answer = await post(api, config_map())
    assert answer.code == 422
    assert "no params found" in answer.body["message"]


@pytest.mark.parametrize(("policy", "seen"), [("IfNeeded", "hook"), ("Never", "client")])
def test_policy_runs_again_after_a_webhook(policy: str, seen: str, tmp_path: Path) -> None:
    async def trial() -> Object:
        async with hooked_api(tmp_path) as (api, hooks):
            mutation = merge("Object{data: {'seen': object.data.a}}")
            await add_policy(api, mutation, reinvocationPolicy=policy)
            config = hooks.on("/patch", patch(add("/data/a", "hook")))
            await configure(api, webhook(config, rule("configmaps")), mutating=True)
            (made,) = await api.create(CONFIG_MAP, {**config_map(), "data": {"a": "client"}})
            return made

    assert asyncio.run(trial())["data"] == {"a": "hook", "seen": seen}
