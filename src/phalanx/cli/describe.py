"""`phalanx describe KIND/NAME`: everything about one gang over its life.

cluster, events ─▶ describe_gang ─▶ GangDescription ─▶ text or data

    Job default/train: Completed
      group:     PodGroup train-5c9f7-train-pgt-0-7d4b8, gang of at least 4
      created:   2026-03-01T10:00:00Z (5m ago)
      …
    Members:
      POD           STATE       NODE     STARTED    RAN
      train-0-x2z   Succeeded   node-0   5m ago     60s
    Timeline:
      10:00:00   PodGroup train-…   created
      10:00:01   4 pods             Scheduled: Successfully assigned default/train-0-x2z to node-0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from phalanx.api.batch import FAILED as JOB_FAILED
from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.kinds import EVENT
from phalanx.api.meta import (
    Condition,
    Key,
    Ref,
    find_condition,
    parse_timestamp,
    pod_ref,
    timestamp,
)
from phalanx.api.printing.cells import format_duration
from phalanx.api.resources import pod_requests, sum_amounts
from phalanx.api.scheduling import PREEMPTED, PodGroup
from phalanx.api.wire import Object
from phalanx.cli.cluster_queries import (
    SubjectQuery,
    name_subject,
    parse_subject_argument,
    read_library_cluster,
)
from phalanx.cli.completion import complete_subject
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    EMPTY_CELL,
    JSON,
    TEXT,
    YAML,
    align_columns,
    echo,
    format_structured,
    natural_key,
    output_option,
    pluralize,
)
from phalanx.cli.queue import QueueFilter, list_queue, queue_entry_data
from phalanx.cli.why import SubjectAnswers, answer_subject, format_answers
from phalanx.cli.workload_states import (
    COMPLETED,
    FAILED,
    HELD,
    RUNNING,
    WAITING,
    GroupOwners,
    ListedWorkload,
)
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.library import Cluster, ObjectNotFound, find_owned_pods
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.cluster.pod_shape import format_amount
from phalanx.scheduler.diagnosis.diagnosis import find_job_of
from phalanx.scheduler.diagnosis.queue_order import pods_with_entities

#: What objects say of themselves in the timeline.
CREATED, STARTED = "created", "started"
#: Members and moments that the text lists; JSON and YAML have all of them.
_MAX_MEMBERS, _MAX_MOMENTS = 20, 40
#: Characters of a message in the text of the timeline.
_MAX_MESSAGE = 200
#: What the API server says when pods were preempted, or deleted, before all were bound; and how
#: many seconds later it may say so.
NOT_BOUND, _SAME_PREEMPTION = "no pod of the group was bound", 10.0


class TimelineEntry(NamedTuple):
    """Something that happened to an object of a gang, or to several objects in one second."""

    time: float
    kind: str
    name: str
    #: The reason of an event, or what the object itself says.
    reason: str
    message: str = ""
    #: To how many objects it happened, or how often.
    times: int = 1


@dataclass(frozen=True, slots=True)
class GangDescription:
    """A gang: its row of the queue, its groups and pods, and what happened to it.

    The pods without a group of one owner, such as a Deployment, are described like a gang.
    """

    title: str
    #: Its row of the queue; None if it has no pods, and for several pods without a group.
    entry: ListedWorkload | None
    groups: Sequence[Group]
    pods: Sequence[Pod]
    timeline: Sequence[TimelineEntry]
    now: float
    #: The Job that owns it; None if another object does.
    job: Job | None = None

    @property
    def state(self) -> str:
        """The state of the queue; without a row, what the Job or the pods say."""
        is_suspended = self.job is not None and self.job.spec.suspend
        if is_suspended and (self.entry is None or self.entry.state == HELD):
            return "suspended"
        if self.entry is not None:
            return self.entry.state
        phases = {pod.status.phase for pod in self.pods if pod.is_terminal}
        live = [pod for pod in self.pods if not pod.is_terminal]
        if live:
            return RUNNING if all(pod.occupied_node for pod in live) else WAITING
        return (FAILED if "Failed" in phases else COMPLETED) if phases else "without pods"


@click.command()
@click.argument("what", metavar="KIND/NAME", shell_complete=complete_subject)
@cluster_options
@output_option(TEXT, JSON, YAML)
def describe_command(
    *, what: str, namespace: str, config: Path | None, context: str, output: str
) -> None:
    """Show everything about one gang over its life: state, members, conditions, and a timeline.

    KIND is gang (or podgroup), compositepodgroup, or another one that phalanx why takes.
    The timeline contains the events that the API still has. A gang that waits or
    has failed is explained as by phalanx why. Changes nothing.

    \b
    Example:
      phalanx describe job/train
      phalanx describe gang/train -n research -o json
    """
    kind, name = parse_subject_argument(what)

    async def query(
        client: Client, default_namespace: str
    ) -> tuple[list[GangDescription], SubjectAnswers | None, str, str]:
        subject = SubjectQuery(kind, Key(namespace or default_namespace, name))
        now = WallClock().now()
        found, note = await describe_subject(client, subject, now)
        needs_reason = any(
            one.state not in (RUNNING, COMPLETED) or (one.entry and one.entry.row.pending)
            for one in found
        )
        answers = await answer_subject(client, subject, now=now) if needs_reason else None
        return found, answers, str(subject.ref), note

    descriptions, answers, subject, note = query_cluster(config, context, query)
    why = format_answers(answers) if answers else ""
    if note:
        echo(f"Warning: {note}", err=True)
    if output == TEXT:
        texts = [format_description(one) for one in descriptions]
        echo("\n\n".join([*texts, *([why] if why else [])]) or f"{subject} has no groups and pods")
    else:
        items = [_description_data(one) for one in descriptions]
        given = {name: text for name, text in {"why": why, "note": note}.items() if text}
        echo(format_structured({"items": items} | given, output))


async def describe_subject(
    client: Client, subject: SubjectQuery, now: float
) -> tuple[list[GangDescription], str]:
    """Read the cluster, and describe the gangs behind an object; say what is not shown."""
    namespace = subject.key.namespace
    cluster, visibility = await read_library_cluster(client, namespace, subject.kind, now=now)
    try:
        refs = cluster.find(f"{subject.kind.name}/{subject.key.name}", namespace)
    except ObjectNotFound as error:
        raise NotFound(str(error)) from None
    chosen = QueueFilter(namespace, owner="", states=())
    listing = await list_queue(client, chosen, namespace, now=now, with_ended=True, with_pods=True)
    entries = {entry.row.ref: entry for entry in listing.entries}
    try:
        events: Sequence[Object] = (await client.list(EVENT, namespace=namespace)).items
    except Forbidden:
        events = ()
    title = name_subject(cluster, subject, refs)
    # Pods without a group have the same template; `find` returns the one that explains most.
    owned = find_owned_pods(cluster.objects.pods, subject.ref) if subject.may_have_several else []
    lone = [] if any(pod.group for pod in owned) else owned
    described = [[pod_ref(pod.metadata.key) for pod in lone]] if lone else [[ref] for ref in refs]
    return [
        describe_gang(
            cluster,
            members,
            entries.get(members[0]) if len(members) == 1 else None,
            title=str(title or members[0]),
            events=events,
        )
        for members in described
    ], visibility.note


def describe_gang(
    cluster: Cluster,
    members: Sequence[Ref],
    entry: ListedWorkload | None,
    *,
    title: str,
    events: Sequence[Object] = (),
) -> GangDescription:
    """Collect what the objects and events of a cluster say about one gang, tree or some pods."""
    pods = sorted(
        (
            pod
            for entity, pod in pods_with_entities(cluster.objects)
            if entity in members or _group_of(pod) in members
        ),
        key=lambda pod: natural_key(str(pod.metadata.key)),
    )
    refs = {*members, *(_group_of(pod) for pod in pods)}
    groups = [group for group in cluster.objects.groups if group_ref(group) in refs]
    from_events = list(_event_moments(events, _involved_uids(groups, pods)))
    jobs = [job for group in groups if (job := find_job_of(group, cluster.objects.jobs))]
    # A condition that repeats the message of an event is the same moment.
    messages = {(one.kind, one.name, one.message) for one in from_events if one.message}
    from_objects = [
        one
        for one in (*_object_moments(groups, pods), *_job_moments(jobs[:1]))
        if (one.kind, one.name, one.message) not in messages
    ]
    owners = GroupOwners(cluster.objects.groups)
    preempted = [
        one for group in groups if (one := find_condition(group.status.conditions, PREEMPTED))
    ]
    timeline = [
        one._replace(message=owners.name_in(_with_preemptor(one, preempted), members[0].namespace))
        for one in _merge_moments([*from_objects, *from_events])
    ]
    job = jobs[0] if jobs else None
    return GangDescription(title, entry, groups, pods, timeline, cluster.now, job)


def _with_preemptor(moment: TimelineEntry, preempted: Sequence[Condition]) -> str:
    """Return a message; one about pods that could not be bound says what has preempted them."""
    for condition in preempted:
        since = _parse(condition.last_transition_time or "")
        if NOT_BOUND in moment.message and abs(moment.time - since) <= _SAME_PREEMPTION:
            return f"{condition.message}: {moment.message}"
    return moment.message


def _group_of(pod: Pod) -> Ref | None:
    return Ref("PodGroup", *pod.group) if pod.group else None


def _involved_uids(groups: Iterable[Group], pods: Iterable[Pod]) -> set[str]:
    """Return the uids of the objects of a gang and of the controllers that own them."""
    uids = set()
    for metadata in (*(one.metadata for one in groups), *(one.metadata for one in pods)):
        uids |= {metadata.uid, *(owner.uid for owner in metadata.owner_references)}
    return uids


def _object_moments(groups: Iterable[Group], pods: Iterable[Pod]) -> Iterator[TimelineEntry]:
    """What the objects themselves say: creation, conditions of the groups, ends of pods."""
    for group in groups:
        subject = (group_ref(group).kind, group.metadata.name)
        yield TimelineEntry(_parse(group.metadata.creation_timestamp), *subject, CREATED)
        # PodGroupInitiallyScheduled says the same as PodGroupScheduled until the group is placed.
        conditions = {(one.status, one.reason, one.message): one for one in group.status.conditions}
        for condition in conditions.values():
            if condition.last_transition_time:
                reason = f"{condition.type}={condition.status} {condition.reason}".rstrip()
                time = _parse(condition.last_transition_time)
                yield TimelineEntry(time, *subject, reason, condition.message)
    for pod in pods:
        subject = ("Pod", pod.metadata.name)
        yield TimelineEntry(_parse(pod.metadata.creation_timestamp), *subject, CREATED)
        if pod.status.start_time:
            yield TimelineEntry(_parse(pod.status.start_time), *subject, STARTED)
        if pod.is_terminal and pod.finish_time is not None:
            yield TimelineEntry(pod.finish_time, *subject, pod.status.phase.lower())


def _job_moments(jobs: Iterable[Job]) -> Iterator[TimelineEntry]:
    """What a Job says of its failure: the event about it may be gone."""
    for job in jobs:
        condition = job.true_condition(JOB_FAILED)
        if condition is not None and condition.last_transition_time:
            time = _parse(condition.last_transition_time)
            reason = f"{JOB_FAILED}=True {condition.reason}"
            yield TimelineEntry(time, "Job", job.metadata.name, reason, condition.message)


def _event_moments(events: Iterable[Object], uids: set[str]) -> Iterator[TimelineEntry]:
    for event in events:
        involved = event.get("involvedObject") or {}
        time = event.get("lastTimestamp") or event.get("eventTime")
        if involved.get("uid") in uids and time:
            subject = (involved.get("kind", ""), involved.get("name", ""))
            texts = (event.get("reason") or "", event.get("message") or "")
            yield TimelineEntry(_parse(time), *subject, *texts)


def _merge_moments(moments: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Order moments by time; what happened several times in one second becomes one entry.

    Times are whole seconds: within one, causes come before their effects.
    """
    merged: dict[tuple[int, str, str], TimelineEntry] = {}
    for moment in sorted(moments, key=lambda one: (int(one.time), _order_in_second(one))):
        key = (int(moment.time), moment.kind, moment.reason)
        earlier = merged.setdefault(key, moment._replace(times=0))
        merged[key] = earlier._replace(times=earlier.times + 1)
    return list(merged.values())


