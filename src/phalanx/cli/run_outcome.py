"""The result of `phalanx run`: which gangs ran, on which nodes, and why the others did not run.

`RunHistory` and `InterruptionCounter` observe the gangs while they run; `RunOutcome` is the result,
formatted as text, or as data for JSON and YAML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.api.core import Pod
from phalanx.api.meta import Ref, find_condition
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.cli.cluster_file import LEVEL_LABELS
from phalanx.cli.output import INTERRUPTED, join_names, pluralize
from phalanx.scheduler.diagnosis.queue_order import (
    WorkloadRow,
    WorkloadState,
    pods_with_entities,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: Nodes of a gang, and gangs that did not finish, that the summary names.
_MAX_NODE_NAMES, _MAX_GANG_NAMES = 8, 3
#: Topology levels, the smallest first, whose domain the summary names if it contains a whole gang.
_DOMAIN_LABELS = tuple(LEVEL_LABELS[name] for name in ("rack", "block", "zone", "region"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of a run: which gangs ran and where, and why the others did not."""

    gangs: Sequence[WorkloadRow]
    #: The nodes of each gang's pods, ended pods included, with the number of pods.
    nodes: Mapping[Ref, Counter[str]]
    #: The smallest topology domain that contains a gang, such as `rack-0-1`; "" if none does.
    domains: Mapping[Ref, str]
    seconds: float
    timed_out: bool
    #: The time limit of the run in seconds; 0: none.
    limit: float = 0.0
    #: Whether ^C ended the run.
    is_interrupted: bool = False
    #: How often each gang lost running members and had to wait again.
    interruptions: Mapping[Ref, int] = field(default_factory=dict)
    #: Jobs that failed or got no pods, each with its reason.
    failed_jobs: Mapping[str, str] = field(default_factory=dict)
    #: What `phalanx why` says about gangs that wait at the end.
    explanations: Sequence[str] = ()
    #: Log lines of containers, if the command asked for them.
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Return whether all gangs ran and no Job failed, before the run was ended."""
        was_ended = self.timed_out or self.is_interrupted
        return not was_ended and not self.failed_jobs and all(gang.has_run for gang in self.gangs)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 after a success, 130 after ^C, otherwise 1."""
        if self.is_interrupted:
            return INTERRUPTED
        return 0 if self.is_success else 1


class InterruptionCounter(Counter[Ref]):
    """Counts how often each gang lost running members, from a series of observations."""

    def __init__(self) -> None:
        super().__init__()
        self._running_pods: dict[Ref, set[str]] = {}

    def observe(self, cluster: ClusterObjects, ended: Iterable[Ref] = ()) -> None:
        """Count the gangs whose running members are deleted or disrupted since the last call.

        The members of an `ended` gang are deleted because it needs them no longer.
        """
        pods = pods_with_entities(cluster)
        for ref in ended:
            self._running_pods.pop(ref, None)
        undisrupted = {pod.metadata.uid for _, pod in pods if not _is_disrupted(pod)}
        for ref, uids in list(self._running_pods.items()):
            if uids - undisrupted:
                self[ref] += 1
                del self._running_pods[ref]
        for ref, pod in pods:
            running = self._running_pods.setdefault(ref, set())
            if pod.is_terminal:
                running.discard(pod.metadata.uid)
            elif pod.occupied_node and pod.metadata.uid in undisrupted:
                running.add(pod.metadata.uid)


@dataclass(frozen=True, slots=True)
class _RanGang:
    """A gang that ran, with the UIDs of the pods that ran, their nodes and common domain."""

    row: WorkloadRow
    uids: frozenset[str]
    nodes: Counter[str]
    domain: str


