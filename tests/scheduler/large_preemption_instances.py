"""Clusters of 4 to 200 nodes where preemption is needed, and the lowest cost by an integer program.

The program is written from plain numbers, without any code of the scheduler. Each part of the cost
is minimized in its order, with the parts before it fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import Any

import numpy as np

from tests.scheduler.builders import composite, gang
from tests.scheduler.preemption_instances import Cost, PreemptionInstance, RunningPod

#: The kinds of instances.
LARGE_FAMILIES = ("plain", "budgets", "gangs", "units", "trees", "everything")
_NODE_CPU = 8


def build_large_instance(seed: int, family: str, nodes: int) -> PreemptionInstance:
    """Build the instance of a family, a seed and a number of nodes."""
    random = Random(f"{family} {seed} {nodes}")
    everything = family == "everything"
    found = PreemptionInstance([_NODE_CPU] * nodes, [], [])
    groups = _add_groups(found, random, family) if family not in ("plain", "budgets") else []
    for node in range(nodes):
        free = _NODE_CPU
        while free > 0:
            cpu = min(random.choice([1, 2, 2, 3, 4]), free)
            free -= cpu
            found.running_pods.append(_running_pod(found, random, node, cpu, groups))
    if family == "budgets" or everything:
        found.allowed = random.choice([0, 1, 2])
    sizes = [random.choice([2, 3, 4, 6, 8])]
    if everything and random.random() < 0.5:
        sizes = [2, 3, 4]
    found.wanted = [random.choice(sizes) for _ in range(random.randint(1, max(nodes // 4, 8)))]
    return found


def _add_groups(found: PreemptionInstance, random: Random, family: str) -> list[dict[str, Any]]:
    """Add gangs that run: of mode single, evicted as units, or below trees."""
    groups: list[dict[str, Any]] = []
    kinds = {"gangs": ["single"], "units": ["unit"], "trees": ["tree"]}.get(
        family, ["single", "unit", "tree"]
    )
    for number in range(random.randint(2, 6)):
        name, kind = f"g{number}", random.choice(kinds)
        priority, parent = random.choice([0, 1, 2]), f"t{number}" if kind == "tree" else ""
        if parent:
            found.groups.append(composite(parent, 1, priority=priority, disrupted_as_unit=True))
        quorum = found.quorums[name] = random.randint(1, 4)
        found.groups.append(
            gang(name, quorum, priority=priority, disrupted_as_unit=kind == "unit", parent=parent)
        )
        unit = {"single": "", "unit": name, "tree": parent}[kind]
        groups.append(
            {"priority": priority, "group": name, "unit": unit, "rank": 2 if parent else 1}
        )
    return groups


def _running_pod(
    found: PreemptionInstance,
    random: Random,
    node: int,
    cpu: int,
    groups: list[dict[str, Any]],
) -> RunningPod:
    number = len(found.running_pods)
    fields: dict[str, Any] = {"priority": random.choice([0, 0, 1, 2, 200])}
    if groups and random.random() < 0.5:
        # Later groups are spread over more nodes.
        fields = groups[number * len(groups) // (4 * len(found.nodes)) % len(groups)]
        found.group_of[f"r{number}"] = fields["group"]
    return RunningPod(
        f"r{number}", node, cpu, start=random.randint(1, 28), has_budget=random.random() < 0.4,
        **fields,
    )  # fmt: skip


def lowest_cost(instance: PreemptionInstance) -> Cost | None:
    """Return the lowest cost of victims; None if the gang does not fit even if all are evicted."""
    program = _Program(instance)
    if program.solve({}) is None:
        return None
    best: list[int] = []
    for row in program.cost_rows:
        value = program.solve(row)
        assert value is not None
        program.add_row(row, high=value)
        best.append(value)
    violations, priority, broken, trees, groups, pods, start = best
    levels = program.priorities
    highest = levels[priority - 1] if priority else -1
    return violations, highest, broken, trees, groups, pods, (-program.starts[start - 1],)


class _Program:
    def __init__(self, one: PreemptionInstance) -> None:
        self._library: Any = import_module("highspy")
        self._highs = self._library.Highs()
        for name, value in (("output_flag", False), ("mip_rel_gap", 0.0), ("threads", 1)):
            self._highs.setOptionValue(name, value)
        units = one.units()
        x = [self._column(1) for _ in units]
        index = {pod.name: number for number, unit in enumerate(units) for pod in unit}
        sizes = sorted(set(one.wanted))
        y = {
            (size, node): self._column(one.wanted.count(size))
            for size in sizes
            for node in range(len(one.nodes))
        }
        for size in sizes:
            row = {y[size, node]: 1 for node in range(len(one.nodes))}
            self.add_row(row, low=one.wanted.count(size))
        for node, cpu in enumerate(one.nodes):
            row = {y[size, node]: size for size in sizes}
            for pod in one.running_pods:
                if pod.node == node:
                    cpu -= pod.cpu
                    if pod.name in index:
                        row[x[index[pod.name]]] = row.get(x[index[pod.name]], 0) - pod.cpu
            self.add_row(row, high=cpu)
        self.cost_rows = [
            self._violations(one, units, x),
            self._levels(
                priorities := sorted({unit[0].priority for unit in units}),
                [priorities.index(unit[0].priority) for unit in units], x,
            ),
            self._broken(one, units, x),
            {x[n]: 1 for n, unit in enumerate(units) if max(pod.rank for pod in unit) == 2},
            {x[n]: 1 for n, unit in enumerate(units) if max(pod.rank for pod in unit) == 1},
            {x[n]: len(unit) for n, unit in enumerate(units)},
        ]  # fmt: skip
        self.priorities = priorities
        first = [min(pod.start for pod in unit) for unit in units]
        self.starts = sorted(set(first), reverse=True)
        self.cost_rows.append(self._levels(self.starts, [self.starts.index(s) for s in first], x))

    def _column(self, limit: int) -> int:
        self._highs.addVar(0, limit)
        number: int = self._highs.getNumCol() - 1
        self._highs.changeColIntegrality(number, self._library.HighsVarType.kInteger)
        return number

    def add_row(
        self, row: Mapping[int, int], low: float | None = None, high: float | None = None
    ) -> None:
        """Add a row, unless it has no terms."""
        infinite = self._library.kHighsInf
        self._highs.addRow(
            -infinite if low is None else low, infinite if high is None else high, len(row),
            np.array(list(row), np.int32), np.array(list(row.values()), float),
        )  # fmt: skip

    def _violations(
        self, one: PreemptionInstance, units: list[tuple[RunningPod, ...]], x: list[int]
    ) -> dict[int, int]:
        if one.allowed is None:
            return {}
        beyond = self._column(len(one.running_pods))
        row = {x[n]: sum(pod.has_budget for pod in unit) for n, unit in enumerate(units)}
        self.add_row(row | {beyond: -1}, high=one.allowed)
        return {beyond: 1}

    def _broken(
        self, one: PreemptionInstance, units: list[tuple[RunningPod, ...]], x: list[int]
    ) -> dict[int, int]:
        found = {}
        for name in one.quorums:
            spare = one.spare(name)
            if spare >= 0:
                broken = self._column(1)
                row = {x[n]: sum(pod.group == name for pod in unit) for n, unit in enumerate(units)}
                self.add_row(row | {broken: -len(one.running_pods)}, high=spare)
                found[broken] = 1
        return found

    def _levels(self, levels: list[int], level_of: list[int], x: list[int]) -> dict[int, int]:
        """Add a column for each level that is 1 if a unit of this or a later level goes."""
        columns = [self._column(1) for _ in levels]
        for number, level in enumerate(level_of):
            for reached in range(level + 1):
                self.add_row({x[number]: 1, columns[reached]: -1}, high=0)
        return dict.fromkeys(columns, 1)

    def solve(self, objective: Mapping[int, int]) -> int | None:
        """Minimize a weighted sum; None if there is no solution."""
        for column in range(self._highs.getNumCol()):
            self._highs.changeColCost(column, float(objective.get(column, 0)))
        self._highs.run()
        if self._highs.getModelStatus() != self._library.HighsModelStatus.kOptimal:
            return None
        value: int = round(self._highs.getInfo().objective_function_value)
        return value
