"""Defaults that schemas declare (`Schema.apply_defaults`)."""

from __future__ import annotations

import copy

from hypothesis import given

from phalanx.api.schema import schema
from phalanx.api.wire import Object
from tests.api.schema_strategies import objects


def fill_object(name: str, obj: Object) -> Object:
    schema(name).apply_defaults(obj)
    return obj


def test_a_struct_that_cannot_be_absent_is_there_with_its_own_zeros() -> None:
    status = fill_object("core.v1.Node", {})["status"]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert status["nodeInfo"]["kubeletVersion"] == ""


def test_required_fields_have_their_zero() -> None:
    assert fill_object("scheduling.v1.PriorityClass", {"metadata": {}}) == {
        "metadata": {},
        "value": 0,
    }
    budget = fill_object("policy.v1.PodDisruptionBudget", {})
    assert budget["status"]["disruptionsAllowed"] == 0


def test_an_optional_empty_text_is_not_written() -> None:
    assert fill_object("core.v1.LocalObjectReference", {}) == {}


def test_declared_defaults_step_in_at_any_depth() -> None:
    pod = fill_object("core.v1.Pod", {"spec": {"containers": [{"ports": [{"containerPort": 80}]}]}})
    assert pod["spec"]["containers"] == [
        {"name": "", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]}
    ]
    group = fill_object("scheduling.v1beta1.PodGroup", {"spec": {}})
    assert group["spec"]["disruptionMode"] == {"single": {}}


def test_defaults_are_not_shared_between_objects() -> None:
    one: Object = {"spec": {}}
    two: Object = {"spec": {}}
    fill_object("scheduling.v1beta1.PodGroup", one)["spec"]["disruptionMode"]["all"] = {}
    assert fill_object("scheduling.v1beta1.PodGroup", two)["spec"]["disruptionMode"] == {
        "single": {}
    }


def test_explicit_values_are_kept() -> None:
    group = fill_object("scheduling.v1beta1.PodGroup", {"spec": {"disruptionMode": {"all": {}}}})
    assert group["spec"]["disruptionMode"] == {"all": {}}


def test_values_of_maps_are_filled_too() -> None:
    claim: Object = {"spec": {"devices": {"requests": [{"exactly": {}}]}}}
    assert (
        fill_object("resource.v1.ResourceClaim", claim)["spec"]["devices"]["requests"][0]["name"]
        == ""
    )


@given(objects("core.v1.Pod"))
def test_filling_twice_adds_nothing(obj: Object) -> None:
    schema("core.v1.Pod").normalize(obj)
    once = fill_object("core.v1.Pod", copy.deepcopy(obj))
    assert fill_object("core.v1.Pod", copy.deepcopy(once)) == once