class RunHistory:
    """Remembers the gangs that ran, with their nodes, for when their pods are deleted at the end.

    The success policy of a JobSet deletes its other Jobs, and a TTL a whole Job. The pods are
    deleted one after the other: a gang counts with the most pods that were seen.
    """

    def __init__(self) -> None:
        self._ran: dict[Ref, _RanGang] = {}
        self._ended: set[Ref] = set()

    def observe(self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]) -> None:
        """Remember the gangs that run or have run now."""
        nodes, domains = gang_placements(cluster)
        uids = _pods_that_ran(cluster)
        for gang in gangs:
            ref = gang.ref
            # Members also leave a gang that shrinks, but before the first of them ends.
            is_cut = gang.ended > 0 and self._lacks_pods(gang, uids)
            if gang.has_run and ref in nodes and not is_cut:
                ran = frozenset(uids.get(ref, ()))
                self._ran[ref] = _RanGang(gang, ran, nodes[ref], domains[ref])
            is_ended = gang.state is WorkloadState.ENDED
            (self._ended.add if is_ended else self._ended.discard)(gang.ref)

    def note_end(self, namespace: str, title: str) -> set[Ref]:
        """Remember that an owner is complete; return its gangs that ran: they have ended."""
        owned = {
            ref
            for ref, ran in self._ran.items()
            if (ref.namespace, ran.row.title) == (namespace, title)
        }
        self._ended |= owned
        return owned

    def restore(
        self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]
    ) -> tuple[list[WorkloadRow], dict[Ref, Counter[str]], dict[Ref, str]]:
        """Return all gangs, with nodes and domains; ended ones as they were with all their pods."""
        rows = {gang.ref: gang for gang in gangs}
        titles = {(gang.ref.namespace, gang.title) for gang in gangs}
        nodes, domains = gang_placements(cluster)
        uids = _pods_that_ran(cluster)
        for ref, ran in self._ran.items():
            row = rows.get(ref)
            if row is not None:
                lacks_pods = not row.has_run or self._lacks_pods(row, uids)
                is_cut = row.state is WorkloadState.ENDED and not row.failed and lacks_pods
            else:
                # The next attempt of a restarted owner has other groups under the same title.
                is_cut = ref in self._ended and (ref.namespace, ran.row.title) not in titles
            if is_cut:
                ended = ran.row.started + ran.row.ended
                rows[ref] = replace(
                    ran.row, state=WorkloadState.ENDED, started=0, placed=0, ended=ended
                )
                nodes[ref], domains[ref] = ran.nodes, ran.domain
        return list(rows.values()), nodes, domains

    def _lacks_pods(self, gang: WorkloadRow, uids: Mapping[Ref, set[str]]) -> bool:
        """Whether all its pods that ran are remembered, and others are that it has no longer."""
        ran = self._ran.get(gang.ref)
        return ran is not None and not gang.failed and uids.get(gang.ref, set()) < ran.uids


def _pods_that_ran(cluster: ClusterObjects) -> dict[Ref, set[str]]:
    """Return the UIDs of each gang's pods that run or have ended."""
    uids: dict[Ref, set[str]] = {}
    for ref, pod in pods_with_entities(cluster):
        if pod.is_terminal or pod.status.phase == "Running":
            uids.setdefault(ref, set()).add(pod.metadata.uid)
    return uids


def _is_disrupted(pod: Pod) -> bool:
    condition = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return condition is not None and condition.status == "True"


def gang_placements(
    cluster: ClusterObjects,
) -> tuple[dict[Ref, Counter[str]], dict[Ref, str]]:
    """Return the nodes of each gang's pods and the smallest domain that contains them."""
    nodes: dict[Ref, Counter[str]] = {}
    for ref, pod in pods_with_entities(cluster):
        if pod.spec.node_name:
            nodes.setdefault(ref, Counter())[pod.spec.node_name] += 1
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    return nodes, {
        ref: _common_domain([labels.get(name, {}) for name in names])
        for ref, names in nodes.items()
    }


def _common_domain(labels: Sequence[Mapping[str, str]]) -> str:
    for level in _DOMAIN_LABELS:
        values = {node_labels.get(level, "") for node_labels in labels}
        if len(values) == 1 and values != {""}:
            return values.pop()
    return ""


