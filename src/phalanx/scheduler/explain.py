"""Explanations: decisions as messages, and hints about what would help.

Pod conditions, PodGroup conditions, events, `phalanx why` and the web page take their texts from
here and from nowhere else. Texts that Kubernetes also prints read as they do there.

A `VerifiedCure` is a change with which the entity was placed when it was tried; `diagnosis/` finds
those. Filters give hints that were not tried. `rank_cures` combines both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, assert_never

from phalanx.api.meta import Key, Ref
from phalanx.scheduler.decision import (
    UNSCHEDULABLE,
    Decision,
    GroupOutcome,
    Impossible,
    IncompleteGroupTree,
    MissingClaims,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    Placed,
    Preempting,
    Refusal,
    SchedulingGated,
    UnplacedPod,
    UnreadyReason,
    Waiting,
)


class CureKind(IntEnum):
    """What a cure changes, the cheapest first. The names stand in JSON output."""

    SMALLER = 1
    NODES = 2
    WIDER = 3
    ENDING = 4
    LOOSER = 5


class VerifiedCure(NamedTuple):
    """A change with which the entity was placed when it was tried."""

    kind: CureKind
    #: How much is changed: fewer members or groups, more nodes, pods that end.
    size: int
    text: str


SCHEDULED = "Scheduled"
GROUP_FAILED = "pod group is unschedulable"


class PodMessage(NamedTuple):
    """The reason and message for a pod without a node."""

    pod: Key
    uid: str
    reason: str
    message: str


class GroupMessage(NamedTuple):
    """The reason and message for a group, and whether it has the members that it needs."""

    ref: Ref
    is_placed: bool
    reason: str
    message: str


class Cure(NamedTuple):
    """A change that would help: verified, with kind and size, or a hint from the filters."""

    text: str
    is_verified: bool = False
    kind: CureKind | None = None
    size: int = 0


#: Prefixes of hints that add nothing to a verified cure of the same kind.
_HINT_PREFIXES = (
    (CureKind.SMALLER, "lower minCount "),
    (CureKind.NODES, "add a node "),
    (CureKind.LOOSER, "tolerate "),
    (CureKind.LOOSER, "uncordon "),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The message for the entity, for each of its groups, and for each pod without a node."""

    reason: str
    message: str
    pods: tuple[PodMessage, ...]
    groups: tuple[GroupMessage, ...] = ()


def explain(decision: Decision) -> Explanation:
    """Turn a decision into messages."""
    match decision:
        case Placed():
            return _explain_placed(decision)
        case Preempting():
            return _explain_waiting(decision.waiting)
        case Waiting():
            return _explain_waiting(decision)
        case Impossible():
            pods = _refusal_messages(decision.pods, decision.reason, decision.message)
            groups = [
                GroupMessage(
                    part.ref, is_placed=False, reason=decision.reason, message=decision.message
                )
                for part in decision.parts
            ]
            return Explanation(decision.reason, decision.message, pods, groups=tuple(groups))
        case _:
            assert_never(decision)


def _explain_placed(decision: Placed) -> Explanation:
    pods = {
        message.pod: message for message in _refusal_messages(decision.leftovers, UNSCHEDULABLE, "")
    }
    for part in decision.parts:
        if part.waiting:
            pods |= {
                message.pod: message
                for message in _pod_messages(part.waiting)
                if message.pod not in pods
            }
    groups = tuple(_group_message(part, SCHEDULED, "") for part in decision.parts)
    return Explanation(SCHEDULED, "", tuple(pods.values()), groups=groups)


def _explain_waiting(decision: Waiting) -> Explanation:
    message = _describe_waiting(decision)
    if decision.held_by:
        pods = tuple(
            PodMessage(pod, uid, decision.reason, message=message) for pod, uid, _ in decision.pods
        )
        held = [part._replace(waiting=None) for part in decision.parts]
        groups = tuple(_group_message(part, decision.reason, message) for part in held)
        return Explanation(decision.reason, message, pods, groups=groups)
    # A group that waits for the whole tree gets the message of the tree, preemption included.
    own_waiting = replace(
        decision,
        preemption="",
        nominated=(),
        relaxation_delay=None,
        leaving_delay=None,
        holders=(),
        starts_soon=False,
        parts=(),
    )
    parts = [
        part._replace(waiting=None)
        if part.waiting and replace(part.waiting, wakes_on=decision.wakes_on) == own_waiting
        else part
        for part in decision.parts
    ]
    groups = tuple(_group_message(part, decision.reason, message) for part in parts)
    return Explanation(decision.reason, message, _pod_messages(decision), groups=groups)


def _pod_messages(decision: Waiting) -> tuple[PodMessage, ...]:
    if decision.group is None:
        message = _describe_waiting(decision)
        return tuple(
            PodMessage(pod, uid, decision.reason, message=message) for pod, uid, _ in decision.pods
        )
    otherwise = f"{GROUP_FAILED}, {_describe_waiting(decision)}"
    return _refusal_messages(decision.pods, decision.reason, otherwise)


def _group_message(part: GroupOutcome, reason: str, message: str) -> GroupMessage:
    if part.waiting:
        reason, message = part.waiting.reason, _describe_waiting(part.waiting)
    return GroupMessage(part.ref, is_placed=reason == SCHEDULED, reason=reason, message=message)


