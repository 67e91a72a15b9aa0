"""Workload and PodGroup in the versions before v1alpha3: one form per version and kind.

    v1alpha2  as Kubernetes 1.36 had it. A PodGroup says `podGroupTemplateRef.workload`, what is
              disrupted together is a word.
    v1alpha1  the same facts. A Workload has `podGroups` with a `policy`, as Kubernetes 1.35 had
              it, which knew no more of them than that; a PodGroup is the one that the proposals
              print with the most in it. What else they print under this version is taken too
              (`oldshapes.py`), but never given back.

Neither knows composite groups or a preemption policy: these are left over. Conditions are the same
in all versions: the scheduler writes what each of them calls the one that matters.

Kinds that are served in several versions but stored in one: the hub.

Pure, there and back. What is stored, watched, owned, defaulted and held against rules is always the
hub's form; the server converts where a request comes in and where an answer leaves. Hub to version
to hub changes nothing; version to hub to version gives the form that is canonical in the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from phalanx.api.conform import Malformed
from phalanx.api.conversion import field_mapping as forms
from phalanx.api.conversion import field_mapping as leftovers
from phalanx.api.conversion.field_mapping import FieldMapping, MappedField, UnmappedField
from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes
from phalanx.api.kinds import (
    EVENT,
    EVENTS_EVENT,
    KINDS,
    POD_GROUP,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    POD_GROUP_V1ALPHA3,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    WORKLOAD_V1ALPHA2,
    WORKLOAD_V1ALPHA3,
    Kind,
)
from phalanx.api.schema import schema
from phalanx.api.validation.checks import CREATED, Check, each, one_of, optional, struct
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class VersionMapping:
    """A kind in another form than the stored one: the form, and what only this form can get wrong.

    All other rules are those of the stored kind.
    """

    stored: Kind
    mapping: FieldMapping
    check: Check


_DISRUPTION_MODES: tuple[tuple[Object, str], ...] = (
    ({"single": {}}, "Pod"),
    ({"all": {}}, "PodGroup"),
)
_DISRUPTION_MODE = MappedField("disruptionMode", values=_DISRUPTION_MODES)
_CHECK_DISRUPTION_MODE = (
    "disruptionMode",
    optional(one_of(*(word for _, word in _DISRUPTION_MODES))),
)
_PRIORITY_FIELDS = ("priorityClassName", "priority")


def _workload_mapping(templates: str, policy: str) -> VersionMapping:
    """A Workload whose version calls its templates and their policy like this."""
    template: FieldMapping = {
        "schedulingPolicy": MappedField(policy),
        "disruptionMode": _DISRUPTION_MODE,
        "preemptionPolicy": UnmappedField(depends_on=_PRIORITY_FIELDS),
    }
    spec: FieldMapping = {
        "podGroupTemplates": MappedField(templates, template),
        "compositePodGroupTemplates": UnmappedField(depends_on=("podGroupTemplates",)),
    }
    check = struct(("spec", struct((templates, optional(each(struct(_CHECK_DISRUPTION_MODE)))))))
    return VersionMapping(WORKLOAD, {"spec": MappedField("spec", spec)}, check)


_WORKLOAD_REFERENCE = MappedField(
    "podGroupTemplateRef.workload", {"templateName": MappedField("podGroupTemplateName")}
)
_POD_GROUP_MAPPING = VersionMapping(
    POD_GROUP,
    {
        "spec": MappedField(
            "spec",
            {
                "workloadRef": _WORKLOAD_REFERENCE,
                "parentCompositePodGroupName": UnmappedField(depends_on=("workloadRef",)),
                "disruptionMode": _DISRUPTION_MODE,
                "preemptionPolicy": UnmappedField(
                    depends_on=_PRIORITY_FIELDS, default="PreemptLowerPriority"
                ),
            },
        )
    },
    struct(("spec", struct(_CHECK_DISRUPTION_MODE))),
)

VERSION_MAPPINGS: Mapping[Kind, VersionMapping] = {
    WORKLOAD_V1ALPHA2: _workload_mapping("podGroupTemplates", "schedulingPolicy"),
    WORKLOAD_V1ALPHA1: _workload_mapping("podGroups", "policy"),
    POD_GROUP_V1ALPHA2: _POD_GROUP_MAPPING,
    POD_GROUP_V1ALPHA1: _POD_GROUP_MAPPING,
}


ObjectConverter = Callable[[Object], Object]


def _unchanged(obj: Object) -> Object:
    return obj


def _accept_all(new: object, old: object) -> Causes:
    return ()


@dataclass(frozen=True, slots=True)
class KindConversion:
    """How a served kind relates to the one that is stored.

    `form` tells where the version has the fields of the hub; `check` is for what the hub's rules
    cannot see because only this version can say it.
    """

    hub: Kind
    to_hub: ObjectConverter = _unchanged
    from_hub: ObjectConverter = _unchanged
    mapping: forms.FieldMapping = field(default_factory=dict)
    check: Check = _accept_all

    @property
    def is_identity(self) -> bool:
        """Whether both forms are the same but for the version."""
        return self.from_hub is _unchanged


def is_stored(kind: Kind) -> bool:
    """Whether objects are stored as of this kind: not for another to be served as, and lasting."""
    return kind not in CONVERSIONS and "watch" in kind.verbs


def hub_kind(kind: Kind) -> Kind:
    """The kind that objects of this kind are stored as."""
    conversion = CONVERSIONS.get(kind)
    return conversion.hub if conversion else kind


def to_hub(kind: Kind, obj: Object) -> Object:
    """An object of a kind, as it is stored: whatever its kind, without leftovers of versions."""
    conversion = CONVERSIONS.get(kind)
    stored = conversion.to_hub(obj) if conversion else obj
    return leftovers.detach_unmapped(stored)[0]


def from_hub(kind: Kind, obj: Object) -> Object:
    """A stored object, as one of this kind."""
    conversion = CONVERSIONS.get(kind)
    return conversion.from_hub(obj) if conversion else obj


def replacement_to_hub(live: Object, kind: Kind, obj: Object) -> Object:
    """An object of a kind that takes the place of a stored one, as it is stored.

    It may leave out what its version cannot say: that stays, beside what is as it was.
    """
    return to_hub(kind, leftovers.carry_over_unmapped(from_hub(kind, live), obj))


def config_to_hub(kind: Kind, config: Object) -> Object:
    """A configuration to apply, in the form that is stored.

    It says what its author wants and no more: leftovers, which its version cannot say, are not its.
    """
    return to_hub(kind, leftovers.detach_unmapped(config)[0])


def validate_in_version(kind: Kind, obj: Object) -> Causes:
    """What is wrong with an object of a kind and could not be told of it once it is converted."""
    conversion = CONVERSIONS.get(kind)
    return conversion.check(obj, CREATED) if conversion else ()


def field_path_in_version(kind: Kind, path: str) -> str:
    """Where a kind has what a path of the stored form leads to."""
    conversion = CONVERSIONS.get(kind)
    return forms.path_in_version(conversion.mapping, path) if conversion else path


def causes_in_version(kind: Kind, causes: Iterable[Cause]) -> list[Cause]:
    """What is wrong with a stored object, told of the fields that its client knows."""
    conversion = CONVERSIONS.get(kind)
    return (
        [_cause_in_version(conversion.mapping, cause) for cause in causes]
        if conversion
        else list(causes)
    )


def _cause_in_version(form: forms.FieldMapping, cause: Cause) -> Cause:
    text = forms.message_in_version(form, cause.field, cause.message)
    return Cause(forms.path_in_version(form, cause.field), cause.reason, text)


def _field_renamer(names: Mapping[str, str]) -> ObjectConverter:
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


def _mapped_conversion(version: VersionMapping) -> KindConversion:
    return KindConversion(
        version.stored,
        partial(_from_version, version),
        partial(_to_version, version.mapping),
        version.mapping,
        version.check,
    )


def _to_version(form: forms.FieldMapping, obj: Object) -> Object:
    return leftovers.attach_unmapped(*forms.to_version(form, obj))


def _from_version(version: VersionMapping, obj: Object) -> Object:
    """What comes of an annotation that anybody can write is held against the schema."""
    bare, left = leftovers.detach_unmapped(obj)
    stored = forms.to_stored(version.mapping, bare, left)
    if left:
        try:
            schema(version.stored.schema).conform(stored)
        except Malformed:
            return forms.to_stored(version.mapping, bare, {})
    return stored


_IDENTITY_CONVERSIONS = {POD_GROUP_V1ALPHA3: POD_GROUP, WORKLOAD_V1ALPHA3: WORKLOAD}

CONVERSIONS: Mapping[Kind, KindConversion] = {
    EVENTS_EVENT: KindConversion(
        EVENT,
        _field_renamer(_EVENT_FIELDS),
        _field_renamer({core: new for new, core in _EVENT_FIELDS.items()}),
    ),
    **{kind: KindConversion(stored) for kind, stored in _IDENTITY_CONVERSIONS.items()},
    **{kind: _mapped_conversion(version) for kind, version in VERSION_MAPPINGS.items()},
}

#: The kinds that objects are stored as, in the order of discovery: who walks them meets every
#: object once, whatever versions it is served in.
STORED_KINDS = tuple(kind for kind in KINDS if is_stored(kind))
