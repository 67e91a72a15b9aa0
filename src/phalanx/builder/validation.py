"""Validates trees of items: what a controller supports, and what must hold between levels.

Every other rule is the validation of Workloads in the API server, applied to the Workload of the
tree: a tree that passes here passes there. Each error is reported at the field of the user's object
(`WorkloadItem.map_to_user_field`). If a rule of this module and a rule of the server report the
same field, or one reports a part of what the other reports, the one of this module is kept.

A controller supports only the policies and modes that it lists. The building blocks are shared by
all controllers and will grow: a new policy stays forbidden until a controller lists it. The
functions `validate_scheduling_policy` and `validate_disruption_mode` check a single block, for an
API that embeds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.api.errors import Cause, duplicate, forbidden, invalid, prefix_causes, required
from phalanx.api.kinds import WORKLOAD
from phalanx.api.validation.checks import CREATED, minimum
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from phalanx.builder.config import All, Basic, Gang, Option, Single
from phalanx.builder.workload_item import (
    ItemNode,
    count_field,
    encode_disruption_mode,
    encode_policy,
)


def validate_scheduling_policy(
    block: Mapping[str, Any] | None, path: str, *allowed: Option
) -> list[Cause]:
    """Return an error for each policy of a block that is not in `allowed`.

    >>> from phalanx.builder.config import Basic
    >>> [str(cause) for cause in validate_scheduling_policy({"gang": {}}, "spec.policy", Basic)]
    ['spec.policy: Forbidden: gang scheduling policy is not supported by this controller']
    """
    detail = "{} scheduling policy is not supported by this controller"
    return _forbid_unlisted(block, path, allowed, detail=detail)


def validate_disruption_mode(
    block: Mapping[str, Any] | None, path: str, *allowed: Option
) -> list[Cause]:
    """Return an error for each disruption mode of a block that is not in `allowed`."""
    detail = "the disruptionMode `{}` is not supported by this controller"
    return _forbid_unlisted(block, path, allowed, detail=detail)


def _forbid_unlisted(
    block: Mapping[str, Any] | None, path: str, allowed: tuple[Option, ...], *, detail: str
) -> list[Cause]:
    listed = [option.member for option in allowed]
    return [forbidden(path, detail.format(name)) for name in block or () if name not in listed]


POLICY, MODE = "schedulingPolicy", "disruptionMode"
#: The reason of an error about two items of a list with the same name.
_DUPLICATE = duplicate("", "").reason


class ItemFinding(NamedTuple):
    """A cause at a field of the template of a node, or of the Workload if there is no node."""

    node: ItemNode | None
    cause: Cause

    @property
    def path(self) -> str:
        """The path of the field in the Workload."""
        return (
            prefix_causes(self.node.path, [self.cause])[0].field if self.node else self.cause.field
        )

    @property
    def identity(self) -> tuple[tuple[str, ...], Cause]:
        """The identity by which the same finding is recognized in another version of the tree."""
        return (self.node.names if self.node else (), self.cause)

    def to_cause(self) -> Cause:
        """Return the cause at the field of the user's object."""
        return self.node.item.map_to_user_field(self.cause) if self.node else self.cause


def validate_tree(tree: ItemNode, workload: Object, allowed: Sequence[Option]) -> list[ItemFinding]:
    """Return the findings about a tree and the Workload that was built from it."""
    findings = [*_check_supported(tree, allowed), *_check_nodes(tree)]
    for root in _roots_disrupted_together(tree):
        findings.extend(_check_disrupted_together(root))
    findings.extend(_check_priorities(tree))
    paths = [finding.path for finding in findings]
    for cause in validate(WORKLOAD, workload, None):
        finding = _locate_cause(tree, cause)
        if not any(_covers(finding.path, path) for path in paths):
            findings.append(finding)
    return findings


def _covers(path: str, inner: str) -> bool:
    return inner == path or inner.startswith((f"{path}.", f"{path}["))


