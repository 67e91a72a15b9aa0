"""A workload as its controller sees it: a tree of items, each with a default and a user's wish.

The controller knows the structure and what is sensible, the user says what is wanted; `resolve`
brings both together. An item with children is a group of groups, one without is a group of pods.
Items are values: resolving them changes nothing, and the same tree always gives the same.

Configurations as the templates of a Workload hold them, and templates as groups hold them.

A tree of items, resolved: what each group will be, and where its template will stand.

Two things pass between the levels. Below a group that is disrupted as a whole, a gang that says
nothing of it goes with it. And a group of groups that says nothing of its priority has that of the
groups below it, as a workload has one priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.field_errors import prefix_causes
from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import Object
from phalanx.builder.config import (
    EMPTY_CONFIG,
    All,
    Basic,
    DisruptionMode,
    Gang,
    Policy,
    ResourceClaim,
    SchedulingConfig,
    Unknown,
)

#: The last word of a controller: given what defaults and user say together, what shall be.
Callback = Callable[[SchedulingConfig], SchedulingConfig]


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One part of a workload: all of a JobSet, a role in it, or a Job that stands alone.

    `name` becomes that of its template: a DNS label, its own in the whole tree. `path` is where the
    user's object speaks of it (`spec.scheduling`); `fields` tells where single fields of a template
    stand that are elsewhere or have another name (`{"schedulingPolicy": "spec.gang"}`).

    >>> item = WorkloadItem("workers", user=SchedulingConfig(policy=Gang()),
    ...                     callbacks=[default_min_count(4)])
    >>> item.resolve().policy
    Gang(min_count=4)
    """

    name: str
    default: SchedulingConfig = EMPTY_CONFIG
    user: SchedulingConfig = EMPTY_CONFIG
    callbacks: Sequence[Callback] = ()
    children: Sequence[WorkloadItem] = ()
    path: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_composite(self) -> bool:
        """Whether it groups groups."""
        return bool(self.children)

    def resolve(self) -> SchedulingConfig:
        """The user's word over the default, the callbacks' over both. Always has a policy."""
        config = self.default.overridden_by(self.user)
        if config.policy is None:
            config = replace(config, policy=Basic())
        for callback in self.callbacks:
            config = callback(config)
        return config

    def at_user_field(self, cause: Cause) -> Cause:
        """A cause about a field of this item's template, told where the user wrote that field."""
        for known in sorted(self.fields, key=len, reverse=True):
            rest = cause.field.removeprefix(known)
            if cause.field == known or (rest != cause.field and rest[0] in ".["):
                return replace(cause, field=self.fields[known] + rest)
        return prefix_causes(self.path, [cause])[0]


def default_min_count(count: int) -> Callback:
    """The size of a gang whose user leaves it open; at least one."""

    def fill(config: SchedulingConfig) -> SchedulingConfig:
        if config.policy != Gang():
            return config
        return replace(config, policy=Gang(max(count, 1)))

    return fill


#: What a template has and a group that is made of it has not.
_TEMPLATE_ONLY_FIELDS = ("name", POD_GROUP_TEMPLATES, COMPOSITE_POD_GROUP_TEMPLATES)


def build_template(name: str, config: SchedulingConfig, *, composite: bool) -> Object:
    """The template of a group, without those below it."""
    said = {
        "schedulingPolicy": encode_policy(config.policy, composite=composite),
        "schedulingConstraints": _encode_constraints(config.topology),
        "resourceClaims": [_encode_claim(claim) for claim in config.resource_claims],
        "disruptionMode": encode_disruption_mode(config.disruption_mode),
        "priorityClassName": config.priority_class_name,
        "priority": config.priority,
        "preemptionPolicy": config.preemption_policy,
    }
    return {"name": name, **{field: value for field, value in said.items() if _is_set(value)}}


def encode_policy(policy: Policy | None, *, composite: bool) -> Object | None:
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


