"""Building blocks of users, mapped to configurations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.builder import (
    All,
    Basic,
    Gang,
    Intent,
    NoTopology,
    ResourceClaim,
    SchedulingConfig,
    Single,
    Unknown,
    map_composite_group_config,
    map_pod_group_config,
    read_intent,
)
from phalanx.builder.config import EMPTY_CONFIG

BLOCKS: dict[str, Any] = {
    "policy": {"gang": {"minCount": 4}},
    "constraints": {"topology": [{"key": "rack"}]},
    "disruption_mode": {"all": {}},
    "resource_claims": [
        {"name": "nic", "resourceClaimName": "shared"},
        {"name": "gpu", "resourceClaimTemplateName": "each"},
    ],
}
CONFIG = SchedulingConfig(
    policy=Gang(4),
    topology=("rack",),
    disruption_mode=All(),
    resource_claims=(
        ResourceClaim("nic", resource_claim_name="shared"),
        ResourceClaim("gpu", resource_claim_template_name="each"),
    ),
)


def test_every_block_of_a_pod_group_is_mapped() -> None:
    assert map_pod_group_config(**BLOCKS) == CONFIG


def test_every_block_of_a_composite_group_is_mapped() -> None:
    config = map_composite_group_config(
        {"gang": {"minGroupCount": 2}}, {"topology": [{"key": "block"}]}, {"single": {}}
    )
    assert config == SchedulingConfig(policy=Gang(2), topology=("block",), disruption_mode=Single())


@pytest.mark.parametrize(
    ("block", "policy"),
    [
        (None, None),
        ({}, None),
        ({"basic": {}}, Basic()),
        ({"gang": {}}, Gang()),
        ({"gang": {"minCount": 1}}, Gang(1)),
        ({"gang": {"minCount": 0}}, Gang(0)),
        ({"basic": {}, "gang": {}}, Unknown({"basic": {}, "gang": {}})),
        ({"elastic": {"max": 3}}, Unknown({"elastic": {"max": 3}})),
    ],
)
def test_policy_is_mapped_or_kept_as_unknown(block: Any, policy: Any) -> None:
    assert map_pod_group_config(policy=block).policy == policy


@pytest.mark.parametrize(
    ("block", "mode"),
    [
        (None, None),
        ({}, None),
        ({"single": {}}, Single()),
        ({"all": {}}, All()),
        ({"single": {}, "all": {}}, Unknown({"single": {}, "all": {}})),
    ],
)
def test_disruption_mode_is_mapped_or_kept_as_unknown(block: Any, mode: Any) -> None:
    assert map_pod_group_config(disruption_mode=block).disruption_mode == mode
    assert map_composite_group_config(disruption_mode=block).disruption_mode == mode


@pytest.mark.parametrize("empty", [None, {}, {"topology": None}])
def test_absent_topology_sets_nothing(empty: Any) -> None:
    assert map_pod_group_config(constraints=empty) == EMPTY_CONFIG
    assert map_composite_group_config(constraints=empty) == EMPTY_CONFIG


def test_empty_topology_undoes_a_default() -> None:
    for config in (map_pod_group_config, map_composite_group_config):
        assert config(constraints={"topology": []}).topology == NoTopology()


def test_absent_and_empty_blocks_set_nothing() -> None:
    assert map_pod_group_config() == map_composite_group_config() == EMPTY_CONFIG
    assert (
        map_pod_group_config({}, {}, {}, resource_claims=[])
        == map_composite_group_config({}, {}, {})
        == EMPTY_CONFIG
    )


def test_unknown_block_is_copied() -> None:
    written = {"elastic": {"max": 3}}
    config = map_pod_group_config(policy=written)
    written["burst"] = {"max": 4}
    assert config.policy == Unknown({"elastic": {"max": 3}})


def test_mapping_does_not_change_blocks() -> None:
    blocks = copy.deepcopy(BLOCKS)
    map_pod_group_config(**blocks)
    assert blocks == BLOCKS


# ------------------------------------------------------------------------------------- structs

CANONICAL = {
    "schedulingPolicy": BLOCKS["policy"],
    "schedulingConstraints": BLOCKS["constraints"],
    "disruptionMode": BLOCKS["disruption_mode"],
    "resourceClaims": BLOCKS["resource_claims"],
}
PRINTED = {
    "policy": BLOCKS["policy"],
    "constraints": {"topology": [{"level": "rack"}]},
    "disruption": BLOCKS["disruption_mode"],
    "resourceClaims": BLOCKS["resource_claims"],
}


@pytest.mark.parametrize("scheduling", [CANONICAL, PRINTED])
def test_struct_is_read_in_any_spelling(scheduling: Any) -> None:
    assert read_intent(scheduling, "spec.scheduling").config == CONFIG


def test_intent_has_the_paths_of_its_blocks() -> None:
    assert read_intent(PRINTED, "spec.scheduling").fields == {
        "schedulingPolicy": "spec.scheduling.policy",
        "schedulingConstraints": "spec.scheduling.constraints",
        "disruptionMode": "spec.scheduling.disruption",
        "resourceClaims": "spec.scheduling.resourceClaims",
        "schedulingConstraints.topology[0].key": "spec.scheduling.constraints.topology[0].level",
    }


def test_struct_of_a_composite_group_has_min_group_count_and_no_claims() -> None:
    scheduling = {**CANONICAL, "schedulingPolicy": {"gang": {"minGroupCount": 2}}}
    config = read_intent(scheduling, "spec", composite=True).config
    assert (config.policy, config.resource_claims) == (Gang(2), ())


@pytest.mark.parametrize("scheduling", [None, {}, {"schedulingPolicy": {}}])
def test_empty_struct_sets_nothing(scheduling: Any) -> None:
    assert read_intent(scheduling, "spec.scheduling") == Intent()


def test_intent_is_overridden_field_by_field_with_its_paths() -> None:
    below = read_intent(PRINTED, "spec.jobs[0].scheduling")
    above = read_intent({"constraints": {"topology": [{"key": "zone"}]}}, "spec.scheduling")
    both = below.override_with(above)
    assert both.config == CONFIG.override_with(SchedulingConfig(topology=("zone",)))
    assert both.fields["schedulingPolicy"] == "spec.jobs[0].scheduling.policy"
    assert both.fields["schedulingConstraints"] == "spec.scheduling.constraints"
    assert "schedulingConstraints.topology[0].key" not in both.fields
