"""`phalanx what-if`: would it fit now, must it wait and for whom, or never? Only looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.manifests import files_option, load_manifests
from phalanx.cli.options import parse_shape
from phalanx.cli.output import JSON, TABLE, YAML, format_structured, output_option, pluralize
from phalanx.cli.sandbox import ManifestRejected, expand_manifests
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.group_tree import GroupTrees, group_ref, parent_ref
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES
from phalanx.scheduler.diagnosis.queue_order import (
    entity_of_pod,
    entity_title,
    list_workloads,
    owner_of,
)
from phalanx.scheduler.diagnosis.what_if import (
    Forecast,
    ForecastVerdict,
    NewNodeTemplate,
    RunningWorkload,
    UnknownObject,
    forecast,
    node_template,
    with_min_count,
    with_nodes,
    without_node,
)
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.scheduler.queue.queued_entity import EntityId

T = TypeVar("T")

_VERDICT_TEXT = {
    ForecastVerdict.FITS: "fits",
    ForecastVerdict.WAITS: "must wait",
    ForecastVerdict.NEVER: "never fits",
}
#: How many nodes, and others, are named.
_MAX_NAMES = 8
_MAX_DETAILS = 2
_MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class HypotheticalChanges:
    """What is to be thought otherwise, as on the command line."""

    add: tuple[str, ...]
    drain: tuple[str, ...]
    min_counts: tuple[tuple[str, int], ...]

    def apply(self, cluster: ClusterObjects, namespace: str) -> ClusterObjects:
        """The cluster with all of it."""
        for name in self.drain:
            cluster = _require(without_node(cluster, name))
        for text in self.add:
            cluster = _add_nodes(cluster, text)
        for name, count in self.min_counts:
            cluster = _require(with_min_count(cluster, namespace, name, count))
        return cluster


def _parse_min_counts(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> tuple[Any, ...]:
    pairs = [text.rpartition("=") for text in texts]
    for (name, _, count), text in zip(pairs, texts, strict=True):
        if not name or not count.isdecimal() or not 1 <= int(count) < 2**31:
            raise click.BadParameter(f"{text!r} is not of the form GROUP=N such as train=4")
    return tuple((name, int(count)) for name, _, count in pairs)


def _check_added_nodes(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    for text in texts:
        count, _, what = text.partition(":")
        if not count.isdecimal() or not 1 <= int(count) <= _MAX_NODES:
            raise click.BadParameter(f"{text!r} is not of the form N or N:cpu=8 or N:NODE")
        if "=" in what:
            parse_shape(what)
    return texts


@click.command()
@files_option(required=False)
@click.option(
    "--add-nodes",
    "add",
    multiple=True,
    metavar="N[:SHAPE]",
    callback=_check_added_nodes,
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
    callback=_parse_min_counts,
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
    supposed, now = HypotheticalChanges(add, drain, quorums), WallClock().now()
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES

    async def question(client: Client, default: str) -> tuple[list[EntityId], ClusterObjects]:
        return await hypothetical_cluster(client, files, supposed, namespace or default)

    try:
        subjects, cluster = query_cluster(config, context, question)
    except ManifestRejected as error:
        raise click.ClickException(str(error)) from None
    found = forecast(subjects, cluster, profiles, HighsSolver(), now)
    if output == TABLE:
        click.echo(_format_forecasts(found, group_owners(cluster)))
    else:
        click.echo(format_structured({"items": [_forecast_data(one) for one in found]}, output))
    raise click.exceptions.Exit(max((one.verdict for one in found), default=ForecastVerdict.FITS))


async def hypothetical_cluster(
    client: Client, files: Sequence[str], supposed: HypotheticalChanges, namespace: str
) -> tuple[list[EntityId], ClusterObjects]:
    """Whom it is about, and the cluster as it is to be thought."""
    cluster = await read_cluster(client)
    if not files:
        cluster = supposed.apply(cluster, namespace)
        return [one.ref for one in list_workloads(cluster) if one.pending], cluster
    new = await expand_manifests(client, load_manifests(files, namespace))
    both = replace(
        cluster, groups=[*cluster.groups, *new.groups], pods=[*cluster.pods, *new.pods],
        namespaces={**new.namespaces, **cluster.namespaces},
    )  # fmt: skip
    subjects = _new_subjects(new, both)
    if not subjects:
        raise ManifestRejected(
            "nothing in the files is placed: no Job, PodGroup or Pod that is to run"
        )
    return subjects, supposed.apply(both, namespace)


def _new_subjects(new: ClusterObjects, both: ClusterObjects) -> list[EntityId]:
    """The trees, groups and lone pods that the files bring or add to."""
    forest = GroupTrees()
    for group in both.groups:
        forest.update(group_ref(group), group)
    found = [entity_of_pod(pod, forest) for pod in new.pods]
    roots = [group_ref(group) for group in new.groups if parent_ref(group) is None]
    return list(
        dict.fromkeys([*found, *(EntityId(True, one.key, one.is_composite) for one in roots)])
    )


def _add_nodes(cluster: ClusterObjects, text: str) -> ClusterObjects:
    count, _, what = text.partition(":")
    like = (
        NewNodeTemplate(parse_shape(what))
        if "=" in what
        else _require(node_template(cluster, what))
    )
    return with_nodes(cluster, int(count), like)


def _require(found: T | UnknownObject) -> T:
    """What was asked for, since it is there; that it is not is told to whoever asked."""
    if isinstance(found, UnknownObject):
        raise ManifestRejected(found.message)
    return found


def group_owners(cluster: ClusterObjects) -> dict[EntityId, str]:
    """What groups were made for, where somebody made them."""
    named = {group_ref(group): owner_of(group) for group in cluster.groups}
    return {
        EntityId(True, one.key, one.is_composite): owner for one, owner in named.items() if owner
    }


def _format_forecasts(found: Sequence[Forecast], made_for: Mapping[EntityId, str]) -> str:
    return (
        "\n".join(line for one in found for line in _forecast_lines(one, made_for))
        or "Nothing waits."
    )


def _forecast_lines(one: Forecast, made_for: Mapping[EntityId, str]) -> Iterator[str]:
    owner = made_for.get(one.subject)
    title = entity_title(one.subject) + (f" of {owner}" if owner else "")
    yield f"{title} {_VERDICT_TEXT[one.verdict]}: {one.message}"
    yield from (f"  {detail}" for detail in one.details[:_MAX_DETAILS])
    if one.bindings:
        nodes = Counter(binding.node for binding in one.bindings)
        yield f"  on {_join_names([f'{name} ({n})' for name, n in sorted(nodes.items())])}"
    if one.victims:
        yield f"  it would drive off {_join_names(_describe_holders(one.victims, made_for))}"
    if one.waits_for:
        least = " at the latest" if one.is_cut_short else ""
        names = _join_names(_describe_holders(one.waits_for, made_for))
        yield f"  it can start{least} when these have ended: {names}"


def _describe_holders(
    holders: Iterable[RunningWorkload], made_for: Mapping[EntityId, str]
) -> list[str]:
    """Those who hold room, by what they were made for if that is known."""
    titles = [(made_for.get(id_) or entity_title(id_), pods) for id_, pods in holders]
    return [f"{title} ({pluralize(pods, 'pod')})" for title, pods in titles]


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _forecast_data(one: Forecast) -> dict[str, Any]:
    kind, _, _ = entity_title(one.subject).partition(" ")
    return {
        "kind": kind, "namespace": one.subject.key.namespace, "name": one.subject.key.name,
        "verdict": one.verdict.name.lower(), "reason": one.reason, "message": one.message,
        "placements": [{"pod": b.pod.name, "node": b.node} for b in one.bindings],
        "waitsFor": [_holder_data(holder) for holder in one.waits_for],
        "preempts": [_holder_data(holder) for holder in one.victims],
        "details": list(one.details), "cutShort": one.is_cut_short,
    }  # fmt: skip


def _holder_data(holder: RunningWorkload) -> dict[str, Any]:
    kind, _, _ = entity_title(holder.ref).partition(" ")
    key = holder.ref.key
    return {"kind": kind, "namespace": key.namespace, "name": key.name, "pods": holder.pods}
