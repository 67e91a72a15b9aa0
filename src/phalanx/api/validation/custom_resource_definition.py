"""Validation of CustomResourceDefinitions, including the fields that may never change.

`structural_schema.py` validates the schema of each version. Whether names are free is no validation
error but a condition in the status (`defaults/custom_resource_definition.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.api.custom_resources.compiled_schemas import SCHEMA_PATH, share_schema
from phalanx.api.custom_resources.json_path import field_keys
from phalanx.api.custom_resources.structural_schema import count_rules
from phalanx.api.defaults.custom_resource_definition import ESTABLISHED, find_condition
from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    too_many,
    unsupported,
)
from phalanx.api.formats import validate_dns_subdomain, validate_service_name
from phalanx.api.validation.admission_registration import check_client_config
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_values,
    mandatory,
    non_empty,
    on_create,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.structural_schema import has_default
from phalanx.api.wire import Object

APPROVAL_ANNOTATION = "api-approved.kubernetes.io"
MAX_SELECTABLE_FIELDS = 8
#: The versions of ConversionReview that are sent, in the order of preference.
CONVERSION_REVIEW_VERSIONS = ("v1", "v1beta1")
_MAX_WARNING_LENGTH = 256
#: Each version is a kind of its own, which discovery and OpenAPI describe.
_MAX_VERSIONS = 100
#: Each rule takes about a millisecond to check and to compile.
_MAX_RULES = 5_000
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = (
    "byte", "date", "date-time", "double", "float", "int32", "int64", "password",
)  # fmt: skip
_SELECTABLE_TYPES = ("boolean", "integer", "string")
_ROOT_KEYWORDS = (
    "description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
    "multipleOf", "required", "items", "properties", "externalDocs", "example",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
)  # fmt: skip


def label_faults(name: str) -> Sequence[str]:
    """Return the faults of a DNS label that must begin with a letter."""
    faults = validate_service_name(name)
    return [",".join(faults)] if faults else ()


def _kind_faults(name: str) -> Sequence[str]:
    prefix = "may have mixed case, but should otherwise match: "
    return [prefix + fault for fault in label_faults(name.lower())]


# -------------------------------------------------------------------------------------------- names


def _check_list_kind(new: Any, old: Any) -> Causes:
    if not new or not new.get("kind") or new["kind"] != new.get("listKind"):
        return ()
    return [invalid("listKind", new["listKind"], "kind and listKind may not be the same")]


_NAMES = all_of(
    struct(
        ("plural", optional(string_format(label_faults))),
        ("singular", optional(string_format(label_faults))),
        ("kind", optional(string_format(_kind_faults))),
        ("listKind", optional(string_format(_kind_faults))),
        ("shortNames", optional(each(string_format(label_faults)))),
        ("categories", optional(each(string_format(label_faults)))),
    ),
    _check_list_kind,
)
_REQUIRED_NAMES = struct(
    ("plural", non_empty), ("singular", non_empty), ("kind", non_empty), ("listKind", non_empty)
)


def _check_group(new: Any, old: Any) -> Causes:
    if faults := validate_dns_subdomain(new):
        return [invalid("", new, ",".join(faults))]
    return () if "." in new else [invalid("", new, "should be a domain with at least one dot")]


def _check_object_name(new: Any, old: Any) -> Causes:
    name, spec = new["metadata"].get("name", ""), new["spec"]
    wanted = f"{spec.get('names', {}).get('plural', '')}.{spec.get('group', '')}"
    detail = 'must be spec.names.plural+"."+spec.group'
    return () if name in ("", wanted) else [invalid("metadata.name", name, detail)]


def _check_approval(new: Any, old: Any) -> Causes:
    """Require the approval annotation for groups of the Kubernetes community."""
    group = new["spec"].get("group", "")
    if not re.search(r"(^|\.)(k8s|kubernetes)\.io$", group):
        return ()
    approval = (new["metadata"].get("annotations") or {}).get(APPROVAL_ANNOTATION)
    field = f"metadata.annotations[{APPROVAL_ANNOTATION}]"
    see = "see https://github.com/kubernetes/enhancements/pull/1111"
    if approval is None:
        detail = f'protected groups must have approval annotation "{APPROVAL_ANNOTATION}", {see}'
        return [required(field, detail)]
    if approval.startswith("unapproved") or re.match(r"https?://.", approval):
        return ()
    detail = (
        f'protected groups must have approval annotation "{APPROVAL_ANNOTATION}" with either a URL '
        f'or a reason starting with "unapproved", {see}'
    )
    return [invalid(field, approval, detail)]


# ----------------------------------------------------------------------------------------- versions


def _json_path_below(*roots: str) -> Check:
    """Require a JSON path of fields below one of the given roots."""
    where = " or ".join(roots)

    def check(new: Any, old: Any) -> Causes:
        if not new.startswith("."):
            return [invalid("", new, "must be a simple json path starting with .")]
        if not new.startswith(tuple(f"{root}." for root in roots)):
            return [invalid("", new, f"should be a json path under {where}")]
        return (
            () if field_keys(new) else [invalid("", new, "must be a json path in the dot notation")]
        )

    return check


def _check_json_path(new: Any, old: Any) -> Causes:
    fits = new.startswith(".")
    return () if fits else [invalid("", new, "must be a simple json path starting with .")]


def _check_column_type(new: Any, old: Any) -> Causes:
    detail = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not new:
        return [required("", detail)]
    return () if new in _COLUMN_TYPES else [invalid("", new, detail)]


def _check_column_format(new: Any, old: Any) -> Causes:
    detail = f"must be one of {','.join(_COLUMN_FORMATS)}"
    return () if new in _COLUMN_FORMATS else [invalid("", new, detail)]


_PRINTER_COLUMN = struct(
    ("name", non_empty),
    ("type", _check_column_type),
    ("format", optional(_check_column_format)),
    # Kubernetes reports the path by the name of its Go field.
    ("jsonPath", mandatory(_check_json_path)),
)
_SUBRESOURCES = struct(
    (
        "scale",
        optional(
            struct(
                ("specReplicasPath", mandatory(_json_path_below(".spec"))),
                ("statusReplicasPath", mandatory(_json_path_below(".status"))),
                ("labelSelectorPath", optional(_json_path_below(".spec", ".status"))),
            )
        ),
    ),
)


def _check_version_schema(new: Any, old: Any) -> Causes:
    """Check the schema of a version; with a status subresource its root is restricted."""
    schema = (new.get("schema") or {}).get("openAPIV3Schema")
    path = SCHEMA_PATH
    if schema is None:
        return [required(path)]
    found = [*share_schema(schema).causes]
    if "status" not in new.get("subresources", {}):
        return found
    kind = schema.get("type", "")
    if kind not in ("", "object"):
        detail = (
            'only "object" is allowed as the type at the root of the schema if the status '
            "subresource is enabled"
        )
        found.append(invalid(f"{path}.type", kind, detail))
    other_keywords = [key for key in schema if key not in _ROOT_KEYWORDS]
    if not other_keywords:
        return found
    listed = " ".join(_ROOT_KEYWORDS)
    detail = (
        f"only [{listed}] fields are allowed at the root of the schema if the status subresource "
        "is enabled"
    )
    return [*found, invalid(path, other_keywords, detail)]


def _check_selectable_fields(new: Any, old: Any) -> Causes:
    fields = new.get("selectableFields", ())
    if fields and new.get("schema") is None:
        detail = "selectableFields may only be set when a schema is included"
        return [invalid("selectableFields", "", detail)]
    schema = (new.get("schema") or {}).get("openAPIV3Schema") or {}
    found: list[Cause] = []
    if len(fields) > MAX_SELECTABLE_FIELDS:
        detail = f"may not have more than {MAX_SELECTABLE_FIELDS} items"
        found.append(invalid("selectableFields", len(fields), detail))
    paths = [field.get("jsonPath", "") for field in fields]
    for at, path in enumerate(paths):
        place = f"selectableFields[{at}].jsonPath"
        if not path:
            found.append(required(place))
        elif path.startswith(".metadata") or not field_keys(path):
            found.append(invalid(place, path, "must be a simple path to a field of the object"))
        elif _type_at(schema, field_keys(path)) not in _SELECTABLE_TYPES:
            detail = "must point to a field of type string, boolean or integer. Enum string fields "
            found.append(invalid(place, path, f"{detail}and strings with formats are allowed."))
    twice = [duplicate(f"selectableFields[{at}].jsonPath", paths[at])
             for at in find_duplicate_values(paths) if paths[at]]  # fmt: skip
    return [*found, *twice]


def _type_at(schema: Object, path: Sequence[str]) -> str:
    for key in path:
        schema = schema.get("properties", {}).get(key, {})
    return str(schema.get("type", ""))


def _check_deprecation_warning(new: Any, old: Any) -> Causes:
    warning = new.get("deprecationWarning")
    if warning is None:
        return ()
    faults = [] if new.get("deprecated") else ["can only be set for deprecated versions"]
    if not warning:
        faults.append("must not be empty")
    elif len(warning) > _MAX_WARNING_LENGTH:
        faults.append(f"must be <= {_MAX_WARNING_LENGTH} bytes long")
    elif not warning.isprintable():
        faults.append("must only contain printable UTF-8 characters")
    return [invalid("deprecationWarning", warning, fault) for fault in faults]


_VERSION = all_of(
    struct(
        ("name", string_format(label_faults)),
        ("additionalPrinterColumns", optional(each(_PRINTER_COLUMN))),
        ("subresources", optional(_SUBRESOURCES)),
    ),
    _check_deprecation_warning,
    _check_version_schema,
    _check_selectable_fields,
)


def _check_versions(new: Any, old: Any) -> Causes:
    versions = new or []
    known = () if old is CREATED or not old else old
    if len(versions) > max(_MAX_VERSIONS, len(known)):
        return [too_many("", len(versions), _MAX_VERSIONS)]
    shown = [{key: one.get(key) for key in ("name", "served", "storage")} for one in versions]
    found: list[Cause] = []
    if find_duplicate_values(one.get("name") for one in versions):
        found.append(invalid("", shown, "must contain unique version names"))
    if sum(bool(one.get("storage")) for one in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        found.append(invalid("", shown, detail))
    return found


def check_rule_count(new: Object, old: Object | None) -> Causes:
    """Refuse a definition with too many CEL rules, unless the stored one has as many."""
    count = count_rules(new["spec"].get("versions"))
    if count <= _MAX_RULES or (old and count <= count_rules(old["spec"].get("versions"))):
        return ()
    detail = f"must have at most {_MAX_RULES} validation rules in all versions, not {count}"
    return [forbidden("spec.versions", detail)]


def _check_conversion(new: Any, old: Any) -> Causes:
    """Check the conversion strategy and its webhook, under the names that Kubernetes reports."""
    conversion = new or {}
    strategy, webhook = conversion.get("strategy"), conversion.get("webhook") or {}
    config, versions = webhook.get("clientConfig"), webhook.get("conversionReviewVersions")
    if not strategy:
        return [required("strategy")]
    if strategy not in ("None", "Webhook"):
        return [unsupported("strategy", strategy, ("None", "Webhook"))]
    if strategy == "None":
        detail = "should not be set when strategy is not set to Webhook"
        given = {"webhookClientConfig": config is not None, "conversionReviewVersions": versions}
        return [forbidden(field, detail) for field, value in given.items() if value]
    if config is None:
        found = [required("webhookClientConfig", "required when strategy is set to Webhook")]
    else:
        found = [*prefix_causes("webhookClientConfig", check_client_config(config, old))]
    return [*found, *prefix_causes("conversionReviewVersions", _check_review_versions(versions))]


def _check_review_versions(versions: Any) -> Causes:
    if not versions:
        return [required("")]
    found: list[Cause] = []
    for at, version in enumerate(versions):
        if version in versions[:at]:
            found.append(invalid(f"[{at}]", version, "duplicate version"))
        else:
            faults = label_faults(version)
            found += [invalid(f"[{at}]", version, fault) for fault in faults]
    if not any(version in CONVERSION_REVIEW_VERSIONS for version in versions):
        detail = f"must include at least one of {', '.join(CONVERSION_REVIEW_VERSIONS)}"
        found.append(invalid("", versions, detail))
    return found


def _check_preserve_unknown_fields(new: Any, old: Any) -> Causes:
    """Refuse the field of v1beta1, which also excludes defaults in schemas."""
    spec, place = new or {}, "preserveUnknownFields"
    if not spec.get(place):
        return ()
    detail = (
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
        "spec.versions[*].schema instead"
    )
    found = [invalid(place, True, detail)]
    schemas = [
        (one.get("schema") or {}).get("openAPIV3Schema") for one in spec.get("versions") or ()
    ]
    if any(has_default(schema) for schema in schemas if isinstance(schema, dict)):
        found.append(invalid(place, True, "must be false in order to use defaults in the schema"))
    return found


# -------------------------------------------------------------------------------- status and change


def _check_stored_versions(new: Any, old: Any) -> Causes:
    """Require that `storedVersions` are in the spec and include the storage version."""
    field, stored = "status.storedVersions", new.get("status", {}).get("storedVersions")
    if not stored:
        return [invalid(field, stored, "must have at least one stored version")]
    versions = new["spec"].get("versions") or []
    missing: list[Cause] = []
    left = set(stored)
    for one in versions:
        name = one.get("name")
        if one.get("storage") and name not in left:
            missing.append(invalid(field, stored, f"must have the storage version {name}"))
        left.discard(name)  # A second version of the same name is missing, as in Kubernetes.
    known = [one.get("name") for one in versions]
    strange = [
        invalid(f"{field}[{at}]", name, "must appear in spec.versions")
        for at, name in enumerate(stored)
        if name not in known
    ]
    return [*missing, *strange]


def _check_immutable_fields(new: Any, old: Any) -> Causes:
    """Refuse changes of group and plural name, and of scope and kind once it is established."""
    if old is CREATED:
        return ()
    established = find_condition(old, ESTABLISHED).get("status") == "True"
    fixed = [("group",), ("names", "plural")]
    fixed += [("scope",), ("names", "kind")] if established else []
    return [
        invalid(f"spec.{'.'.join(path)}", _value_at(new["spec"], path), IMMUTABLE)
        for path in fixed
        if _value_at(new["spec"], path) != _value_at(old["spec"], path)
    ]


def _value_at(value: Object, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key, {})
    return value


#: The parts of a version that Kubernetes reports at the spec if all versions share them, and where.
_SHARED_PARTS = {
    "schema.": "validation.",
    "subresources.": "subresources.",
    "additionalPrinterColumns[": "additionalPrinterColumns[",
    "selectableFields": "selectableFields",
}
_VERSION_PREFIX = "spec.versions[0]."


def causes_of_versions(definition: Object, causes: Iterable[Cause]) -> list[Cause]:
    """Return causes with the paths that Kubernetes gives them.

    It checks what all versions have in common once, at the spec.
    """
    found: list[Cause] = []
    versions = definition["spec"].get("versions") or [{}]
    for cause in causes:
        field = cause.field
        if "additionalPrinterColumns[" in field and field.endswith(".jsonPath"):
            field = f"{field.removesuffix('jsonPath')}JSONPath"
        part = next((p for p in _SHARED_PARTS if field.startswith(_VERSION_PREFIX + p)), None)
        if part is not None:
            key = part.rstrip(".[")
            if versions[0].get(key) and all(one.get(key) == versions[0][key] for one in versions):
                rest = field.removeprefix(_VERSION_PREFIX + part)
                field = f"spec.{_SHARED_PARTS[part]}{rest}"
        found.append(Cause(field, cause.reason, cause.message))
    return found


#: A whole definition.
check_definition: Check = all_of(
    on_create(_check_object_name),
    struct(
        (
            "spec",
            all_of(
                _check_preserve_unknown_fields,
                struct(
                    ("group", mandatory(_check_group)),
                    ("scope", mandatory(one_of("Cluster", "Namespaced"))),
                    ("versions", all_of(optional(each(_VERSION)), _check_versions)),
                    ("names", all_of(_REQUIRED_NAMES, _NAMES)),
                    ("conversion", _check_conversion),
                ),
            ),
        ),
    ),
    _check_stored_versions,
    _check_approval,
    _check_immutable_fields,
)
#: The status subresource.
check_definition_status: Check = all_of(
    struct(("status", struct(("acceptedNames", optional(_NAMES))))),
    _check_stored_versions,
)
