from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.crd import Names, default_definition, establish
from phalanx.api.rules.checks import CREATED
from phalanx.api.rules.crd import APPROVED, DEFINITION, DEFINITION_STATUS, label_faults
from phalanx.api.wire import Object
from tests.api.definitions import WIDGET, definition, version

REQUIRED, INVALID = "FieldValueRequired", "FieldValueInvalid"
FORBIDDEN, UNSUPPORTED = "FieldValueForbidden", "FieldValueNotSupported"
VERSION = "spec.versions[0]"


def ready(obj: Object, now: str = "2026-01-01T00:00:00Z") -> Object:
    default_definition(obj)
    establish(obj, Names(), now)
    return obj


def faults(obj: Object, old: Object | None = None) -> list[tuple[str, str]]:
    before = CREATED if old is None else ready(old)
    return [(cause.field, cause.reason) for cause in DEFINITION(ready(obj), before)]


def changed(path: str, value: Any) -> Object:
    """A good definition with one thing else."""
    obj = definition()
    *above, last = path.split(".")
    inner: Any = obj
    for key in above:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return obj


@pytest.mark.parametrize(
    "obj",
    [
        definition(),
        definition(scope="Cluster"),
        definition(version("v1"), version("v2beta1", storage=False, served=False)),
        definition(version(subresources={"status": {}, "scale": {
            "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size",
            "labelSelectorPath": ".status.selector",
        }})),
        definition(version(additionalPrinterColumns=[
            {"name": "Ready", "type": "string", "jsonPath": '.status.c[?(@.type=="Ready")].status'},
        ])),
        definition(version(selectableFields=[{"jsonPath": ".spec.colour"}])),
        definition(version(deprecated=True, deprecationWarning="use another")),
    ],
)  # fmt: skip
def test_a_good_definition_is_accepted(obj: Object) -> None:
    assert faults(obj) == []


@pytest.mark.parametrize(
    ("path", "value", "causes"),
    [
        ("metadata.name", "other.example.com", [("metadata.name", INVALID)]),
        ("spec.scope", "Galaxy", [("spec.scope", UNSUPPORTED)]),
        ("spec.scope", None, [("spec.scope", REQUIRED)]),
        ("spec.versions.0.schema", None, [(f"{VERSION}.schema.openAPIV3Schema", REQUIRED)]),
        ("spec.versions.0.schema.openAPIV3Schema.type", "string",
         [(f"{VERSION}.schema.openAPIV3Schema.type", INVALID)]),
        ("spec.versions.0.name", "V1", [(f"{VERSION}.name", INVALID)]),
        ("spec.versions.0.storage", False,
         [("spec.versions", INVALID), ("status.storedVersions", INVALID)]),
        ("spec.versions", [version("v1"), version("v1", storage=False)],
         [("spec.versions", INVALID)]),
        ("spec.versions", [version("v1"), version("v2")], [("spec.versions", INVALID)]),
        ("spec.versions", [], [("spec.versions", INVALID), ("status.storedVersions", INVALID)]),
        ("spec.names.kind", "Wid get", [
            (f"spec.names.{name}", INVALID) for name in ("singular", "kind", "listKind")
        ]),
        ("spec.names.listKind", "Widget", [("spec.names.listKind", INVALID)]),
        ("spec.names.shortNames", ["w", "W"], [("spec.names.shortNames[1]", INVALID)]),
        ("spec.names.categories", ["a.b"], [("spec.names.categories[0]", INVALID)]),
        ("spec.conversion", {"strategy": "Webhook"}, [("spec.conversion.strategy", UNSUPPORTED)]),
        ("spec.conversion", {"strategy": "None", "webhook": {}},
         [("spec.conversion.webhook", FORBIDDEN)]),
        ("spec.preserveUnknownFields", True, [("spec.preserveUnknownFields", INVALID)]),
        ("spec.versions.0.deprecationWarning", "x", [(f"{VERSION}.deprecationWarning", INVALID)]),
        ("spec.versions.0.additionalPrinterColumns", [{"name": "", "type": "x", "jsonPath": "x"}], [
            (f"{VERSION}.additionalPrinterColumns[0].name", REQUIRED),
            (f"{VERSION}.additionalPrinterColumns[0].type", INVALID),
            (f"{VERSION}.additionalPrinterColumns[0].jsonPath", INVALID),
        ]),
        ("spec.versions.0.subresources", {"scale": {
            "specReplicasPath": ".status.size", "statusReplicasPath": ".status.sizes[0]",
            "labelSelectorPath": "x",
        }}, [
            (f"{VERSION}.subresources.scale.specReplicasPath", INVALID),
            (f"{VERSION}.subresources.scale.statusReplicasPath", INVALID),
            (f"{VERSION}.subresources.scale.labelSelectorPath", INVALID),
        ]),
        ("spec.versions.0.selectableFields",
         [{"jsonPath": f".{p}" if p else ""}
          for p in ("spec.colour", "spec.tags", "spec.colour", "", "metadata.x")],
         [
            (f"{VERSION}.selectableFields[1].jsonPath", INVALID),
            (f"{VERSION}.selectableFields[3].jsonPath", REQUIRED),
            (f"{VERSION}.selectableFields[4].jsonPath", INVALID),
            (f"{VERSION}.selectableFields[2].jsonPath", INVALID),
         ]),
    ],
)  # fmt: skip
def test_a_definition_is_refused_for_what_is_wrong_with_it(
    path: str, value: Any, causes: list[tuple[str, str]]
) -> None:
    assert faults(changed(path, value)) == causes


