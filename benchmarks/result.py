"""A measurement and its target, printed and written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HEADING = f"{'':46} {'ours':>12}{'target':>12}{'kubernetes':>12}"


@dataclass(frozen=True, slots=True)
class Result:
    """One number, or nan where this machine cannot measure it.

    `kubernetes` is the number of real Kubernetes, `at_least` says that more is better, `beside`
    holds related measurements, `note` says why it does not count.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    kubernetes: float | None = None
    at_least: bool = False
    beside: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def mark(self) -> str:
        """The verdict: ok, slow, INCOMPLETE with a note, or "" without a target or a number."""
        if self.note:
            return "INCOMPLETE"
        if self.target is None or math.isnan(self.value):
            return ""
        is_met = self.value >= self.target if self.at_least else self.value <= self.target
        return "ok" if is_met else "slow"

    def line(self) -> str:
        """Return one row of the table."""
        numbers = (self.value, self.target, self.kubernetes)
        cells = "".join(f"{_shown(number):>12}" for number in numbers)
        beside = ", ".join(f"{name} {_shown(value)}" for name, value in self.beside.items())
        words = (f"{self.unit:9}", f"{self.mark:4}", self.note, f"({beside})" if beside else "")
        return f"{self.name:46} {cells}  {' '.join(filter(None, words))}".rstrip()

    def row(self) -> dict[str, Any]:
        """Return the row as JSON."""
        row = {**asdict(self), "mark": self.mark}
        row["value"] = _known(self.value)
        row["beside"] = {name: _known(value) for name, value in self.beside.items()}
        return row


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def _shown(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
