"""Kinds that are served in several versions but stored in one: the hub.

Pure renaming of fields, there and back. What is stored, watched, defaulted and held against
rules is always the hub's form; the server converts where a request comes in and where an answer
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.api.kinds import EVENT, EVENTS_EVENT, Kind
from phalanx.api.wire import Object

Convert = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a served kind relates to the one that is stored."""

    hub: Kind
    to_hub: Convert
    from_hub: Convert


def hub(kind: Kind) -> Kind:
    """The kind that objects of this kind are stored as."""
    conversion = CONVERSIONS.get(kind)
    return conversion.hub if conversion else kind


def to_hub(kind: Kind, obj: Object) -> Object:
    """An object of a kind, as it is stored."""
    conversion = CONVERSIONS.get(kind)
    return conversion.to_hub(obj) if conversion else obj


def from_hub(kind: Kind, obj: Object) -> Object:
    """A stored object, as one of this kind."""
    conversion = CONVERSIONS.get(kind)
    return conversion.from_hub(obj) if conversion else obj


def _renaming(names: Mapping[str, str]) -> Convert:
    """Rename top-level fields; others keep their names."""

    def rename(obj: Object) -> Object:
        return {names.get(key, key): value for key, value in obj.items()}

    return rename


#: An Event of events.k8s.io -> the same of core v1.
_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}

CONVERSIONS: Mapping[Kind, Conversion] = {
    EVENTS_EVENT: Conversion(
        EVENT,
        _renaming(_EVENT_FIELDS),
        _renaming({core: new for new, core in _EVENT_FIELDS.items()}),
    ),
}