def _locate_cause(tree: ItemNode, cause: Cause) -> ItemFinding:
    """Find the node whose template a cause is about."""
    holders = [node for node in tree.walk() if _covers(node.path, cause.field)]
    if not holders:
        return ItemFinding(None, cause)
    node = max(holders, key=lambda holder: len(holder.path))
    if cause.field == node.path and cause.reason == _DUPLICATE:
        return ItemFinding(node, duplicate("name", node.item.name))
    field = cause.field.removeprefix(node.path).removeprefix(".")
    return ItemFinding(node, Cause(field, cause.reason, cause.message))


# ---------------------------------------------------------------------------- single nodes


def _check_supported(tree: ItemNode, allowed: Sequence[Option]) -> Iterator[ItemFinding]:
    for node in tree.walk():
        policy = encode_policy(node.config.policy, composite=node.item.is_composite)
        for cause in validate_scheduling_policy(policy, POLICY, *allowed):
            yield ItemFinding(node, cause)
        for cause in validate_disruption_mode(
            encode_disruption_mode(node.config.disruption_mode), MODE, *allowed
        ):
            yield ItemFinding(node, cause)


def _check_nodes(tree: ItemNode) -> Iterator[ItemFinding]:
    for node in tree.walk():
        yield from (ItemFinding(None, cause) for cause in node.item.causes)
        for check in (_check_gang_size, _check_disruption_mode, _check_resource_claims):
            for cause in check(node):
                yield ItemFinding(node, cause)


def _check_gang_size(node: ItemNode) -> Iterable[Cause]:
    field = f"{POLICY}.gang.{count_field(composite=node.item.is_composite)}"
    match node.config.policy:
        case Gang(None):
            return [required(field, "a gang needs a size, set by the user or by a callback")]
        case Gang(int() as count):
            return prefix_causes(field, minimum(1)(count, CREATED))
    return ()


def _check_disruption_mode(node: ItemNode) -> Iterable[Cause]:
    """Members that are disrupted together must be scheduled together."""
    if node.config.disruption_mode != All() or node.config.policy != Basic():
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid(MODE, "", detail)]


def _check_resource_claims(node: ItemNode) -> Iterable[Cause]:
    if not node.item.is_composite or not node.config.resource_claims:
        return ()
    return [forbidden("resourceClaims", "only a PodGroup can have resource claims")]


# -------------------------------------------------------------------------- between levels


def _roots_disrupted_together(node: ItemNode) -> Iterator[ItemNode]:
    """The topmost nodes with disruption mode All."""
    if node.config.disruption_mode == All():
        yield node
        return
    for child in node.children:
        yield from _roots_disrupted_together(child)


def _check_disrupted_together(root: ItemNode) -> Iterator[ItemFinding]:
    """Below a node with disruption mode All, no node may have the mode Single or policy Basic."""
    single = f'must be `all` because its ancestor "{root.item.name}" has `all`'
    basic = 'the disruptionMode `all` is not supported above "{}", whose policy is Basic'
    for node in root.walk():
        if node is root:
            continue
        mode = node.config.disruption_mode
        if mode == Single():
            yield ItemFinding(node, invalid(MODE, Single.member, single))
        elif mode is None and node.config.policy == Basic():
            yield ItemFinding(root, invalid(MODE, "", basic.format(node.item.name)))


def _check_priorities(tree: ItemNode) -> Iterator[ItemFinding]:
    """All nodes have the priority of the first PodGroup; a composite node may leave it out."""
    first = next(node for node in tree.walk() if not node.children)
    expected = _priority_fields(first)
    detail = f'must equal that of "{first.item.name}": a workload has one priority'
    for node in tree.walk():
        for field, value in _priority_fields(node).items():
            is_unset = node.item.is_composite and value in ("", None)
            if value != expected[field] and not is_unset:
                yield ItemFinding(node, invalid(field, value, detail))


def _priority_fields(node: ItemNode) -> dict[str, str | int | None]:
    config = node.config
    return {"priorityClassName": config.priority_class_name, "priority": config.priority}
