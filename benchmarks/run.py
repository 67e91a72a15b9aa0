"""Runs all benchmarks: numbers and targets, on the screen and in `results/latest.json`.

    python -m benchmarks.run                    everything
    python -m benchmarks.run --quick            a tenth of the size, to see that it works
    python -m benchmarks.run --only gangs       the sections with this in their name

Each measurement has a control plane of its own. Targets are for the full size on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import (
    contention,
    decisions,
    devices,
    evictions,
    footprint,
    foreign,
    gang_binding,
    guards,
    job_sets,
    jobs,
    node_changes,
    packing,
    requests,
    simulator,
    trees,
)
from benchmarks import exact_placement as exact
from benchmarks import request_stages as stages
from benchmarks import scaling as growth
from benchmarks import watch_latency as watchers
from benchmarks.environment import HEADING, MEMORY, BenchmarkEnvironment, BenchmarkFailed, Result
from tools.control_plane import NotReady

ROOT = Path(__file__).resolve().parent.parent
LATEST = ROOT / "benchmarks" / "results" / "latest.json"


def _measure_decisions(setting: BenchmarkEnvironment) -> Iterator[Result]:
    yield from decisions.section(setting)
    yield from trees.section(setting)


#: All sections, in order.
SECTIONS: Mapping[str, Callable[[BenchmarkEnvironment], Iterator[Result]]] = {
    "guards": guards.section,
    "decisions": _measure_decisions,
    "nodes": node_changes.section,
    "packing": packing.section,
    "exact": exact.section,
    "evictions": evictions.section,
    "contention": contention.section,
    "devices": devices.section,
    "start": footprint.start,
    "idle": footprint.idle,
    "requests": requests.section,
    "stages": stages.section,
    "watchers": watchers.section,
    "gangs": gang_binding.section,
    "foreign": foreign.section,
    "jobs": jobs.section,
    "jobsets": job_sets.section,
    "simulator": simulator.section,
    "growth": growth.section,
    "memory": footprint.memory,
}


def _measured(name: str, setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Yield the results of a section; an error is its last result, and other sections go on."""
    try:
        yield from SECTIONS[name](setting)
    except (BenchmarkFailed, NotReady) as error:
        print(error, file=sys.stderr)
        yield Result(name, math.nan, "", note="broke off")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--only", default="", help=f"the sections with this in their name: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument(
        "--data",
        default=tempfile.gettempdir(),
        help=f"folder in which objects are kept while they are needed, or {MEMORY}",
    )
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; the exit code is 1 if something did not finish."""
    options = _options()
    setting, is_complete = BenchmarkEnvironment(options.data, options.quick), True
    rows: dict[str, list[dict[str, Any]]] = {}
    print(HEADING)
    for name in SECTIONS:
        if options.only in name:
            rows[name] = []
            for result in _measured(name, setting):
                print(result.line(), flush=True)
                rows[name].append(result.row())
                is_complete &= not result.note
    kept = "memory" if options.data == MEMORY else "disk"
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "objects_in": kept}
    report = {"machine": machine, "quick": options.quick, "sections": rows}
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {LATEST.relative_to(ROOT)}")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
