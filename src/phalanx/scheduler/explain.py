"""One sentence explains everything: Decision -> the words that everybody prints.

Pod condition, PodGroup condition, event, `phalanx why` and the page take their text from here and
from nowhere else. Texts that Kubernetes also prints read as they do there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from phalanx.api.meta import Key
from phalanx.scheduler.decision import (
    UNSCHEDULABLE,
    Decision,
    Gated,
    Impossible,
    Misplaced,
    MissingGroup,
    MissingGroups,
    MissingMembers,
    Part,
    Placed,
    Preempting,
    Refusal,
    Refused,
    Unready,
    Waiting,
)
from phalanx.scheduler.remedy import Remedy, Sort

SCHEDULED = "Scheduled"
GROUP_FAILED = "pod group is unschedulable"


class PodSentence(NamedTuple):
    """What a pod without a node is told."""

    pod: Key
    uid: str
    reason: str
    message: str


class GroupSentence(NamedTuple):
    """What a group is told, and whether it has what it needs."""

    key: Key
    is_composite: bool
    is_placed: bool
    reason: str
    message: str


class Cure(NamedTuple):
    """A change that would help: tried out, with its sort and extent, or a hint of the filters."""

    text: str
    is_verified: bool = False
    sort: Sort | None = None
    size: int = 0


#: How hints begin that say no more than a remedy of some sort.
_SAME = (
    (Sort.SMALLER, "lower minCount "),
    (Sort.NODES, "add a node "),
    (Sort.LOOSER, "tolerate "),
    (Sort.LOOSER, "uncordon "),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the entity is told, each group of it, and each of its pods that got no node."""

    reason: str
    message: str
    pods: tuple[PodSentence, ...]
    groups: tuple[GroupSentence, ...] = ()


def explain(decision: Decision) -> Explanation:
    """A decision in words."""
    match decision:
        case Placed():
            return _of_placed(decision)
        case Preempting():
            return _of_waiting(decision.waiting)
        case Waiting():
            return _of_waiting(decision)
        case Impossible():
            pods = _each(decision.pods, decision.reason, decision.message)
            groups = [
                GroupSentence(part.key, part.is_composite, False, decision.reason, decision.message)
                for part in decision.parts
            ]
            return Explanation(decision.reason, decision.message, pods, tuple(groups))
        case _:
            assert_never(decision)


def _of_placed(decision: Placed) -> Explanation:
    pods = {one.pod: one for one in _each(decision.leftovers, UNSCHEDULABLE, "")}
    for part in decision.parts:
        if part.waiting:
            pods |= {one.pod: one for one in _of_pods(part.waiting) if one.pod not in pods}
    groups = tuple(_of_part(part, SCHEDULED, "") for part in decision.parts)
    return Explanation(SCHEDULED, "", tuple(pods.values()), groups)


def _of_waiting(decision: Waiting) -> Explanation:
    message = _why_waiting(decision)
    # What the whole tree lacks is said of its groups together with what came of thinking about it.
    bare = replace(decision, preemption="", promised=(), relaxes=None, parts=())
    parts = [
        part._replace(waiting=None) if part.waiting == bare else part for part in decision.parts
    ]
    groups = tuple(_of_part(part, decision.reason, message) for part in parts)
    return Explanation(decision.reason, message, _of_pods(decision), groups)


def _of_pods(decision: Waiting) -> tuple[PodSentence, ...]:
    if decision.group is None:
        message = _why_waiting(decision)
        return tuple(
            PodSentence(pod, uid, decision.reason, message) for pod, uid, _ in decision.pods
        )
    otherwise = f"{GROUP_FAILED}, {_why_waiting(decision)}"
    return _each(decision.pods, decision.reason, otherwise)


def _of_part(part: Part, reason: str, message: str) -> GroupSentence:
    if part.waiting:
        reason, message = part.waiting.reason, _why_waiting(part.waiting)
    return GroupSentence(part.key, part.is_composite, reason == SCHEDULED, reason, message)


def no_node(refusal: Refusal) -> str:
    """Why no node takes a pod: `0/5 nodes are available: 2 Insufficient cpu, 3 node(s) …`."""
    if not refusal.total:
        return "no nodes available to schedule pods"
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in refusal.counts))
    return f"0/{refusal.total} nodes are available: {reasons}."


def not_ready(unready: Unready) -> str:
    """Why the queue does not even try an entity."""
    match unready:
        case MissingGroup(name):
            return f'waiting for PodGroup "{name}" to appear'
        case MissingMembers(quorum, there):
            return f"waiting for {quorum} members, {there} {_are(there)} there"
        case MissingGroups(quorum, there):
            return (
                f"waiting for {quorum} groups with all their members, {there} {_are(there)} there"
            )
        case Misplaced(message, _):
            return message
        case Gated(pods, gates):
            return f"waiting for scheduling gates {', '.join(gates)} of {_some(pods)}"
        case _:
            assert_never(unready)


def cures(decision: Decision) -> list[str]:
    """Small changes, each of which would let the entity run or bring it nearer; the best first."""
    match decision:
        case Placed():
            return _distinct(_of_refusals(decision.leftovers))
        case Preempting():
            return cures(decision.waiting)
        case Waiting():
            return _distinct((*_of_quorum(decision), *_of_refusals(decision.pods)))
        case Impossible():
            return [decision.cure]
        case _:
            assert_never(decision)


def ranked(decision: Decision, remedies: Iterable[Remedy]) -> list[Cure]:
    """What was tried out and helps, the cheapest first, and then what was not."""
    found = sorted(set(remedies))
    verified = [Cure(text, True, sort, size) for sort, size, text in found]
    said = tuple(start for sort, start in _SAME if any(one.sort is sort for one in found))
    hints = cures(decision) if not isinstance(decision, Preempting) else ()
    return [*verified, *(Cure(text) for text in hints if not text.startswith(said))]


def _why_waiting(decision: Waiting) -> str:
    if decision.group is None:
        text = "".join(no_node(pod.refusal) for pod in decision.pods if pod.refusal)
        return f"{text} preemption: {decision.preemption}" if decision.preemption else text
    text = _why_group_waits(decision)
    if decision.undecided:
        text += f"; there may be a placement all the same: {decision.undecided}"
    return f"{text}, pod group preemption: {decision.preemption}" if decision.preemption else text


def _why_group_waits(decision: Waiting) -> str:
    if not decision.fails_group:
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


def _each(pods: tuple[Refused, ...], reason: str, otherwise: str) -> tuple[PodSentence, ...]:
    """A sentence per pod; pods of one shape share their refusal, so each is spelled once."""
    spelled: dict[int, str] = {}
    sentences = []
    for pod, uid, refusal in pods:
        if refusal is None:
            message = otherwise
        else:
            message = spelled.get(id(refusal)) or spelled.setdefault(id(refusal), no_node(refusal))
        sentences.append(PodSentence(pod, uid, reason, message))
    return tuple(sentences)


def _of_quorum(decision: Waiting) -> Iterator[str]:
    missing = decision.quorum - decision.scheduled
    if decision.group is None or missing <= 0:
        return
    if decision.remaining == len(decision.pods):
        yield f"add {missing - decision.remaining} more member(s) to the group"
    elif decision.scheduled and not decision.unknown:
        yield f"lower minCount from {decision.quorum} to {decision.scheduled}"


def _of_refusals(pods: tuple[Refused, ...]) -> Iterator[str]:
    for refusal in {id(pod.refusal): pod.refusal for pod in pods}.values():
        if refusal:
            yield from refusal.cures


def _distinct(sentences: tuple[str, ...] | Iterator[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _some(names: tuple[str, ...], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