def _order_in_second(moment: TimelineEntry) -> int:
    """Return the place of a moment among those of the same second."""
    if moment.kind == "Pod":
        return {CREATED: 3, STARTED: 6, "succeeded": 7, "failed": 7}.get(moment.reason, 5)
    if moment.kind in ("PodGroup", "CompositePodGroup"):
        return 2 if moment.reason == CREATED else 4
    # Controllers create groups, then pods, and react to what became of them.
    return {"WorkloadCreated": 0, "PodGroupCreated": 1, "SuccessfulCreate": 3}.get(moment.reason, 8)


def _parse(time: str) -> float:
    return parse_timestamp(time) if time else 0.0


def format_description(description: GangDescription) -> str:
    """Format a description as text."""
    lines = [f"{description.title}: {description.state.capitalize()}"]
    lines += [f"  {name + ':':<12}{text}" for name, text in _facts(description)]
    if description.pods:
        header = ("POD", "STATE", "NODE", "STARTED", "RAN")
        cells = [_member_cells(pod, description.now) for pod in description.pods[:_MAX_MEMBERS]]
        lines += ["Members:", *(f"  {line}" for line in align_columns([header, *cells]))]
        if more := len(description.pods) - _MAX_MEMBERS:
            lines += [f"  … and {more} more"] if more > 0 else []
    if description.timeline:
        skipped = max(len(description.timeline) - _MAX_MOMENTS, 0)
        rows = [_moment_cells(one) for one in description.timeline[skipped:]]
        lines += ["Timeline:", *([f"  … {skipped} earlier"] if skipped else [])]
        lines += [f"  {line}" for line in align_columns(rows)]
    return "\n".join(lines)


