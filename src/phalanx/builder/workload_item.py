"""`WorkloadItem`: a workload as a tree of groups; its resolution, and its templates in a Workload.

The controller of a workload knows its structure and the defaults; the user asks for exceptions. An
item with children becomes a CompositePodGroup, an item without children a PodGroup. `resolve_tree`
merges defaults, user and callbacks of every item into an `ItemNode`, which encodes the template.
Items are immutable values: the same tree always resolves to the same result.

Two fields are inherited between levels. Below a group with disruption mode All, a gang without a
mode gets All. A CompositePodGroup without a priority gets the priority that its children share,
because a workload has one priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.api.errors import Cause, prefix_causes
from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import Object
from phalanx.builder.config import (
    EMPTY_CONFIG,
    All,
    Basic,
    DisruptionMode,
    Gang,
    NoTopology,
    Policy,
    ResourceClaim,
    SchedulingConfig,
    Unknown,
)

#: Changes the configuration that results from the default and the user.
Callback = Callable[[SchedulingConfig], SchedulingConfig]


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One group of a workload: a whole JobSet, one of its replicated Jobs, or a Job on its own.

    `name` is the name of its template: a DNS label, unique in the tree. `path` is the path of the
    scheduling block in the user's object (`spec.scheduling`). `fields` has the paths of template
    fields that are elsewhere or have another name (`{"schedulingPolicy": "spec.gang"}`).

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
    #: What is wrong with the user's fields, at their full paths: `causes` of an Intent.
    causes: Sequence[Cause] = ()

    @property
    def is_composite(self) -> bool:
        """Whether the item becomes a CompositePodGroup."""
        return bool(self.children)

    def resolve(self) -> SchedulingConfig:
        """Merge default, user and callbacks, later ones first. The result has a policy."""
        config = self.default.override_with(self.user)
        if config.policy is None:
            config = replace(config, policy=Basic())
        for callback in self.callbacks:
            config = callback(config)
        return config

    def map_to_user_field(self, cause: Cause) -> Cause:
        """Map a cause at a field of the template to the field of the user's object."""
        for field_name in sorted(self.fields, key=len, reverse=True):
            rest = cause.field.removeprefix(field_name)
            if cause.field == field_name or (rest != cause.field and rest[0] in ".["):
                return replace(cause, field=self.fields[field_name] + rest)
        return prefix_causes(self.path, [cause])[0]


def default_min_count(count: int) -> Callback:
    """Return the callback that sets the size of a gang without one; at least 1."""

    def set_min_count(config: SchedulingConfig) -> SchedulingConfig:
        if config.policy != Gang():
            return config
        return replace(config, policy=Gang(max(count, 1)))

    return set_min_count


#: The fields of a template that its groups do not have.
_TEMPLATE_ONLY_FIELDS = ("name", POD_GROUP_TEMPLATES, COMPOSITE_POD_GROUP_TEMPLATES)


def build_template(name: str, config: SchedulingConfig, *, composite: bool) -> Object:
    """Build the template of a group, without the templates of its children."""
    keys = () if isinstance(config.topology, NoTopology) else config.topology
    topology = [{"key": key} for key in keys]
    values = {
        "schedulingPolicy": encode_policy(config.policy, composite=composite),
        "schedulingConstraints": {"topology": topology} if topology else None,
        "resourceClaims": [_encode_claim(claim) for claim in config.resource_claims],
        "disruptionMode": encode_disruption_mode(config.disruption_mode),
        "priorityClassName": config.priority_class_name,
        "priority": config.priority,
        "preemptionPolicy": config.preemption_policy,
    }
    # A priority of 0 is set; other empty values are not.
    set_values = {field: value for field, value in values.items() if value or value == 0}
    return {"name": name, **set_values}


def encode_policy(policy: Policy | None, *, composite: bool) -> Object | None:
    """Encode a policy as JSON."""
    match policy:
        case None:
            return None
        case Unknown(block):
            return deepcopy(dict(block))
        case Gang(int() as count):
            return {Gang.member: {count_field(composite=composite): count}}
    return {policy.member: {}}


def count_field(*, composite: bool) -> str:
    """Return the name of the field with the size of a gang."""
    return "minGroupCount" if composite else "minCount"


def encode_disruption_mode(mode: DisruptionMode | None) -> Object | None:
    """Encode a disruption mode as JSON."""
    match mode:
        case None:
            return None
        case Unknown(block):
            return deepcopy(dict(block))
    return {mode.member: {}}


def _encode_claim(claim: ResourceClaim) -> Object:
    values = {
        "name": claim.name,
        "resourceClaimName": claim.resource_claim_name,
        "resourceClaimTemplateName": claim.resource_claim_template_name,
    }
    return {field: value for field, value in values.items() if value is not None}


def copy_group_fields(template: Object) -> Object:
    """Copy the fields that a group takes over from its template."""
    return {
        field: deepcopy(value)
        for field, value in template.items()
        if field not in _TEMPLATE_ONLY_FIELDS and value is not None
    }


@dataclass(frozen=True, slots=True)
class ItemNode:
    """An item with its resolved configuration.

    `path` is the path of its template in the Workload, `names` are the names from the root down.
    """

    item: WorkloadItem
    config: SchedulingConfig
    path: str
    names: tuple[str, ...]
    children: tuple[ItemNode, ...]

    def walk(self) -> Iterator[ItemNode]:
        """Yield this node, then all nodes below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def to_template(self) -> Object:
        """Build its template, with the templates of its children."""
        template = build_template(self.item.name, self.config, composite=self.item.is_composite)
        for list_field, composite in (
            (POD_GROUP_TEMPLATES, False),
            (COMPOSITE_POD_GROUP_TEMPLATES, True),
        ):
            below = [c.to_template() for c in self.children if c.item.is_composite is composite]
            if below:
                template[list_field] = below
        return template


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
        _resolve_node(child, f"{path}.{child_path}", names, disrupted_together=disrupted_together)
        for child, child_path in zip(item.children, _list_paths(item.children), strict=True)
    )
    return ItemNode(item, _inherit_priority(children, config), path, names, children)


def _list_field(item: WorkloadItem) -> str:
    return COMPOSITE_POD_GROUP_TEMPLATES if item.is_composite else POD_GROUP_TEMPLATES


def _list_paths(items: Sequence[WorkloadItem]) -> Iterator[str]:
    """The paths of the templates of siblings: a list for each kind of template."""
    lengths = {POD_GROUP_TEMPLATES: 0, COMPOSITE_POD_GROUP_TEMPLATES: 0}
    for item in items:
        list_field = _list_field(item)
        yield f"{list_field}[{lengths[list_field]}]"
        lengths[list_field] += 1


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
    """The value that all have; None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None
