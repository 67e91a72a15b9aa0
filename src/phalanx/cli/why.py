"""The answers of `phalanx why` on paper: as text for people, as JSON for programs.

`phalanx why KIND/NAME`: why it is pending, and the smallest changes that would let it run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from phalanx.api.meta import Key
from phalanx.cli.cluster_queries import SubjectQuery, find_subjects, parse_subject, read_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import JSON, TEXT, YAML, format_structured, output_option
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.diagnosis.diagnosis import (
    EMPTY,
    FITS,
    NOT_READY,
    PLACED,
    CapacityEvidence,
    CapacityRow,
    Diagnosis,
    diagnose,
)
from phalanx.scheduler.queue.queued_entity import EntityId

_HEADLINES = {
    PLACED: "is placed",
    FITS: "fits and is about to be placed",
    NOT_READY: "is not ready to be scheduled",
    EMPTY: "has nothing to place",
}
#: Pods with the same sentence are told of together, by so many names.
_MAX_NAMES = 3
#: How many hints are told that were not tried out.
_MAX_HINTS = 3

Cells = tuple[str, ...]


class WhyAnswer(NamedTuple):
    """What was asked about, and what was found."""

    subject: EntityId
    diagnosis: Diagnosis

    @property
    def kind(self) -> str:
        """The name of the kind."""
        if not self.subject.is_group:
            return "Pod"
        return "CompositePodGroup" if self.subject.is_composite else "PodGroup"


def format_answer(answer: WhyAnswer) -> str:
    """The headline, who is told what, where there is room, and what would help."""
    found = answer.diagnosis
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
    lines += [
        f"  {_join_names(names)}: {message}" for message, names in _pods_by_message(found).items()
    ]
    if found.evidence:
        lines += _evidence_table(found.evidence, "members" if answer.subject.is_group else "pods")
    return "\n".join([*lines, *_cure_lines(found)])


def answer_data(answer: WhyAnswer) -> dict[str, Any]:
    """The same with all details."""
    subject, found = answer.subject, answer.diagnosis
    return {
        "kind": answer.kind, "namespace": subject.key.namespace, "name": subject.key.name,
        "state": found.state, "message": found.message,
        "bound": found.bound, "pending": found.pending,
        "tree": found.tree and found.tree.name,
        "groups": [
            {"kind": "CompositePodGroup" if one.is_composite else "PodGroup", "name": one.ref.name,
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
            {"sort": cure.kind.name.lower() if cure.kind else "hint", "size": cure.size,
             "text": cure.text, "verified": cure.is_verified}
            for cure in found.cures
        ],
        "decisions": found.decisions, "cutShort": found.is_cut_short,
    }  # fmt: skip


def _cure_lines(found: Diagnosis) -> Iterator[str]:
    tried = [cure.text for cure in found.cures if cure.is_verified]
    hints = [cure.text for cure in found.cures if not cure.is_verified]
    if tried:
        yield "It would help to:"
        yield from (f"  - {text}" for text in tried)
    if hints:
        yield "It may bring it nearer (not tried out) to:"
        yield from (f"  - {text}" for text in hints[:_MAX_HINTS])
    if found.is_cut_short:
        yield f"There may be smaller changes: the search ended after {found.decisions} decisions."


def _evidence_table(evidence: CapacityEvidence, noun: str) -> Iterator[str]:
    """A block for each sort of member."""
    asks = dict.fromkeys((row.asks, row.members) for row in evidence.rows)
    for what, members in asks:
        yield f"Room for {noun} that ask for {what} ({members} pending, {_describe_needed(evidence)}):"
        rows = [row for row in evidence.rows if row.asks == what]
        head = (_label_suffix(evidence.key) or "node", "nodes", "fit now", "if empty", "limited by")
        yield from _align_evidence([tuple(map(str.upper, head)), *map(_evidence_cells, rows)])
        if evidence.more:
            yield f"  … and {evidence.more} more"


def _describe_needed(evidence: CapacityEvidence) -> str:
    where = f" in one {_label_suffix(evidence.key)}" if evidence.key else ""
    return f"{evidence.needed} needed{where}"


def _label_suffix(key: str) -> str:
    """A label without its prefix."""
    return key.rpartition("/")[2]


def _evidence_cells(row: CapacityRow) -> Cells:
    return row.place, str(row.nodes), str(row.fit), str(row.empty), row.limit or "-"


def _align_evidence(rows: Sequence[Cells]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, *numbers, limit in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=False)]
        yield "  " + "   ".join([place.ljust(widths[0]), *cells, limit])


def _pods_by_message(found: Diagnosis) -> dict[str, list[str]]:
    """Pods by what they are told, unless that says no more than the headline."""
    told: dict[str, list[str]] = {}
    for pod in found.pods:
        if not pod.message.endswith(found.message):
            told.setdefault(pod.message, []).append(pod.pod.name)
    return told


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


@click.command()
@click.argument("what", metavar="KIND/NAME")
@cluster_options
@output_option(TEXT, JSON, YAML)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="The KubeSchedulerConfiguration that the scheduler runs with, if it has one.",
)
def command(
    what: str, namespace: str, config: Path | None, context: str, output: str, policy: Path | None
) -> None:
    """Say why something is pending, and the smallest changes that would let it run.

    KIND is podgroup, compositepodgroup, pod, job, workload, jobset or leaderworkerset. Every
    change under "It would help to" was tried out on a copy of the cluster; nothing is changed.

    \b
    Example:
      phalanx why podgroup/train
      phalanx why job/train -n research -o json
    """
    kind, name = parse_subject(what)
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES

    async def question(client: Client, default: str) -> tuple[SubjectQuery, list[WhyAnswer]]:
        asked = SubjectQuery(kind, Key(namespace or default, name))
        return asked, await _diagnose_subjects(client, asked, profiles, WallClock().now())

    asked, found = query_cluster(config, context, question)
    if output == TEXT:
        click.echo(_format_answers(asked, found))
    else:
        items = [answer_data(answer) for answer in found]
        click.echo(
            format_structured({"items": items} if asked.may_have_several else items[0], output)
        )


async def explain_pending(client: Client, what: str, namespace: str) -> str:
    """The answer as text, for those who hold a client already."""
    kind, name = parse_subject(what)
    asked = SubjectQuery(kind, Key(namespace, name))
    return _format_answers(asked, await _diagnose_subjects(client, asked, DEFAULT_PROFILES, 0.0))


async def _diagnose_subjects(
    client: Client, asked: SubjectQuery, profiles: Profiles, now: float
) -> list[WhyAnswer]:
    """Look at the cluster as it is."""
    cluster = await read_cluster(client)
    found = await find_subjects(client, asked, cluster)
    solver = HighsSolver()
    return [WhyAnswer(one, diagnose(one, cluster, profiles, solver, now)) for one in found]


def _format_answers(asked: SubjectQuery, found: list[WhyAnswer]) -> str:
    if not found:
        return f"{asked.kind.name} {asked.key} has no pods and no pod groups yet"
    return "\n\n".join(map(format_answer, found))
