"""What is wrong with a tree of items: found in its templates, told where the user wrote it.

What a controller supports and what holds between levels is judged here; everything else is left to
the very rules that the API server has for Workloads, so that what passes here passes there. Where
both find fault with one field, or one speaks of the whole and the other of a part, the word that
is closer to the user's stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from phalanx.api.causes import duplicate, forbidden, invalid, required, under
from phalanx.api.errors import Cause
from phalanx.api.kinds import WORKLOAD
from phalanx.api.rules.checks import CREATED, at_least
from phalanx.api.rules.table import validate
from phalanx.api.wire import Object
from phalanx.builder.allowlist import validate_disruption_mode, validate_scheduling_policy
from phalanx.builder.config import All, Basic, Gang, Option, Single
from phalanx.builder.template import count_field, mode_block, policy_block
from phalanx.builder.tree import Node

POLICY, MODE = "schedulingPolicy", "disruptionMode"
#: Lists tell of a whole item that has the name of another one.
_DUPLICATE = duplicate("", "").reason


class Finding(NamedTuple):
    """A cause, relative to the template of a node; to the whole Workload if it is of none."""

    node: Node | None
    cause: Cause

    @property
    def path(self) -> str:
        """Where it is in the Workload."""
        return under(self.node.path, [self.cause])[0].field if self.node else self.cause.field

    @property
    def identity(self) -> tuple[tuple[str, ...], Cause]:
        """What it has in common with the same finding in another state of the tree."""
        return (self.node.names if self.node else (), self.cause)

    def told(self) -> Cause:
        """The cause, at the field that the user knows."""
        return self.node.item.told(self.cause) if self.node else self.cause


def find(tree: Node, workload: Object, allowed: Sequence[Option]) -> list[Finding]:
    """What is wrong with a tree and the Workload that is made of it."""
    own = [*_unsupported(tree, allowed), *_between_fields(tree), *_between_nodes(tree)]
    exact = [finding.path for finding in own]
    ruled = [_located(tree, cause) for cause in validate(WORKLOAD, workload, None)]
    return [*own, *(one for one in ruled if not any(_covers(one.path, path) for path in exact))]


def _covers(path: str, inner: str) -> bool:
    return inner == path or inner.startswith((f"{path}.", f"{path}["))


def _located(tree: Node, cause: Cause) -> Finding:
    """Whose template a cause is about."""
    holders = [node for node in tree.walk() if _covers(node.path, cause.field)]
    if not holders:
        return Finding(None, cause)
    node = max(holders, key=lambda holder: len(holder.path))
    if cause.field == node.path and cause.reason == _DUPLICATE:
        return Finding(node, duplicate("name", node.item.name))
    field = cause.field.removeprefix(node.path).removeprefix(".")
    return Finding(node, Cause(field, cause.reason, cause.message))


# -------------------------------------------------------------------------------- one by one


def _unsupported(tree: Node, allowed: Sequence[Option]) -> Iterator[Finding]:
    for node in tree.walk():
        policy = policy_block(node.config.policy, composite=node.item.is_composite)
        for cause in validate_scheduling_policy(policy, POLICY, *allowed):
            yield Finding(node, cause)
        for cause in validate_disruption_mode(
            mode_block(node.config.disruption_mode), MODE, *allowed
        ):
            yield Finding(node, cause)


def _between_fields(tree: Node) -> Iterator[Finding]:
    for node in tree.walk():
        for check in (_counts, _goes_as_scheduled, _claims_belong):
            for cause in check(node):
                yield Finding(node, cause)


def _counts(node: Node) -> Iterable[Cause]:
    """How many a gang needs; zero is a number here, and too small."""
    place = f"{POLICY}.gang.{count_field(composite=node.item.is_composite)}"
    match node.config.policy:
        case Gang(None):
            return [required(place, "a gang needs a size, from its user or from a callback")]
        case Gang(int() as count):
            return under(place, at_least(1)(count, CREATED))
    return ()


def _goes_as_scheduled(node: Node) -> Iterable[Cause]:
    """What is disrupted as one must have been scheduled as one."""
    if node.config.disruption_mode != All() or node.config.policy != Basic():
        return ()
    detail = "the disruptionMode `all` is not supported with the Basic scheduling policy"
    return [invalid(MODE, "", detail)]


def _claims_belong(node: Node) -> Iterable[Cause]:
    if not node.item.is_composite or not node.config.resource_claims:
        return ()
    return [forbidden("resourceClaims", "only a group of pods has resource claims")]


# ------------------------------------------------------------------------------ between levels


def _between_nodes(tree: Node) -> Iterator[Finding]:
    for whole in _wholes(tree):
        yield from _not_together(whole)
    yield from _other_priorities(tree)


def _wholes(node: Node) -> Iterator[Node]:
    """The highest groups that are disrupted as a whole."""
    if node.config.disruption_mode == All():
        yield node
        return
    for child in node.children:
        yield from _wholes(child)


def _not_together(whole: Node) -> Iterator[Finding]:
    """What a group that is disrupted as a whole cannot hold."""
    single = f'must be `all`, as that of "{whole.item.name}" above it is'
    basic = 'the disruptionMode `all` is not supported above "{}", whose policy is Basic'
    below = [node for node in whole.walk() if node is not whole]
    for node in below:
        mode = node.config.disruption_mode
        if mode == Single():
            yield Finding(node, invalid(MODE, Single.member, single))
        elif mode is None and node.config.policy == Basic():
            yield Finding(whole, invalid(MODE, "", basic.format(node.item.name)))


def _other_priorities(tree: Node) -> Iterator[Finding]:
    """A workload has one priority, that of its first pods; a group of groups need not name it."""
    first = next(node for node in tree.walk() if not node.children)
    wanted = _priorities(first)
    detail = f'must be that of "{first.item.name}": a workload has one priority'
    for node in tree.walk():
        for field, value in _priorities(node).items():
            silent = node.item.is_composite and value in ("", None)
            if value != wanted[field] and not silent:
                yield Finding(node, invalid(field, value, detail))


def _priorities(node: Node) -> dict[str, str | int | None]:
    config = node.config
    return {"priorityClassName": config.priority_class_name, "priority": config.priority}
