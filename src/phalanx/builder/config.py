"""`SchedulingConfig`: how one group is scheduled; and how it is read from a user's object.

    SchedulingConfig
      policy             Basic | Gang            how the members of the group are scheduled
      topology           label keys | NoTopology the node labels whose values all members share
      disruption_mode    Single | All            whether members are disrupted one by one
      resource_claims    ResourceClaim …         devices that the pods of the group share
      priority_class_name, priority, preemption_policy

A PodGroup and a CompositePodGroup have the same configuration; `workload_item` encodes it for
either. The option classes (`Basic`, `Gang`, `Single`, `All`) also name what a controller supports.
A policy or mode that is not known here is kept as `Unknown` and rejected by `validation`: it is
never dropped silently.

Users write building blocks: the embeddable types of `scheduling.k8s.io/v1alpha3` as JSON. An API
that embeds them one by one reads them with `map_pod_group_config` or `map_composite_group_config`.
An API that has them in one struct, like `spec.scheduling` of a Job, reads that with `read_intent`,
which accepts every spelling that the proposals have used. An absent or empty block sets nothing; an
empty list of topology constraints undoes a default. `PodTemplate` has the configuration that a
group inherits from its pods.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from phalanx.api.errors import Cause
from phalanx.api.wire import Object
from phalanx.builder.intent_checks import SPELLINGS, TOPOLOGY_KEYS, check_intent


@dataclass(frozen=True, slots=True)
class Basic:
    """The policy by which each member is scheduled on its own."""

    member: ClassVar[str] = "basic"


@dataclass(frozen=True, slots=True)
class Gang:
    """The policy by which at least `min_count` members are scheduled together, or none.

    Members of a PodGroup are pods, members of a CompositePodGroup are groups. None leaves the
    number to the controller.
    """

    member: ClassVar[str] = "gang"
    min_count: int | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """The mode in which members are disrupted one by one."""

    member: ClassVar[str] = "single"


@dataclass(frozen=True, slots=True)
class All:
    """The mode in which members are disrupted together."""

    member: ClassVar[str] = "all"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A policy or mode that is unknown, or several at once: the block of the user."""

    block: Mapping[str, Any]


Policy = Basic | Gang | Unknown
DisruptionMode = Single | All | Unknown
#: What a controller can list as supported.
Option = type[Basic] | type[Gang] | type[Single] | type[All]


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim on devices, by its name or by the name of its template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


@dataclass(frozen=True, slots=True)
class NoTopology:
    """No topology constraint, although the default has one: an empty list of the user."""


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """How one group is scheduled. A field with its default value is not set.

    >>> SchedulingConfig(policy=Gang(min_count=4), topology=("topology.kubernetes.io/rack",)).policy
    Gang(min_count=4)
    """

    policy: Policy | None = None
    topology: tuple[str, ...] | NoTopology = ()
    disruption_mode: DisruptionMode | None = None
    resource_claims: tuple[ResourceClaim, ...] = ()
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""

    def override_with(self, other: SchedulingConfig) -> SchedulingConfig:
        """Return this configuration with each field replaced that `other` sets.

        A field is replaced as a whole: `Gang()` over `Gang(4)` is a gang without a size.

        >>> default = SchedulingConfig(policy=Gang(4), topology=("zone",))
        >>> default.override_with(SchedulingConfig(policy=Gang()))
        ... # doctest: +ELLIPSIS
        SchedulingConfig(policy=Gang(min_count=None), topology=('zone',), ...)
        """
        values = {}
        for one in fields(self):
            value = getattr(other, one.name)
            values[one.name] = getattr(self, one.name) if value in _UNSET else value
        return SchedulingConfig(**values)


#: The values of a field that is not set. A priority of 0 is set.
_UNSET = (None, (), "")
#: The configuration that sets nothing.
EMPTY_CONFIG = SchedulingConfig()


#: A building block as JSON.
Block = Mapping[str, Any]


def map_pod_group_config(
    policy: Block | None = None,
    constraints: Block | None = None,
    disruption_mode: Block | None = None,
    resource_claims: Sequence[Block] | None = None,
) -> SchedulingConfig:
    """Read the building blocks of a PodGroup.

    >>> map_pod_group_config(policy={"gang": {"minCount": 4}}).policy
    Gang(min_count=4)
    """
    return SchedulingConfig(
        policy=_parse_policy(policy or {}, "minCount"),
        topology=_parse_topology(constraints or {}),
        disruption_mode=_parse_disruption_mode(disruption_mode or {}),
        resource_claims=tuple(
            ResourceClaim(
                claim.get("name", ""),
                claim.get("resourceClaimName"),
                claim.get("resourceClaimTemplateName"),
            )
            for claim in resource_claims or ()
        ),
    )


