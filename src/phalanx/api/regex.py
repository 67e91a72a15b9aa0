r"""Regular expressions that cannot be made to run for ever.

Definitions of custom resources hold patterns that strangers' texts are matched with. A pattern
(`regexsyntax.py`) becomes a set of steps that are taken all at once, character by character; what
was found out about a set of steps and a character is remembered. So time grows with the length of
the text, never with the ways to read it; and there is an end to what is spent on one text.

    ^a+b$           5 edge ^ ─▶ 3 one a ─▶ 4 fork 3, 2 ─▶ 2 one b ─▶ 1 edge $ ─▶ 0 found

    text "aab"      {5} ─a▶ {4} ─a▶ {4} ─b▶ {1} ─end▶ {0}

It can be asked whether it is in there (`is_in`), and where first (`find`); there are no groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from phalanx.api.regexsyntax import (
    BadPattern,
    Choice,
    Edge,
    Holds,
    Node,
    One,
    Repeat,
    Row,
    Test,
    is_word,
    read,
)

__all__ = ["BadPattern", "Pattern", "pattern"]

#: A pattern may come to so many steps.
MAX_STEPS = 5000
#: What is remembered before all of it is forgotten, and spent on one text, in steps.
MAX_REMEMBERED, MAX_SPENT = 100_000, 1_000_000
#: Steps at places of one text that are tried to find out where it is.
MAX_TRIED = 100_000


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """The pattern of a text. Raises BadPattern."""
    return Pattern(text)


@dataclass(slots=True)
class _Step:
    """What must come, if anything, and the steps after it. Without steps after it, it is found."""

    then: tuple[int, ...]
    test: Test | None = None
    holds: Holds | None = None


class _Plan:
    """The steps of a pattern, laid from its end to its beginning; step 0 is the end."""

    def __init__(self) -> None:
        self.steps = [_Step(())]

    def lay(self, node: Node, then: int) -> int:
        """Lay the steps of a node; the first of them."""
        match node:
            case One(test):
                return self._add(_Step((then,), test=test))
            case Edge(holds):
                return self._add(_Step((then,), holds=holds))
            case Row(parts):
                for part in reversed(parts):
                    then = self.lay(part, then)
                return then
            case Choice(parts):
                return self._add(_Step(tuple(self.lay(part, then) for part in parts)))
            case Repeat():
                return self._repeat(node, then)

    def _repeat(self, node: Repeat, then: int) -> int:
        part, low, high, first = node.part, node.low, node.high, then
        if high is None:
            first = self._add(_Step((then,)))
            self.steps[first].then = _either(node, self.lay(part, first), then)
        for _ in range((high or low) - low):
            first = self._add(_Step(_either(node, self.lay(part, first), then)))
        for _ in range(low):
            last, first = first, self.lay(part, first)
            if first == last:
                break  # a part without steps, however often
        return first

    def _add(self, step: _Step) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise BadPattern("error parsing regexp: expression too large")
        self.steps.append(step)
        return len(self.steps) - 1


def _either(node: Repeat, again: int, then: int) -> tuple[int, int]:
    """Once more or go on, what is better first."""
    return (then, again) if node.few else (again, then)


_FOUND = -1
#: Which steps are next, and what sort of character was before them.
_State = tuple[frozenset[int], str]


class Pattern:
    """A pattern, ready to look for itself in texts."""

    def __init__(self, text: str) -> None:
        plan = _Plan()
        self.text = text
        self._first = plan.lay(read(text), 0)
        self._steps = plan.steps
        self._spent = 0
        self._forget()

    def is_in(self, text: str) -> bool:
        """Whether any part of a text matches. What takes too long to find out is not in there."""
        at = self._spent = 0
        for char in text:
            known = self._moves[at].get(char)
            at = self._move(at, char) if known is None else known
            if at == _FOUND:
                return True
            if self._spent > MAX_SPENT:
                return False
        if at not in self._ends:
            self._ends[at] = 0 in self._reached(*self._states[at], "")
        return self._ends[at]

    def find(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match at or after a place begins and ends.

        Of several that begin there, the one that a reader would find who tries what is better
        first. No step is taken twice at one place: what failed there once fails again. What takes
        too long to find is not there.
        """
        seen: set[tuple[int, int]] = set()
        for begin in range(start, len(text) + 1):
            todo = [(self._first, begin)]
            while todo:
                number, at = place = todo.pop()
                if number == 0:
                    return begin, at
                if place in seen:
                    continue
                seen.add(place)
                if len(seen) > MAX_TRIED:
                    return None
                todo += self._next(number, at, text)
        return None

    def _next(self, number: int, at: int, text: str) -> list[tuple[int, int]]:
        """Where a step leads from a place in a text, what is better last."""
        step, after = self._steps[number], text[at : at + 1]
        if step.test:
            return [(step.then[0], at + 1)] if after and step.test(after) else []
        if step.holds and not step.holds(text[at - 1 : at] if at else "", after):
            return []
        return [(one, at) for one in reversed(step.then)]

    def _forget(self) -> None:
        start: _State = (frozenset((self._first,)), "")
        self._states: list[_State] = [start]
        self._numbers: dict[_State, int] = {start: 0}
        self._moves: list[dict[str, int]] = [{}]
        self._ends: dict[int, bool] = {}
        self._remembered = 0

    def _move(self, at: int, char: str) -> int:
        """Where a character leads from a state; remembered."""
        steps, before = self._states[at]
        if self._remembered >= MAX_REMEMBERED:
            self._forget()
            at = self._number((steps, before))
        reached = self._reached(steps, before, char)
        if 0 in reached:
            to = _FOUND
        else:
            passed = [self._steps[number] for number in sorted(reached)]
            nexts = [step.then[0] for step in passed if step.test and step.test(char)]
            to = self._number((frozenset((*nexts, self._first)), _sort(char)))
        self._moves[at][char] = to
        self._remembered += len(reached)
        self._spent += len(reached)
        return to

    def _number(self, state: _State) -> int:
        if state not in self._numbers:
            self._numbers[state] = len(self._states)
            self._states.append(state)
            self._moves.append({})
        return self._numbers[state]

    def _reached(self, steps: frozenset[int], before: str, after: str) -> set[int]:
        """All steps that can be reached without a further character."""
        reached = set(steps)
        todo = sorted(steps)
        for number in todo:
            step = self._steps[number]
            if step.test or (step.holds and not step.holds(before, after)):
                continue
            more = [one for one in step.then if one not in reached]
            reached.update(more)
            todo.extend(more)
        return reached


def _sort(char: str) -> str:
    """A character that stands for all that are the same to edges."""
    return char if char == "\n" else "a" if is_word(char) else "-"
