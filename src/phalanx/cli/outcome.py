"""Outcome: how a run went, in words for people and as data for programs.

`phalanx run` follows what happens and makes one at the end. Which gangs ran, where, how often each
had to make way for others, and why those did not run that did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.core import Pod
from phalanx.api.meta import condition
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.cli.paper import counted
from phalanx.cli.pools import LEVELS
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.asking.lineup import Lined, Standing, homes
from phalanx.scheduler.queueing.entry import Id

#: How many nodes are named.
_NAMED = 8
#: Domains, the smallest first, in which a gang may be as a whole.
_DOMAINS = tuple(LEVELS[name] for name in ("rack", "block", "zone", "region"))


@dataclass(frozen=True, slots=True)
class End:
    """How it went."""

    lines: Sequence[Lined]
    #: The nodes that its pods are or were on, with how many, of each gang.
    nodes: Mapping[Id, Counter[str]]
    #: Where all of them lie, such as `rack-0-1`; "" if nowhere smaller than the cluster.
    domains: Mapping[Id, str]
    seconds: float
    is_late: bool
    #: How often each gang ran and then had to wait again.
    setbacks: Mapping[Id, int] = field(default_factory=dict)
    #: Jobs that came to a bad end, each with its reason.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: What containers wrote, line by line, if that was asked for.
    written: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether all ran."""
        return all(line.has_run for line in self.lines) and not self.is_late and not self.failed


class Setbacks(Counter[Id]):
    """How often gangs were at work and lost members that had not ended, by looking now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._at_work: dict[Id, set[str]] = {}

    def look(self, cluster: Cluster) -> None:
        """Note who has lost members since the last look: they are gone, or were driven off."""
        pods = homes(cluster)
        left = {pod.metadata.uid for _, pod in pods if not _is_driven_off(pod)}
        for id_, uids in list(self._at_work.items()):
            if uids - left:
                self[id_] += 1
                del self._at_work[id_]
        for id_, pod in pods:
            at_work = self._at_work.setdefault(id_, set())
            if pod.ended:
                at_work.discard(pod.metadata.uid)
            elif pod.node and pod.metadata.uid in left:
                at_work.add(pod.metadata.uid)


def _is_driven_off(pod: Pod) -> bool:
    said = condition(pod.status.conditions, DISRUPTION_TARGET)
    return said is not None and said.status == "True"


def places(cluster: Cluster) -> tuple[dict[Id, Counter[str]], dict[Id, str]]:
    """The nodes of each gang, of ended pods too, and the domain in which all of them lie."""
    nodes: dict[Id, Counter[str]] = {}
    for id_, pod in homes(cluster):
        if pod.spec.node_name:
            nodes.setdefault(id_, Counter())[pod.spec.node_name] += 1
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    return nodes, {id_: _domain([labels.get(n, {}) for n in on]) for id_, on in nodes.items()}


def _domain(labels: Sequence[Mapping[str, str]]) -> str:
    """The smallest domain that all nodes of these labels are in."""
    found = ({one.get(level, "") for one in labels} for level in _DOMAINS)
    return next((values.pop() for values in found if len(values) == 1 and values != {""}), "")


def state(line: Lined) -> str:
    """How it is about a gang, in a few words."""
    members = f"{line.started + line.ended}/{line.members}"
    match line.standing:
        case Standing.ENDED:
            failed = f", {line.failed} failed" if line.failed else ""
            return f"ended {members}{failed}"
        case Standing.RUNNING:
            return f"running {members} on {counted(len(line.nodes), 'node')}"
        case _:
            return f"{line.standing.value} {members}: {line.message}"


def summary(end: End) -> str:
    """How it went: one sentence, and a line for each gang."""
    return "\n".join(_told(end))


def _told(end: End) -> Iterator[str]:
    ran = sum(line.has_run for line in end.lines)
    yield f"{counted(ran, 'gang')} ran, {len(end.lines) - ran} did not, in {end.seconds:.1f} s"
    width = max((len(line.title) for line in end.lines), default=0)
    for line in sorted(end.lines, key=lambda line: (line.title, line.id)):
        yield f"  {line.title.ljust(width)}  {_fate(end, line)}"
    yield from (f"  {name} {why}" for name, why in end.failed.items())
    if end.is_late:
        yield "  it took too long; give it more with --timeout"
    yield from (f"{name} | {line}" for name, text in end.written.items() for line in text)


def _fate(end: End, line: Lined) -> str:
    if not line.has_run or line.id not in end.nodes:
        return state(line)
    done = f"{line.standing.value} {line.started + line.ended}/{line.members}"
    failed = f", {line.failed} failed" if line.failed else ""
    times = end.setbacks.get(line.id, 0)
    again = f", after it had made way {_times(times)}" if times else ""
    return f"{done}{failed} on {_where(end, line.id)}{again}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _where(end: End, id_: Id) -> str:
    nodes = sorted(end.nodes[id_].items())
    named = ", ".join(f"{name} ({count})" for name, count in nodes[:_NAMED])
    more = f" and {counted(len(nodes) - _NAMED, 'more node')}" if len(nodes) > _NAMED else ""
    inside = f" in {end.domains[id_]}" if end.domains.get(id_) else ""
    return f"{named}{more}{inside}"


def data(end: End) -> dict[str, Any]:
    """The same for programs."""
    return {
        "ran": end.is_well, "seconds": round(end.seconds, 3), "timedOut": end.is_late,
        "failedJobs": dict(end.failed),
        "items": [
            {"kind": line.kind, "namespace": line.id.key.namespace, "name": line.id.key.name,
             "owner": line.owner, "state": line.standing.value, "ran": line.has_run,
             "members": line.members, "started": line.started, "ended": line.ended,
             "failed": line.failed, "nodes": sorted(end.nodes.get(line.id, ())),
             "domain": end.domains.get(line.id, ""), "madeWay": end.setbacks.get(line.id, 0),
             "reason": line.reason, "message": line.message}
            for line in end.lines
        ],
        **({"logs": dict(end.written)} if end.written else {}),
    }  # fmt: skip
