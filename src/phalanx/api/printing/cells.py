"""Columns of `kubectl get` and their cells: fields, ages, lists, labels and selectors.

A cell is a function from an object and the current time to a value; `columns.py` assembles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.api.meta import parse_timestamp
from phalanx.api.selectors import format_selector
from phalanx.api.wire import Object

Cell = Callable[[Object, float], Any]
NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
_DAY, _YEAR = 86_400, 365 * 86_400
#: Descriptions of columns that many kinds have.
_DESCRIPTIONS = {
    "Name": "The name of the object, unique within its namespace",
    "Age": "The time since the object was created",
    "Created At": "The time when the object was created",
    "Labels": "The labels of the object",
    "Selector": "The labels of the pods that the object selects",
    "Status": "The state of the object",
    "Containers": "The names of the containers",
    "Images": "The images of the containers",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column; priority 0 is always shown, 1 only with `-o wide`."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    description: str = ""

    @property
    def text(self) -> str:
        """The description of a built-in column; each has one."""
        return self.description or _DESCRIPTIONS.get(self.name, f"{self.name} of the object")

    @property
    def format(self) -> str:
        """The format of the column: `name` for the name, which kubectl treats specially."""
        return "name" if self.name == "Name" else ""


def format_duration(elapsed: float) -> str:
    """Format a duration as `kubectl` does: the two largest units, one if it is long."""
    whole = int(elapsed)
    if whole < 0:
        return "<invalid>" if whole < -1 else "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // _DAY
    for limit, text in (
        (120, f"{whole}s"),
        (600, _format_units((minutes, "m"), (whole % 60, "s"))),
        (180 * 60, f"{minutes}m"),
        (8 * 3600, _format_units((hours, "h"), (minutes % 60, "m"))),
        (48 * 3600, f"{hours}h"),
        (8 * _DAY, _format_units((days, "d"), (hours % 24, "h"))),
        (2 * _YEAR, f"{days}d"),
        (8 * _YEAR, _format_units((days // 365, "y"), (days % 365, "d"))),
    ):
        if whole < limit:
            return text
    return f"{days // 365}y"


def _format_units(large: tuple[int, str], small: tuple[int, str]) -> str:
    (count, unit), (rest, rest_unit) = large, small
    return f"{count}{unit}{rest}{rest_unit}" if rest else f"{count}{unit}"


def field_at(path: str, default: Any = "") -> Cell:
    """Return a cell with a field."""
    parts = path.split(".")

    def cell(obj: Object, now: float) -> Any:
        value: Any = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value in (None, "") else value

    return cell


def time_since(path: str) -> Cell:
    """Return a cell with the age of a timestamp."""
    read = field_at(path)

    def cell(obj: Object, now: float) -> str:
        text = read(obj, now)
        return format_duration(now - parse_timestamp(text)) if text else UNKNOWN

    return cell


def item_list(path: str, field: str = "") -> Cell:
    """Return a cell with every item of a list, or one field of every item."""
    read = field_at(path, ())

    def cell(obj: Object, now: float) -> str:
        items = read(obj, now)
        return ",".join(str(item.get(field, "")) if field else str(item) for item in items) or NONE

    return cell


def item_count(path: str) -> Cell:
    """Return a cell with the number of items or keys."""
    read = field_at(path, ())
    return lambda obj, now: len(read(obj, now))


def labels(path: str) -> Cell:
    """Return a cell with labels."""
    read = field_at(path, {})

    def cell(obj: Object, now: float) -> str:
        return ",".join(f"{key}={value}" for key, value in sorted(read(obj, now).items())) or NONE

    return cell


def label_selector(path: str) -> Cell:
    """Return a cell with a label selector."""
    read = field_at(path, {})
    return lambda obj, now: format_selector(read(obj, now)) or NONE


def find_condition(obj: Object, kind: str) -> Object | None:
    """Return a condition of the status of an object."""
    conditions = obj.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), None)


def is_true(obj: Object, kind: str) -> bool:
    """Whether a condition of the status of an object is true."""
    found = find_condition(obj, kind)
    return found is not None and found.get("status") == "True"


NAME_COLUMN = Column("Name", field_at("metadata.name"))
AGE_COLUMN = Column("Age", time_since("metadata.creationTimestamp"))
