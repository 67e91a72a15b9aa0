"""What is waited for: words and predicates about objects, and what to say when it does not come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from phalanx.api.wire import Object

#: A condition that is True or a phase, by its name; or whatever a function makes of an object.
Goal = str | Callable[[Object], object]


class NotReached(AssertionError):
    """What was waited for did not come about in time; the text says what was there instead."""


def has_reached(found: Object, goal: Goal) -> bool:
    """Whether an object is where somebody wants it; while a field is missing, it is not."""
    if callable(goal):
        with suppress(LookupError):
            return bool(goal(found))
        return False
    status = _status(found)
    true = [one.get("type") for one in _conditions(status) if one.get("status") == "True"]
    return goal in (status.get("phase"), *true)


def spelled(goal: Goal) -> str:
    """A goal as a word of a sentence."""
    return goal if isinstance(goal, str) else "what the test waits for"


def described(found: Sequence[Object]) -> str:
    """Objects in the words of their status, one line each."""
    return "\n".join(f"  {_name(one)}: {_state(one)}" for one in found) or "  there is none"


def _name(found: Object) -> str:
    meta = found["metadata"]
    return f"{found.get('kind', '')} {meta.get('namespace', '')}/{meta['name']}".replace(" /", " ")


def _state(found: Object) -> str:
    status = _status(found)
    phase = [f"phase {status['phase']}"] if status.get("phase") else []
    return "; ".join([*phase, *map(_condition, _conditions(status))]) or f"status {status}"


def _condition(found: Object) -> str:
    why = [str(found[name]) for name in ("reason", "message") if found.get(name)]
    said = f"{found.get('type')}={found.get('status')}"
    return f"{said} ({': '.join(why)})" if why else said


def _status(found: Object) -> Object:
    status: Any = found.get("status")
    return status if isinstance(status, dict) else {}


def _conditions(status: Object) -> list[Object]:
    listed: Any = status.get("conditions") or ()
    return [one for one in listed if isinstance(one, dict)]