@pytest.mark.parametrize("group", ["", "nodots", "Bad.Group"])
def test_a_group_is_a_domain(group: str) -> None:
    assert ("spec.group", INVALID if group else REQUIRED) in faults(definition(group=group))


def test_with_a_status_of_its_own_the_root_of_a_schema_says_little_else() -> None:
    schema = {**WIDGET, "minProperties": 1}
    assert faults(definition(version(schema=schema))) == []
    found = faults(definition(version(schema=schema, subresources={"status": {}})))
    assert found == [(f"{VERSION}.schema.openAPIV3Schema", INVALID)]


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (None, REQUIRED),
        ("trust me", INVALID),
        ("https://example.com/approval", ""),
        ("unapproved, for a test", ""),
    ],
)
def test_groups_of_the_community_need_its_word(annotation: str | None, reason: str) -> None:
    obj = definition(group="batch.k8s.io")
    obj["metadata"]["annotations"] = {APPROVED: annotation} if annotation else {}
    field = f"metadata.annotations[{APPROVED}]"
    assert faults(obj) == ([(field, reason)] if reason else [])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.group", "example.org"),
        ("spec.names.plural", "gadgets"),
        ("spec.scope", "Cluster"),
        ("spec.names.kind", "Gadget"),
    ],
)
def test_what_a_definition_is_about_never_changes(path: str, value: str) -> None:
    assert (path, INVALID) in faults(changed(path, value), definition())


def test_before_it_is_established_a_definition_may_change_its_kind() -> None:
    old, new = definition(), changed("spec.names.kind", "Gadget")
    for obj in (old, new):
        default_definition(obj)
        establish(obj, Names(frozenset({"widgets"})), "")
    assert [cause.field for cause in DEFINITION(new, old)] == []


def test_a_version_that_may_still_be_stored_cannot_be_left_out() -> None:
    old, new = ready(definition()), definition(version("v2"))
    new["status"] = old["status"]
    assert faults(new, old) == [("status.storedVersions[0]", INVALID)]


def test_a_status_is_judged_by_itself() -> None:
    obj = ready(definition())
    obj["status"]["acceptedNames"] = {"plural": "No!", "kind": "Widget"}
    obj["status"]["storedVersions"] = ["v7"]
    found = [(cause.field, cause.reason) for cause in DEFINITION_STATUS(obj, obj)]
    assert found == [
        ("status.acceptedNames.plural", INVALID),
        ("status.storedVersions", INVALID),
        ("status.storedVersions[0]", INVALID),
    ]


def test_names_begin_with_a_letter() -> None:
    assert [name for name in ("a", "a-1", "x" * 63) if label_faults(name)] == []
    assert [name for name in ("1a", "a-", "A", "", "x" * 64) if not label_faults(name)] == []
