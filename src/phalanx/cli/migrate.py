"""`phalanx migrate`: move groups from our custom resources to `scheduling.k8s.io`.

`controllers/workload_migration.py` moves them; this module prints the progress and the summary.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from phalanx.api.workload_sources import CUSTOM_GROUP, POD_GROUP_LABEL
from phalanx.cli.connection import change_cluster, server_options
from phalanx.cli.output import (
    JSON,
    TEXT,
    YAML,
    echo,
    format_structured,
    output_option,
    pluralize,
)
from phalanx.client.client import Client
from phalanx.controllers.workload_migration import (
    DELETED,
    LEFT,
    MOVABLE,
    MOVED,
    MigrationReport,
    MigrationResult,
    NothingToMigrateTo,
    WorkloadMigration,
)

_STATES = (MOVED, MOVABLE, DELETED, LEFT)
_COLOURS = {LEFT: "red", MOVED: "green"}


@click.command()
@server_options
@click.option(
    "-n", "--namespace", default="", metavar="NAME", help="Only this namespace. [default: all]"
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write nothing; ask the server whether it would accept each object.",
)
@output_option(TEXT, JSON, YAML)
def migrate_command(
    *, config: Path | None, context: str, namespace: str, dry_run: bool, output: str
) -> None:
    """Move Workloads, CompositePodGroups and PodGroups of scheduling.phalanx.dev to
    scheduling.k8s.io, after an upgrade to a server that serves both.

    Schedulers read both meanwhile. Each object gets a copy under its name, and is deleted once the
    copy has everything that was written to it. Pods are not touched: gangs that run go on, and pods
    name their group by their label as before. Can be interrupted and repeated.

    Exit code: 0 if every object was moved (or could be, with --dry-run), 1 if one was left.

    \b
    Example:
      phalanx migrate --dry-run
      phalanx migrate -n research
    """

    def report(result: MigrationResult) -> None:
        if output == TEXT:
            reason = f": {result.reason}" if result.reason else ""
            line = f"{result.kind.name} {result.key} {result.state}{reason}"
            echo(line, colour=_COLOURS.get(result.state, ""))

    async def migrate(client: Client, default_namespace: str) -> MigrationReport:
        return await WorkloadMigration(
            client, namespace=namespace, dry_run=dry_run, report=report
        ).run()

    try:
        found = change_cluster(config, context, migrate)
    except NothingToMigrateTo as error:
        raise click.ClickException(str(error)) from None
    if output == TEXT:
        echo(_summarize(found))
    else:
        echo(format_structured(_report_data(found), output))
    raise click.exceptions.Exit(0 if found.is_complete else 1)


def _summarize(report: MigrationReport) -> str:
    counts = Counter(one.state for one in report.results)
    if not counts:
        return f"There is no object of {CUSTOM_GROUP}."
    parts = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
    lines = [f"{pluralize(counts.total(), 'object')}: {', '.join(parts)}"]
    if report.labelled_pods:
        total = sum(report.labelled_pods.values())
        lines.append(
            f"{pluralize(total, 'pod')} name a group by the label {POD_GROUP_LABEL}, which goes on "
            "to count. New pods may name it by spec.schedulingGroup instead:"
        )
        lines += [f"  {owner} ({count})" for owner, count in sorted(report.labelled_pods.items())]
    return "\n".join(lines)


def _report_data(report: MigrationReport) -> dict[str, Any]:
    return {
        "items": [
            {
                "kind": one.kind.name,
                "namespace": one.key.namespace,
                "name": one.key.name,
                "state": one.state,
                "reason": one.reason or None,
            }
            for one in report.results
        ],
        "labelledPods": dict(report.labelled_pods),
    }
