"""What a controller supports: whatever it does not list is denied.

The building blocks are shared by all controllers and will grow; a policy or mode that is added to
them stays closed to a controller until that lists it. These functions are for the validation of an
API that embeds the blocks; `WorkloadBuilder` asks them too, about what defaults and user say
together.

What is wrong with a tree of items: found in its templates, told where the user wrote it.

What a controller supports and what holds between levels is judged here; everything else is left to
the very rules that the API server has for Workloads, so that what passes here passes there. Where
both find fault with one field, or one speaks of the whole and the other of a part, the word that
is closer to the user's stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.api.errors import Cause
from phalanx.api.field_errors import duplicate, forbidden, invalid, prefix_causes, required
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
    """What a controller that supports these policies does not support of a block.

    >>> from phalanx.builder.config import Basic
    >>> [str(cause) for cause in validate_scheduling_policy({"gang": {}}, "spec.policy", Basic)]
    ['spec.policy: Forbidden: gang scheduling policy is not supported by this controller']
    """
    detail = "{} scheduling policy is not supported by this controller"
    return _forbid_unlisted(block, path, allowed, detail)


def validate_disruption_mode(
    block: Mapping[str, Any] | None, path: str, *allowed: Option
) -> list[Cause]:
    """What a controller that supports these modes does not support of a block."""
    return _forbid_unlisted(
        block, path, allowed, "the disruptionMode `{}` is not supported by this controller"
    )


def _forbid_unlisted(
    block: Mapping[str, Any] | None, path: str, allowed: tuple[Option, ...], detail: str
) -> list[Cause]:
    known = [option.member for option in allowed]
    return [forbidden(path, detail.format(name)) for name in block or () if name not in known]


POLICY, MODE = "schedulingPolicy", "disruptionMode"
#: Lists tell of a whole item that has the name of another one.
_DUPLICATE = duplicate("", "").reason


class ItemFinding(NamedTuple):
    """A cause, relative to the template of a node; to the whole Workload if it is of none."""

    node: ItemNode | None
    cause: Cause

    @property
    def path(self) -> str:
        """Where it is in the Workload."""
        return (
            prefix_causes(self.node.path, [self.cause])[0].field if self.node else self.cause.field
        )

    @property
    def identity(self) -> tuple[tuple[str, ...], Cause]:
        """What it has in common with the same finding in another state of the tree."""
        return (self.node.names if self.node else (), self.cause)

    def to_cause(self) -> Cause:
        """The cause, at the field that the user knows."""
        return self.node.item.at_user_field(self.cause) if self.node else self.cause


def validate_tree(tree: ItemNode, workload: Object, allowed: Sequence[Option]) -> list[ItemFinding]:
    """What is wrong with a tree and the Workload that is made of it."""
    own = [*_check_supported(tree, allowed), *_check_nodes(tree), *_check_tree(tree)]
    exact = [finding.path for finding in own]
    ruled = [_locate_cause(tree, cause) for cause in validate(WORKLOAD, workload, None)]
    return [*own, *(one for one in ruled if not any(_covers(one.path, path) for path in exact))]


def _covers(path: str, inner: str) -> bool:
    return inner == path or inner.startswith((f"{path}.", f"{path}["))


def _locate_cause(tree: ItemNode, cause: Cause) -> ItemFinding:
    """Whose template a cause is about."""
    holders = [node for node in tree.walk() if _covers(node.path, cause.field)]
    if not holders:
        return ItemFinding(None, cause)
    node = max(holders, key=lambda holder: len(holder.path))
    if cause.field == node.path and cause.reason == _DUPLICATE:
        return ItemFinding(node, duplicate("name", node.item.name))
    field = cause.field.removeprefix(node.path).removeprefix(".")
    return ItemFinding(node, Cause(field, cause.reason, cause.message))


# -------------------------------------------------------------------------------- one by one


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
        for check in (_check_gang_size, _check_disruption_mode, _check_resource_claims):
            for cause in check(node):
                yield ItemFinding(node, cause)


def _check_gang_size(node: ItemNode) -> Iterable[Cause]:
    """How many a gang needs; zero is a number here, and too small."""
    place = f"{POLICY}.gang.{count_field(composite=node.item.is_composite)}"
    match node.config.policy:
        case Gang(None):
            return [required(place, "a gang needs a size, from its user or from a callback")]
        case Gang(int() as count):
            return prefix_causes(place, minimum(1)(count, CREATED))
    return ()


def _check_disruption_mode(node: ItemNode) -> Iterable[Cause]:
    """What is disrupted as one must have been scheduled as one."""
    if node.config.disruption_mode != All() or node.config.policy != Basic():
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid(MODE, "", detail)]


def _check_resource_claims(node: ItemNode) -> Iterable[Cause]:
    if not node.item.is_composite or not node.config.resource_claims:
        return ()
    return [forbidden("resourceClaims", "only a group of pods has resource claims")]


# ------------------------------------------------------------------------------ between levels


def _check_tree(tree: ItemNode) -> Iterator[ItemFinding]:
    for whole in _groups_disrupted_together(tree):
        yield from _check_disrupted_together(whole)
    yield from _check_priorities(tree)


def _groups_disrupted_together(node: ItemNode) -> Iterator[ItemNode]:
    """The highest groups that are disrupted as a whole."""
    if node.config.disruption_mode == All():
        yield node
        return
    for child in node.children:
        yield from _groups_disrupted_together(child)


def _check_disrupted_together(whole: ItemNode) -> Iterator[ItemFinding]:
    """What a group that is disrupted as a whole cannot hold."""
    single = f'must be `all`, as that of "{whole.item.name}" above it is'
    basic = 'the disruptionMode `all` is not supported above "{}", whose policy is Basic'
    below = [node for node in whole.walk() if node is not whole]
    for node in below:
        mode = node.config.disruption_mode
        if mode == Single():
            yield ItemFinding(node, invalid(MODE, Single.member, single))
        elif mode is None and node.config.policy == Basic():
            yield ItemFinding(whole, invalid(MODE, "", basic.format(node.item.name)))


def _check_priorities(tree: ItemNode) -> Iterator[ItemFinding]:
    """A workload has one priority, that of its first pods; a group of groups need not name it."""
    first = next(node for node in tree.walk() if not node.children)
    wanted = _priority_fields(first)
    detail = f'must be that of "{first.item.name}": a workload has one priority'
    for node in tree.walk():
        for field, value in _priority_fields(node).items():
            silent = node.item.is_composite and value in ("", None)
            if value != wanted[field] and not silent:
                yield ItemFinding(node, invalid(field, value, detail))


def _priority_fields(node: ItemNode) -> dict[str, str | int | None]:
    config = node.config
    return {"priorityClassName": config.priority_class_name, "priority": config.priority}
