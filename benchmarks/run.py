"""All benchmarks: the numbers beside their targets, on the screen and in `results/latest.json`.

    python -m benchmarks.run                    everything
    python -m benchmarks.run --quick            a tenth of the size, to see that it works
    python -m benchmarks.run --only gangs       what has this in its name

Every measurement has a control plane of its own. Targets are those of full size on two cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.decisions import PUZZLES, milliseconds
from benchmarks.gangs import Workload
from tools.control_plane import ControlPlane

ROOT = Path(__file__).resolve().parent.parent
LATEST = ROOT / "benchmarks" / "results" / "latest.json"
STARTS = 5
#: Seconds after which a control plane that nobody asks anything counts as idle.
IDLE_AFTER = 2.0
STAGE = re.compile(
    r'^phalanx_stage_seconds_(sum|count)\{[^}]*stage="(\w+)"[^}]*\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Result:
    """One number; `kubernetes` is what the real one needs for the same, `note` what went wrong."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    kubernetes: float | None = None
    note: str = ""

    @property
    def mark(self) -> str:
        """Whether the target is met."""
        if self.note or self.value is None:
            return "INCOMPLETE"
        return "" if self.target is None else "ok" if self.value <= self.target else "slow"

    def line(self) -> str:
        """One row of the table."""
        numbers = (self.value, self.target, self.kubernetes)
        cells = (f"{n:12.4g}" if n is not None else f"{'-':>12}" for n in numbers)
        return f"{self.name:42} {''.join(cells)}  {self.unit:11} {self.mark} {self.note}".rstrip()


@dataclass(frozen=True, slots=True)
class Race:
    """A workload, what real Kubernetes needs for it, and the target; all in seconds."""

    workload: Workload
    kubernetes: float | None = None
    target: float | None = None

    @property
    def name(self) -> str:
        """What is bound."""
        work = self.workload
        if work.plain:
            return f"{work.pods:,} plain pods, {work.nodes:,} nodes"
        return f"{work.gangs:,} gangs x {work.size:,}, {work.nodes:,} nodes"

    def quick(self) -> Race:
        """A tenth of it: fewer gangs if there are many, else smaller ones."""
        full = self.workload
        gangs, size = (full.gangs // 10, full.size) if full.gangs >= 10 else (full.gangs, 100)
        return Race(Workload(full.nodes // 10, gangs, size, full.plain))


RACES = (
    Race(Workload(5000, 1000, 3), 21.6, 2.1),
    Race(Workload(5000, 3, 1000), 23.9, 2.4),
    Race(Workload(5000, 5000, 1, plain=True), 20.3, 4.1),
)


class Bench:
    """The measurements, and where they run: `data` is what `phalanx up --data` gets."""

    def __init__(self, data: str, quick: bool) -> None:
        self._options = ("--data", data, "--nodes", "0")
        self._quick = quick
        self.stages: dict[str, dict[str, float]] = {}

    def sections(self) -> dict[str, Callable[[], Iterator[Result]]]:
        """What can be measured, by name."""
        return {"decisions": self.decisions, "start": self.start, "gangs": self.gangs}

    def decisions(self) -> Iterator[Result]:
        """The pure core alone."""
        for puzzle in PUZZLES:
            chosen = puzzle.quick() if self._quick else puzzle
            yield Result(chosen.name, milliseconds(chosen), "ms", chosen.target_ms)

    def start(self) -> Iterator[Result]:
        """From the process's start to its ready line, and its memory when nothing happens."""
        seconds, sizes = [], []
        for _ in range(STARTS):
            with ControlPlane(*self._options) as plane:
                seconds.append(plane.seconds_to_ready)
                time.sleep(IDLE_AFTER)
                sizes.append(resident(plane.pid))
        yield Result("start to ready", statistics.median(seconds), "s", 1.0, 3.3)
        if all(sizes):
            yield Result("idle memory", statistics.median(sizes), "MB", 120, 560)

    def gangs(self) -> Iterator[Result]:
        """From the first pod created to the last one bound."""
        for race in RACES:
            yield self._race(race.quick() if self._quick else race)

    def _race(self, race: Race) -> Result:
        with ControlPlane(*self._options) as plane:
            seconds, note = drive(plane.kubeconfig, race.workload)
            self.stages[race.name] = stage_costs(scrape(plane))
        return Result(race.name, seconds, "s", race.target, race.kubernetes, note)


def resident(pid: int) -> float:
    """The memory of a process in MB, where /proc tells it; elsewhere nothing."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1000 if found else 0.0


def drive(kubeconfig: Path, workload: Workload) -> tuple[float | None, str]:
    """Run the driver in a process of its own; its seconds, and a note if they do not count."""
    sizes = ("--nodes", workload.nodes, "--gangs", workload.gangs, "--size", workload.size)
    command = [sys.executable, "-m", "benchmarks.gangs", "--kubeconfig", kubeconfig, *sizes]
    command += ["--plain"] * workload.plain
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return None, (done.stderr.strip().splitlines() or ["the driver said nothing"])[-1]
    told = json.loads(done.stdout)
    return told["bound_s"], "; ".join(told["missing"])


def scrape(plane: ControlPlane) -> str:
    """The metrics of a control plane, or nothing if it has none."""
    access = plane.access
    wire = http.client.HTTPSConnection(access.host, access.port, context=access.tls(), timeout=30)
    wire.request("GET", "/metrics", headers={"Authorization": f"Bearer {access.token}"})
    answer = wire.getresponse()
    text = answer.read().decode()
    wire.close()
    return text if answer.status == 200 else ""


def stage_costs(metrics: str) -> dict[str, float]:
    """Microseconds per passage through each stage of a request."""
    totals: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"sum": 0.0, "count": 0.0})
    for part, stage, value in STAGE.findall(metrics):
        totals[stage][part] += float(value)
    return {stage: t["sum"] / t["count"] * 1e6 for stage, t in totals.items() if t["count"]}


def _show_stages(stages: dict[str, dict[str, float]]) -> None:
    for name, costs in stages.items():
        if costs:
            cells = ", ".join(f"{stage} {cost:.0f}" for stage, cost in costs.items())
            print(f"us per request, {name}: {cells}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="the sections with this in their name")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--data", default=":memory:", help="what `phalanx up --data` gets")
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; the exit code is 1 if something did not finish."""
    options = _options()
    bench, results = Bench(options.data, options.quick), []
    print(f"{'':42} {'ours':>12}{'target':>12}{'kubernetes':>12}")
    for name, section in bench.sections().items():
        if options.only in name:
            for result in section():
                print(result.line(), flush=True)
                results.append(result)
    _show_stages(bench.stages)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "data": options.data}
    report = {"machine": machine, "quick": options.quick, "stages_us": bench.stages}
    report["results"] = [{**asdict(result), "mark": result.mark} for result in results]
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written to {LATEST.relative_to(ROOT)}")
    return 1 if any(result.note for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
