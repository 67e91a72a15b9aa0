"""The status controller of ValidatingAdmissionPolicies writes type-check warnings."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, VALIDATING_ADMISSION_POLICY
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

KEY = Key("", "p")


def policy(expression: str, group: str, plural: str, **spec: Any) -> Object:
    rule = {
        "apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": [plural],
    }  # fmt: skip
    return {
        "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression}],
            **spec,
        },
    }


async def read_status(c: Cluster) -> Object:
    await asyncio.sleep(1)
    status: Object = (await c.client.get(VALIDATING_ADMISSION_POLICY, KEY))["status"]
    return status


@in_virtual_time
async def test_warnings_follow_the_generation_of_a_policy() -> None:
    async with cluster() as c:
        wrong = policy("object.replicas > 1", "apps", "deployments")
        await c.client.create(VALIDATING_ADMISSION_POLICY, wrong)
        status = await read_status(c)
        assert status["observedGeneration"] == 1
        (warning,) = status["typeChecking"]["expressionWarnings"]
        assert warning["fieldRef"] == "spec.validations[0].expression"
        assert warning["warning"].startswith("apps/v1, Kind=Deployment: ERROR: <input>:1:7: ")
        right = {"spec": {"validations": [{"expression": "object.spec.replicas > 1"}]}}
        await c.client.patch(VALIDATING_ADMISSION_POLICY, KEY, right)
        assert await read_status(c) == {"observedGeneration": 2, "typeChecking": {}}


@in_virtual_time
async def test_custom_resources_and_parameters_are_checked_by_their_definitions() -> None:
    async with cluster() as c:
        definition = custom_resource_definition(served_version())
        await c.client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        spec = {"paramKind": {"apiVersion": "example.com/v1", "kind": "Widget"}}
        text = "object.spec.size < params.spec.colour"
        await c.client.create(
            VALIDATING_ADMISSION_POLICY, policy(text, "example.com", "widgets", **spec)
        )
        (warning,) = (await read_status(c))["typeChecking"]["expressionWarnings"]
        assert warning["warning"].startswith("example.com/v1, Kind=Widget: ERROR: ")
        assert "found no matching overload for '_<_'" in warning["warning"]


@in_virtual_time
async def test_policy_of_an_unknown_kind_has_no_warnings() -> None:
    async with cluster() as c:
        unknown = policy("object.x == 1", "other.example.com", "things")
        await c.client.create(VALIDATING_ADMISSION_POLICY, unknown)
        assert await read_status(c) == {"observedGeneration": 1, "typeChecking": {}}