def describe_state(gang: WorkloadRow) -> str:
    """Describe the state of a gang in a few words."""
    members = f"{gang.started + gang.ended}/{gang.members}"
    match gang.state:
        case WorkloadState.ENDED:
            failed = f", {gang.failed} failed" if gang.failed else ""
            return f"ended {members}{failed}"
        case WorkloadState.RUNNING:
            return f"running {members} on {pluralize(len(gang.nodes), 'node')}"
        case _:
            return f"{gang.state.value} {members}: {gang.summary or gang.message}"


def format_summary(outcome: RunOutcome) -> str:
    """Format an outcome as text: one sentence, then a line for each gang."""
    gangs = sorted(outcome.gangs, key=lambda gang: (gang.title, gang.part, gang.ref))
    ran = sum(gang.has_run for gang in gangs)
    failed = sum(gang.failed > 0 and not gang.has_run for gang in gangs)
    others = f"{failed} failed, {len(gangs) - ran - failed} did not run" if failed else ""
    width = max((len(gang.display_title) for gang in gangs), default=0)
    lines = [
        f"{pluralize(ran, 'gang')} ran, {others or f'{len(gangs) - ran} did not'}, "
        f"in {outcome.seconds:.1f} s",
        *(
            f"  {gang.display_title.ljust(width)}  {_describe_gang(outcome, gang)}"
            for gang in gangs
        ),
        *(f"  {name} {reason}" for name, reason in outcome.failed_jobs.items()),
    ]
    if outcome.timed_out:
        running = [gang.display_title for gang in gangs if gang.state is WorkloadState.RUNNING]
        subject = f"{join_names(running, _MAX_GANG_NAMES)} ran but" if running else "the run"
        time = f"{outcome.limit:g} s"
        lines.append(f"  {subject} did not finish within {time}; allow more time with --timeout")
    if outcome.is_interrupted:
        lines.append("  interrupted: this is what had happened until then")
    for text in outcome.explanations:
        lines += ["", text]
    lines += [f"{name} | {line}" for name, text in outcome.logs.items() for line in text]
    return "\n".join(lines)


def _describe_gang(outcome: RunOutcome, gang: WorkloadRow) -> str:
    if not gang.has_run or gang.ref not in outcome.nodes:
        return describe_state(gang)
    text = f"{gang.state.value} {gang.started + gang.ended}/{gang.members}"
    if gang.failed:
        text += f", {gang.failed} failed"
    nodes = [f"{name} ({count})" for name, count in sorted(outcome.nodes[gang.ref].items())]
    text += f" on {join_names(nodes, _MAX_NODE_NAMES)}"
    if domain := outcome.domains.get(gang.ref):
        text += f" in {domain}"
    if times := outcome.interruptions.get(gang.ref, 0):
        text += f", interrupted {pluralize(times, 'time')}"
    return text


def outcome_data(outcome: RunOutcome) -> dict[str, Any]:
    """Return an outcome as data for JSON and YAML."""
    items = [
        {
            "kind": gang.kind,
            "namespace": gang.ref.namespace,
            "name": gang.ref.name,
            "owner": gang.owner,
            "state": gang.state.value,
            "ran": gang.has_run,
            "members": gang.members,
            "started": gang.started,
            "ended": gang.ended,
            "failed": gang.failed,
            "nodes": sorted(outcome.nodes.get(gang.ref, ())),
            "domain": outcome.domains.get(gang.ref, ""),
            "madeWay": outcome.interruptions.get(gang.ref, 0),
            "reason": gang.reason,
            "message": gang.message,
        }
        for gang in outcome.gangs
    ]
    data = {
        "ran": outcome.is_success,
        "seconds": round(outcome.seconds, 3),
        "timedOut": outcome.timed_out,
        "interrupted": outcome.is_interrupted,
        "failedJobs": dict(outcome.failed_jobs),
        "items": items,
    }
    return {**data, "logs": dict(outcome.logs)} if outcome.logs else data