def map_composite_group_config(
    policy: Block | None = None,
    constraints: Block | None = None,
    disruption_mode: Block | None = None,
) -> SchedulingConfig:
    """Read the building blocks of a CompositePodGroup.

    >>> map_composite_group_config(policy={"gang": {"minGroupCount": 2}}).policy
    Gang(min_count=2)
    """
    return SchedulingConfig(
        policy=_parse_policy(policy or {}, "minGroupCount"),
        topology=_parse_topology(constraints or {}),
        disruption_mode=_parse_disruption_mode(disruption_mode or {}),
    )


def _parse_policy(block: Block, count_field: str) -> Policy | None:
    match list(block):
        case []:
            return None
        case [Basic.member]:
            return Basic()
        case [Gang.member]:
            return Gang((block[Gang.member] or {}).get(count_field))
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


def _parse_topology(constraints: Block) -> tuple[str, ...] | NoTopology:
    if constraints.get("topology") == []:
        return NoTopology()
    return tuple(
        next((one[key] for key in TOPOLOGY_KEYS if one.get(key)), "")
        for one in constraints.get("topology") or ()
    )


@dataclass(frozen=True, slots=True)
class Intent:
    """What a user asks for, the paths of its fields, and what is wrong with it.

    They are `user`, `fields` and `causes` of an item.
    """

    config: SchedulingConfig = EMPTY_CONFIG
    fields: Mapping[str, str] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()

    def override_with(self, other: Intent) -> Intent:
        """Return this intent with each field, and its path, replaced that `other` sets."""
        kept = {
            name: path
            for name, path in self.fields.items()
            if name.partition(".")[0] not in other.fields
        }
        return Intent(
            self.config.override_with(other.config),
            {**kept, **other.fields},
            (*self.causes, *other.causes),
        )


def read_intent(
    scheduling: Any, path: str, *, composite: bool = False, other_fields: Collection[str] = ()
) -> Intent:
    """Read a struct of building blocks; `path` is its path in the user's object.

    `other_fields` are fields of the struct that are no building blocks. A block with a fault is not
    read; the causes say what is wrong with it (`intent_checks`).

    >>> intent = read_intent({"policy": {"gang": {}}}, "spec.scheduling")
    >>> intent.config.policy, intent.fields
    (Gang(min_count=None), {'schedulingPolicy': 'spec.scheduling.policy'})
    """
    checked = check_intent(scheduling, path, composite=composite, other_fields=other_fields)
    policy, constraints, mode, claims = (checked.blocks.get(name) for name, _ in SPELLINGS)
    if composite:
        config = map_composite_group_config(policy, constraints, mode)
    else:
        config = map_pod_group_config(policy, constraints, mode, resource_claims=claims)
    paths = {name: f"{path}.{spelling}" for name, spelling in checked.spellings.items()}
    for index, one in enumerate((constraints or {}).get("topology") or ()):
        if "level" in one and not one.get("key"):
            constraint = f"{paths['schedulingConstraints']}.topology[{index}]"
            paths[f"schedulingConstraints.topology[{index}].key"] = f"{constraint}.level"
    return Intent(config, paths, checked.causes)


#: The fields that a group inherits from its pods; they have the same name in both.
_INHERITED_FIELDS = ("priorityClassName", "preemptionPolicy")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod template, and its path in the user's object."""

    value: Object
    path: str

    @property
    def spec(self) -> Object:
        """The spec of the pods."""
        return self.value.get("spec") or {}

    @property
    def fields(self) -> dict[str, str]:
        """The paths of the fields that a group inherits from its pods."""
        return {name: f"{self.path}.spec.{name}" for name in _INHERITED_FIELDS}

    def default_config(self, policy: Basic | Gang) -> SchedulingConfig:
        """Return the default configuration of a group of these pods."""
        return SchedulingConfig(
            policy=policy,
            priority_class_name=self.spec.get("priorityClassName", ""),
            preemption_policy=self.spec.get("preemptionPolicy", ""),
        )
