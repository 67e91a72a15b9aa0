"""FieldReader: reads the fields of a YAML file of a user, and says which one is invalid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from phalanx.cli.cluster_file import describe_invalid_quantity, is_quantity
from phalanx.cli.options import parse_duration
from phalanx.sim.workloads.workload import MAX_SECONDS
from phalanx.yaml_files import YamlDocument

#: A larger number of jobs, pods or nodes is a typing error.
MAX_COUNT = 1_000_000
#: The range of other whole numbers, such as priorities and seeds.
_MAX_INTEGER = 1_000_000_000


class InvalidField(ValueError):
    """A field is invalid; the message names file, line and field."""


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reads values of fields, which are named by their paths (`workload[0].pods`).

    A path that begins with `--` is an option, which replaces a field: an invalid one is wrong
    usage. Every reader raises what `invalid` returns.
    """

    path: Path
    document: YamlDocument

    def invalid(self, where: str, reason: str) -> InvalidField | click.BadParameter:
        """Return the error for a field, with its line, or for an option."""
        if where.startswith("--"):
            return click.BadParameter(reason, param_hint=where)
        line = self.document.find_line(where)
        shown = f"{self.path}, line {line}" if line else str(self.path)
        return InvalidField(f"{shown}: {where}: {reason}")

    def check_map(self, found: Any, known: Sequence[str], where: str) -> None:
        """Refuse what is no map, or a map with other fields than the known ones."""
        if not isinstance(found, dict):
            raise self.invalid(where or "the file", f"must be a map of {', '.join(known)}")
        for name in found:
            if name not in known:
                path = f"{where}.{name}" if where else str(name)
                raise self.invalid(path, f"unknown field; available: {', '.join(known)}")

    def read_seconds(self, found: Any, where: str, default: float) -> float:
        """Read a duration (`1h30m`) or a number of seconds that is not negative."""
        if found is None:
            return default
        try:
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            seconds = float(found) if is_number else parse_duration(str(found))
        except click.BadParameter as error:
            raise self.invalid(where, error.message) from None
        except OverflowError:
            raise self.invalid(where, f"{found} is out of range") from None
        if seconds < 0:
            raise self.invalid(where, f"must not be negative: {found}")
        if not seconds <= MAX_SECONDS:
            raise self.invalid(where, f"{found} is out of range: more than a thousand years")
        return seconds

    def read_integer(self, found: Any, where: str, *, least: int = -_MAX_INTEGER) -> int:
        """Read a whole number."""
        is_integer = isinstance(found, int) and not isinstance(found, bool)
        if not is_integer or not least <= found <= _MAX_INTEGER:
            reason = f"must be a whole number from {least} to {_MAX_INTEGER}, not {found}"
            raise self.invalid(where, "is missing" if found is None else reason)
        return int(found)

    def read_count(self, found: Any, where: str, *, otherwise: str = "") -> int:
        """Read a number of things, 1 or more; `otherwise` is what else the field may be."""
        if not str(found).isdecimal() or not 0 < int(found) <= MAX_COUNT:
            raise self.invalid(where, f"must be a whole number from 1 to {MAX_COUNT}{otherwise}")
        return int(found)

    def read_name(self, found: Any, where: str) -> str:
        """Read a name, which may be a number; "" if there is none."""
        if isinstance(found, dict | list):
            raise self.invalid(where, "must be a name")
        return "" if found is None else _to_text(found)

    def read_texts(self, found: Any, where: str, example: str) -> dict[str, str]:
        """Read a map of names to texts or numbers; empty if there is none."""
        values = {} if found is None else found
        if not isinstance(values, dict):
            raise self.invalid(where, f"must be a map {example}")
        for name, value in values.items():
            if value is None or isinstance(value, dict | list):
                raise self.invalid(f"{where}.{name}", "must be a text or a number")
        return {str(name): _to_text(value) for name, value in values.items()}

    def read_quantities(self, found: Any, where: str) -> dict[str, str]:
        """Read a map of resources to quantities, at least one."""
        quantities = self.read_texts(found, where, "of resources, such as {cpu: 1}")
        if not quantities:
            raise self.invalid(where, "must be a map of resources, such as {cpu: 1}")
        for name, quantity in quantities.items():
            if not is_quantity(quantity):
                raise self.invalid(f"{where}.{name}", describe_invalid_quantity(quantity))
        return quantities


def _to_text(value: Any) -> str:
    """Return a value as it is written: YAML has turned an unquoted `true` into a boolean."""
    return str(value).lower() if isinstance(value, bool) else str(value)
