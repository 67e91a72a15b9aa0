"""Kinds that are served in several versions but stored in one: the hub.

Pure, there and back. What is stored, watched, owned, defaulted and held against rules is always the
hub's form; the server converts where a request comes in and where an answer leaves. Hub to version
to hub changes nothing; version to hub to version gives the form that is canonical in the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from phalanx.api.causes import Causes
from phalanx.api.conform import Malformed
from phalanx.api.errors import Cause
from phalanx.api.kinds import (
    EVENT,
    EVENTS_EVENT,
    KINDS,
    POD_GROUP,
    POD_GROUP_V1ALPHA3,
    WORKLOAD,
    WORKLOAD_V1ALPHA3,
    Kind,
)
from phalanx.api.rules.checks import CREATED, Check
from phalanx.api.schema import schema
from phalanx.api.versions import forms, leftovers
from phalanx.api.versions.workload import VERSIONS, Version
from phalanx.api.wire import Object

Convert = Callable[[Object], Object]


def _unchanged(obj: Object) -> Object:
    return obj


def _no_faults(new: object, old: object) -> Causes:
    return ()


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a served kind relates to the one that is stored.

    `form` tells where the version has the fields of the hub; `check` is for what the hub's rules
    cannot see because only this version can say it.
    """

    hub: Kind
    to_hub: Convert = _unchanged
    from_hub: Convert = _unchanged
    form: forms.Form = field(default_factory=dict)
    check: Check = _no_faults

    @property
    def is_identity(self) -> bool:
        """Whether both forms are the same but for the version."""
        return self.from_hub is _unchanged


def is_stored(kind: Kind) -> bool:
    """Whether objects are stored as of this kind: not for another to be served as, and lasting."""
    return kind not in CONVERSIONS and "watch" in kind.verbs


def hub(kind: Kind) -> Kind:
    """The kind that objects of this kind are stored as."""
    conversion = CONVERSIONS.get(kind)
    return conversion.hub if conversion else kind


def to_hub(kind: Kind, obj: Object) -> Object:
    """An object of a kind, as it is stored: whatever its kind, without leftovers of versions."""
    conversion = CONVERSIONS.get(kind)
    stored = conversion.to_hub(obj) if conversion else obj
    return leftovers.detached(stored)[0]


def from_hub(kind: Kind, obj: Object) -> Object:
    """A stored object, as one of this kind."""
    conversion = CONVERSIONS.get(kind)
    return conversion.from_hub(obj) if conversion else obj


def replacement_to_hub(live: Object, kind: Kind, obj: Object) -> Object:
    """An object of a kind that takes the place of a stored one, as it is stored.

    It may leave out what its version cannot say: that stays, beside what is as it was.
    """
    return to_hub(kind, leftovers.handed_on(from_hub(kind, live), obj))


def config_to_hub(kind: Kind, config: Object) -> Object:
    """A configuration to apply, in the form that is stored.

    It says what its author wants and no more: leftovers, which its version cannot say, are not its.
    """
    return to_hub(kind, leftovers.detached(config)[0])


def faults(kind: Kind, obj: Object) -> Causes:
    """What is wrong with an object of a kind and could not be told of it once it is converted."""
    conversion = CONVERSIONS.get(kind)
    return conversion.check(obj, CREATED) if conversion else ()


def path_in(kind: Kind, path: str) -> str:
    """Where a kind has what a path of the stored form leads to."""
    conversion = CONVERSIONS.get(kind)
    return forms.path_in_version(conversion.form, path) if conversion else path


def told(kind: Kind, causes: Iterable[Cause]) -> list[Cause]:
    """What is wrong with a stored object, told of the fields that its client knows."""
    conversion = CONVERSIONS.get(kind)
    return [_told(conversion.form, cause) for cause in causes] if conversion else list(causes)


def _told(form: forms.Form, cause: Cause) -> Cause:
    text = forms.text_in_version(form, cause.field, cause.message)
    return Cause(forms.path_in_version(form, cause.field), cause.reason, text)


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


def _versioned(version: Version) -> Conversion:
    return Conversion(
        version.stored,
        partial(_from_version, version),
        partial(_in_version, version.form),
        version.form,
        version.check,
    )


def _in_version(form: forms.Form, obj: Object) -> Object:
    return leftovers.attached(*forms.in_version(form, obj))


def _from_version(version: Version, obj: Object) -> Object:
    """What comes of an annotation that anybody can write is held against the schema."""
    bare, left = leftovers.detached(obj)
    stored = forms.as_stored(version.form, bare, left)
    if left:
        try:
            schema(version.stored.schema).conform(stored)
        except Malformed:
            return forms.as_stored(version.form, bare, {})
    return stored


_IDENTITIES = {POD_GROUP_V1ALPHA3: POD_GROUP, WORKLOAD_V1ALPHA3: WORKLOAD}

CONVERSIONS: Mapping[Kind, Conversion] = {
    EVENTS_EVENT: Conversion(
        EVENT,
        _renaming(_EVENT_FIELDS),
        _renaming({core: new for new, core in _EVENT_FIELDS.items()}),
    ),
    **{kind: Conversion(stored) for kind, stored in _IDENTITIES.items()},
    **{kind: _versioned(version) for kind, version in VERSIONS.items()},
}

#: The kinds that objects are stored as, in the order of discovery: who walks them meets every
#: object once, whatever versions it is served in.
STORED = tuple(kind for kind in KINDS if is_stored(kind))