def _facts(description: GangDescription) -> Iterator[tuple[str, str]]:
    """The lines at the top: a name and a text each."""
    now = description.now
    for group in description.groups:
        yield "group", _describe_group(group)
    if description.entry is None:
        yield from _facts_of_objects(description)
        return
    row = description.entry.row
    yield "created", f"{timestamp(row.created)} ({_ago(row.created, now)})"
    if row.started_at is not None:
        waited = format_duration(max(row.started_at - row.created, 0))
        yield (
            "started",
            f"{timestamp(row.started_at)} ({_ago(row.started_at, now)}), waited {waited}",
        )
    if row.ended_at is not None:
        ran = format_duration(row.ended_at - (row.started_at or row.ended_at))
        end = f", {row.reason}" if row.reason else ""
        yield "ended", f"{timestamp(row.ended_at)} ({_ago(row.ended_at, now)}), ran {ran}{end}"
    if row.preemptions or row.preempted:
        last = f", last {row.preempted.removeprefix('preempted ')}" if row.preempted else ""
        yield "preempted", f"{pluralize(row.preemptions, 'time')}{last}"
    if row.position:
        yield "queue", f"position {row.position}, reason {row.reason}"
    members = f"{row.placed} with a node, {row.pending} pending, {row.ended - row.failed} succeeded"
    # The pods of a Job that exceeds its deadline are deleted before they end.
    failed = min(sum(pod.status.phase == "Failed" for pod in description.pods), row.failed)
    deleted = f", {row.failed - failed} deleted" if row.failed > failed else ""
    yield "members", f"{members}, {failed} failed{deleted}; {row.needed} needed"
    if description.pods:
        yield "requests", _describe_requests(description.pods)
        yield "scheduler", f"{row.scheduler}, priority {row.priority}"
    if row.user:
        yield "user", row.user


