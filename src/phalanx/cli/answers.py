"""The answers of `phalanx why` on paper: as text for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from phalanx.scheduler.asking.diagnosis import EMPTY, FITS, NOT_READY, PLACED, Diagnosis
from phalanx.scheduler.asking.evidence import Evidence, Row
from phalanx.scheduler.queueing.entry import Id

_HEADLINES = {
    PLACED: "is placed",
    FITS: "fits and is about to be placed",
    NOT_READY: "is not ready to be scheduled",
    EMPTY: "has nothing to place",
}
#: Pods with the same sentence are told of together, by so many names.
_NAMES = 3
#: How many hints are told that were not tried out.
_HINTS = 3

Cells = tuple[str, ...]


class Answer(NamedTuple):
    """What was asked about, and what was found."""

    subject: Id
    found: Diagnosis

    @property
    def kind(self) -> str:
        """The name of the kind."""
        if not self.subject.is_group:
            return "Pod"
        return "CompositePodGroup" if self.subject.is_composite else "PodGroup"


def as_text(answer: Answer) -> str:
    """The headline, who is told what, where there is room, and what would help."""
    found = answer.found
    headline = _HEADLINES.get(found.state, "is waiting")
    lines = [f"{answer.kind} {answer.subject.key} {headline}: {found.message}"]
    if found.state not in _HEADLINES:
        lines.append(f"  reason:  {found.state}")
    if answer.subject.is_group:
        lines.append(f"  members: {found.bound} placed, {found.pending} pending")
    if found.tree:
        lines.append(
            f"  part of: CompositePodGroup {found.tree}, of which all is placed or nothing"
        )
    lines += [f"  {_some(names)}: {message}" for message, names in _by_message(found).items()]
    if found.evidence:
        lines += _table(found.evidence, "members" if answer.subject.is_group else "pods")
    return "\n".join([*lines, *_cures(found)])


def as_json(answer: Answer) -> dict[str, Any]:
    """The same with all details."""
    subject, found = answer.subject, answer.found
    return {
        "kind": answer.kind, "namespace": subject.key.namespace, "name": subject.key.name,
        "state": found.state, "message": found.message,
        "bound": found.bound, "pending": found.pending,
        "tree": found.tree and found.tree.name,
        "groups": [
            {"kind": "CompositePodGroup" if one.is_composite else "PodGroup", "name": one.key.name,
             "reason": one.reason, "message": one.message}
            for one in found.groups
        ],
        "pods": [
            {"name": pod.pod.name, "uid": pod.uid, "reason": pod.reason, "message": pod.message}
            for pod in found.pods
        ],
        "evidence": found.evidence and {
            "topology": found.evidence.key, "needed": found.evidence.needed,
            "rows": [row._asdict() for row in found.evidence.rows], "more": found.evidence.more,
        },
        "cures": [
            {"sort": cure.sort.name.lower() if cure.sort else "hint", "size": cure.size,
             "text": cure.text, "verified": cure.is_verified}
            for cure in found.cures
        ],
        "decisions": found.decisions, "cutShort": found.is_cut_short,
    }  # fmt: skip


def _cures(found: Diagnosis) -> Iterator[str]:
    tried = [cure.text for cure in found.cures if cure.is_verified]
    hints = [cure.text for cure in found.cures if not cure.is_verified]
    if tried:
        yield "It would help to:"
        yield from (f"  - {text}" for text in tried)
    if hints:
        yield "It may bring it nearer (not tried out) to:"
        yield from (f"  - {text}" for text in hints[:_HINTS])
    if found.is_cut_short:
        yield f"There may be smaller changes: the search ended after {found.decisions} decisions."


def _table(evidence: Evidence, whom: str) -> Iterator[str]:
    """A block for each sort of member."""
    asks = dict.fromkeys((row.asks, row.members) for row in evidence.rows)
    for what, members in asks:
        yield f"Room for {whom} that ask for {what} ({members} pending, {_needed(evidence)}):"
        rows = [row for row in evidence.rows if row.asks == what]
        head = (_short(evidence.key) or "node", "nodes", "fit now", "if empty", "limited by")
        yield from _aligned([tuple(map(str.upper, head)), *map(_cells, rows)])
        if evidence.more:
            yield f"  … and {evidence.more} more"


def _needed(evidence: Evidence) -> str:
    where = f" in one {_short(evidence.key)}" if evidence.key else ""
    return f"{evidence.needed} needed{where}"


def _short(key: str) -> str:
    """A label without its prefix."""
    return key.rpartition("/")[2]


def _cells(row: Row) -> Cells:
    return row.place, str(row.nodes), str(row.fit), str(row.empty), row.limit or "-"


def _aligned(rows: Sequence[Cells]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, *numbers, limit in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=False)]
        yield "  " + "   ".join([place.ljust(widths[0]), *cells, limit])


def _by_message(found: Diagnosis) -> dict[str, list[str]]:
    """Pods by what they are told, unless that says no more than the headline."""
    told: dict[str, list[str]] = {}
    for pod in found.pods:
        if not pod.message.endswith(found.message):
            told.setdefault(pod.message, []).append(pod.pod.name)
    return told


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
