"""`phalanx why KIND/NAME`: explain why a pod or gang is pending, and what would let it run.

The library makes the diagnosis; this module formats it as text, or as data for JSON and YAML:

    PodGroup default/train is waiting: 0 of 3 members fit: every node lacks nvidia.com/gpu.
      reason:  Unschedulable
      message: minCount (3) cannot be satisfied: 0 scheduled, 2 remaining
      members: 0 placed, 3 pending
    Capacity for members that request nvidia.com/gpu 3 (3 pending, 3 needed):
      …
    Possible fixes (verified):
      …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from phalanx.api.errors import NotFound
from phalanx.api.meta import POD_KIND, Key, Ref
from phalanx.cli.cluster_queries import (
    SubjectQuery,
    parse_subject_argument,
    read_library_cluster,
)
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    JSON,
    TEXT,
    YAML,
    format_structured,
    join_names,
    output_option,
    pluralize,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.library import ObjectNotFound
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.diagnosis.diagnosis import (
    EMPTY,
    FITS,
    NOT_READY,
    PLACED,
    CapacityEvidence,
    CapacityRow,
    Diagnosis,
)

_HEADLINES = {
    PLACED: "is placed",
    FITS: "fits and is about to be placed",
    NOT_READY: "is not ready to be scheduled",
    EMPTY: "has nothing to place",
}
#: Pods named in a line about pods with the same message.
_MAX_NAMES = 3
#: Fixes listed that are not verified.
_MAX_UNVERIFIED = 3

Cells = tuple[str, ...]


class WhyAnswer(NamedTuple):
    """A pod or group, and its diagnosis."""

    subject: Ref
    diagnosis: Diagnosis

    @property
    def is_group(self) -> bool:
        """Return whether the subject has members."""
        return self.subject.kind != POD_KIND


def format_answer(answer: WhyAnswer) -> str:
    """Format an answer as text: the reason, the pods' messages, the capacity, the fixes."""
    diagnosis = answer.diagnosis
    headline = _HEADLINES.get(diagnosis.state, "is waiting")
    summary = _summarize_capacity(answer)
    lines = [f"{answer.subject} {headline}: {summary or diagnosis.message}"]
    if diagnosis.state not in _HEADLINES:
        lines.append(f"  reason:  {diagnosis.state}")
    if summary:
        lines.append(f"  message: {diagnosis.message}")
    if answer.is_group:
        lines.append(f"  members: {diagnosis.bound} placed, {diagnosis.pending} pending")
    if diagnosis.tree:
        lines.append(f"  part of: CompositePodGroup {diagnosis.tree}, which is placed as a whole")
    names_by_message: dict[str, list[str]] = {}
    for pod in diagnosis.pods:
        # A pod's message that only repeats that of the group is omitted.
        if not pod.message.endswith(diagnosis.message):
            names_by_message.setdefault(pod.message, []).append(pod.pod.name)
    for message, names in names_by_message.items():
        lines.append(f"  {join_names(names, _MAX_NAMES)}: {message}")
    if diagnosis.evidence:
        lines += _capacity_tables(diagnosis.evidence, "members" if answer.is_group else "pods")
    return "\n".join([*lines, *_fix_lines(diagnosis)])


def _summarize_capacity(answer: WhyAnswer) -> str:
    """Say how many members fit and what the nodes lack: "0 of 3 members fit: every node lacks cpu."

    "" if free resources are not the reason, if the members differ, or if places are not listed.
    """
    diagnosis, evidence = answer.diagnosis, answer.diagnosis.evidence
    if not answer.is_group or diagnosis.tree or evidence is None or not evidence.rows:
        return ""
    if len({row.requests for row in evidence.rows}) > 1:
        return ""
    members = f"{evidence.needed}{' more' if diagnosis.bound else ''} members fit"
    level = _label_suffix(evidence.key)
    best = max(evidence.rows, key=lambda row: row.fit)
    if level and 0 < best.fit < evidence.needed:
        limits = _describe_limits([best], f"the nodes of {best.place}")
        return f"at most {best.fit} of {members} in one {level}: {limits}."
    fit = best.fit if level else sum(row.fit for row in evidence.rows)
    if fit >= evidence.needed or evidence.more:
        return ""
    return f"{fit} of {members}{level and f' in any {level}'}: {_describe_limits(evidence.rows)}."


def _describe_limits(rows: Sequence[CapacityRow], nodes: str = "all nodes") -> str:
    """Describe what keeps further members from the nodes of these rows."""
    resources = {part.rpartition(" ")[0] for part in rows[0].requests.split(", ")}
    nodes_by_limit: Counter[str] = Counter()
    for row in rows:
        nodes_by_limit[row.limit] += row.nodes
    has_free = any(row.fit for row in rows)
    if len(nodes_by_limit) == 1 and (limit := rows[0].limit) in resources:
        return f"{nodes} run out of {limit}" if has_free else f"every node lacks {limit}"
    parts = []
    for limit, count in nodes_by_limit.most_common():
        reason = f"rejected ({limit})"
        if limit in resources:
            reason = f"without enough {limit}"
        parts.append(f"{pluralize(count, 'node')} {reason}")
    return ", ".join(parts)