def encode_disruption_mode(mode: DisruptionMode | None) -> Object | None:
    """A disruption mode as JSON."""
    match mode:
        case None:
            return None
        case Unknown(block):
            return deepcopy(dict(block))
    return {mode.member: {}}


def _encode_constraints(topology: Sequence[str]) -> Object | None:
    return {"topology": [{"key": key} for key in topology]} if topology else None


def _encode_claim(claim: ResourceClaim) -> Object:
    said = {
        "name": claim.name,
        "resourceClaimName": claim.resource_claim_name,
        "resourceClaimTemplateName": claim.resource_claim_template_name,
    }
    return {field: value for field, value in said.items() if value is not None}


def _is_set(value: Any) -> bool:
    return value == 0 or bool(value)


def copy_group_fields(template: Object) -> Object:
    """All that a group takes over from its template."""
    return {
        field: deepcopy(value)
        for field, value in template.items()
        if field not in _TEMPLATE_ONLY_FIELDS and value is not None
    }


@dataclass(frozen=True, slots=True)
class ItemNode:
    """An item with its configuration, the path of its template, and the names from the root on."""

    item: WorkloadItem
    config: SchedulingConfig
    path: str
    names: tuple[str, ...]
    children: tuple[ItemNode, ...]

    def walk(self) -> Iterator[ItemNode]:
        """This one, then all that are below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_template(self) -> Object:
        """What it is in a Workload."""
        own = build_template(self.item.name, self.config, composite=self.item.is_composite)
        for kind, composite in (
            (POD_GROUP_TEMPLATES, False),
            (COMPOSITE_POD_GROUP_TEMPLATES, True),
        ):
            below = [c.to_template() for c in self.children if c.item.is_composite is composite]
            if below:
                own[kind] = below
        return own


def resolve_tree(root: WorkloadItem) -> ItemNode:
    """Resolve every item of a tree."""
    return _resolve_node(root, f"spec.{_list_field(root)}[0]", (), disrupted_together=False)


def _resolve_node(
    item: WorkloadItem, path: str, above: tuple[str, ...], *, disrupted_together: bool
) -> ItemNode:
    config, names = item.resolve(), (*above, item.name)
    if disrupted_together and config.disruption_mode is None and isinstance(config.policy, Gang):
        config = replace(config, disruption_mode=All())
    disrupted_together = disrupted_together or config.disruption_mode == All()
    children = tuple(
        _resolve_node(child, f"{path}.{place}", names, disrupted_together=disrupted_together)
        for child, place in zip(item.children, _list_paths(item.children), strict=True)
    )
    return ItemNode(item, _inherit_priority(children, config), path, names, children)


def _list_field(item: WorkloadItem) -> str:
    return COMPOSITE_POD_GROUP_TEMPLATES if item.is_composite else POD_GROUP_TEMPLATES


def _list_paths(items: Sequence[WorkloadItem]) -> Iterator[str]:
    """Which place each child has in the list of its sort."""
    filled = {POD_GROUP_TEMPLATES: 0, COMPOSITE_POD_GROUP_TEMPLATES: 0}
    for item in items:
        yield f"{_list_field(item)}[{filled[_list_field(item)]}]"
        filled[_list_field(item)] += 1


def _inherit_priority(children: Sequence[ItemNode], config: SchedulingConfig) -> SchedulingConfig:
    below = [child.config for child in children]
    if not below:
        return config
    if not config.priority_class_name and config.priority is None:
        config = replace(
            config,
            priority_class_name=_common_value([one.priority_class_name for one in below]) or "",
            priority=_common_value([one.priority for one in below]),
        )
    policy = config.preemption_policy or _common_value([one.preemption_policy for one in below])
    return replace(config, preemption_policy=policy or "")


def _common_value(values: Sequence[Any]) -> Any:
    """The value, if it is the same everywhere."""
    return values[0] if all(value == values[0] for value in values) else None
