"""Growth of cost with size: each kind of work at three sizes.

The result is the exponent of growth from the smallest to the largest size: 1 is linear, below 1 is
better. The least of several runs counts for each size, and sizes alternate, so that a slow period
of the machine affects all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from benchmarks import gang_binding
from benchmarks.decisions import PlacementCase, measure_milliseconds
from benchmarks.environment import BenchmarkEnvironment, Result
from benchmarks.gang_binding import BindingCase
from benchmarks.gangs import Workload

#: Linear growth plus noise.
LINEAR = 1.1
#: What grows, its sizes, and the case for a size.
PLACEMENT_CASES: tuple[tuple[str, tuple[int, int, int], Callable[[int], PlacementCase]], ...] = (
    ("nodes", (5_000, 10_000, 20_000), lambda size: PlacementCase(size, 1, 1_000, None)),
    ("pods of a gang", (500, 1_000, 2_000), lambda size: PlacementCase(5_000, 1, size, None)),
    ("gangs", (250, 500, 1_000), lambda size: PlacementCase(5_000, size, 3, None)),
)
GANGS, NODES = (250, 500, 1_000), 5_000
#: Runs per size.
TURNS = 3


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure decisions alone, then gangs through the whole control plane."""
    for what, sizes, case in PLACEMENT_CASES:
        used = [setting.size(size) for size in sizes]
        turns = [
            [measure_milliseconds(case(size)) for size in used]
            for _ in range(_scale_turns(setting))
        ]
        costs = [min(runs) for runs in zip(*turns, strict=True)]
        yield _result(f"decide, more {what}", dict(zip(used, costs, strict=True)), "ms")
    yield _scale_control_plane(setting)


def _scale_control_plane(setting: BenchmarkEnvironment) -> Result:
    """Measure the CPU time of all processes of the control plane."""
    used = [setting.size(size) for size in GANGS]
    seconds, notes = dict.fromkeys(used, math.inf), []
    for _ in range(_scale_turns(setting)):
        for size in used:
            ran = gang_binding.run(setting, BindingCase(Workload(setting.size(NODES, 50), size, 3)))
            notes += [ran.note] * bool(ran.note)
            seconds[size] = min(seconds[size], ran.beside.get("server s", math.inf))
    return _result("whole control plane, more gangs", seconds, "s", note="; ".join(notes))


def _scale_turns(setting: BenchmarkEnvironment) -> int:
    return 1 if setting.is_quick else TURNS


def _result(name: str, costs: Mapping[int, float], unit: str, *, note: str = "") -> Result:
    (small, least), *_, (large, most) = costs.items()
    exponent = math.log(most / least) / math.log(large / small)
    beside = {f"{size:,} in {unit}": cost for size, cost in costs.items()}
    return Result(f"growth: {name}", exponent, "exponent", LINEAR, beside=beside, note=note)
