"""Conversion between served kinds and the kind that is stored: the hub.

Storing, watching, field management, defaulting and validation use the hub's form only; the server
converts where a request comes in and where a reply leaves. Hub to version to hub is the identity;
version to hub to version gives the canonical form of the version. Pure in both directions.

Workload and PodGroup have older versions with other fields:

    v1alpha2  as in Kubernetes 1.36: a PodGroup has `podGroupTemplateRef.workload`, the disruption
              mode is a string.
    v1alpha1  the same, but a Workload has `podGroups` with a `policy`, as in Kubernetes 1.35. A
              PodGroup has the most complete of the forms that the KEPs show; their other forms
              are accepted (`aliases.py`) but never returned.

Neither has composite groups or a preemption policy: these stay unmapped. Conditions are equal in
all versions: the scheduler writes the condition under the type of each version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from phalanx.api.conversion import beta_versions, field_mapping
from phalanx.api.conversion.field_mapping import FieldMapping, MappedField, UnmappedField
from phalanx.api.errors import Cause, Causes
from phalanx.api.kinds import (
    CLUSTER_TRUST_BUNDLE,
    CLUSTER_TRUST_BUNDLE_V1BETA1,
    DEVICE_CLASS,
    DEVICE_CLASS_V1BETA1,
    DEVICE_CLASS_V1BETA2,
    DEVICE_TAINT_RULE,
    DEVICE_TAINT_RULE_V1BETA2,
    EVENT,
    EVENTS_EVENT,
    HORIZONTAL_POD_AUTOSCALER,
    HORIZONTAL_POD_AUTOSCALER_V1,
    KINDS,
    POD_CERTIFICATE_REQUEST,
    POD_CERTIFICATE_REQUEST_V1BETA1,
    POD_GROUP,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    POD_GROUP_V1ALPHA3,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_CLAIM_TEMPLATE_V1BETA1,
    RESOURCE_CLAIM_TEMPLATE_V1BETA2,
    RESOURCE_CLAIM_V1BETA1,
    RESOURCE_CLAIM_V1BETA2,
    RESOURCE_SLICE,
    RESOURCE_SLICE_V1BETA1,
    RESOURCE_SLICE_V1BETA2,
    STORAGE_VERSION_MIGRATION,
    STORAGE_VERSION_MIGRATION_V1BETA1,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    WORKLOAD_V1ALPHA2,
    WORKLOAD_V1ALPHA3,
    Kind,
)
from phalanx.api.normalization import Malformed
from phalanx.api.schema import schema
from phalanx.api.validation.checks import CREATED, Check, each, one_of, optional, struct
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class VersionMapping:
    """An older version of a kind: its field mapping, and the validation of what only it can
    express.

    All other validation is that of the stored kind.
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
    """Return the mapping of a Workload version with these names of templates and policy."""
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
    """How a served kind relates to the stored kind.

    `mapping` converts field paths of the hub; `check` validates what only this version can express.
    """

    hub: Kind
    to_hub: ObjectConverter = _unchanged
    from_hub: ObjectConverter = _unchanged
    mapping: FieldMapping = field(default_factory=dict)
    check: Check = _accept_all

    @property
    def is_identity(self) -> bool:
        """Whether both forms differ in their version only."""
        return self.from_hub is _unchanged


def is_stored(kind: Kind) -> bool:
    """Whether objects are stored as this kind: it is its own hub, and persistent."""
    return kind not in CONVERSIONS and "watch" in kind.verbs


def hub_kind(kind: Kind) -> Kind:
    """Return the kind that objects of this kind are stored as."""
    return HUB_KINDS.get(kind, kind)


def to_hub(kind: Kind, obj: Object) -> Object:
    """Convert an object of a kind to the stored form, without unmapped values of versions."""
    conversion = CONVERSIONS.get(kind)
    stored = conversion.to_hub(obj) if conversion else obj
    return field_mapping.detach_unmapped(stored)[0]


def from_hub(kind: Kind, obj: Object) -> Object:
    """Convert a stored object to a kind."""
    conversion = CONVERSIONS.get(kind)
    return conversion.from_hub(obj) if conversion else obj


def replacement_to_hub(live: Object, kind: Kind, obj: Object) -> Object:
    """Convert an object that replaces a stored one to the stored form.

    Fields without equivalent in its version keep their stored values.
    """
    return to_hub(kind, field_mapping.carry_over_unmapped(from_hub(kind, live), obj))


def config_to_hub(kind: Kind, config: Object) -> Object:
    """Convert an applied configuration to the stored form.

    It owns only fields that its version has, so unmapped values are dropped.
    """
    return to_hub(kind, field_mapping.detach_unmapped(config)[0])


