"""What somebody wants of a log: the options of `pods/log`, read and applied to lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.api.causes import forbidden, invalid
from phalanx.api.errors import BadRequest, Invalid, sentence
from phalanx.api.meta import micro_timestamp, seconds
from phalanx.server.call import Call
from phalanx.server.outputs import Line

#: Option -> the least that it may be.
_LEAST = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
_OFF = ("", "0", "f", "false")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which lines are wanted, and how. `limit` is in bytes, `since` a moment."""

    previous: bool
    follow: bool
    stamped: bool
    tail: int | None
    limit: int | None
    since: float

    def chosen(self, lines: Iterable[Line]) -> list[Line]:
        """Those that are wanted of all that there are."""
        found = [line for line in lines if line.moment >= self.since]
        return found if self.tail is None else found[max(len(found) - self.tail, 0) :]

    def shown(self, lines: Sequence[Line]) -> bytes:
        """Lines as they are sent."""
        if not self.stamped:
            return b"".join(line.text for line in lines)
        return b"".join(micro_timestamp(at).encode() + b" " + text for _, at, text in lines)


def read_options(call: Call, now: float) -> LogOptions:
    """The options of a request, refused where they make no sense."""
    numbers = {option: call.number(option) for option in _LEAST}
    _check(call, numbers)
    ago = numbers["sinceSeconds"]
    return LogOptions(
        _is_on(call, "previous"), _is_on(call, "follow"), _is_on(call, "timestamps"),
        numbers["tailLines"], numbers["limitBytes"], _moment(call) if ago is None else now - ago,
    )  # fmt: skip


def _check(call: Call, numbers: dict[str, int | None]) -> None:
    causes = [
        invalid(option, value, f"must be greater than or equal to {_LEAST[option]}")
        for option, value in numbers.items()
        if value is not None and value < _LEAST[option]
    ]
    if numbers["sinceSeconds"] is not None and call.query.get("sinceTime"):
        causes.append(
            forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        )
    if causes:
        text = f'PodLogOptions "{call.name}" is invalid: {sentence(causes)}'
        raise Invalid(text, kind="PodLogOptions", name=call.name, causes=causes)


def _moment(call: Call) -> float:
    text = call.query.get("sinceTime", "")
    try:
        return seconds(text) if text else 0.0
    except ValueError:
        raise BadRequest(f'sinceTime: "{text}" is no time such as 2027-01-15T08:00:00Z') from None


def _is_on(call: Call, option: str) -> bool:
    return call.query.get(option, "").lower() not in _OFF