def _facts_of_objects(description: GangDescription) -> Iterator[tuple[str, str]]:
    """The lines about a gang without pods, or about several pods without a group."""
    pods, now = description.pods, description.now
    metas = [one.metadata for one in (*description.groups, *pods)]
    times = sorted(_parse(meta.creation_timestamp) for meta in metas)
    if times:
        yield "created", f"{timestamp(times[0])} ({_ago(times[0], now)})"
    live = [pod for pod in pods if not pod.is_terminal]
    placed = sum(bool(pod.occupied_node) for pod in live)
    counts = Counter(pod.status.phase for pod in pods)
    text = f"{placed} with a node, {len(live) - placed} pending, "
    text += f"{counts['Succeeded']} succeeded, {counts['Failed']} failed"
    yield "members", text if pods else "none: no pod exists"
    if pods:
        yield "requests", _describe_requests(pods)
        yield "scheduler", f"{pods[0].spec.scheduler_name}, priority {pods[0].spec.priority}"


def _describe_group(group: Group) -> str:
    text = f"{group_ref(group).kind} {group.metadata.name}"
    if isinstance(group, PodGroup):
        text += f", gang of at least {group.min_count}" if group.is_gang else ", basic"
    else:
        gang = group.spec.scheduling_policy.gang
        text += f", at least {gang.min_group_count} groups" if gang else ", basic"
    constraints = group.spec.scheduling_constraints
    for topology in constraints.topology if constraints else ():
        text += f", in one {topology.key}"
    return text


