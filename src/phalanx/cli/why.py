"""`phalanx why KIND/NAME`: explain why a pod or gang is pending, and what would let it run.

The library makes the diagnosis; this module formats it as text, or as data for JSON and YAML:

    Job default/train is waiting: 0 of 3 members fit: every node lacks nvidia.com/gpu.
      group:   PodGroup train-5c9f7-train-pgt-0-7d4b8
      reason:  Unschedulable
      message: minCount (3) cannot be satisfied: 0 scheduled, 2 remaining
      members: 0 placed, 3 pending
    Capacity for members that request nvidia.com/gpu 3 (3 pending, 3 needed):
      …
    Possible fixes (verified):
      …
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from phalanx.api.batch import FAILED as JOB_FAILED
from phalanx.api.errors import NotFound
from phalanx.api.kinds import JOB, POD
from phalanx.api.meta import POD_KIND, Key, Ref, composite_pod_group_ref
from phalanx.cli.cluster_queries import (
    SubjectQuery,
    name_subject,
    parse_subject_argument,
    read_library_cluster,
    report_scheduler_bugs,
)
from phalanx.cli.completion import complete_subject
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.job_status import (
    JobFinding,
    describe_failed_pods,
    describe_unstarted,
    read_job_findings,
    read_set_findings,
)
from phalanx.cli.options import configuration_option
from phalanx.cli.output import (
    JSON,
    TEXT,
    YAML,
    echo,
    format_structured,
    join_names,
    output_option,
)
from phalanx.cli.queue import start_data
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.cli.scheduler_status import (
    OTHER_SCHEDULER,
    OtherScheduler,
    find_other_schedulers,
    find_scheduler_outage,
)
from phalanx.cli.workload_states import GroupOwners, waiting_schedulers
from phalanx.cli.workload_tree import TREE_KINDS, GroupRow, build_tree, format_tree
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.library import Cluster, ObjectNotFound
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.diagnosis.capacity_evidence import (
    NO_NODES,
    CapacityEvidence,
    label_suffix,
)
from phalanx.scheduler.diagnosis.diagnosis import (
    EMPTY,
    FAILED,
    FINISHED,
    FITS,
    NOT_READY,
    PLACED,
    RETRYING,
    Diagnosis,
    find_job_of,
)
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import list_workloads, recorded_diagnosis
from phalanx.scheduler.diagnosis.what_if import describe_impossible
from phalanx.scheduler.explain import Cure
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles

_HEADLINES = {
    PLACED: "is placed",
    FITS: "fits and is about to be placed",
    NOT_READY: "is not ready to be scheduled",
    EMPTY: "has nothing to place",
    FINISHED: "has finished",
    FAILED: "has failed",
    RETRYING: "waits to retry",
    OTHER_SCHEDULER: "waits for another scheduler",
}
#: Pods named in a line about pods with the same message.
_MAX_NAMES = 3
#: Fixes listed that are not verified.
_MAX_UNVERIFIED = 3

Cells = tuple[str, ...]


class WhyAnswer(NamedTuple):
    """A pod or group, its diagnosis, and why no scheduler is running ("" if one is)."""

    subject: Ref
    diagnosis: Diagnosis
    outage: str = ""
    #: When the subject is expected to start, if that was planned.
    expected: ExpectedStart | None = None
    now: float = 0.0
    #: The object that the user asked about, if this is its only group.
    asked: Ref | None = None
    #: Why it would not fit even if nothing else ran; "" if it would.
    never_fits: str = ""

    @property
    def is_group(self) -> bool:
        """Return whether the subject has members."""
        return self.subject.kind != POD_KIND


class SubjectAnswers(NamedTuple):
    """The subject of a question, the answers for its groups, and what it says itself."""

    subject: SubjectQuery
    answers: list[WhyAnswer]
    findings: list[JobFinding]
    #: How the pods of a Job or JobSet that has failed ended.
    failures: Sequence[str] = ()
    #: The groups of a JobSet or LeaderWorkerSet.
    tree: Sequence[GroupRow] = ()
    #: What is not shown, and why; "" if all is.
    note: str = ""


def format_answer(answer: WhyAnswer) -> str:
    """Format an answer as text: the reason, the pods' messages, the capacity, the fixes."""
    diagnosis = answer.diagnosis
    never = "never fits" if answer.never_fits == NO_NODES else "never fits on these nodes"
    waits = never if answer.never_fits else "is waiting"
    headline = _HEADLINES.get(diagnosis.state, waits)
    if answer.outage and diagnosis.state == FITS:
        headline = "would fit, but no scheduler is running"
    summary = answer.never_fits or diagnosis.summary
    title = answer.asked or answer.subject
    lines = [f"{title} {headline}: {summary or diagnosis.message}"]
    if answer.outage:
        lines.append(f"  scheduler: {answer.outage}")
    if title != answer.subject:
        lines.append(f"  group:   {answer.subject.kind} {answer.subject.name}")
    if diagnosis.state not in _HEADLINES:
        lines.append(f"  reason:  {diagnosis.state}")
    if diagnosis.preempted:
        lines.append(f"  history: {diagnosis.preempted}, waiting")
    if answer.expected and diagnosis.pending:
        lines.append(f"  start:   {answer.expected.describe(answer.now)}")
    if summary not in ("", diagnosis.message):
        lines.append(f"  message: {diagnosis.message}")
    if answer.is_group and (diagnosis.bound or diagnosis.pending):
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
    lines += [f"  volumes: {text}" for text in diagnosis.claims if text not in diagnosis.message]
    if diagnosis.evidence:
        lines += _capacity_tables(diagnosis.evidence, "members" if answer.is_group else "pods")
    return "\n".join([*lines, *_fix_lines(diagnosis)])


