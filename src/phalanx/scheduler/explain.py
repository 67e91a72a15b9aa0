"""Remedy: one change that lets a refused entity be placed. A value; `remedies.py` finds them.

One sentence explains everything: Decision -> the words that everybody prints.

Pod condition, PodGroup condition, event, `phalanx why` and the page take their text from here and
from nowhere else. Texts that Kubernetes also prints read as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, assert_never

from phalanx.api.meta import Key
from phalanx.scheduler.decision import (
    UNSCHEDULABLE,
    Decision,
    GroupOutcome,
    Impossible,
    IncompleteGroupTree,
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
    """What is changed, in the order of what it costs."""

    SMALLER = 1
    NODES = 2
    WIDER = 3
    ENDING = 4
    LOOSER = 5


class VerifiedCure(NamedTuple):
    """A change with which the entity was placed when it was tried out."""

    kind: CureKind
    #: How much of it: members or groups fewer, nodes more, pods that end.
    size: int
    text: str


def find_smallest(works: Callable[[int], bool], guess: int, most: int, low: int = 0) -> int | None:
    """The least number above `low` and up to `most` that works, sought from a guess outwards.

    What works is taken to work for all larger numbers too; what does not is not tried twice.
    """
    if most <= low:
        return None
    number, step = min(max(guess, low + 1), most), 1
    while not works(number):
        if number == most:
            return None
        low, number, step = number, min(number + step, most), 2 * step
    high, step = number, 1
    while high - low > 1:
        number = max(high - step, (low + high) // 2)
        if works(number):
            high, step = number, 2 * step
        else:
            low = number
    return high


SCHEDULED = "Scheduled"
GROUP_FAILED = "pod group is unschedulable"


class PodMessage(NamedTuple):
    """What a pod without a node is told."""

    pod: Key
    uid: str
    reason: str
    message: str


class GroupMessage(NamedTuple):
    """What a group is told, and whether it has what it needs."""

    ref: Key
    is_composite: bool
    is_placed: bool
    reason: str
    message: str


class Cure(NamedTuple):
    """A change that would help: tried out, with its sort and extent, or a hint of the filters."""

    text: str
    is_verified: bool = False
    kind: CureKind | None = None
    size: int = 0


#: How hints begin that say no more than a remedy of some sort.
_HINT_PREFIXES = (
    (CureKind.SMALLER, "lower minCount "),
    (CureKind.NODES, "add a node "),
    (CureKind.LOOSER, "tolerate "),
    (CureKind.LOOSER, "uncordon "),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the entity is told, each group of it, and each of its pods that got no node."""

    reason: str
    message: str
    pods: tuple[PodMessage, ...]
    groups: tuple[GroupMessage, ...] = ()


def explain(decision: Decision) -> Explanation:
    """A decision in words."""
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
                GroupMessage(part.ref, part.is_composite, False, decision.reason, decision.message)
                for part in decision.parts
            ]
            return Explanation(decision.reason, decision.message, pods, tuple(groups))
        case _:
            assert_never(decision)


def _explain_placed(decision: Placed) -> Explanation:
    pods = {one.pod: one for one in _refusal_messages(decision.leftovers, UNSCHEDULABLE, "")}
    for part in decision.parts:
        if part.waiting:
            pods |= {one.pod: one for one in _pod_messages(part.waiting) if one.pod not in pods}
    groups = tuple(_group_message(part, SCHEDULED, "") for part in decision.parts)
    return Explanation(SCHEDULED, "", tuple(pods.values()), groups)


def _explain_waiting(decision: Waiting) -> Explanation:
    message = _describe_waiting(decision)
    # What the whole tree lacks is said of its groups together with what came of thinking about it.
    bare = replace(decision, preemption="", promised=(), relaxes=None, parts=())
    parts = [
        part._replace(waiting=None) if part.waiting == bare else part for part in decision.parts
    ]
    groups = tuple(_group_message(part, decision.reason, message) for part in parts)
    return Explanation(decision.reason, message, _pod_messages(decision), groups)


def _pod_messages(decision: Waiting) -> tuple[PodMessage, ...]:
    if decision.group is None:
        message = _describe_waiting(decision)
        return tuple(
            PodMessage(pod, uid, decision.reason, message) for pod, uid, _ in decision.pods
        )
    otherwise = f"{GROUP_FAILED}, {_describe_waiting(decision)}"
    return _refusal_messages(decision.pods, decision.reason, otherwise)


def _group_message(part: GroupOutcome, reason: str, message: str) -> GroupMessage:
    if part.waiting:
        reason, message = part.waiting.reason, _describe_waiting(part.waiting)
    return GroupMessage(part.ref, part.is_composite, reason == SCHEDULED, reason, message)


def describe_refusal(refusal: Refusal) -> str:
    """Why no node takes a pod: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) …`."""
    if not refusal.total:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in refusal.counts))
    return f"0/{refusal.total} nodes are available: {reasons}."


def describe_unready(unready: UnreadyReason) -> str:
    """Why the queue does not even try an entity."""
    match unready:
        case MissingGroup(name):
            return f'waiting for PodGroup "{name}" to appear'
        case MissingMembers(quorum, there):
            return f"waiting for {quorum} members, {there} {_is_or_are(there)} there"
        case MissingGroups(quorum, there):
            return f"waiting for {quorum} groups with all their members, {there} {_is_or_are(there)} there"
        case IncompleteGroupTree(message, _):
            return message
        case SchedulingGated(pods, gates):
            return f"waiting for scheduling gates {', '.join(gates)} of {_join_names(pods)}"
        case _:
            assert_never(unready)


def suggest_cures(decision: Decision) -> list[str]:
    """Small changes, each of which would let the entity run or bring it nearer; the best first."""
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


def rank_cures(decision: Decision, remedies: Iterable[VerifiedCure]) -> list[Cure]:
    """What was tried out and helps, the cheapest first, and then what was not."""
    found = sorted(set(remedies))
    verified = [Cure(text, True, sort, size) for sort, size, text in found]
    said = tuple(start for sort, start in _HINT_PREFIXES if any(one.kind is sort for one in found))
    hints = suggest_cures(decision) if not isinstance(decision, Preempting) else ()
    return [*verified, *(Cure(text) for text in hints if not text.startswith(said))]


def _describe_waiting(decision: Waiting) -> str:
    if decision.group is None:
        text = "".join(describe_refusal(pod.refusal) for pod in decision.pods if pod.refusal)
        return f"{text} preemption: {decision.preemption}" if decision.preemption else text
    text = _describe_waiting_group(decision)
    if decision.undecided:
        text += f"; there may be a placement all the same: {decision.undecided}"
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
    """A sentence per pod; pods of one shape share their refusal, so each is spelled once."""
    spelled: dict[int, str] = {}
    sentences = []
    for pod, uid, refusal in pods:
        if refusal is None:
            message = otherwise
        else:
            message = spelled.get(id(refusal)) or spelled.setdefault(
                id(refusal), describe_refusal(refusal)
            )
        sentences.append(PodMessage(pod, uid, reason, message))
    return tuple(sentences)


def _quorum_cures(decision: Waiting) -> Iterator[str]:
    missing = decision.quorum - decision.scheduled
    if decision.group is None or missing <= 0:
        return
    if decision.remaining == len(decision.pods):
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
