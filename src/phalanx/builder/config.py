"""What a scheduling configuration says, whatever level of a workload it is for.

    SchedulingConfig
      policy             Basic | Gang            how the members of a group are scheduled
      topology           label keys              what all of them must share
      disruption_mode    Single | All            what goes when one of them must go
      resource_claims    ResourceClaim …         devices that pods of the group share
      priority_class_name, priority, preemption_policy

A group of pods and a group of groups are described alike; which of the two it is, `template.py`
decides when it writes a configuration down. A policy or mode that is not known here is kept as it
stands (`Unknown`): it is refused later, and never lost. The classes also name what a controller
supports (`allowlist.py`). Only values; nothing is checked here.

From the building blocks that users write to configurations.

The blocks are the embeddable types of `scheduling.k8s.io/v1alpha3` as JSON: policy, constraints,
disruption mode, resource claims. An API that embeds them one by one maps them with
`map_pod_group_config` or `map_composite_group_config`; one that has them in one struct, like the
`spec.scheduling` of a Job, reads that with `read_intent`, in any spelling that was ever printed.
An absent or empty block says nothing. Nothing is checked here, and nothing of the user's is kept.

What a group of pods has from the template of its pods: their priority, and where that stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class Basic:
    """Each member by itself, as ever."""

    member: ClassVar[str] = "basic"


@dataclass(frozen=True, slots=True)
class Gang:
    """All or nothing, from so many members on: pods of a group, groups of a composite.

    None leaves the number to the controller.
    """

    member: ClassVar[str] = "gang"
    min_count: int | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """Members can be disrupted one by one."""

    member: ClassVar[str] = "single"


@dataclass(frozen=True, slots=True)
class All:
    """Members are disrupted together."""

    member: ClassVar[str] = "all"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A policy or mode that is none of the known ones, or several at once: as the user wrote it."""

    block: Mapping[str, Any]


Policy = Basic | Gang | Unknown
DisruptionMode = Single | All | Unknown
#: What a controller can say that it supports.
Option = type[Basic] | type[Gang] | type[Single] | type[All]


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim for devices, by its name or by the template that it is made of."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """How one group is to be scheduled; what is left out says nothing.

    >>> SchedulingConfig(policy=Gang(min_count=4), topology=("topology.kubernetes.io/rack",)).policy
    Gang(min_count=4)
    """

    policy: Policy | None = None
    topology: tuple[str, ...] = ()
    disruption_mode: DisruptionMode | None = None
    resource_claims: tuple[ResourceClaim, ...] = ()
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""

    def overridden_by(self, other: SchedulingConfig) -> SchedulingConfig:
        """This, with each piece that the other one speaks of as the other says: wholly, or not.

        >>> default = SchedulingConfig(policy=Gang(4), topology=("zone",))
        >>> default.overridden_by(SchedulingConfig(policy=Gang()))
        ... # doctest: +ELLIPSIS
        SchedulingConfig(policy=Gang(min_count=None), topology=('zone',), ...)
        """
        pieces = {}
        for piece in fields(self):
            said = getattr(other, piece.name)
            pieces[piece.name] = getattr(self, piece.name) if said in _UNSET else said
        return SchedulingConfig(**pieces)


#: How a configuration says nothing about a piece; a priority of zero says something.
_UNSET = (None, (), "")
#: Says nothing at all.
EMPTY_CONFIG = SchedulingConfig()


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
_TOPOLOGY_KEYS = ("key", "level")


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
        policy=_parse_policy(policy or {}, "minCount"),
        topology=_parse_topology(constraints or {}),
        disruption_mode=_parse_disruption_mode(disruption_mode or {}),
        resource_claims=tuple(_parse_claim(claim) for claim in resource_claims or ()),
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
        policy=_parse_policy(policy or {}, "minGroupCount"),
        topology=_parse_topology(constraints or {}),
        disruption_mode=_parse_disruption_mode(disruption_mode or {}),
    )


def _parse_policy(block: Block, count: str) -> Policy | None:
    match list(block):
        case []:
            return None
        case [Basic.member]:
            return Basic()
        case [Gang.member]:
            return Gang((block[Gang.member] or {}).get(count))
    return Unknown(dict(block))


def _parse_disruption_mode(block: Block) -> DisruptionMode | None:
    match list(block):
        case []:
            return None
        case [Single.member]:
            return Single()
        case [All.member]:
            return All()
    return Unknown(dict(block))


def _parse_topology(constraints: Block) -> tuple[str, ...]:
    return tuple(
        next((one[key] for key in _TOPOLOGY_KEYS if one.get(key)), "")
        for one in constraints.get("topology") or ()
    )


def _parse_claim(block: Block) -> ResourceClaim:
    return ResourceClaim(
        block.get("name", ""),
        block.get("resourceClaimName"),
        block.get("resourceClaimTemplateName"),
    )


@dataclass(frozen=True, slots=True)
class Intent:
    """What a user wants, and where each piece of it stands: an item's `user` and `fields`."""

    config: SchedulingConfig = EMPTY_CONFIG
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
    written = dict(_find_blocks(scheduling or {}))
    blocks = {name: (scheduling or {})[spelling] for name, spelling in written.items()}
    policy, constraints, mode, claims = (blocks.get(name) for name, _ in _SPELLINGS)
    if composite:
        config = map_composite_group_config(policy, constraints, mode)
    else:
        config = map_pod_group_config(policy, constraints, mode, claims)
    places = {name: f"{path}.{spelling}" for name, spelling in written.items()}
    return Intent(config, {**places, **_topology_key_paths(constraints or {}, places)})


def _find_blocks(scheduling: Block) -> Iterable[tuple[str, str]]:
    """What templates call the blocks that are there, and what the user does."""
    for name, spellings in _SPELLINGS:
        for spelling in spellings:
            if scheduling.get(spelling):
                yield name, spelling
                break


def _topology_key_paths(constraints: Block, places: Mapping[str, str]) -> dict[str, str]:
    """Where labels of topology constraints stand that are not called keys."""
    return {
        f"schedulingConstraints.topology[{at}].key": (
            f"{places['schedulingConstraints']}.topology[{at}].level"
        )
        for at, one in enumerate(constraints.get("topology") or ())
        if "level" in one and not one.get("key")
    }


#: What pods and groups of pods must have in common, by its name in both.
_INHERITED_FIELDS = ("priorityClassName", "preemptionPolicy")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The template of some pods, and its path in the user's object."""

    value: Object
    path: str

    @property
    def spec(self) -> Object:
        """The spec of the pods."""
        return self.value.get("spec") or {}

    @property
    def fields(self) -> dict[str, str]:
        """Where that stands which a group has from its pods."""
        return {name: f"{self.path}.spec.{name}" for name in _INHERITED_FIELDS}

    def default_config(self, policy: Basic | Gang) -> SchedulingConfig:
        """The default of a group of these pods."""
        return SchedulingConfig(
            policy=policy,
            priority_class_name=self.spec.get("priorityClassName", ""),
            preemption_policy=self.spec.get("preemptionPolicy", ""),
        )
