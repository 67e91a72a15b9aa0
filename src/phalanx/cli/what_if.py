"""`phalanx what-if`: would it fit now, must it wait and for whom, or never? Only looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx.cli.configuration import load_configuration
from phalanx.cli.connection import ask, cluster_options
from phalanx.cli.manifests import files_option, manifests
from phalanx.cli.options import shape
from phalanx.cli.paper import JSON, TABLE, YAML, counted, output_option, structured
from phalanx.cli.sandbox import Refused, expanded
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.controllers.shell.exact import Solver
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.asking.forecast import Forecast, Holder, Verdict, forecast
from phalanx.scheduler.asking.lineup import home_of, lineup, owner_of, titled
from phalanx.scheduler.asking.supposition import (
    Absent,
    Model,
    drained,
    model,
    with_nodes,
    with_quorum,
)
from phalanx.scheduler.cluster.forest import Forest, name_of, parent_of
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES

T = TypeVar("T")

_WORDS = {
    Verdict.FITS: "fits",
    Verdict.WAITS: "must wait",
    Verdict.NEVER: "never fits",
}
#: How many nodes, and others, are named.
_NAMED = 8
_DETAILS = 2
_MOST_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Supposed:
    """What is to be thought otherwise, as on the command line."""

    add: tuple[str, ...]
    drain: tuple[str, ...]
    quorums: tuple[tuple[str, int], ...]

    def applied(self, cluster: Cluster, namespace: str) -> Cluster:
        """The cluster with all of it."""
        for name in self.drain:
            cluster = _there(drained(cluster, name))
        for text in self.add:
            cluster = _with_more(cluster, text)
        for name, count in self.quorums:
            cluster = _there(with_quorum(cluster, namespace, name, count))
        return cluster


def _quorums(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> tuple[Any, ...]:
    pairs = [text.rpartition("=") for text in texts]
    for (name, _, count), text in zip(pairs, texts, strict=True):
        if not name or not count.isdecimal() or not 1 <= int(count) < 2**31:
            raise click.BadParameter(f"{text!r} is not of the form GROUP=N such as train=4")
    return tuple((name, int(count)) for name, _, count in pairs)


def _additions(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    for text in texts:
        count, _, what = text.partition(":")
        if not count.isdecimal() or not 1 <= int(count) <= _MOST_NODES:
            raise click.BadParameter(f"{text!r} is not of the form N or N:cpu=8 or N:NODE")
        if "=" in what:
            shape(what)
    return texts


@click.command()
@files_option(required=False)
@click.option(
    "--add-nodes",
    "add",
    multiple=True,
    metavar="N[:SHAPE]",
    callback=_additions,
    help="With N more nodes: like most that there are, N:cpu=8,memory=32Gi with just that,"
    " or N:NODE like that one; may be given again.",
)
@click.option(
    "--drain",
    multiple=True,
    metavar="NODE",
    help="Without a node; its pods wait anew. May be given again.",
)
@click.option(
    "--min-count",
    "quorums",
    multiple=True,
    metavar="GROUP=N",
    callback=_quorums,
    help="If a gang needed N members; by its own name or that of its Job. May be given again.",
)
@cluster_options
@output_option(TABLE, JSON, YAML)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="The KubeSchedulerConfiguration that the scheduler runs with, if it has one.",
)
def command(
    files: tuple[str, ...], add: tuple[str, ...], drain: tuple[str, ...],
    quorums: tuple[tuple[str, int], ...], namespace: str, config: Path | None, context: str,
    output: str, policy: Path | None,
) -> None:  # fmt: skip
    """Say whether something would fit now, must wait, or never fits. Writes nothing.

    Jobs, PodGroups, CompositePodGroups and Pods in the files are put into a private copy of the
    cluster, behind those that wait there already. Without files it is about all that waits.

    Exit code: 0 if all of it fits, 3 if some must wait, 4 if some never fits.

    \b
    Example:
      phalanx what-if -f job.yaml
      phalanx what-if -f job.yaml --context prod --add-nodes 2 --min-count train=6
      phalanx what-if --drain node-7
    """
    if not (files or add or drain or quorums):
        raise click.UsageError("say what: -f FILE, --add-nodes, --drain or --min-count")
    supposed, now = Supposed(add, drain, quorums), WallClock().now()
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES

    async def question(client: Client, default: str) -> tuple[list[Id], Cluster]:
        return await supposition(client, files, supposed, namespace or default)

    try:
        subjects, cluster = ask(config, context, question)
    except Refused as error:
        raise click.ClickException(str(error)) from None
    found = forecast(subjects, cluster, profiles, Solver(), now)
    if output == TABLE:
        click.echo(_text(found, owners(cluster)))
    else:
        click.echo(structured({"items": [_data(one) for one in found]}, output))
    raise click.exceptions.Exit(max((one.verdict for one in found), default=Verdict.FITS))


async def supposition(
    client: Client, files: Sequence[str], supposed: Supposed, namespace: str
) -> tuple[list[Id], Cluster]:
    """Whom it is about, and the cluster as it is to be thought."""
    cluster = await seen(client)
    if not files:
        cluster = supposed.applied(cluster, namespace)
        return [one.id for one in lineup(cluster) if one.pending], cluster
    new = await expanded(client, manifests(files, namespace))
    both = replace(
        cluster, groups=[*cluster.groups, *new.groups], pods=[*cluster.pods, *new.pods],
        namespaces={**new.namespaces, **cluster.namespaces},
    )  # fmt: skip
    subjects = _subjects(new, both)
    if not subjects:
        raise Refused("nothing in the files is placed: no Job, PodGroup or Pod that is to run")
    return subjects, supposed.applied(both, namespace)


def _subjects(new: Cluster, both: Cluster) -> list[Id]:
    """The trees, groups and lone pods that the files bring or add to."""
    forest = Forest()
    for group in both.groups:
        forest.put(name_of(group), group)
    found = [home_of(pod, forest) for pod in new.pods]
    roots = [name_of(group) for group in new.groups if parent_of(group) is None]
    return list(dict.fromkeys([*found, *(Id(True, one.key, one.is_composite) for one in roots)]))


def _with_more(cluster: Cluster, text: str) -> Cluster:
    count, _, what = text.partition(":")
    like = Model(shape(what)) if "=" in what else _there(model(cluster, what))
    return with_nodes(cluster, int(count), like)


def _there(found: T | Absent) -> T:
    """What was asked for, since it is there; that it is not is told to whoever asked."""
    if isinstance(found, Absent):
        raise Refused(found.message)
    return found


def owners(cluster: Cluster) -> dict[Id, str]:
    """What groups were made for, where somebody made them."""
    named = {name_of(group): owner_of(group) for group in cluster.groups}
    return {Id(True, one.key, one.is_composite): owner for one, owner in named.items() if owner}


def _text(found: Sequence[Forecast], made_for: Mapping[Id, str]) -> str:
    return "\n".join(line for one in found for line in _lines(one, made_for)) or "Nothing waits."


def _lines(one: Forecast, made_for: Mapping[Id, str]) -> Iterator[str]:
    owner = made_for.get(one.subject)
    title = titled(one.subject) + (f" of {owner}" if owner else "")
    yield f"{title} {_WORDS[one.verdict]}: {one.message}"
    yield from (f"  {detail}" for detail in one.details[:_DETAILS])
    if one.bindings:
        nodes = Counter(binding.node for binding in one.bindings)
        yield f"  on {_some([f'{name} ({n})' for name, n in sorted(nodes.items())])}"
    if one.victims:
        yield f"  it would drive off {_some(_named(one.victims, made_for))}"
    if one.waits_for:
        least = " at the latest" if one.is_cut_short else ""
        names = _some(_named(one.waits_for, made_for))
        yield f"  it can start{least} when these have ended: {names}"


def _named(holders: Iterable[Holder], made_for: Mapping[Id, str]) -> list[str]:
    """Those who hold room, by what they were made for if that is known."""
    titles = [(made_for.get(id_) or titled(id_), pods) for id_, pods in holders]
    return [f"{title} ({counted(pods, 'pod')})" for title, pods in titles]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _data(one: Forecast) -> dict[str, Any]:
    kind, _, _ = titled(one.subject).partition(" ")
    return {
        "kind": kind, "namespace": one.subject.key.namespace, "name": one.subject.key.name,
        "verdict": one.verdict.name.lower(), "reason": one.reason, "message": one.message,
        "placements": [{"pod": b.pod.name, "node": b.node} for b in one.bindings],
        "waitsFor": [_holder(holder) for holder in one.waits_for],
        "preempts": [_holder(holder) for holder in one.victims],
        "details": list(one.details), "cutShort": one.is_cut_short,
    }  # fmt: skip


def _holder(holder: Holder) -> dict[str, Any]:
    kind, _, _ = titled(holder.id).partition(" ")
    key = holder.id.key
    return {"kind": kind, "namespace": key.namespace, "name": key.name, "pods": holder.pods}
