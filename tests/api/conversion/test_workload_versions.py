"""Workloads and PodGroups in older versions: converting there and back loses nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.conversion.field_mapping import (
    UNMAPPED_ANNOTATION,
    FieldMapping,
    MappedField,
    UnmappedField,
)
from phalanx.api.conversion.hub import (
    VERSION_MAPPINGS,
    causes_in_version,
    config_to_hub,
    from_hub,
    hub_kind,
    replacement_to_hub,
    to_hub,
)
from phalanx.api.errors import Cause
from phalanx.api.kinds import (
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    WORKLOAD_V1ALPHA2,
    Kind,
)
from phalanx.api.schema import Schema, schema
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.schema_strategies import objects
from tests.api.workload_strategies import default_group, default_workload, pod_groups, workloads
from tests.builders import share_of_examples

WORKLOADS = (WORKLOAD_V1ALPHA2, WORKLOAD_V1ALPHA1)
POD_GROUPS = (POD_GROUP_V1ALPHA2, POD_GROUP_V1ALPHA1)
#: The names of the templates of a Workload and of their policy, by version.
TEMPLATES = {WORKLOAD_V1ALPHA2: "podGroupTemplates", WORKLOAD_V1ALPHA1: "podGroups"}
POLICY = {WORKLOAD_V1ALPHA2: "schedulingPolicy", WORKLOAD_V1ALPHA1: "policy"}

each_workload = pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: str(kind.version))
each_group = pytest.mark.parametrize("kind", POD_GROUPS, ids=lambda kind: str(kind.version))
each_kind = pytest.mark.parametrize(
    "kind", [*WORKLOADS, *POD_GROUPS], ids=lambda kind: f"{kind.name}-{kind.version}"
)


def read_in_version(kind: Kind, obj: Object) -> Object:
    """Return a stored object as a client of a version reads it."""
    text = orjson.dumps(from_hub(kind, copy.deepcopy(obj)))
    served: Object = orjson.loads(text)
    return served


def write_in_version(kind: Kind, obj: Object) -> Object:
    """Return the stored object after a client of a version writes it."""
    sent = copy.deepcopy(obj)
    assert schema(kind.schema).normalize(sent).unknown_fields == ()
    stored = to_hub(kind, sent)
    return default_workload(stored) if kind in WORKLOADS else default_group(stored)


def unmatched_fields(
    form: FieldMapping, stored: Schema, shown: Schema, at: str = ""
) -> Iterator[str]:
    """Yield the paths of fields that one form has and the other has not."""
    for name in stored.fields:
        row = form.get(name, MappedField(name))
        if isinstance(row, UnmappedField):
            yield from [at + name] if name in shown.fields else []
            continue
        inner, own = stored.field(name), follow_path(shown, row.name)
        if inner is None or own is None:
            yield at + name
        elif not row.values and inner.name != own.name:
            yield from unmatched_fields(
                row.fields, inner.items or inner, own.items or own, f"{at}{name}."
            )
    known = [row.name.partition(".")[0] for row in form.values() if isinstance(row, MappedField)]
    yield from [at + name for name in shown.fields if name not in (*stored.fields, *known)]


def follow_path(struct: Schema, name: str) -> Schema | None:
    found: Schema | None = struct
    for step in name.split("."):
        found = found.field(step) if found is not None else None
    return found


@each_kind
def test_every_field_is_mapped_or_unmapped(kind: Kind) -> None:
    version = VERSION_MAPPINGS[kind]
    assert (
        list(unmatched_fields(version.mapping, schema(version.stored.schema), schema(kind.schema)))
        == []
    )


@given(workloads())
def test_generated_workloads_are_valid(obj: Object) -> None:
    obj["metadata"]["uid"] = "u"
    assert validate(WORKLOAD, obj, None) == []


@each_workload
@given(st.data())
def test_workload_round_trip_is_the_identity(kind: Kind, data: st.DataObject) -> None:
    stored = data.draw(workloads())
    assert write_in_version(kind, read_in_version(kind, stored)) == stored


@each_group
@given(st.data())
def test_pod_group_round_trip_is_the_identity(kind: Kind, data: st.DataObject) -> None:
    stored = data.draw(pod_groups())
    assert write_in_version(kind, read_in_version(kind, stored)) == stored


@each_kind
@share_of_examples(0.5)
@given(st.data())
def test_version_has_one_canonical_form(kind: Kind, data: st.DataObject) -> None:
    sent = data.draw(objects(kind.schema))
    sent.setdefault("metadata", {})
    schema(kind.schema).normalize(sent)
    canonical = from_hub(kind, to_hub(kind, sent))
    assert to_hub(kind, canonical) == to_hub(kind, sent)
    assert from_hub(kind, to_hub(kind, canonical)) == canonical


TEXTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
)
PLACES = st.sampled_from((
    "spec.preemptionPolicy", "spec.parentCompositePodGroupName", "spec.compositePodGroupTemplates",
    "spec.podGroupTemplates[t0].preemptionPolicy", "spec.nowhere", "metadata.name",
))  # fmt: skip


@each_kind
@given(st.data())
def test_stored_form_is_normalized_whatever_the_annotation_contains(
    kind: Kind, data: st.DataObject
) -> None:
    stored = data.draw(workloads() if kind in WORKLOADS else pod_groups())
    served = read_in_version(kind, stored)
    known = orjson.loads(served["metadata"].get("annotations", {}).get(UNMAPPED_ANNOTATION, "{}"))
    prints = st.sampled_from([row[1] for row in known.values()] or [""])
    rows = st.dictionaries(PLACES, st.one_of(TEXTS, st.tuples(TEXTS, prints)))
    annotation = data.draw(st.one_of(st.text(), TEXTS.map(to_json), rows.map(to_json)))
    served["metadata"].setdefault("annotations", {})[UNMAPPED_ANNOTATION] = annotation
    result = write_in_version(kind, served)
    assert UNMAPPED_ANNOTATION not in result["metadata"].get("annotations", {})
    again = copy.deepcopy(result)
    assert schema(hub_kind(kind).schema).normalize(again).unknown_fields == ()
    assert again == result


def to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


# ----------------------------------------------------------------------------- what a client does


def workload(*templates: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": list(templates), **spec}}


def template(name: str, **more: Any) -> Object:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": 2}}, **more}


TWO_TEMPLATES = workload(template("a", preemptionPolicy="Never"), template("b"))


def rewrite(kind: Kind, stored: Object, change: Callable[[Object], object]) -> Object:
    """Return the stored object after a client has read, changed and written it."""
    served = read_in_version(kind, stored)
    change(served)
    return write_in_version(kind, served)


def preemption_policies(obj: Object) -> dict[str, str | None]:
    """Return the preemption policies of the templates of a stored Workload."""
    return {t["name"]: t.get("preemptionPolicy") for t in obj["spec"]["podGroupTemplates"]}


@each_workload
def test_changing_a_label_changes_nothing_else(kind: Kind) -> None:
    result = rewrite(kind, TWO_TEMPLATES, lambda obj: obj["metadata"].update(labels={"x": "y"}))
    assert result == {**TWO_TEMPLATES, "metadata": {"name": "w", "labels": {"x": "y"}}}


@each_workload
def test_changing_a_count_keeps_the_rest_of_a_template(kind: Kind) -> None:
    def change(obj: Object) -> None:
        obj["spec"][TEMPLATES[kind]][0][POLICY[kind]]["gang"]["minCount"] = 7

    result = rewrite(kind, TWO_TEMPLATES, change)
    policy = {"gang": {"minCount": 7}}
    assert result["spec"]["podGroupTemplates"][0] == {
        **TWO_TEMPLATES["spec"]["podGroupTemplates"][0], "schedulingPolicy": policy,
    }  # fmt: skip


@each_workload
def test_reordered_templates_keep_their_unmapped_values(kind: Kind) -> None:
    result = rewrite(kind, TWO_TEMPLATES, lambda obj: obj["spec"][TEMPLATES[kind]].reverse())
    assert preemption_policies(result) == {"b": None, "a": "Never"}


@each_workload
def test_renamed_template_has_no_unmapped_values(kind: Kind) -> None:
    result = rewrite(
        kind, TWO_TEMPLATES, lambda obj: obj["spec"][TEMPLATES[kind]][0].update(name="c")
    )
    assert preemption_policies(result) == {"c": None, "b": None}


@each_workload
def test_removed_template_loses_its_unmapped_values(kind: Kind) -> None:
    result = rewrite(kind, TWO_TEMPLATES, lambda obj: obj["spec"][TEMPLATES[kind]].pop(0))
    assert preemption_policies(result) == {"b": None}


@each_workload
def test_preemption_policy_is_dropped_when_the_priority_changes(kind: Kind) -> None:
    def change(obj: Object) -> None:
        obj["spec"][TEMPLATES[kind]][0]["priorityClassName"] = "low"

    assert preemption_policies(rewrite(kind, TWO_TEMPLATES, change)) == {"a": None, "b": None}


@each_workload
def test_client_without_the_annotation_writes_what_its_version_has(kind: Kind) -> None:
    result = rewrite(kind, TWO_TEMPLATES, lambda obj: obj["metadata"].pop("annotations"))
    assert preemption_policies(result) == {"a": None, "b": None}


@each_workload
@pytest.mark.parametrize(("change", "kept"), [({}, "Never"), ({"priorityClassName": "low"}, None)])
def test_replacement_keeps_unmapped_values_of_unchanged_fields(
    kind: Kind, change: Object, kept: str | None
) -> None:
    served = read_in_version(kind, TWO_TEMPLATES)
    del served["metadata"]["annotations"]
    served["spec"][TEMPLATES[kind]][0].update(change)
    assert preemption_policies(replacement_to_hub(TWO_TEMPLATES, kind, served)) == {
        "a": kept,
        "b": None,
    }


TREE: Object = {
    "metadata": {"name": "w"},
    "spec": {
        "compositePodGroupTemplates": [
            {
                "name": "tree",
                "schedulingPolicy": {"basic": {}},
                "podGroupTemplates": [template("a")],
            }
        ]
    },
}


@each_workload
def test_composite_templates_are_hidden_and_not_lost(kind: Kind) -> None:
    assert TEMPLATES[kind] not in read_in_version(kind, TREE)["spec"]
    result = rewrite(kind, TREE, lambda obj: obj["metadata"].update(labels={"x": "y"}))
    assert result["spec"] == TREE["spec"]


@each_workload
def test_composite_templates_are_dropped_when_plain_templates_are_added(kind: Kind) -> None:
    def change(obj: Object) -> None:
        obj["spec"][TEMPLATES[kind]] = [{"name": "a", POLICY[kind]: {"basic": {}}}]

    result = rewrite(kind, TREE, change)
    assert result["spec"] == {
        "podGroupTemplates": [{"name": "a", "schedulingPolicy": {"basic": {}}}]
    }


CHILD: Object = {
    "metadata": {"name": "g"},
    "spec": {
        "workloadRef": {"workloadName": "w", "templateName": "a"},
        "parentCompositePodGroupName": "tree",
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "disruptionMode": {"all": {}},
        "preemptionPolicy": "Never",
    },
    "status": {},
}


@each_group
def test_pod_group_has_the_fields_of_its_version(kind: Kind) -> None:
    served = read_in_version(kind, CHILD)
    assert served["spec"] == {
        "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "a"}},
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "disruptionMode": "PodGroup",
    }
    assert list(served["metadata"]["annotations"]) == [UNMAPPED_ANNOTATION]


@each_group
def test_pod_group_of_another_template_loses_its_parent(kind: Kind) -> None:
    def change(obj: Object) -> None:
        obj["spec"]["podGroupTemplateRef"]["workload"]["podGroupTemplateName"] = "b"

    result = rewrite(kind, CHILD, change)["spec"]
    assert "parentCompositePodGroupName" not in result
    assert result["preemptionPolicy"] == "Never"


@each_group
def test_default_preemption_policy_is_not_kept(kind: Kind) -> None:
    plain: Object = {
        "metadata": {"name": "g"},
        "spec": {"preemptionPolicy": "PreemptLowerPriority"},
    }
    assert "annotations" not in read_in_version(kind, plain)["metadata"]


@each_kind
def test_applied_configuration_owns_no_unmapped_fields(kind: Kind) -> None:
    served = read_in_version(kind, TWO_TEMPLATES if kind in WORKLOADS else CHILD)
    config = config_to_hub(kind, served)
    assert "annotations" not in config["metadata"]
    assert "Never" not in to_json(config)


@pytest.mark.parametrize(
    ("kind", "stored", "shown"),
    [
        (
            WORKLOAD_V1ALPHA1,
            "spec.podGroupTemplates[0].schedulingPolicy.gang.minCount",
            "spec.podGroups[0].policy.gang.minCount",
        ),
        (WORKLOAD_V1ALPHA1, "spec.podGroupTemplates", "spec.podGroups"),
        (
            WORKLOAD_V1ALPHA1,
            '.spec.podGroupTemplates[name="a"].schedulingPolicy',
            '.spec.podGroups[name="a"].policy',
        ),
        (WORKLOAD_V1ALPHA2, "spec.podGroupTemplates[1].name", "spec.podGroupTemplates[1].name"),
        (WORKLOAD_V1ALPHA2, "spec", "spec"),
        (
            POD_GROUP_V1ALPHA1,
            "spec.workloadRef.templateName",
            "spec.podGroupTemplateRef.workload.podGroupTemplateName",
        ),
        (POD_GROUP_V1ALPHA2, "spec.workloadRef", "spec.podGroupTemplateRef.workload"),
        (POD_GROUP_V1ALPHA2, "spec.disruptionMode", "spec.disruptionMode"),
        (POD_GROUP_V1ALPHA2, "spec.disruptionMode.all", "spec.disruptionMode"),
        (POD_GROUP_V1ALPHA2, "spec.preemptionPolicy", "spec.preemptionPolicy"),
        (POD_GROUP_V1ALPHA2, "metadata.annotations[a.b/c]", "metadata.annotations[a.b/c]"),
        (WORKLOAD, "spec.podGroupTemplates[0]", "spec.podGroupTemplates[0]"),
        (POD_GROUP_V1ALPHA2, "", ""),
    ],
)
def test_error_names_the_field_of_the_version(kind: Kind, stored: str, shown: str) -> None:
    cause = Cause(stored, "FieldValueInvalid", "Invalid value")
    assert causes_in_version(kind, [cause]) == [Cause(shown, "FieldValueInvalid", "Invalid value")]


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        (WORKLOAD_V1ALPHA1, "`podGroups`"),
        (WORKLOAD_V1ALPHA2, "`podGroupTemplates`"),
        (WORKLOAD, "`podGroupTemplates`, `compositePodGroupTemplates`"),
    ],
)
def test_missing_templates_are_reported_with_the_fields_of_the_version(
    kind: Kind, known: str
) -> None:
    meta = {"name": "w", "namespace": "n", "uid": "u"}
    causes = validate(WORKLOAD, {"metadata": meta, "spec": {}}, None)
    assert [cause.message for cause in causes_in_version(kind, causes)] == [
        f'Invalid value: "": must specify one of: {known}'
    ]