def _describe_requests(pods: Sequence[Pod]) -> str:
    """Sum up what the members request, by shape, and in total."""
    shapes: Counter[str] = Counter()
    for pod in pods:
        text, claims = _format_amounts(pod_requests(pod)), len(pod.spec.resource_claims)
        shapes[f"{text} and {pluralize(claims, 'resource claim')}" if claims else text] += 1
    parts = [f"{pluralize(count, 'pod')} of {text}" for text, count in shapes.items()]
    total = _format_amounts(sum_amounts(pod_requests(pod) for pod in pods))
    return "; ".join(parts) + (f" (together {total})" if len(pods) > 1 else "")


def _format_amounts(amounts: Mapping[str, int]) -> str:
    texts = [format_amount(*one) for one in sorted(amounts.items()) if one[0] != "pods"]
    return ", ".join(texts) or "no resources"


def _member_cells(pod: Pod, now: float) -> tuple[str, ...]:
    start = _parse(pod.status.start_time) if pod.status.start_time else None
    end = pod.finish_time if pod.is_terminal else None
    until = end if end is not None else now
    return (
        pod.metadata.name,
        _member_state(pod),
        pod.spec.node_name or EMPTY_CELL,
        _ago(start, now) if start is not None else EMPTY_CELL,
        format_duration(max(until - start, 0)) if start is not None else EMPTY_CELL,
    )


def _member_state(pod: Pod) -> str:
    """Return the phase of a pod, with the reason or the exit code of a container that failed."""
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    code = pod.failed_exit_code
    end = pod.status.reason or (str(code) if code is not None else "")
    return f"{pod.status.phase} ({end})" if end else pod.status.phase


def _moment_cells(moment: TimelineEntry) -> tuple[str, str, str]:
    message = _shorten(moment.message)
    text = f"{moment.reason}: {message}" if message else moment.reason
    if moment.kind == "Pod":
        return (
            timestamp(moment.time),
            moment.name if moment.times == 1 else pluralize(moment.times, "pod"),
            text,
        )
    return timestamp(moment.time), moment.kind, text + _repeated(moment.times)


def _shorten(message: str) -> str:
    """Shorten a message that lists many refusals; JSON and YAML have all of it."""
    if len(message) <= _MAX_MESSAGE:
        return message
    first, *others = message.split(", bindings[")
    if others:
        return f"{first[:_MAX_MESSAGE]} and {len(others)} more".replace("[bindings[", "bindings[")
    return f"{message[:_MAX_MESSAGE].rstrip()}…"


def _repeated(times: int) -> str:
    return f" ({times} times)" if times > 1 else ""


def _ago(time: float, now: float) -> str:
    return f"{format_duration(max(now - time, 0))} ago"


def _description_data(description: GangDescription) -> Mapping[str, Any]:
    entry = description.entry
    return {
        "title": description.title,
        "state": description.state,
        "gang": queue_entry_data(*entry, now=description.now) if entry else None,
        "groups": [
            {
                "kind": group_ref(group).kind,
                "name": group.metadata.name,
                "conditions": [
                    {"type": one.type, "status": one.status, "reason": one.reason,
                     "message": one.message, "since": one.last_transition_time}
                    for one in group.status.conditions
                ],
            }
            for group in description.groups
        ],
        "members": [
            {
                "name": pod.metadata.name,
                "phase": pod.status.phase,
                "node": pod.spec.node_name or None,
                "startedAt": pod.status.start_time,
                "endedAt": None if pod.finish_time is None else timestamp(pod.finish_time),
            }
            for pod in description.pods
        ],
        "timeline": [
            {"time": timestamp(one.time), "kind": one.kind, "name": one.name,
             "reason": one.reason, "message": one.message, "times": one.times}
            for one in description.timeline
        ],
    }  # fmt: skip