def validate_in_version(kind: Kind, obj: Object) -> Causes:
    """Validate what would be lost by converting an object of a kind."""
    conversion = CONVERSIONS.get(kind)
    return conversion.check(obj, CREATED) if conversion else ()


def field_path_in_version(kind: Kind, path: str) -> str:
    """Convert a field path of the stored form to a kind."""
    conversion = CONVERSIONS.get(kind)
    return field_mapping.path_in_version(conversion.mapping, path) if conversion else path


def causes_in_version(kind: Kind, causes: Iterable[Cause]) -> list[Cause]:
    """Convert causes about a stored object to the field paths of a kind."""
    conversion = CONVERSIONS.get(kind)
    if conversion is None:
        return list(causes)
    mapping = conversion.mapping
    return [
        Cause(
            field_mapping.path_in_version(mapping, cause.field),
            cause.reason,
            field_mapping.message_in_version(mapping, cause.field, cause.message),
        )
        for cause in causes
    ]


def _field_renamer(names: Mapping[str, str]) -> ObjectConverter:
    """Return a converter that renames top-level fields."""

    def rename(obj: Object) -> Object:
        return {names.get(key, key): value for key, value in obj.items()}

    return rename


#: Fields of an events.k8s.io Event, and of the same Event in core/v1.
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
        to_hub=partial(_from_version, version),
        from_hub=lambda obj: field_mapping.attach_unmapped(
            *field_mapping.to_version(version.mapping, obj)
        ),
        mapping=version.mapping,
        check=version.check,
    )


def _from_version(version: VersionMapping, obj: Object) -> Object:
    bare, left = field_mapping.detach_unmapped(obj)
    stored = field_mapping.to_stored(version.mapping, bare, left)
    if left:
        # Any client can write the annotation: values that break the schema are ignored.
        try:
            schema(version.stored.schema).normalize(stored)
        except Malformed:
            return field_mapping.to_stored(version.mapping, bare, {})
    return stored


_IDENTITY_CONVERSIONS = {
    POD_GROUP_V1ALPHA3: POD_GROUP,
    WORKLOAD_V1ALPHA3: WORKLOAD,
    DEVICE_CLASS_V1BETA1: DEVICE_CLASS,
    DEVICE_CLASS_V1BETA2: DEVICE_CLASS,
    DEVICE_TAINT_RULE_V1BETA2: DEVICE_TAINT_RULE,
    RESOURCE_CLAIM_V1BETA2: RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE_V1BETA2: RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE_V1BETA2: RESOURCE_SLICE,
    CLUSTER_TRUST_BUNDLE_V1BETA1: CLUSTER_TRUST_BUNDLE,
    POD_CERTIFICATE_REQUEST_V1BETA1: POD_CERTIFICATE_REQUEST,
    STORAGE_VERSION_MIGRATION_V1BETA1: STORAGE_VERSION_MIGRATION,
}

CONVERSIONS: Mapping[Kind, KindConversion] = {
    EVENTS_EVENT: KindConversion(
        EVENT,
        _field_renamer(_EVENT_FIELDS),
        _field_renamer({core: new for new, core in _EVENT_FIELDS.items()}),
        # Kubernetes reports all other fields by their names in core/v1.
        mapping={"reportingComponent": MappedField("reportingController")},
    ),
    HORIZONTAL_POD_AUTOSCALER_V1: KindConversion(
        HORIZONTAL_POD_AUTOSCALER,
        beta_versions.autoscaler_to_hub,
        beta_versions.autoscaler_from_hub,
    ),
    RESOURCE_CLAIM_V1BETA1: KindConversion(
        RESOURCE_CLAIM, beta_versions.claim_to_hub, beta_versions.claim_from_hub
    ),
    RESOURCE_CLAIM_TEMPLATE_V1BETA1: KindConversion(
        RESOURCE_CLAIM_TEMPLATE, beta_versions.template_to_hub, beta_versions.template_from_hub
    ),
    RESOURCE_SLICE_V1BETA1: KindConversion(
        RESOURCE_SLICE, beta_versions.slice_to_hub, beta_versions.slice_from_hub
    ),
    **{kind: KindConversion(stored) for kind, stored in _IDENTITY_CONVERSIONS.items()},
    **{kind: _mapped_conversion(version) for kind, version in VERSION_MAPPINGS.items()},
}

#: The kinds that objects of converted kinds are stored as.
HUB_KINDS: Mapping[Kind, Kind] = {kind: one.hub for kind, one in CONVERSIONS.items()}

#: The kinds that objects are stored as, in the order of discovery; each object belongs to one.
STORED_KINDS = tuple(kind for kind in KINDS if is_stored(kind))