def _evidence_data(evidence: CapacityEvidence) -> dict[str, Any]:
    return {
        "topology": evidence.key,
        "needed": evidence.needed,
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
            for row in evidence.rows
        ],
        "more": evidence.more,
        "devices": list(evidence.devices),
    }


def answer_data(answer: WhyAnswer) -> dict[str, Any]:
    """Return an answer with all details as data for JSON and YAML."""
    subject, diagnosis = answer.subject, answer.diagnosis
    return {
        "kind": subject.kind,
        "namespace": subject.namespace,
        "name": subject.name,
        "state": diagnosis.state,
        "neverFits": bool(answer.never_fits),
        "summary": answer.never_fits or diagnosis.summary or diagnosis.message,
        "message": diagnosis.message,
        "bound": diagnosis.bound,
        "pending": diagnosis.pending,
        "preempted": diagnosis.preempted or None,
        "claims": list(diagnosis.claims),
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
        "evidence": diagnosis.evidence and _evidence_data(diagnosis.evidence),
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
    } | start_data(answer.expected)


def _fix_lines(diagnosis: Diagnosis) -> Iterator[str]:
    verified = [cure.text for cure in diagnosis.cures if cure.is_verified]
    unverified = [cure.text for cure in diagnosis.cures if not cure.is_verified]
    if verified:
        yield "Possible fixes (verified):"
        yield from (f"  - {text}" for text in verified)
    if unverified:
        is_partial = diagnosis.state != OTHER_SCHEDULER
        yield f"Possible {'partial ' if is_partial else ''}fixes (not verified):"
        yield from (f"  - {text}" for text in unverified[:_MAX_UNVERIFIED])
    if diagnosis.is_cut_short:
        yield f"The search stopped after {diagnosis.decisions} decisions: smaller fixes may exist."


def _capacity_tables(evidence: CapacityEvidence, noun: str) -> Iterator[str]:
    """Format a table for each shape of member."""
    level = label_suffix(evidence.key)
    location = f" in one {level}" if level else ""
    header = (level.upper() or "NODE", "NODES", "FIT NOW", "IF EMPTY", "LIMITED BY")
    yield from evidence.devices
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