#: How the problems of claims begin for which no node takes a pod.
_CLAIM_PROBLEMS = (
    'persistentvolumeclaim "',
    "pod has unbound immediate PersistentVolumeClaims",
    "waiting for ephemeral volume controller ",
    "PVC ",
    "resourceclaim in use",
    "request ",
)


def describe_refusal(refusal: Refusal) -> str:
    """Say why no node takes a pod: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) …`."""
    if not refusal.total:
        return "no nodes available to schedule pods"
    problems = [reason for reason, _ in refusal.counts if reason.startswith(_CLAIM_PROBLEMS)]
    if problems:
        # As in Kubernetes: PreFilter refuses the pod, and no node is looked at.
        return f"0/{refusal.total} nodes are available: {problems[0]}."
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in refusal.counts))
    return f"0/{refusal.total} nodes are available: {reasons}."


def describe_unready(unready: UnreadyReason) -> str:
    """Say why the queue does not try an entity."""
    match unready:
        case MissingGroup(name):
            return f'waiting for PodGroup "{name}" to appear'
        case MissingMembers(quorum, present):
            return f"waiting for {quorum} members, {present} {_is_or_are(present)} there"
        case MissingGroups(quorum, present):
            found = f"{present} {_is_or_are(present)} there"
            return f"waiting for {quorum} groups with all their members, {found}"
        case IncompleteGroupTree(message, _):
            return message
        case SchedulingGated(pods, gates):
            return f"waiting for scheduling gates {', '.join(gates)} of {_join_names(pods)}"
        case MissingClaims(pods, problem):
            return f"waiting for the resource claims of {_join_names(pods)}: {problem}"
        case _:
            assert_never(unready)


def suggest_cures(decision: Decision) -> list[str]:
    """Return hints: small changes that make the entity schedulable or help; the best first."""
    match decision:
        case Placed():
            return _deduplicate(_refusal_cures(decision.leftovers))
        case Preempting():
            return suggest_cures(decision.waiting)
        case Waiting():
            return _deduplicate((*_quorum_cures(decision), *_refusal_cures(decision.pods)))
        case Impossible():
            return [decision.cure]
        case _:
            assert_never(decision)


def rank_cures(decision: Decision, verified: Iterable[VerifiedCure]) -> list[Cure]:
    """Return verified cures, the cheapest first, followed by hints that add to them."""
    found = sorted(set(verified))
    cures = [Cure(text, is_verified=True, kind=kind, size=size) for kind, size, text in found]
    kinds = {cure.kind for cure in found}
    covered = tuple(prefix for kind, prefix in _HINT_PREFIXES if kind in kinds)
    hints = suggest_cures(decision) if not isinstance(decision, Preempting) else ()
    return [*cures, *(Cure(text) for text in hints if not text.startswith(covered))]


def _describe_waiting(decision: Waiting) -> str:
    if decision.held_by:
        text = f"held by a reservation for {decision.held_by}"
        return f"{text}, preemption: {decision.preemption}" if decision.preemption else text
    if decision.group is None:
        text = "".join(describe_refusal(pod.refusal) for pod in decision.pods if pod.refusal)
        return f"{text} preemption: {decision.preemption}" if decision.preemption else text
    text = _describe_waiting_group(decision)
    if decision.undecided:
        text += f"; a placement may exist: {decision.undecided}"
    return f"{text}, pod group preemption: {decision.preemption}" if decision.preemption else text


def _describe_waiting_group(decision: Waiting) -> str:
    if not decision.lacks_quorum:
        return GROUP_FAILED
    lacking = (
        f"minCount ({decision.quorum}) cannot be satisfied: "
        f"{decision.scheduled} scheduled, {decision.remaining} remaining"
    )
    match decision.placements:
        case None:
            return lacking
        case 0:
            return "no feasible placements found"
        case number:
            return f"0/{number} placements are available, first placement status: {lacking}"


def _refusal_messages(
    pods: tuple[UnplacedPod, ...], reason: str, otherwise: str
) -> tuple[PodMessage, ...]:
    """Build a message per pod. Pods of one shape share a refusal, which is described once."""
    described: dict[int, str] = {}
    messages = []
    for pod, uid, refusal in pods:
        message = otherwise
        if refusal is not None:
            message = described.get(id(refusal)) or describe_refusal(refusal)
            described[id(refusal)] = message
        messages.append(PodMessage(pod, uid, reason, message=message))
    return tuple(messages)


def _quorum_cures(decision: Waiting) -> Iterator[str]:
    missing = decision.quorum - decision.scheduled
    if decision.group is None or missing <= 0:
        return
    if decision.remaining == len(decision.pods):
        # With enough members for the quorum, it is the nodes or domains that are lacking.
        if missing > decision.remaining:
            yield f"add {missing - decision.remaining} more member(s) to the group"
    elif decision.scheduled and not decision.unknown:
        yield f"lower minCount from {decision.quorum} to {decision.scheduled}"


def _refusal_cures(pods: tuple[UnplacedPod, ...]) -> Iterator[str]:
    for refusal in {id(pod.refusal): pod.refusal for pod in pods}.values():
        if refusal:
            yield from refusal.cures


def _deduplicate(sentences: tuple[str, ...] | Iterator[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _join_names(names: tuple[str, ...], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