def answer_data(answer: WhyAnswer) -> dict[str, Any]:
    """Return an answer with all details as data for JSON and YAML."""
    subject, diagnosis = answer.subject, answer.diagnosis
    evidence = diagnosis.evidence and {
        "topology": diagnosis.evidence.key,
        "needed": diagnosis.evidence.needed,
        "rows": [
            {
                "asks": row.requests,
                "members": row.members,
                "place": row.place,
                "nodes": row.nodes,
                "fit": row.fit,
                "empty": row.empty,
                "limit": row.limit,
            }
            for row in diagnosis.evidence.rows
        ],
        "more": diagnosis.evidence.more,
    }
    return {
        "kind": subject.kind,
        "namespace": subject.namespace,
        "name": subject.name,
        "state": diagnosis.state,
        "message": diagnosis.message,
        "bound": diagnosis.bound,
        "pending": diagnosis.pending,
        "tree": diagnosis.tree and diagnosis.tree.name,
        "groups": [
            {
                "kind": message.ref.kind,
                "name": message.ref.name,
                "reason": message.reason,
                "message": message.message,
            }
            for message in diagnosis.groups
        ],
        "pods": [
            {
                "name": message.pod.name,
                "uid": message.uid,
                "reason": message.reason,
                "message": message.message,
            }
            for message in diagnosis.pods
        ],
        "evidence": evidence,
        "cures": [
            {
                "sort": cure.kind.name.lower() if cure.kind else "hint",
                "size": cure.size,
                "text": cure.text,
                "verified": cure.is_verified,
            }
            for cure in diagnosis.cures
        ],
        "decisions": diagnosis.decisions,
        "cutShort": diagnosis.is_cut_short,
    }


def _fix_lines(diagnosis: Diagnosis) -> Iterator[str]:
    verified = [cure.text for cure in diagnosis.cures if cure.is_verified]
    unverified = [cure.text for cure in diagnosis.cures if not cure.is_verified]
    if verified:
        yield "Possible fixes (verified):"
        yield from (f"  - {text}" for text in verified)
    if unverified:
        yield "Possible partial fixes (not verified):"
        yield from (f"  - {text}" for text in unverified[:_MAX_UNVERIFIED])
    if diagnosis.is_cut_short:
        yield f"The search stopped after {diagnosis.decisions} decisions: smaller fixes may exist."


def _capacity_tables(evidence: CapacityEvidence, noun: str) -> Iterator[str]:
    """Format a table for each shape of member."""
    level = _label_suffix(evidence.key)
    location = f" in one {level}" if level else ""
    header = (level.upper() or "NODE", "NODES", "FIT NOW", "IF EMPTY", "LIMITED BY")
    for requests, members in dict.fromkeys((row.requests, row.members) for row in evidence.rows):
        needed = f"{members} pending, {evidence.needed} needed{location}"
        yield f"Capacity for {noun} that request {requests} ({needed}):"
        cells: list[Cells] = [
            (row.place, str(row.nodes), str(row.fit), str(row.empty), row.limit or "-")
            for row in evidence.rows
            if row.requests == requests
        ]
        yield from _align_table([header, *cells])
        if evidence.more:
            yield f"  … and {evidence.more} more"


def _label_suffix(key: str) -> str:
    return key.rpartition("/")[2]


def _align_table(rows: Sequence[Cells]) -> Iterator[str]:
    """Align the first column to the left and the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, *numbers, limit in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=False)]
        yield "  " + "   ".join([place.ljust(widths[0]), *cells, limit])


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
    help="KubeSchedulerConfiguration of the scheduler, if it has one.",
)
def command(
    *,
    what: str,
    namespace: str,
    config: Path | None,
    context: str,
    output: str,
    policy: Path | None,
) -> None:
    """Explain why a workload is pending, and list the smallest changes that would let it run.

    KIND is podgroup, compositepodgroup, pod, job, workload, jobset or leaderworkerset. Every
    verified fix was tried on a copy of the cluster. Changes nothing.

    \b
    Example:
      phalanx why podgroup/train
      phalanx why job/train -n research -o json
    """
    kind, name = parse_subject_argument(what)
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES

    async def query(client: Client, default_namespace: str) -> tuple[SubjectQuery, list[WhyAnswer]]:
        subject = SubjectQuery(kind, Key(namespace or default_namespace, name))
        return subject, await _diagnose_subject(client, subject, profiles, now=WallClock().now())

    subject, answers = query_cluster(config, context, query)
    if output == TEXT:
        click.echo(_format_answers(subject, answers))
    else:
        items = [answer_data(answer) for answer in answers]
        data = {"items": items} if subject.may_have_several else items[0]
        click.echo(format_structured(data, output))


async def explain_pending(client: Client, what: str, namespace: str) -> str:
    """Return the answer of `phalanx why` as text, for callers that have a client."""
    kind, name = parse_subject_argument(what)
    subject = SubjectQuery(kind, Key(namespace, name))
    answers = await _diagnose_subject(client, subject, DEFAULT_PROFILES, now=0.0)
    return _format_answers(subject, answers)


async def _diagnose_subject(
    client: Client, subject: SubjectQuery, profiles: Profiles, now: float
) -> list[WhyAnswer]:
    cluster = await read_library_cluster(client, subject.kind, profiles=profiles, now=now)
    try:
        subjects = cluster.find(f"{subject.kind.name}/{subject.key.name}", subject.key.namespace)
    except ObjectNotFound as error:
        raise NotFound(str(error)) from None
    return [WhyAnswer(ref, cluster.diagnose(ref)) for ref in subjects]


def _format_answers(subject: SubjectQuery, answers: list[WhyAnswer]) -> str:
    if not answers:
        return f"{subject.kind.name} {subject.key} has no pods and no pod groups yet"
    return "\n\n".join(map(format_answer, answers))
