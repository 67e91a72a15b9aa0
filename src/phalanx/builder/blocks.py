"""From the building blocks that users write to configurations.

The blocks are the embeddable types of `scheduling.k8s.io/v1alpha3` as JSON: policy, constraints,
disruption mode, resource claims. An API that embeds them one by one maps them with
`map_pod_group_config` or `map_composite_group_config`; one that has them in one struct, like the
`spec.scheduling` of a Job, reads that with `read_intent`, in any spelling that was ever printed.
An absent or empty block says nothing. Nothing is checked here, and nothing of the user's is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.builder.config import (
    SILENT,
    All,
    Basic,
    DisruptionMode,
    Gang,
    Policy,
    ResourceClaim,
    SchedulingConfig,
    Single,
    Unknown,
)

#: A block, as JSON.
Block = Mapping[str, Any]

#: What templates call a block, and the names that it has where users write it.
_SPELLINGS = (
    ("schedulingPolicy", ("schedulingPolicy", "policy")),
    ("schedulingConstraints", ("schedulingConstraints", "constraints")),
    ("disruptionMode", ("disruptionMode", "disruption")),
    ("resourceClaims", ("resourceClaims",)),
)
#: The same for the label of a topology constraint.
_KEYS = ("key", "level")


def map_pod_group_config(
    policy: Block | None = None,
    constraints: Block | None = None,
    disruption_mode: Block | None = None,
    resource_claims: Sequence[Block] | None = None,
) -> SchedulingConfig:
    """What the building blocks of a group of pods say.

    >>> map_pod_group_config(policy={"gang": {"minCount": 4}}).policy
    Gang(min_count=4)
    """
    return SchedulingConfig(
        policy=_policy(policy or {}, "minCount"),
        topology=_topology(constraints or {}),
        disruption_mode=_disruption_mode(disruption_mode or {}),
        resource_claims=tuple(_claim(claim) for claim in resource_claims or ()),
    )


def map_composite_group_config(
    policy: Block | None = None,
    constraints: Block | None = None,
    disruption_mode: Block | None = None,
) -> SchedulingConfig:
    """What the building blocks of a group of groups say.

    >>> map_composite_group_config(policy={"gang": {"minGroupCount": 2}}).policy
    Gang(min_count=2)
    """
    return SchedulingConfig(
        policy=_policy(policy or {}, "minGroupCount"),
        topology=_topology(constraints or {}),
        disruption_mode=_disruption_mode(disruption_mode or {}),
    )


def _policy(block: Block, count: str) -> Policy | None:
    match list(block):
        case []:
            return None
        case [Basic.member]:
            return Basic()
        case [Gang.member]:
            return Gang((block[Gang.member] or {}).get(count))
    return Unknown(dict(block))


def _disruption_mode(block: Block) -> DisruptionMode | None:
    match list(block):
        case []:
            return None
        case [Single.member]:
            return Single()
        case [All.member]:
            return All()
    return Unknown(dict(block))


def _topology(constraints: Block) -> tuple[str, ...]:
    return tuple(
        next((one[key] for key in _KEYS if one.get(key)), "")
        for one in constraints.get("topology") or ()
    )


def _claim(block: Block) -> ResourceClaim:
    return ResourceClaim(
        block.get("name", ""),
        block.get("resourceClaimName"),
        block.get("resourceClaimTemplateName"),
    )


@dataclass(frozen=True, slots=True)
class Intent:
    """What a user wants, and where each piece of it stands: an item's `user` and `fields`."""

    config: SchedulingConfig = SILENT
    fields: Mapping[str, str] = field(default_factory=dict)

    def beneath(self, over: Intent) -> Intent:
        """Two places that speak of one group: each piece from the other one, where that has it."""
        kept = {
            name: place
            for name, place in self.fields.items()
            if name.partition(".")[0] not in over.fields
        }
        return Intent(self.config.overridden_by(over.config), {**kept, **over.fields})


def read_intent(scheduling: Block | None, path: str, *, composite: bool = False) -> Intent:
    """What a struct of building blocks says, given its path in the user's object.

    >>> intent = read_intent({"policy": {"gang": {}}}, "spec.scheduling")
    >>> intent.config.policy, intent.fields
    (Gang(min_count=None), {'schedulingPolicy': 'spec.scheduling.policy'})
    """
    written = dict(_written(scheduling or {}))
    blocks = {name: (scheduling or {})[spelling] for name, spelling in written.items()}
    policy, constraints, mode, claims = (blocks.get(name) for name, _ in _SPELLINGS)
    if composite:
        config = map_composite_group_config(policy, constraints, mode)
    else:
        config = map_pod_group_config(policy, constraints, mode, claims)
    places = {name: f"{path}.{spelling}" for name, spelling in written.items()}
    return Intent(config, {**places, **_keys(constraints or {}, places)})


def _written(scheduling: Block) -> Iterable[tuple[str, str]]:
    """What templates call the blocks that are there, and what the user does."""
    for name, spellings in _SPELLINGS:
        for spelling in spellings:
            if scheduling.get(spelling):
                yield name, spelling
                break


def _keys(constraints: Block, places: Mapping[str, str]) -> dict[str, str]:
    """Where labels of topology constraints stand that are not called keys."""
    return {
        f"schedulingConstraints.topology[{at}].key": (
            f"{places['schedulingConstraints']}.topology[{at}].level"
        )
        for at, one in enumerate(constraints.get("topology") or ())
        if "level" in one and not one.get("key")
    }
