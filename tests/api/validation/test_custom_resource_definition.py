from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.custom_resource_definition import (
    TakenNames,
    default_definition,
    update_definition_status,
)
from phalanx.api.validation.checks import CREATED
from phalanx.api.validation.custom_resource_definition import (
    APPROVAL_ANNOTATION,
    check_definition,
    check_definition_status,
    label_faults,
)
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import WIDGET, custom_resource_definition, served_version

REQUIRED, INVALID = "FieldValueRequired", "FieldValueInvalid"
DUPLICATE = "FieldValueDuplicate"
FORBIDDEN, UNSUPPORTED = "FieldValueForbidden", "FieldValueNotSupported"
VERSION = "spec.versions[0]"


def with_status(obj: Object, now: str = "2026-01-01T00:00:00Z") -> Object:
    default_definition(obj)
    update_definition_status(obj, TakenNames(), now)
    return obj


def validation_causes(obj: Object, old: Object | None = None) -> list[tuple[str, str]]:
    before = CREATED if old is None else with_status(old)
    return [(cause.field, cause.reason) for cause in check_definition(with_status(obj), before)]


def test_versions_are_limited() -> None:
    versions = [served_version(f"v{n}", storage=n == 1) for n in range(1, 102)]
    assert validation_causes(custom_resource_definition(*versions[:100])) == []
    many = custom_resource_definition(*versions)
    assert validation_causes(many) == [("spec.versions", "FieldValueTooMany")]
    # A definition that was stored before can still be changed.
    assert validation_causes(many, custom_resource_definition(*versions)) == []


def definition_with(path: str, value: Any) -> Object:
    """A good definition with one thing else."""
    obj = custom_resource_definition()
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
        custom_resource_definition(),
        custom_resource_definition(scope="Cluster"),
        custom_resource_definition(
            served_version("v1"), served_version("v2beta1", storage=False, served=False)
        ),
        custom_resource_definition(
            served_version(
                subresources={
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size",
                        "labelSelectorPath": ".status.selector",
                    },
                }
            )
        ),
        custom_resource_definition(
            served_version(
                additionalPrinterColumns=[
                    {
                        "name": "Ready",
                        "type": "string",
                        "jsonPath": '.status.c[?(@.type=="Ready")].status',
                    },
                ]
            )
        ),
        custom_resource_definition(served_version(selectableFields=[{"jsonPath": ".spec.colour"}])),
        custom_resource_definition(
            served_version(deprecated=True, deprecationWarning="use another")
        ),
    ],
)
def test_a_good_definition_is_accepted(obj: Object) -> None:
    assert validation_causes(obj) == []


