"""What a checked expression becomes: a type, and a function from variables to a value.

Every step that a run takes is counted, so that none can go on for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from phalanx.api.cel.functions import Function
from phalanx.api.cel.types import DYN, A, B, Kind
from phalanx.api.cel.values import Exhausted, overload


@dataclass(slots=True)
class Steps:
    """The steps that may still be taken."""

    left: int


class Frame:
    """One run: the values of the variables, by place, and the steps that are left."""

    __slots__ = ("left", "values")

    def __init__(self, values: list[Any], left: int) -> None:
        self.values, self.left = values, left

    def spend(self, steps: int) -> None:
        """Take some steps."""
        self.left -= steps
        if self.left < 0:
            raise Exhausted


Run: TypeAlias = Callable[[Frame], Any]


class Typed(NamedTuple):
    """A part of an expression: its type, and how to compute it."""

    kind: Kind
    run: Run


@dataclass(slots=True)
class Places:
    """The places of variables in a frame, handed out while an expression is compiled."""

    count: int = 0

    def next(self) -> int:
        """A place that no other variable has."""
        self.count += 1
        return self.count - 1


@dataclass(slots=True)
class Scope:
    """The variables that a part of an expression sees, and the names that were looked up."""

    variables: dict[str, tuple[Kind, int]]
    places: Places
    used: set[str] = field(default_factory=set)

    def inner(self, names: Iterable[tuple[str, Kind]]) -> tuple[Scope, list[int]]:
        """A scope with more variables; and their places."""
        new = {name: (kind, self.places.next()) for name, kind in names}
        shown = {name: one for name, one in self.variables.items() if name not in new}
        return Scope({**shown, **new}, self.places, self.used), [at for _, at in new.values()]


def constant(value: Any) -> Run:
    """A value that is always the same."""
    return lambda frame: value


def variable(place: int) -> Run:
    """What a variable holds."""

    def run(frame: Frame) -> Any:
        frame.spend(1)
        return frame.values[place]

    return run


def applied(functions: Sequence[Function], arguments: Sequence[Typed]) -> Run:
    """A call of the one function that is known to fit, or of the first that fits the values."""
    runs = [argument.run for argument in arguments]
    if len(functions) == 1 and all(argument.kind != DYN for argument in arguments):
        return _direct(functions[0], runs)

    def call(frame: Frame) -> Any:
        values = [run(frame) for run in runs]
        for function in functions:
            if function.fits(values):
                frame.spend(1 + function.cost(values))
                return function.run(*values)
        raise overload()

    return call


def _direct(function: Function, runs: Sequence[Run]) -> Run:
    compute, cost = function.run, function.cost
    # Of a type that is known, a value may still be null if its schema says so.
    typed = [at for at, kind in enumerate(function.takes) if kind not in (DYN, A, B)]

    def call(frame: Frame) -> Any:
        values = [run(frame) for run in runs]
        for at in typed:
            if values[at] is None:
                raise overload()
        frame.spend(1 + cost(values))
        return compute(*values)

    return call
