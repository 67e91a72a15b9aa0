"""`phalanx what-if`: tell whether workloads would fit now, must wait, or never fit.

The library makes the forecast on a copy of the cluster in memory, with the objects of the files and
the changes of the options. Writes nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx.api.meta import Ref
from phalanx.cli.cluster_file import MAX_NODES
from phalanx.cli.cluster_queries import (
    Visibility,
    find_dropped_fields,
    read_library_cluster,
    report_scheduler_bugs,
)
from phalanx.cli.completion import complete_node
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.manifests import (
    Manifest,
    files_option,
    load_manifests,
    set_default_namespace,
)
from phalanx.cli.options import configuration_option, parse_shape
from phalanx.cli.output import (
    JSON,
    TABLE,
    YAML,
    LiveDisplay,
    StyledLine,
    echo,
    format_structured,
    join_names,
    output_option,
    pluralize,
    progress_bar,
)
from phalanx.cli.queue import start_data
from phalanx.cli.sandbox import ManifestRejected, expand_manifests
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.cli.scheduler_status import find_scheduler_outage
from phalanx.cli.workload_states import waiting_schedulers
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.clock import WallClock
from phalanx.library import Cluster, ObjectNotFound
from phalanx.scheduler.cluster.group_tree import GroupTrees, group_ref, parent_ref
from phalanx.scheduler.diagnosis.queue_order import (
    entity_of_pod,
    owner_of,
)
from phalanx.scheduler.diagnosis.what_if import (
    Forecast,
    ForecastVerdict,
    RunningWorkload,
)
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

M = TypeVar("M", bound=HasMetadata)

_VERDICT_TEXT = {
    ForecastVerdict.FITS: "fits",
    ForecastVerdict.WAITS: "must wait",
    ForecastVerdict.NEVER: "never fits",
}
#: Nodes and workloads that a line names, and detail lines of a forecast.
_MAX_NAMES, _MAX_DETAILS = 8, 2


@dataclass(frozen=True, slots=True)
class HypotheticalChanges:
    """Changes to try on the cluster: the values of --add-nodes, --drain and --min-count."""

    add: tuple[str, ...]
    drain: tuple[str, ...]
    min_counts: tuple[tuple[str, int], ...]

    @property
    def describes_nodes(self) -> bool:
        """Whether nodes are added by their resources, not by their likeness to others."""
        return any("=" in text for text in self.add)

    def apply(self, cluster: Cluster, namespace: str) -> Cluster:
        """Return the cluster with all changes."""
        try:
            for name in dict.fromkeys(self.drain):
                cluster = cluster.without_node(name)
            for text in self.add:
                count, _, what = text.partition(":")
                if "=" in what:
                    cluster = cluster.with_nodes(int(count), allocatable=parse_shape(what))
                else:
                    cluster = cluster.with_nodes(int(count), like=what)
            for name, minimum in self.min_counts:
                cluster = cluster.with_min_count(name, minimum, namespace)
        except ObjectNotFound as error:
            raise ManifestRejected(str(error)) from None
        return cluster


def _parse_min_counts(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> tuple[Any, ...]:
    pairs = [text.rpartition("=") for text in texts]
    for (name, _, count), text in zip(pairs, texts, strict=True):
        if not name or not count.isdecimal() or not 1 <= int(count) < 2**31:
            raise click.BadParameter(f'invalid minimum "{text}"; use GROUP=N, for example train=4')
    return tuple((name, int(count)) for name, _, count in pairs)


def _check_added_nodes(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    for text in texts:
        count, _, what = text.partition(":")
        if not count.isdecimal() or not 1 <= int(count) <= MAX_NODES:
            raise click.BadParameter(
                f'invalid nodes "{text}"; use N, N:cpu=8 or N:NODE, with N from 1 to {MAX_NODES}'
            )
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
    help="Add N nodes: like the most frequent ones, N:cpu=8,memory=32Gi with these resources,"
    " or N:NODE like that node; may be repeated.",
)
@click.option(
    "--drain",
    multiple=True,
    metavar="NODE",
    shell_complete=complete_node,
    help="Remove a node; its pods wait again. May be repeated.",
)
@click.option(
    "--min-count",
    "min_counts",
    multiple=True,
    metavar="GROUP=N",
    callback=_parse_min_counts,
    help="Set minCount of a gang, named by itself or its Job. May be repeated.",
)
@cluster_options
@output_option(TABLE, JSON, YAML)
@configuration_option("KubeSchedulerConfiguration of the scheduler, if it has one.")
def what_if_command(
    *,
    files: tuple[str, ...],
    add: tuple[str, ...],
    drain: tuple[str, ...],
    min_counts: tuple[tuple[str, int], ...],
    namespace: str,
    config: Path | None,
    context: str,
    output: str,
    policy: Path | None,
) -> None:
    """Tell whether a workload would fit now, must wait, or never fits. Writes nothing.

    Jobs, JobSets, LeaderWorkerSets, groups and Pods of the files are added to a copy of the cluster
    in memory, in the queue behind the workloads that wait already. Without files the forecast is
    about all workloads that wait, with -n about those of one namespace.

    Exit code: 0 if all fit, 3 if some must wait, 4 if some never fit.

    \b
    Example:
      phalanx what-if -f job.yaml
      phalanx what-if -f job.yaml --context prod --add-nodes 2 --min-count train=6
      phalanx what-if --drain node-7
      phalanx what-if
    """
    changes, now = HypotheticalChanges(add, drain, min_counts), WallClock().now()
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    # Before the cluster is asked: an error in a file is the user's first one to correct.
    manifests = load_manifests(files, namespace) if files else []

    async def query(client: Client, default_namespace: str) -> tuple[list[Ref], Cluster, str]:
        space = namespace or default_namespace
        set_default_namespace(manifests, space)
        cluster, visibility = await read_library_cluster(client, space, profiles=profiles, now=now)
        _check_visibility(visibility, changes)
        subjects, changed = await hypothetical_cluster(
            client, cluster, manifests, changes=changes, namespace=space
        )
        if not manifests and namespace:
            subjects = [ref for ref in subjects if ref.namespace == namespace]
        schedulers = waiting_schedulers(changed.objects)
        return subjects, changed, await find_scheduler_outage(client, schedulers, now)

    try:
        subjects, cluster, outage = query_cluster(config, context, query)
    except ManifestRejected as error:
        raise click.ClickException(str(error)) from None
    with report_scheduler_bugs():
        # Without subjects the library forecasts everything that waits.
        forecasts = cluster.forecast(*subjects, on_progress=_progress_display()) if subjects else []
    if outage:
        # Without a scheduler nothing starts.
        forecasts = [replace(one, expected=None) for one in forecasts]
    nothing = f"No workload is waiting{f' in namespace {namespace}' if namespace else ''}."
    text = _format_forecasts(forecasts, group_owners(cluster.objects), now) or nothing
    _print_forecasts(forecasts, text, outage=outage, output=output)
    worst = max((forecast.verdict for forecast in forecasts), default=ForecastVerdict.FITS)
    raise click.exceptions.Exit(worst)


def _print_forecasts(forecasts: Iterable[Forecast], text: str, *, outage: str, output: str) -> None:
    """Print forecasts as this text, or as data, with a warning if no scheduler runs."""
    if outage:
        echo(f"Warning: {outage}", err=True)
    if output == TABLE:
        echo(text)
        return
    items = [_forecast_data(forecast) for forecast in forecasts]
    echo(format_structured({"items": items} | ({"warning": outage} if outage else {}), output))


def _progress_display() -> Callable[[int, int], None]:
    """Return a function that shows on a terminal how many workloads are forecast."""
    display = LiveDisplay(sys.stderr) if sys.stderr.isatty() else None

    def show(done: int, total: int) -> None:
        if display and total > 1:
            is_last = done + 1 == total
            line = StyledLine(f"{progress_bar(done, total)} {done} of {total} workloads")
            display.draw([] if is_last else [line])

    return show


def _check_visibility(visibility: Visibility, changes: HypotheticalChanges) -> None:
    """Warn about nodes and pods that may not be read; fail if no node is known, nor described."""
    if not visibility.has_nodes:
        if not changes.describes_nodes:
            raise click.ClickException(
                "a forecast needs the nodes, which this credential may not read; ask for the right "
                "to list nodes, and pods of all namespaces; or describe free nodes on which to try "
                "it: --add-nodes 4:cpu=8,memory=32Gi"
            )
        echo(f"Warning: {visibility.note}: the forecast is for the added nodes alone", err=True)
    elif not visibility.is_whole:
        text = f"{visibility.note}, which use nodes too: what fits here may have to wait"
        echo(f"Warning: {text}", err=True)


async def hypothetical_cluster(
    client: Client,
    cluster: Cluster,
    manifests: Sequence[Manifest],
    *,
    changes: HypotheticalChanges,
    namespace: str,
) -> tuple[list[Ref], Cluster]:
    """Return the cluster with the manifests and changes applied, and what the manifests bring.

    Without manifests the subjects are everything that is pending.
    """
    if not manifests:
        changed = changes.apply(cluster, namespace)
        return [row.ref for row in changed.queue() if row.pending], changed
    for warning in await find_dropped_fields(client, manifests):
        echo(f"warning: {warning}", err=True)
    new, old = await expand_manifests(client, manifests), cluster.objects
    both = replace(
        old,
        groups=[*old.groups, *new.groups],
        pods=[*old.pods, *new.pods],
        namespaces={**new.namespaces, **old.namespaces},
        devices=_join_objects(old.devices, new.devices),
        volumes=_join_objects(old.volumes, new.volumes),
    )
    subjects = _new_subjects(new, both)
    if not subjects:
        raise ManifestRejected("the files contain nothing to place: no Job, PodGroup or Pod")
    return subjects, changes.apply(replace(cluster, objects=both), namespace)


def _join_objects(old: Iterable[M], new: Iterable[M]) -> list[M]:
    """Return the objects of the cluster, and the new ones that it does not have.

    An object that exists keeps its state: a claim of the files may be bound in the cluster.
    """
    joined = {(type(one), one.metadata.key): one for one in new}
    joined.update({(type(one), one.metadata.key): one for one in old})
    return list(joined.values())


def _new_subjects(new: ClusterObjects, both: ClusterObjects) -> list[Ref]:
    """The trees, groups and pods without a group that the files create or add members to."""
    group_trees = GroupTrees()
    for group in both.groups:
        group_trees.update(group_ref(group), group)
    refs = [entity_of_pod(pod, group_trees) for pod in new.pods]
    roots = [group_ref(group) for group in new.groups if parent_ref(group) is None]
    return list(dict.fromkeys([*refs, *roots]))


def group_owners(cluster: ClusterObjects) -> dict[Ref, str]:
    """Return the owner of each group that has one, such as `Job/train`."""
    owners = {group_ref(group): owner_of(group) for group in cluster.groups}
    return {ref: owner for ref, owner in owners.items() if owner}


def _format_forecasts(forecasts: Sequence[Forecast], owners: Mapping[Ref, str], now: float) -> str:
    groups_of = Counter(owners.get(forecast.subject, "") for forecast in forecasts)
    lines: list[str] = []
    for forecast in forecasts:
        # Users know a group by its owner, unless that has several.
        ref, owner = forecast.subject, owners.get(forecast.subject, "")
        kind, _, name = owner.partition("/")
        heading = f"{kind} {ref.namespace}/{name}" if owner else str(ref)
        if owner and groups_of[owner] > 1:
            heading += f" ({ref.kind} {ref.name})"
        lines += _forecast_lines(forecast, heading, owners, now=now)
    return "\n".join(lines)


def _forecast_lines(
    forecast: Forecast, heading: str, owners: Mapping[Ref, str], *, now: float
) -> Iterator[str]:
    yield f"{heading} {_VERDICT_TEXT[forecast.verdict]}: {forecast.summary or forecast.message}"
    yield from (f"  {detail}" for detail in forecast.details[:_MAX_DETAILS])
    if forecast.bindings:
        nodes = Counter(binding.node for binding in forecast.bindings)
        names = [f"{name} ({count})" for name, count in sorted(nodes.items())]
        yield f"  on {join_names(names, _MAX_NAMES)}"
    if forecast.victims:
        victims = _describe_workloads(forecast.victims, owners, forecast.subject)
        yield f"  it would preempt {victims}"
    if forecast.expected and forecast.expected.time is not None:
        yield f"  {forecast.expected.describe(now)}"
    if forecast.waits_for:
        least = " at the latest" if forecast.is_cut_short else ""
        workloads = _describe_workloads(forecast.waits_for, owners, forecast.subject)
        yield f"  it can start{least} when these have ended: {workloads}"


def _describe_workloads(
    workloads: Iterable[RunningWorkload], owners: Mapping[Ref, str], subject: Ref
) -> str:
    """List workloads by their owners, or by themselves if they have none.

    Those of another namespace than the subject are named with it: `job/train in research`.
    """
    titles = []
    for ref, pods in workloads:
        kind, _, name = owners.get(ref, "").partition("/")
        where = "" if ref.namespace == subject.namespace else f" in {ref.namespace}"
        title = f"{kind.lower()}/{name}{where}" if name else str(ref)
        titles.append(f"{title} ({pluralize(pods, 'pod')})")
    return join_names(titles, _MAX_NAMES)


def _forecast_data(forecast: Forecast) -> dict[str, Any]:
    return {
        **_ref_data(forecast.subject),
        "verdict": forecast.verdict.name.lower(),
        "reason": forecast.reason,
        "summary": forecast.summary or forecast.message,
        "message": forecast.message,
        "placements": [{"pod": b.pod.name, "node": b.node} for b in forecast.bindings],
        "waitsFor": [{**_ref_data(ref), "pods": pods} for ref, pods in forecast.waits_for],
        "preempts": [{**_ref_data(ref), "pods": pods} for ref, pods in forecast.victims],
        "details": list(forecast.details),
        "cutShort": forecast.is_cut_short,
        **start_data(forecast.expected),
    }


def _ref_data(ref: Ref) -> dict[str, Any]:
    return {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}
