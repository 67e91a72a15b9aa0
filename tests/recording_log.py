"""Log lines in tests: a `Log` that keeps its lines, and the lines that `caplog` has captured."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from phalanx.logs import ROOT, Log


class LogLine(NamedTuple):
    """One line; `fields` as strings, as the text format shows them."""

    level: str
    component: str
    message: str
    fields: Mapping[str, str]


class RecordingLog(Log):
    """Keeps every line instead of passing it to `logging`."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__("recorded")
        self.lines: list[LogLine] = []

    def _write(
        self, level: int, message: str, fields: Mapping[str, object], *, exc_info: bool = False
    ) -> None:
        self.lines.append(_line(level, "recorded", message, fields))

    def messages(self, level: int = logging.INFO) -> list[str]:
        """The messages of this level and above, each with its reason if it has one."""
        return [
            f"{line.message}: {line.fields['reason']}" if "reason" in line.fields else line.message
            for line in self.lines
            if logging.getLevelName(line.level) >= level
        ]


def captured_lines(caplog: pytest.LogCaptureFixture, component: str) -> list[LogLine]:
    """The captured lines of one component."""
    return [
        _line(record.levelno, component, record.getMessage(), getattr(record, "fields", {}))
        for record in caplog.records
        if record.name == f"{ROOT}.{component}"
    ]


def _line(level: int, component: str, message: str, fields: Mapping[str, object]) -> LogLine:
    texts = {name: str(value) for name, value in fields.items()}
    return LogLine(logging.getLevelName(level), component, message, texts)
