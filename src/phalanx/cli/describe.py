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

from phalanx.api.core import Pod
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.kinds import EVENT
from phalanx.api.meta import Key, Ref, parse_timestamp, timestamp
from phalanx.api.printing.cells import format_duration
from phalanx.api.resources import pod_requests, sum_amounts
from phalanx.api.scheduling import PodGroup
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
from phalanx.cli.workload_states import FAILED, ListedWorkload
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.library import Cluster, ObjectNotFound
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.cluster.pod_shape import format_amount
from phalanx.scheduler.diagnosis.queue_order import pods_with_entities

#: What objects say of themselves in the timeline.
CREATED, STARTED = "created", "started"
#: Members and moments that the text lists; JSON and YAML have all of them.
_MAX_MEMBERS, _MAX_MOMENTS = 20, 40


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
    """A gang: its row of the queue, its groups and pods, and what happened to it."""

    title: str
    entry: ListedWorkload | None
    groups: Sequence[Group]
    pods: Sequence[Pod]
    timeline: Sequence[TimelineEntry]
    now: float


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
    ) -> tuple[list[GangDescription], SubjectAnswers | None, str]:
        subject = SubjectQuery(kind, Key(namespace or default_namespace, name))
        now = WallClock().now()
        found = await describe_subject(client, subject, now)
        needs_reason = any(
            one.entry and (one.entry.row.pending or one.entry.state == FAILED) for one in found
        )
        answers = await answer_subject(client, subject, now=now) if needs_reason else None
        return found, answers, str(subject.ref)

    descriptions, answers, subject = query_cluster(config, context, query)
    why = format_answers(answers) if answers else ""
    if output == TEXT:
        texts = [format_description(one) for one in descriptions]
        echo("\n\n".join([*texts, *([why] if why else [])]) or f"{subject} has no groups and pods")
    else:
        items = [_description_data(one) for one in descriptions]
        echo(format_structured({"items": items} | ({"why": why} if why else {}), output))


async def describe_subject(
    client: Client, subject: SubjectQuery, now: float
) -> list[GangDescription]:
    """Read the cluster, and describe the gangs behind an object."""
    namespace = subject.key.namespace
    cluster, _ = await read_library_cluster(client, namespace, subject.kind, now=now)
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
    return [
        describe_gang(cluster, ref, entries.get(ref), title=str(title or ref), events=events)
        for ref in refs
    ]


def describe_gang(
    cluster: Cluster,
    ref: Ref,
    entry: ListedWorkload | None,
    *,
    title: str,
    events: Sequence[Object] = (),
) -> GangDescription:
    """Collect what the objects and events of a cluster say about one gang, tree or pod."""
    pods = sorted(
        (
            pod
            for entity, pod in pods_with_entities(cluster.objects)
            if ref in (entity, _group_of(pod))
        ),
        key=lambda pod: natural_key(str(pod.metadata.key)),
    )
    refs = {ref, *(_group_of(pod) for pod in pods)}
    groups = [group for group in cluster.objects.groups if group_ref(group) in refs]
    from_events = list(_event_moments(events, _involved_uids(groups, pods)))
    # A condition that repeats the message of an event is the same moment.
    messages = {(one.kind, one.name, one.message) for one in from_events if one.message}
    from_objects = [
        one
        for one in _object_moments(groups, pods)
        if (one.kind, one.name, one.message) not in messages
    ]
    timeline = _merge_moments([*from_objects, *from_events])
    return GangDescription(title, entry, groups, pods, timeline, cluster.now)


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
    entry = description.entry
    state = entry.state.capitalize() if entry else "Unknown"
    lines = [f"{description.title}: {state}"]
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
    yield "members", f"{members}, {row.failed} failed; {row.needed} needed"
    if description.pods:
        yield "requests", _describe_requests(description.pods)
        yield "scheduler", f"{row.scheduler}, priority {row.priority}"
    if row.user:
        yield "user", row.user


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
    text = f"{moment.reason}: {moment.message}" if moment.message else moment.reason
    if moment.kind == "Pod":
        return (
            timestamp(moment.time),
            moment.name if moment.times == 1 else pluralize(moment.times, "pod"),
            text,
        )
    return timestamp(moment.time), moment.kind, text + _repeated(moment.times)


def _repeated(times: int) -> str:
    return f" ({times} times)" if times > 1 else ""


def _ago(time: float, now: float) -> str:
    return f"{format_duration(max(now - time, 0))} ago"


def _description_data(description: GangDescription) -> Mapping[str, Any]:
    entry = description.entry
    return {
        "title": description.title,
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
