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

from phalanx.api.regex_parser import (
    AlternationNode,
    AssertionNode,
    BadPattern,
    CharNode,
    CharTest,
    PositionTest,
    RegexNode,
    RepeatNode,
    SequenceNode,
    is_word_char,
    parse_pattern,
)

__all__ = ["BadPattern", "Pattern", "compile_pattern"]

#: A pattern may come to so many steps.
MAX_STEPS = 5000
#: What is remembered before all of it is forgotten, and spent on one text, in steps.
MAX_CACHED_STEPS, MAX_STEPS_PER_TEXT = 100_000, 1_000_000
#: Steps at places of one text that are tried to find out where it is.
MAX_FIND_STEPS = 100_000


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    """The pattern of a text. Raises BadPattern."""
    return Pattern(text)


@dataclass(slots=True)
class _Step:
    """What must come, if anything, and the steps after it. Without steps after it, it is found."""

    next_steps: tuple[int, ...]
    char_test: CharTest | None = None
    position_test: PositionTest | None = None


class _Program:
    """The steps of a pattern, laid from its end to its beginning; step 0 is the end."""

    def __init__(self) -> None:
        self.steps = [_Step(())]

    def compile(self, node: RegexNode, then: int) -> int:
        """Lay the steps of a node; the first of them."""
        match node:
            case CharNode(test):
                return self._add(_Step((then,), char_test=test))
            case AssertionNode(holds):
                return self._add(_Step((then,), position_test=holds))
            case SequenceNode(parts):
                for part in reversed(parts):
                    then = self.compile(part, then)
                return then
            case AlternationNode(parts):
                return self._add(_Step(tuple(self.compile(part, then) for part in parts)))
            case RepeatNode():
                return self._compile_repeat(node, then)

    def _compile_repeat(self, node: RepeatNode, then: int) -> int:
        part, low, high, first = node.part, node.min_count, node.max_count, then
        if high is None:
            first = self._add(_Step((then,)))
            self.steps[first].next_steps = _branch_order(node, self.compile(part, first), then)
        for _ in range((high or low) - low):
            first = self._add(_Step(_branch_order(node, self.compile(part, first), then)))
        for _ in range(low):
            last, first = first, self.compile(part, first)
            if first == last:
                break  # a part without steps, however often
        return first

    def _add(self, step: _Step) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise BadPattern("error parsing regexp: expression too large")
        self.steps.append(step)
        return len(self.steps) - 1


def _branch_order(node: RepeatNode, again: int, then: int) -> tuple[int, int]:
    """Once more or go on, what is better first."""
    return (then, again) if node.is_lazy else (again, then)


_MATCHED = -1
#: Which steps are next, and what sort of character was before them.
_State = tuple[frozenset[int], str]


class Pattern:
    """A pattern, ready to look for itself in texts."""

    def __init__(self, text: str) -> None:
        plan = _Program()
        self.text = text
        self._start = plan.compile(parse_pattern(text), 0)
        self._steps = plan.steps
        self._steps_taken = 0
        self._reset_cache()

    def matches(self, text: str) -> bool:
        """Whether any part of a text matches. What takes too long to find out is not in there."""
        at = self._steps_taken = 0
        for char in text:
            known = self._transitions[at].get(char)
            at = self._transition(at, char) if known is None else known
            if at == _MATCHED:
                return True
            if self._steps_taken > MAX_STEPS_PER_TEXT:
                return False
        if at not in self._accepts_at_end:
            self._accepts_at_end[at] = 0 in self._closure(*self._states[at], "")
        return self._accepts_at_end[at]

    def find(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match at or after a place begins and ends.

        Of several that begin there, the one that a reader would find who tries what is better
        first. No step is taken twice at one place: what failed there once fails again. What takes
        too long to find is not there.
        """
        seen: set[tuple[int, int]] = set()
        for begin in range(start, len(text) + 1):
            todo = [(self._start, begin)]
            while todo:
                number, at = place = todo.pop()
                if number == 0:
                    return begin, at
                if place in seen:
                    continue
                seen.add(place)
                if len(seen) > MAX_FIND_STEPS:
                    return None
                todo += self._follow(number, at, text)
        return None

    def _follow(self, number: int, at: int, text: str) -> list[tuple[int, int]]:
        """Where a step leads from a place in a text, what is better last."""
        step, after = self._steps[number], text[at : at + 1]
        if step.char_test:
            return [(step.next_steps[0], at + 1)] if after and step.char_test(after) else []
        if step.position_test and not step.position_test(text[at - 1 : at] if at else "", after):
            return []
        return [(one, at) for one in reversed(step.next_steps)]

    def _reset_cache(self) -> None:
        start: _State = (frozenset((self._start,)), "")
        self._states: list[_State] = [start]
        self._state_numbers: dict[_State, int] = {start: 0}
        self._transitions: list[dict[str, int]] = [{}]
        self._accepts_at_end: dict[int, bool] = {}
        self._cached_steps = 0

    def _transition(self, at: int, char: str) -> int:
        """Where a character leads from a state; remembered."""
        steps, before = self._states[at]
        if self._cached_steps >= MAX_CACHED_STEPS:
            self._reset_cache()
            at = self._state_number((steps, before))
        reached = self._closure(steps, before, char)
        if 0 in reached:
            to = _MATCHED
        else:
            passed = [self._steps[number] for number in sorted(reached)]
            nexts = [
                step.next_steps[0] for step in passed if step.char_test and step.char_test(char)
            ]
            to = self._state_number((frozenset((*nexts, self._start)), _char_class(char)))
        self._transitions[at][char] = to
        self._cached_steps += len(reached)
        self._steps_taken += len(reached)
        return to

    def _state_number(self, state: _State) -> int:
        if state not in self._state_numbers:
            self._state_numbers[state] = len(self._states)
            self._states.append(state)
            self._transitions.append({})
        return self._state_numbers[state]

    def _closure(self, steps: frozenset[int], before: str, after: str) -> set[int]:
        """All steps that can be reached without a further character."""
        reached = set(steps)
        todo = sorted(steps)
        for number in todo:
            step = self._steps[number]
            if step.char_test or (step.position_test and not step.position_test(before, after)):
                continue
            more = [one for one in step.next_steps if one not in reached]
            reached.update(more)
            todo.extend(more)
        return reached


def _char_class(char: str) -> str:
    """A character that stands for all that are the same to edges."""
    return char if char == "\n" else "a" if is_word_char(char) else "-"
