"""Configurations as the templates of a Workload hold them, and templates as groups hold them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from phalanx.api.rules.workload import COMPOSITES, LEAVES
from phalanx.api.wire import Object
from phalanx.builder.config import (
    DisruptionMode,
    Gang,
    Policy,
    ResourceClaim,
    SchedulingConfig,
    Unknown,
)

#: What a template has and a group that is made of it has not.
_OWN = ("name", LEAVES, COMPOSITES)


def written(name: str, config: SchedulingConfig, *, composite: bool) -> Object:
    """The template of a group, without those below it."""
    said = {
        "schedulingPolicy": policy_block(config.policy, composite=composite),
        "schedulingConstraints": _constraints(config.topology),
        "resourceClaims": [_claim(claim) for claim in config.resource_claims],
        "disruptionMode": mode_block(config.disruption_mode),
        "priorityClassName": config.priority_class_name,
        "priority": config.priority,
        "preemptionPolicy": config.preemption_policy,
    }
    return {"name": name, **{field: value for field, value in said.items() if _is_said(value)}}


def policy_block(policy: Policy | None, *, composite: bool) -> Object | None:
    """A policy as JSON."""
    match policy:
        case None:
            return None
        case Unknown(block):
            return deepcopy(dict(block))
        case Gang(int() as count):
            return {Gang.member: {count_field(composite=composite): count}}
    return {policy.member: {}}


def count_field(*, composite: bool) -> str:
    """What the size of a gang is called."""
    return "minGroupCount" if composite else "minCount"


def mode_block(mode: DisruptionMode | None) -> Object | None:
    """A disruption mode as JSON."""
    match mode:
        case None:
            return None
        case Unknown(block):
            return deepcopy(dict(block))
    return {mode.member: {}}


def _constraints(topology: Sequence[str]) -> Object | None:
    return {"topology": [{"key": key} for key in topology]} if topology else None


def _claim(claim: ResourceClaim) -> Object:
    said = {
        "name": claim.name,
        "resourceClaimName": claim.resource_claim_name,
        "resourceClaimTemplateName": claim.resource_claim_template_name,
    }
    return {field: value for field, value in said.items() if value is not None}


def _is_said(value: Any) -> bool:
    return value == 0 or bool(value)


def terms(template: Object) -> Object:
    """All that a group takes over from its template."""
    return {
        field: deepcopy(value)
        for field, value in template.items()
        if field not in _OWN and value is not None
    }
