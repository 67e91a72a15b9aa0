"""`phalanx compare`: simulate the same jobs on several clusters or by several policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli.output import JSON, TABLE, align_columns, echo, format_structured, output_option
from phalanx.cli.simulate import run_simulation
from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.sim.reports.comparison import compare_results
from phalanx.sim.reports.figures import Report, build_report
from phalanx.sim.reports.text import format_seconds, format_share

_HEADER = ("FILE", "MEAN WAIT", "P95 WAIT", "SLOWDOWN", "UTILISATION", "PREEMPTIONS", "UNFINISHED")
_DIFFERENCES = ("AGAINST THE FIRST", "WAIT", "95 % INTERVAL", "SLOWDOWN", "95 % INTERVAL")


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE…",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--seed", type=click.IntRange(0), default=None, help="Random seed of every file.")
@click.option("--lenient", is_flag=True, help="Count and skip lines that cannot be read.")
@output_option(TABLE, JSON)
def compare_command(
    *, files: tuple[Path, ...], seed: int | None, lenient: bool, output: str
) -> None:
    """Simulate several files with the same jobs, and compare each with the first.

    A difference is the mean over the jobs of the other file minus the first, with its 95 %
    confidence interval: an interval without 0 is no accident of this workload.

    \b
    Example:
      phalanx compare today.yaml more-nodes.yaml
    """
    if len(files) < 2:
        raise click.UsageError("name two files or more")
    options = SimulationOptions(seed=seed, is_lenient=lenient)
    loaded = [load_simulation(path, options) for path in files]
    for other in loaded[1:]:
        if other.setup.workload.jobs != loaded[0].setup.workload.jobs:
            raise click.ClickException(f"{other.path} has other jobs than {loaded[0].path}")
    results = [run_simulation(one.setup) for one in loaded]
    reports = [
        build_report(result, one.inputs) for one, result in zip(loaded, results, strict=True)
    ]
    differences = [compare_results(results[0], result) for result in results[1:]]
    if output == JSON:
        simulations = [
            {"file": str(path), "report": report}
            for path, report in zip(files, reports, strict=True)
        ]
        compared = [
            {"file": str(path), **found} for path, found in zip(files[1:], differences, strict=True)
        ]
        echo(format_structured({"simulations": simulations, "differences": compared}, JSON))
        return
    rows = [_HEADER, *map(_describe_report, files, reports)]
    echo("\n".join(align_columns(rows)) + "\n")
    echo(
        "\n".join(align_columns([_DIFFERENCES, *map(_describe_difference, files[1:], differences)]))
    )


def _describe_report(path: Path, report: Report) -> tuple[str, ...]:
    wait, slowdown = report["wait"], report["slowdown"]["boundedMean"]
    shares = (f"{name} {format_share(share)}" for name, share in report["utilisation"].items())
    return (
        str(path),
        format_seconds(wait["meanSeconds"]),
        format_seconds(wait["p95Seconds"]),
        "-" if slowdown is None else f"{slowdown:.2f}",
        ", ".join(shares),
        str(report["preemptions"]),
        str(report["unfinished"]),
    )


def _describe_difference(path: Path, found: dict[str, Any]) -> tuple[str, ...]:
    wait, slowdown = found["waitSeconds"], found["boundedSlowdown"]
    return (
        str(path),
        format_seconds(wait["mean"]),
        _format_interval(*(format_seconds(wait[name]) for name in ("low", "high"))),
        _format_number(slowdown["mean"]),
        _format_interval(*(_format_number(slowdown[name]) for name in ("low", "high"))),
    )


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _format_interval(low: str, high: str) -> str:
    return "-" if low == "-" else f"{low} to {high}"