@pytest.mark.parametrize(
    ("path", "value", "causes"),
    [
        ("metadata.name", "other.example.com", [("metadata.name", INVALID)]),
        ("spec.scope", "Galaxy", [("spec.scope", UNSUPPORTED)]),
        ("spec.scope", None, [("spec.scope", REQUIRED)]),
        ("spec.versions.0.schema", None, [(f"{VERSION}.schema.openAPIV3Schema", REQUIRED)]),
        (
            "spec.versions.0.schema.openAPIV3Schema.type",
            "string",
            [(f"{VERSION}.schema.openAPIV3Schema.type", INVALID)],
        ),
        ("spec.versions.0.name", "V1", [(f"{VERSION}.name", INVALID)]),
        (
            "spec.versions.0.storage",
            False,
            [("spec.versions", INVALID), ("status.storedVersions", INVALID)],
        ),
        (
            "spec.versions",
            [served_version("v1"), served_version("v1", storage=False)],
            [("spec.versions", INVALID)],
        ),
        (
            "spec.versions",
            [served_version("v1"), served_version("v2")],
            [("spec.versions", INVALID)],
        ),
        ("spec.versions", [], [("spec.versions", INVALID), ("status.storedVersions", INVALID)]),
        (
            "spec.names.kind",
            "Wid get",
            [(f"spec.names.{name}", INVALID) for name in ("singular", "kind", "listKind")],
        ),
        ("spec.names.listKind", "Widget", [("spec.names.listKind", INVALID)]),
        ("spec.names.shortNames", ["w", "W"], [("spec.names.shortNames[1]", INVALID)]),
        ("spec.names.categories", ["a.b"], [("spec.names.categories[0]", INVALID)]),
        ("spec.conversion", {"strategy": "Magic"}, [("spec.conversion.strategy", UNSUPPORTED)]),
        (
            "spec.conversion",
            {"strategy": "Webhook"},
            [
                ("spec.conversion.webhookClientConfig", REQUIRED),
                ("spec.conversion.conversionReviewVersions", REQUIRED),
            ],
        ),
        (
            "spec.conversion",
            {
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": {"url": "http://host/"},
                    "conversionReviewVersions": ["v7", "v7"],
                },
            },
            [
                ("spec.conversion.webhookClientConfig.url", INVALID),
                ("spec.conversion.conversionReviewVersions[1]", INVALID),
                ("spec.conversion.conversionReviewVersions", INVALID),
            ],
        ),
        (
            "spec.conversion",
            {
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": {"url": "https://host/", "service": {}},
                    "conversionReviewVersions": ["v1"],
                },
            },
            [("spec.conversion.webhookClientConfig", REQUIRED)],
        ),
        (
            "spec.conversion",
            {
                "strategy": "None",
                "webhook": {"clientConfig": {}, "conversionReviewVersions": ["v1"]},
            },
            [
                ("spec.conversion.webhookClientConfig", FORBIDDEN),
                ("spec.conversion.conversionReviewVersions", FORBIDDEN),
            ],
        ),
        # Once for the field itself, once because the schema has defaults.
        ("spec.preserveUnknownFields", True, [("spec.preserveUnknownFields", INVALID)] * 2),
        ("spec.versions.0.deprecationWarning", "x", [(f"{VERSION}.deprecationWarning", INVALID)]),
        (
            "spec.versions.0.additionalPrinterColumns",
            [{"name": "", "type": "x", "jsonPath": "x"}],
            [
                (f"{VERSION}.additionalPrinterColumns[0].name", REQUIRED),
                (f"{VERSION}.additionalPrinterColumns[0].type", INVALID),
                (f"{VERSION}.additionalPrinterColumns[0].jsonPath", INVALID),
            ],
        ),
        (
            "spec.versions.0.subresources",
            {
                "scale": {
                    "specReplicasPath": ".status.size",
                    "statusReplicasPath": ".status.sizes[0]",
                    "labelSelectorPath": "x",
                }
            },
            [
                (f"{VERSION}.subresources.scale.specReplicasPath", INVALID),
                (f"{VERSION}.subresources.scale.statusReplicasPath", INVALID),
                (f"{VERSION}.subresources.scale.labelSelectorPath", INVALID),
            ],
        ),
        (
            "spec.versions.0.selectableFields",
            [
                {"jsonPath": f".{p}" if p else ""}
                for p in ("spec.colour", "spec.tags", "spec.colour", "", "metadata.x")
            ],
            [
                (f"{VERSION}.selectableFields[1].jsonPath", INVALID),
                (f"{VERSION}.selectableFields[3].jsonPath", REQUIRED),
                (f"{VERSION}.selectableFields[4].jsonPath", INVALID),
                (f"{VERSION}.selectableFields[2].jsonPath", DUPLICATE),
            ],
        ),
    ],
)
def test_a_definition_is_refused_for_what_is_wrong_with_it(
    path: str, value: Any, causes: list[tuple[str, str]]
) -> None:
    assert validation_causes(definition_with(path, value)) == causes


@pytest.mark.parametrize("group", ["", "nodots", "Bad.Group"])
def test_a_group_is_a_domain(group: str) -> None:
    assert ("spec.group", INVALID if group else REQUIRED) in validation_causes(
        custom_resource_definition(group=group)
    )


def test_status_subresource_restricts_the_root_schema() -> None:
    schema = {**WIDGET, "minProperties": 1}
    assert validation_causes(custom_resource_definition(served_version(schema=schema))) == []
    found = validation_causes(
        custom_resource_definition(served_version(schema=schema, subresources={"status": {}}))
    )
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
def test_protected_groups_need_the_approval_annotation(annotation: str | None, reason: str) -> None:
    obj = custom_resource_definition(group="batch.k8s.io")
    obj["metadata"]["annotations"] = {APPROVAL_ANNOTATION: annotation} if annotation else {}
    field = f"metadata.annotations[{APPROVAL_ANNOTATION}]"
    assert validation_causes(obj) == ([(field, reason)] if reason else [])


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
    assert (path, INVALID) in validation_causes(
        definition_with(path, value), custom_resource_definition()
    )


def test_before_it_is_established_a_definition_may_change_its_kind() -> None:
    old, new = custom_resource_definition(), definition_with("spec.names.kind", "Gadget")
    for obj in (old, new):
        default_definition(obj)
        update_definition_status(obj, TakenNames(frozenset({"widgets"})), "")
    assert [cause.field for cause in check_definition(new, old)] == []


def test_a_version_that_may_still_be_stored_cannot_be_left_out() -> None:
    old, new = (
        with_status(custom_resource_definition()),
        custom_resource_definition(served_version("v2")),
    )
    new["status"] = old["status"]
    assert validation_causes(new, old) == [("status.storedVersions[0]", INVALID)]


def test_a_status_is_judged_by_itself() -> None:
    obj = with_status(custom_resource_definition())
    obj["status"]["acceptedNames"] = {"plural": "No!", "kind": "Widget"}
    obj["status"]["storedVersions"] = ["v7"]
    found = [(cause.field, cause.reason) for cause in check_definition_status(obj, obj)]
    assert found == [
        ("status.acceptedNames.plural", INVALID),
        ("status.storedVersions", INVALID),
        ("status.storedVersions[0]", INVALID),
    ]


def test_names_begin_with_a_letter() -> None:
    assert [name for name in ("a", "a-1", "x" * 63) if label_faults(name)] == []
    assert [name for name in ("1a", "a-", "A", "", "x" * 64) if not label_faults(name)] == []
