"""Whether cost grows no faster than what is asked for: each kind of work at three sizes.

The number is the exponent of growth, from the smallest size to the largest: 1 is linear, below 1
is better. Of each size the least of several runs counts, and sizes take turns: a machine that is
slower for a while is so for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from benchmarks import races
from benchmarks.decisions import Puzzle, milliseconds
from benchmarks.gangs import Workload
from benchmarks.races import Race
from benchmarks.result import Result
from benchmarks.setting import Setting

#: Linear, and what noise may add to it.
LINEAR = 1.1
#: What grows, at which sizes, and the puzzle of a size.
PUZZLES: tuple[tuple[str, tuple[int, int, int], Callable[[int], Puzzle]], ...] = (
    ("nodes", (5_000, 10_000, 20_000), lambda size: Puzzle(size, 1, 1_000, None)),
    ("pods of a gang", (500, 1_000, 2_000), lambda size: Puzzle(5_000, 1, size, None)),
    ("gangs", (250, 500, 1_000), lambda size: Puzzle(5_000, size, 3, None)),
)
GANGS, NODES = (250, 500, 1_000), 5_000
#: How often every size is measured.
TURNS = 3


def section(setting: Setting) -> Iterator[Result]:
    """Decisions alone, then gangs through the whole control plane."""
    for what, sizes, puzzle in PUZZLES:
        used = [setting.size(size) for size in sizes]
        turns = [[milliseconds(puzzle(size)) for size in used] for _ in range(_turns(setting))]
        costs = [min(runs) for runs in zip(*turns, strict=True)]
        yield _result(f"decide, more {what}", dict(zip(used, costs, strict=True)), "ms")
    yield _whole(setting)


def _whole(setting: Setting) -> Result:
    """The processor time of all of the control plane's processes."""
    used = [setting.size(size) for size in GANGS]
    seconds, notes = dict.fromkeys(used, math.inf), []
    for _ in range(_turns(setting)):
        for size in used:
            ran = races.run(setting, Race(Workload(setting.size(NODES, 50), size, 3)))
            notes += [ran.note] * bool(ran.note)
            seconds[size] = min(seconds[size], ran.beside.get("server s", math.inf))
    return _result("whole control plane, more gangs", seconds, "s", "; ".join(notes))


def _turns(setting: Setting) -> int:
    return 1 if setting.is_quick else TURNS


def _result(name: str, costs: Mapping[int, float], unit: str, note: str = "") -> Result:
    (small, least), *_, (large, most) = costs.items()
    exponent = math.log(most / least) / math.log(large / small)
    beside = {f"{size:,} in {unit}": cost for size, cost in costs.items()}
    return Result(f"growth: {name}", exponent, "exponent", LINEAR, beside=beside, note=note)
