"""`phalanx compare`: simulate the same jobs on several clusters or by several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from phalanx.cli.input_files import InvalidFile, read_file
from phalanx.cli.output import (
    INTERRUPTED,
    JSON,
    TABLE,
    align_columns,
    echo,
    format_structured,
    output_option,
    page_option,
    pluralize,
    refuse_input_as_page,
    write_page,
)
from phalanx.cli.simulate import run_simulation
from phalanx.cli.simulation_file import (
    LoadedSimulation,
    SimulationOptions,
    leave_out_large_jobs,
    load_simulation,
)
from phalanx.sim.reports.comparison import collect_remarks, compare_seeds
from phalanx.sim.reports.comparison_page import build_comparison_page
from phalanx.sim.reports.figures import Report, build_report
from phalanx.sim.reports.html_page import ReportTable
from phalanx.sim.reports.text import format_seconds, format_share
from phalanx.sim.simulation_setup import SimulationResult
from phalanx.sim.workloads.workload import has_same_jobs

_HEADER = ("FILE", "MEAN WAIT", "P95 WAIT", "SLOWDOWN", "UTILISATION", "PREEMPTIONS", "UNFINISHED")
#: What must be the same in all files; a policy may change priorities and topologies.
_COMPARED_FIELDS = {
    "submit": "submission",
    "run_time": "run time",
    "requests": "request",
    "pods": "number of pods",
    "estimate": "estimate",
    "owner": "owner",
    "node_labels": "node selector",
}
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
@click.option(
    "--seeds",
    "seed_count",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="Simulate every file with N seeds in a row, the same ones. [default: 1]",
)
@click.option("--lenient", is_flag=True, help="Count and skip lines that cannot be read.")
@page_option("Also write tables and plots as one HTML page.")
@output_option(TABLE, JSON)
def compare_command(
    *,
    files: tuple[Path, ...],
    seed: int | None,
    seed_count: int,
    lenient: bool,
    page: Path | None,
    output: str,
) -> None:
    """Simulate several files with the same jobs, and compare each with the first.

    A difference is the mean over the jobs of the other file minus the first, with its 95 %
    confidence interval: an interval without 0 is no accident of this workload. Faults by rate
    depend on the seed: with --seeds the figures are means over several, and so are the differences.

    \b
    Example:
      phalanx compare today.yaml more-nodes.yaml
      phalanx compare today.yaml packing.yaml --seeds 5 --html comparison.html
    """
    if len(files) < 2:
        raise click.UsageError("name two files or more")
    options = SimulationOptions(seed=seed, is_lenient=lenient)
    seeds = _load_seeds(files, options, seed_count)
    refuse_input_as_page(page, (path for one in seeds[0] for path in one.paths))
    compared = [
        ComparedFile.simulate(path, [one[i] for one in seeds]) for i, path in enumerate(files)
    ]
    differences = [compare_seeds(compared[0].results, one.results) for one in compared[1:]]
    names, reports = [str(path) for path in files], [one.reports[0] for one in compared]
    tables = [
        ReportTable(_HEADER, list(map(_describe_file, compared)), numbers=(1, 2, 3, 5, 6)),
        ReportTable(
            _DIFFERENCES,
            list(map(_describe_difference, files[1:], differences)),
            numbers=(1, 2, 3, 4),
        ),
    ]
    remarks = collect_remarks(names, reports)
    if output == JSON:
        rows = zip(files[1:], differences, strict=True)
        data = {
            "simulations": [one.to_data() for one in compared],
            "differences": [{"file": str(path), **found} for path, found in rows],
            "remarks": [
                {"kind": one.kind, "text": one.text, "files": list(one.files or names)}
                for one in remarks
            ],
        }
        echo(format_structured(data, JSON))
    else:
        blocks = [[table.columns, *table.rows] for table in tables]
        blocks += [[(one.kind, str(one)) for one in remarks]] if remarks else []
        echo("\n\n".join("\n".join(align_columns(block)) for block in blocks))
    # Written last: a full disk must not lose the figures.
    if page is not None:
        content = build_comparison_page(names, reports, differences, tables=tables, remarks=remarks)
        write_page(page, content)


def _load_seeds(
    files: Sequence[Path], options: SimulationOptions, seed_count: int
) -> list[list[LoadedSimulation]]:
    """Load all files with each seed, without the jobs that are larger than one of the clusters."""
    try:
        # A pipe is read only once.
        contents = list(map(read_file, files))
    except InvalidFile as error:
        raise click.ClickException(str(error)) from None
    inputs = list(zip(files, contents, strict=True))
    loaded = [load_simulation(path, options, content) for path, content in inputs]
    for other in loaded[1:]:
        if not has_same_jobs(other.setup.workload, loaded[0].setup.workload):
            raise click.ClickException(
                f"{other.path} has other jobs than {loaded[0].path}: "
                f"{_describe_other_jobs(other, loaded[0])}"
            )
    first_seeds, seeds = [one.setup.seed for one in loaded], [leave_out_large_jobs(loaded)]
    for number in range(1, seed_count):
        # Faults by rate are drawn when a file is loaded.
        later = [
            load_simulation(path, replace(options, seed=seed + number), content)
            for (path, content), seed in zip(inputs, first_seeds, strict=True)
        ]
        seeds.append(leave_out_large_jobs(later))
    return seeds


def _describe_other_jobs(other: LoadedSimulation, first: LoadedSimulation) -> str:
    """Say how the jobs of two files differ: by their number, or the first one that differs."""
    jobs, expected = other.setup.workload.jobs, first.setup.workload.jobs
    if len(jobs) != len(expected):
        return f"{pluralize(len(jobs), 'job')} instead of {len(expected)}"
    return next(
        f"the {what} of job {number} is {getattr(one, name)}, not {getattr(same, name)}"
        for number, (one, same) in enumerate(zip(jobs, expected, strict=True), 1)
        for name, what in _COMPARED_FIELDS.items()
        if getattr(one, name) != getattr(same, name)
    )


@dataclass(frozen=True, slots=True)
class ComparedFile:
    """A file, and its simulations with each seed."""

    path: Path
    results: list[SimulationResult]
    reports: list[Report]

    @classmethod
    def simulate(cls, path: Path, seeds: Sequence[LoadedSimulation]) -> ComparedFile:
        """Simulate a file that was loaded with each seed."""
        results, reports = list[SimulationResult](), list[Report]()
        for loaded in seeds:
            result = run_simulation(loaded.setup)
            if result.is_partial:
                when = f"stopped at {format_seconds(result.ended_at)} of {path}"
                shorter = "`horizon` in the files makes them shorter"
                echo(f"Error: {when}: only whole simulations are compared; {shorter}", err=True)
                raise click.exceptions.Exit(INTERRUPTED)
            results.append(result)
            reports.append(build_report(result, loaded.inputs))
        return cls(path, results, reports)

    def mean(self, *names: str) -> float | None:
        """Return a figure as its mean over the seeds; None if a report lacks it."""
        values: list[float] = []
        for report in self.reports:
            found: Any = report
            for name in names:
                found = found[name]
            if found is None:
                return None
            values.append(found)
        return sum(values) / len(values)

    def to_data(self) -> dict[str, Any]:
        """Return the reports for JSON: that of the first seed, and with several seeds all."""
        data: dict[str, Any] = {"file": str(self.path), "report": self.reports[0]}
        return data if len(self.reports) == 1 else {**data, "reports": self.reports}


def _describe_file(one: ComparedFile) -> tuple[str, ...]:
    slowdown = one.mean("slowdown", "boundedMean")
    shares = (
        f"{name} {format_share(one.mean('utilisation', name))}"
        for name in one.reports[0]["utilisation"]
    )
    return (
        str(one.path),
        format_seconds(one.mean("wait", "meanSeconds")),
        format_seconds(one.mean("wait", "p95Seconds")),
        "-" if slowdown is None else f"{slowdown:.2f}",
        ", ".join(shares),
        f"{one.mean('preemptions'):g}",
        f"{one.mean('unfinished'):g}",
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
