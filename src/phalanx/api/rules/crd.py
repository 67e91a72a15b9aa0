"""Rules for CustomResourceDefinitions: what may be defined, and what may never change about it.

The schema of each version has rules of its own (`schema.py`). Whether names are free is no
rule but a condition in the status (`defaults/crd.py`): the server alone knows the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, required, unsupported
from phalanx.api.custom.jsonpath import keys
from phalanx.api.defaults.crd import ESTABLISHED, condition
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_subdomain_faults, service_name_faults
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    again,
    at_creation,
    each,
    every,
    given,
    needed,
    one_of,
    struct,
    text,
    there,
)
from phalanx.api.rules.schema import check_schema
from phalanx.api.wire import Object

APPROVED = "api-approved.kubernetes.io"
MAX_SELECTABLE = 8
_WARNING_LIMIT = 256
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = (
    "byte", "date", "date-time", "double", "float", "int32", "int64", "password",
)  # fmt: skip
_SELECTABLE_TYPES = ("boolean", "integer", "string")
_AT_ROOT = (
    "description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
    "multipleOf", "required", "items", "properties", "externalDocs", "example",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
)  # fmt: skip


def label_faults(name: str) -> Sequence[str]:
    """`my-name`: as a DNS label, but it begins with a letter."""
    faults = service_name_faults(name)
    return [",".join(faults)] if faults else ()


def _kind_faults(name: str) -> Sequence[str]:
    prefix = "may have mixed case, but should otherwise match: "
    return [prefix + fault for fault in label_faults(name.lower())]


# -------------------------------------------------------------------------------------------- names


def _not_a_list(new: Any, old: Any) -> Causes:
    if not new or not new.get("kind") or new["kind"] != new.get("listKind"):
        return ()
    return [invalid("listKind", new["listKind"], "kind and listKind may not be the same")]


_names = every(
    struct(
        ("plural", given(text(label_faults))),
        ("singular", given(text(label_faults))),
        ("kind", given(text(_kind_faults))),
        ("listKind", given(text(_kind_faults))),
        ("shortNames", given(each(text(label_faults)))),
        ("categories", given(each(text(label_faults)))),
    ),
    _not_a_list,
)
_needed_names = struct(("plural", there), ("singular", there), ("kind", there), ("listKind", there))


def _group(new: Any, old: Any) -> Causes:
    if faults := dns_subdomain_faults(new):
        return [invalid("", new, ",".join(faults))]
    return () if "." in new else [invalid("", new, "should be a domain with at least one dot")]


def _named_for_what_it_defines(new: Any, old: Any) -> Causes:
    name, spec = new["metadata"].get("name", ""), new["spec"]
    wanted = f"{spec.get('names', {}).get('plural', '')}.{spec.get('group', '')}"
    detail = 'must be spec.names.plural+"."+spec.group'
    return () if name == wanted else [invalid("metadata.name", name, detail)]


def _is_approved(new: Any, old: Any) -> Causes:
    """Groups of the Kubernetes community need the community's word."""
    group = new["spec"].get("group", "")
    if not re.search(r"(^|\.)(k8s|kubernetes)\.io$", group):
        return ()
    said = (new["metadata"].get("annotations") or {}).get(APPROVED)
    field = f"metadata.annotations[{APPROVED}]"
    see = "see https://github.com/kubernetes/enhancements/pull/1111"
    if said is None:
        detail = f'protected groups must have approval annotation "{APPROVED}", {see}'
        return [required(field, detail)]
    if said.startswith("unapproved") or re.match(r"https?://.", said):
        return ()
    detail = f'protected groups must have approval annotation "{APPROVED}" with either a URL or a'
    return [invalid(field, said, f'{detail} reason starting with "unapproved", {see}')]


# ----------------------------------------------------------------------------------------- versions


def _path(*roots: str) -> Check:
    """A path from field to field, below one of the roots."""
    where = " or ".join(roots)

    def check(new: Any, old: Any) -> Causes:
        if not new.startswith("."):
            return [invalid("", new, "must be a simple json path starting with .")]
        if not new.startswith(tuple(f"{root}." for root in roots)):
            return [invalid("", new, f"should be a json path under {where}")]
        return () if keys(new) else [invalid("", new, "must be a json path in the dot notation")]

    return check


def _starts_with_dot(new: Any, old: Any) -> Causes:
    fits = new.startswith(".")
    return () if fits else [invalid("", new, "must be a simple json path starting with .")]


def _column_type(new: Any, old: Any) -> Causes:
    detail = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not new:
        return [required("", detail)]
    return () if new in _COLUMN_TYPES else [invalid("", new, detail)]


def _column_format(new: Any, old: Any) -> Causes:
    detail = f"must be one of {','.join(_COLUMN_FORMATS)}"
    return () if new in _COLUMN_FORMATS else [invalid("", new, detail)]


_column = struct(
    ("name", there),
    ("type", _column_type),
    ("format", given(_column_format)),
    ("jsonPath", needed(_starts_with_dot)),
)
_subresources = struct(
    (
        "scale",
        given(
            struct(
                ("specReplicasPath", needed(_path(".spec"))),
                ("statusReplicasPath", needed(_path(".status"))),
                ("labelSelectorPath", given(_path(".spec", ".status"))),
            )
        ),
    ),
)