def _align_table(rows: Sequence[Cells]) -> Iterator[str]:
    """Align the first column to the left and the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, *numbers, limit in rows:
        cells = [n.rjust(width) for n, width in zip(numbers, widths[1:], strict=False)]
        yield "  " + "   ".join([place.ljust(widths[0]), *cells, limit])


@click.command()
@click.argument("what", metavar="KIND/NAME", shell_complete=complete_subject)
@cluster_options
@output_option(TEXT, JSON, YAML)
@configuration_option("KubeSchedulerConfiguration of the scheduler, if it has one.")
def why_command(
    *,
    what: str,
    namespace: str,
    config: Path | None,
    context: str,
    output: str,
    policy: Path | None,
) -> None:
    """Explain why a workload is pending, and list the smallest changes that would let it run.

    KIND is gang, podgroup, compositepodgroup, pod, job, workload, jobset, leaderworkerset,
    deployment, replicaset, statefulset or daemonset; a name alone is that of a gang. Every verified
    fix was tried on a copy of the cluster. A credential for one namespace sees what the scheduler
    has written, without fixes. Changes nothing.

    \b
    Example:
      phalanx why podgroup/train
      phalanx why job/train -n research -o json
    """
    kind, name = parse_subject_argument(what)
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    known = profiles.policies if policy else ()

    async def query(client: Client, default_namespace: str) -> SubjectAnswers:
        subject = SubjectQuery(kind, Key(namespace or default_namespace, name))
        return await answer_subject(client, subject, profiles, known=known, now=WallClock().now())

    found = query_cluster(config, context, query)
    if found.note:
        echo(f"Warning: {found.note}; reasons are those of the scheduler's last attempt", err=True)
    if output == TEXT:
        echo(format_answers(found))
    else:
        items = [
            answer_data(answer) | ({"warning": answer.outage} if answer.outage else {})
            for answer in found.answers
        ]
        data: dict[str, Any] = {"items": items} if found.subject.may_have_several else items[0]
        if found.findings:
            key = "job" if found.subject.kind is JOB else "findings"
            data[key] = [finding.data for finding in found.findings]
        if found.failures:
            data["failures"] = [text.strip() for text in found.failures]
        if found.tree:
            data["tree"] = [row.data for row in found.tree]
        if found.note:
            data["note"] = found.note
        echo(format_structured(data, output))


async def answer_subject(
    client: Client, subject: SubjectQuery, profiles: Profiles = DEFAULT_PROFILES, *,
    known: Collection[str] = (), now: float,
) -> SubjectAnswers:  # fmt: skip
    """Diagnose the groups of a subject, and say if no scheduler is running for them."""
    cluster, answers, note = await _diagnose_subject(client, subject, profiles, now=now)
    findings = await _find_job_findings(client, cluster, subject, answers=answers)
    if any(answer.diagnosis.pending for answer in answers):
        outage = await find_scheduler_outage(client, _waiting_schedulers(cluster, subject), now)
        # Without a scheduler nothing starts.
        answers = [
            answer._replace(outage=outage, expected=None if outage else answer.expected)
            for answer in answers
        ]
    answers = await _mark_other_schedulers(client, cluster, answers, known=known, now=now)
    tree = _build_subject_tree(cluster, subject, answers)
    failures = _find_failures(cluster, subject, findings)
    return SubjectAnswers(subject, answers, findings, failures, tree=tree, note=note)


async def explain_pending(client: Client, what: str, namespace: str) -> str:
    """Return the answer of `phalanx why` as text, for callers that have a client."""
    kind, name = parse_subject_argument(what)
    subject = SubjectQuery(kind, Key(namespace, name))
    cluster, answers, _ = await _diagnose_subject(client, subject, DEFAULT_PROFILES, now=0.0)
    findings = await _find_job_findings(client, cluster, subject, answers=answers)
    answers = await _mark_other_schedulers(client, cluster, answers, now=WallClock().now())
    tree = _build_subject_tree(cluster, subject, answers)
    failures = _find_failures(cluster, subject, findings)
    return format_answers(SubjectAnswers(subject, answers, findings, failures, tree=tree))


def _find_failures(
    cluster: Cluster, subject: SubjectQuery, findings: Iterable[JobFinding]
) -> list[str]:
    """Say how the pods ended if the subject has failed, or retries."""
    if all(finding.type not in (JOB_FAILED, RETRYING) for finding in findings):
        return []
    owner = _find_owner(cluster, subject)
    lines = describe_failed_pods(cluster.objects.pods, owner.kind, owner.key)
    groups = [
        group
        for group in cluster.objects.groups
        if (job := find_job_of(group, cluster.objects.jobs))
        and Ref(JOB.name, *job.metadata.key) == owner.ref
    ]
    return lines or list(describe_unstarted(groups))


def _build_subject_tree(
    cluster: Cluster, subject: SubjectQuery, answers: Sequence[WhyAnswer]
) -> list[GroupRow]:
    return build_tree(cluster, subject, {one.subject: one.diagnosis for one in answers})


async def _diagnose_subject(
    client: Client, subject: SubjectQuery, profiles: Profiles, *, now: float
) -> tuple[Cluster, list[WhyAnswer], str]:
    """Return the cluster, the answer for each group of the subject, and what is not shown."""
    cluster, visibility = await read_library_cluster(
        client, subject.key.namespace, subject.kind, profiles=profiles, now=now
    )
    try:
        subjects = cluster.find(f"{subject.kind.name}/{subject.key.name}", subject.key.namespace)
    except ObjectNotFound as error:
        raise NotFound(str(error)) from None
    answers: list[WhyAnswer] = []
    #: Why an entity would not fit even if nothing else ran, of the entities of several answers.
    impossible: dict[Ref, str] = {}
    with report_scheduler_bugs():
        is_timed = visibility.is_whole and now
        starts = expected_starts(cluster.objects, profiles, now) if is_timed else {}
        for ref in subjects:
            if visibility.is_whole:
                diagnosis = cluster.diagnose(ref)
            else:
                diagnosis = recorded_diagnosis(ref, cluster.objects)
            entity = composite_pod_group_ref(diagnosis.tree) if diagnosis.tree else ref
            # What has an expected start can run.
            is_open = diagnosis.pending > 0 and entity not in starts
            if visibility.is_whole and is_open and entity not in impossible:
                impossible[entity] = describe_impossible(entity, cluster.objects, profiles, now=now)
            never_fits = impossible.get(entity, "") if is_open else ""
            if never_fits and diagnosis.tree:
                # That is about the whole tree, and this answer about a part.
                never_fits = diagnosis.message
            if visibility.is_whole and is_open and diagnosis.state != NOT_READY:
                never_fits = never_fits if cluster.objects.nodes else NO_NODES
            start = starts.get(entity)
            answers.append(
                WhyAnswer(ref, diagnosis, expected=start, now=now, never_fits=never_fits)
            )
    owners = GroupOwners(cluster.objects.groups)
    answers = [_name_groups_by_owner(answer, owners) for answer in answers]
    if len(answers) == 1 and answers[0].is_group:
        answers = [answers[0]._replace(asked=name_subject(cluster, subject, subjects))]
    return cluster, answers, visibility.note


def _name_groups_by_owner(answer: WhyAnswer, owners: GroupOwners) -> WhyAnswer:
    """Return the answer; its messages name groups, such as a preemptor, by their owners."""

    def name(text: str) -> str:
        return owners.name_in(text, answer.subject.namespace)

    found = answer.diagnosis
    diagnosis = replace(
        found,
        message=name(found.message),
        preempted=name(found.preempted),
        pods=tuple(pod._replace(message=name(pod.message)) for pod in found.pods),
    )
    return answer._replace(diagnosis=diagnosis)


async def _mark_other_schedulers(
    client: Client, cluster: Cluster, answers: Sequence[WhyAnswer], *, now: float,
    known: Collection[str] = (),
) -> list[WhyAnswer]:  # fmt: skip
    """Replace the answers about pods of a scheduler that is not Phalanx: it decides about them.

    `known` are the names of a given configuration, which are served.
    """
    names = waiting_schedulers(cluster.objects).difference(known)
    others = await find_other_schedulers(client, names, now)
    rows = list_workloads(cluster.objects) if others else ()
    scheduler_of = {row.ref: row.scheduler for row in rows}
    marked = []
    for answer in answers:
        tree = answer.diagnosis.tree
        entity = composite_pod_group_ref(tree) if tree else answer.subject
        other = others.get(scheduler_of.get(entity, ""))
        is_waiting = other is not None and answer.diagnosis.pending
        marked.append(_describe_other(answer, other) if other and is_waiting else answer)
    return marked


def _describe_other(answer: WhyAnswer, other: OtherScheduler) -> WhyAnswer:
    found = Diagnosis(
        OTHER_SCHEDULER,
        other.message,
        bound=answer.diagnosis.bound,
        pending=answer.diagnosis.pending,
        cures=tuple(map(Cure, other.cures)),
        tree=answer.diagnosis.tree,
    )
    return answer._replace(diagnosis=found, expected=None, never_fits="")


def _waiting_schedulers(cluster: Cluster, subject: SubjectQuery) -> set[str]:
    """Return the scheduler names of the pods without a node in the namespace of the subject."""
    return {
        pod.spec.scheduler_name
        for pod in cluster.objects.pods
        if pod.metadata.namespace == subject.key.namespace and not pod.spec.node_name
    }


async def _find_job_findings(
    client: Client, cluster: Cluster, subject: SubjectQuery, *, answers: Sequence[WhyAnswer]
) -> list[JobFinding]:
    """Return what a Job, JobSet or LeaderWorkerSet itself explains; nothing for other kinds."""
    owner = _find_owner(cluster, subject)
    if owner.kind in TREE_KINDS:
        return await read_set_findings(client, owner.kind, owner.key)
    if owner.kind is not JOB:
        return []
    diagnoses = [answer.diagnosis for answer in answers]
    has_pods = any(diagnosis.bound or diagnosis.pending for diagnosis in diagnoses)
    pods = cluster.objects.pods
    return await read_job_findings(client, owner.key, has_pods=has_pods, pods=pods)


def _find_owner(cluster: Cluster, subject: SubjectQuery) -> SubjectQuery:
    """Return the Job or set whose gang the subject is, or the subject.

    A gang gets the same answer by its own name as by that of its owner.
    """
    if subject.may_have_several or subject.kind is POD:
        return subject
    refs = cluster.find(f"{subject.kind.name}/{subject.key.name}", subject.key.namespace)
    for group in cluster.objects.groups:
        owner = group.metadata.controller
        kinds = [kind for kind in (JOB, *TREE_KINDS) if owner and kind.name == owner.kind]
        if owner is not None and kinds and group_ref(group) in refs:
            return SubjectQuery(kinds[0], Key(subject.key.namespace, owner.name))
    return subject


def format_answers(found: SubjectAnswers) -> str:
    """Format the answers about all groups of a subject as text."""
    subject, parts = found.subject, [finding.text for finding in found.findings]
    parts[:1] = ["\n".join([*parts[:1], *found.failures])] if parts else []
    has_pods = any(row.placed or row.pending for row in found.tree)
    if found.tree and (has_pods or not parts):
        parts.append(format_tree(subject, found.tree))
    # A Job that explains itself needs no "nothing to place", a tree no "is placed".
    hidden: tuple[str, ...] = (EMPTY, FINISHED, FAILED, RETRYING) if parts else ()
    hidden += (PLACED,) if found.tree else ()
    parts += [format_answer(one) for one in found.answers if one.diagnosis.state not in hidden]
    return "\n\n".join(parts) or (
        f"{subject.kind.name} {subject.key} has no pods and no pod groups yet"
    )