def _schema(new: Any, old: Any) -> Causes:
    """The schema of a version. With a status of its own, the root may not say much else."""
    schema = (new.get("schema") or {}).get("openAPIV3Schema")
    path = "schema.openAPIV3Schema"
    if schema is None:
        return [required(path)]
    found = check_schema(schema, path)
    told = [key for key in schema if key not in _AT_ROOT]
    if found or not told or "status" not in new.get("subresources", {}):
        return found
    listed = " ".join(_AT_ROOT)
    detail = (
        f"only [{listed}] fields are allowed at the root of the schema if the status subresource "
        "is enabled"
    )
    return [invalid(path, told, detail)]


def _selectable(new: Any, old: Any) -> Causes:
    fields = new.get("selectableFields", ())
    schema = (new.get("schema") or {}).get("openAPIV3Schema") or {}
    found: list[Cause] = []
    if len(fields) > MAX_SELECTABLE:
        detail = f"may not have more than {MAX_SELECTABLE} items"
        found.append(invalid("selectableFields", len(fields), detail))
    paths = [field.get("jsonPath", "") for field in fields]
    for at, path in enumerate(paths):
        place = f"selectableFields[{at}].jsonPath"
        if not path:
            found.append(required(place))
        elif path.startswith(".metadata") or not keys(path):
            found.append(invalid(place, path, "must be a simple path to a field of the object"))
        elif _type_at(schema, keys(path)) not in _SELECTABLE_TYPES:
            detail = "must point to a field of type string, boolean or integer. Enum string fields "
            found.append(invalid(place, path, f"{detail}and strings with formats are allowed."))
    twice = [invalid(f"selectableFields[{at}].jsonPath", paths[at], "must be unique")
             for at in again(paths)]  # fmt: skip
    return [*found, *twice]


def _type_at(schema: Object, path: Sequence[str]) -> str:
    for key in path:
        schema = schema.get("properties", {}).get(key, {})
    return str(schema.get("type", ""))


def _deprecation(new: Any, old: Any) -> Causes:
    warning = new.get("deprecationWarning")
    if warning is None:
        return ()
    faults = [] if new.get("deprecated") else ["can only be set for deprecated versions"]
    if not warning:
        faults.append("must not be empty")
    elif len(warning) > _WARNING_LIMIT:
        faults.append(f"must be <= {_WARNING_LIMIT} bytes long")
    elif not warning.isprintable():
        faults.append("must only contain printable UTF-8 characters")
    return [invalid("deprecationWarning", warning, fault) for fault in faults]


_version = every(
    struct(
        ("name", text(label_faults)),
        ("additionalPrinterColumns", given(each(_column))),
        ("subresources", given(_subresources)),
    ),
    _deprecation,
    _schema,
    _selectable,
)


def _versions(new: Any, old: Any) -> Causes:
    versions = new or []
    shown = [{key: one.get(key) for key in ("name", "served", "storage")} for one in versions]
    found: list[Cause] = []
    if again(one.get("name") for one in versions):
        found.append(invalid("", shown, "must contain unique version names"))
    if sum(bool(one.get("storage")) for one in versions) != 1:
        detail = "must have exactly one version marked as storage version"
        found.append(invalid("", shown, detail))
    return found


def _conversion(new: Any, old: Any) -> Causes:
    """Objects are kept in one form that all versions share; nobody is asked to convert them."""
    strategy = (new or {}).get("strategy")
    if strategy == "None":
        webhook = "should not be set when strategy is not set to Webhook"
        return [forbidden("webhook", webhook)] if "webhook" in new else ()
    return [unsupported("strategy", strategy, ("None",)) if strategy else required("strategy")]


def _prunes(new: Any, old: Any) -> Causes:
    detail = (
        "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
        "spec.versions[*].schema instead"
    )
    return [invalid("", True, detail)] if new else ()


# -------------------------------------------------------------------------------- status and change


def _stored_versions(new: Any, old: Any) -> Causes:
    """Versions in which objects may still be kept must be there, that of today among them."""
    field, stored = "status.storedVersions", new.get("status", {}).get("storedVersions")
    if not stored:
        return [invalid(field, stored, "must have at least one stored version")]
    versions = new["spec"].get("versions") or []
    missing = [
        invalid(field, stored, f"must have the storage version {one.get('name')}")
        for one in versions
        if one.get("storage") and one.get("name") not in stored
    ]
    known = [one.get("name") for one in versions]
    strange = [
        invalid(f"{field}[{at}]", name, "must appear in spec.versions")
        for at, name in enumerate(stored)
        if name not in known
    ]
    return [*missing, *strange]


def _stays(new: Any, old: Any) -> Causes:
    """The name of a resource never changes; what it is like, only before anything is stored."""
    if old is CREATED:
        return ()
    established = condition(old, ESTABLISHED).get("status") == "True"
    fixed = [("group",), ("names", "plural")]
    fixed += [("scope",), ("names", "kind")] if established else []
    return [
        invalid(f"spec.{'.'.join(path)}", _at(new["spec"], path), IMMUTABLE)
        for path in fixed
        if _at(new["spec"], path) != _at(old["spec"], path)
    ]


def _at(value: Object, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key, {})
    return value


#: A definition as a whole.
DEFINITION: Check = every(
    at_creation(_named_for_what_it_defines),
    struct(
        (
            "spec",
            struct(
                ("group", needed(_group)),
                ("scope", needed(one_of("Cluster", "Namespaced"))),
                ("versions", every(given(each(_version)), _versions)),
                ("names", every(_needed_names, _names)),
                ("conversion", _conversion),
                ("preserveUnknownFields", given(_prunes)),
            ),
        ),
    ),
    _stored_versions,
    _is_approved,
    _stays,
)
#: The status of a definition, written by itself.
DEFINITION_STATUS: Check = every(
    struct(("status", struct(("acceptedNames", given(_names))))),
    _stored_versions,
)
