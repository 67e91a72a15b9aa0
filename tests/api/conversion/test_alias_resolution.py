"""Alias resolution in every form of request."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.conversion.alias_resolution import (
    ResolvedRequest,
    annotate,
    resolve_aliases,
)
from phalanx.api.conversion.workload_references import TEMPLATE_ANNOTATION, WORKLOAD_ANNOTATION
from phalanx.api.kinds import (
    CRON_JOB,
    JOB,
    JOB_SET,
    POD,
    POD_GROUP_V1ALPHA1,
    POD_TEMPLATE,
    Kind,
)
from phalanx.api.meta import LAST_APPLIED_ANNOTATION
from phalanx.api.wire import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object
from tests.api.cause_summaries import summarize

TREES = (JSON, APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
ALIASED: Object = {
    "policy": {"gang": {"minCount": 2}},
    "constraints": {"topology": [{"level": "zone"}]},
    "disruption": {"all": {}},
    "resourceClaims": [{"name": "c"}],
}
STORED: Object = {
    "schedulingPolicy": {"gang": {"minCount": 2}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
    "resourceClaims": [{"name": "c"}],
}
REPLICA: Object = {"name": "w", "podGroup": "t", "podGroupReplicaKey": "1"}
MARKS = {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}


def job(scheduling: Object) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"scheduling": scheduling}}


def cron_job(scheduling: Object) -> Object:
    return {"metadata": {}, "spec": {"jobTemplate": {"spec": {"scheduling": scheduling}}}}


def resolve(kind: Kind, form: str, wanted: Any) -> ResolvedRequest:
    found = resolve_aliases(kind.schema, form, copy.deepcopy(wanted))
    assert found is not None
    return found


# ---------------------------------------------------------------------------------------- trees


@pytest.mark.parametrize("form", TREES)
@pytest.mark.parametrize(("kind", "of"), [(JOB, job), (CRON_JOB, cron_job)])
def test_job_may_use_short_names(kind: Kind, of: Any, form: str) -> None:
    found = resolve(kind, form, of(ALIASED))
    assert found.value == of(STORED)
    assert found.causes == []
    assert len(found.warnings) == 4


def test_alias_is_answered_with_a_warning_that_names_the_stored_field() -> None:
    found = resolve(JOB, JSON, job({"policy": {"basic": {}}}))
    assert found.warnings == [
        "spec.scheduling.policy: deprecated; use spec.scheduling.schedulingPolicy instead"
    ]


@pytest.mark.parametrize("form", [*TREES, JSON_PATCH])
def test_warnings_below_an_alias_use_the_written_path(form: str) -> None:
    wanted: Any = job({"constraints": {"topology": [{"key": "a"}, {"level": "b"}]}})
    if form == JSON_PATCH:
        path = "/spec/scheduling/constraints/topology/1/level"
        wanted = [{"op": "test", "path": path, "value": "b"}]
    found = resolve(JOB, form, wanted)
    assert found.warnings[-1] == (
        "spec.scheduling.constraints.topology[1].level: deprecated; "
        "use spec.scheduling.schedulingConstraints.topology[1].key instead"
    )


@pytest.mark.parametrize("form", [*TREES, JSON_PATCH])
@pytest.mark.parametrize("kind", [JOB, POD, POD_TEMPLATE])
def test_request_with_stored_names_is_not_changed(kind: Kind, form: str) -> None:
    wanted: Any = {"spec": {"scheduling": STORED, "schedulingGroup": {"podGroupName": "g"}}}
    if form == JSON_PATCH:
        wanted = [{"op": "add", "path": "/spec/scheduling", "value": STORED}]
    before = copy.deepcopy(wanted)
    found = resolve_aliases(kind.schema, form, wanted)
    assert wanted == before
    assert found is None or (found.value == before and not found.warnings)


@pytest.mark.parametrize("wanted", [[], "text", None, 5, {"spec": []}, {"spec": {"scheduling": 1}}])
@pytest.mark.parametrize("form", [*TREES, JSON_PATCH])
def test_request_of_wrong_structure_is_not_changed(wanted: Any, form: str) -> None:
    before = copy.deepcopy(wanted)
    found = resolve_aliases(JOB.schema, form, wanted)
    assert (wanted if found is None else found.value) == before


@pytest.mark.parametrize("kind", [POD, JOB])
def test_aliases_apply_only_in_their_struct(kind: Kind) -> None:
    wanted = {"metadata": {"policy": 1}, "policy": 1, "spec": {"policy": 1, "level": 2}}
    assert resolve_aliases(kind.schema, JSON, wanted) is None


@pytest.mark.parametrize("form", TREES)
def test_two_names_of_one_field_with_values_are_refused(form: str) -> None:
    found = resolve(JOB, form, job({"policy": {"basic": {}}, "schedulingPolicy": {"basic": {}}}))
    assert summarize(found.causes) == ["spec.scheduling.policy: Forbidden"]


def test_two_names_in_a_list_item_are_refused_with_its_path() -> None:
    topology = [{"key": "a"}, {"level": "b", "key": "c"}]
    found = resolve(JOB, JSON, job({"schedulingConstraints": {"topology": topology}}))
    place = "spec.scheduling.schedulingConstraints.topology[1].level"
    assert summarize(found.causes) == [f"{place}: Forbidden"]


KEYS = (
    "spec", "template", "metadata", "annotations", "scheduling", "policy", "schedulingPolicy",
    "constraints", "topology", "level", "key", "workloadRef", "schedulingGroup", "podGroup",
    "podGroupName", "name", "$retainKeys", LAST_APPLIED_ANNOTATION,
)  # fmt: skip
POINTERS = st.lists(st.sampled_from([*KEYS[:-1], "0", "-"]), max_size=6).map("/".join)
LEAVES = st.none() | st.integers(0, 2) | st.text("ab", max_size=2) | st.sampled_from(KEYS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner),
)
STEPS = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "test", "move", "copy", "replace"])},
    optional={"path": POINTERS.map("/{}".format) | VALUES, "from": POINTERS, "value": VALUES},
)


@given(st.sampled_from([JOB, POD, CRON_JOB]), st.sampled_from(TREES), VALUES)
def test_resolution_never_fails_and_is_idempotent(kind: Kind, form: str, wanted: Any) -> None:
    found = resolve_aliases(kind.schema, form, wanted)
    if found is not None and not found.causes:
        again = resolve_aliases(kind.schema, form, copy.deepcopy(found.value))
        assert again is None or (again.value == found.value and not again.warnings)


@given(st.lists(STEPS, max_size=3))
def test_resolution_never_fails_on_json_patches(steps: list[Object]) -> None:
    found = resolve_aliases(JOB.schema, JSON_PATCH, steps)
    assert found is not None
    assert [step["op"] for step in found.value] == [step["op"] for step in steps]


# ------------------------------------------------------------------------------ pods and groups


@pytest.mark.parametrize("form", TREES)
def test_pod_may_name_its_group_in_the_older_form(form: str) -> None:
    found = resolve(POD, form, {"spec": {"workloadRef": {"name": "w", "podGroupName": "g"}}})
    assert found.value["spec"] == {"schedulingGroup": {"podGroupName": "g"}}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (POD, ()),
        (POD_TEMPLATE, ("template",)),
        (JOB, ("spec", "template")),
        (CRON_JOB, ("spec", "jobTemplate", "spec", "template")),
    ],
)
@pytest.mark.parametrize("form", TREES)
def test_group_to_be_created_is_annotated_on_the_pod_or_its_template(
    kind: Kind, way: tuple[str, ...], form: str
) -> None:
    wanted: Object = {"metadata": {"labels": {"a": "b"}}, "spec": {"workloadRef": REPLICA}}
    for step in reversed(way):
        wanted = {step: wanted}
    template = resolve(kind, form, wanted).value
    for step in way:
        template = template[step]
    assert template == {
        "metadata": {"labels": {"a": "b"}, "annotations": MARKS},
        "spec": {"schedulingGroup": {"podGroupName": "w-t-1"}},
    }


def test_both_forms_of_a_group_reference_may_be_used_if_equal() -> None:
    both = {"workloadRef": REPLICA, "schedulingGroup": {"podGroupName": "w-t-1"}}
    assert resolve(POD, JSON, {"spec": both}).causes == []
    both["schedulingGroup"] = {"podGroupName": "other"}
    assert summarize(resolve(POD, JSON, {"spec": both}).causes) == ["spec.workloadRef: Forbidden"]


def test_reference_without_group_is_refused_with_its_path() -> None:
    wanted = {"spec": {"template": {"spec": {"workloadRef": {"podGroup": "t"}}}}}
    causes = resolve(JOB, JSON, wanted).causes
    assert summarize(causes) == ["spec.template.spec.workloadRef.name: Required"]


@pytest.mark.parametrize("form", TREES)
def test_group_named_by_the_pod_is_not_annotated(form: str) -> None:
    named = {"workloadRef": {"name": "w", "podGroupName": "g"}}
    assert "metadata" not in resolve(POD, form, {"spec": named}).value


@pytest.mark.parametrize(("namespace", "found"), [("home", []), ("", []), ("abroad", ["Invalid"])])
def test_reference_into_another_namespace_is_refused(namespace: str, found: list[str]) -> None:
    wanted = {"spec": {"workloadRef": {"name": "w", "namespace": namespace}}}
    result = resolve_aliases(POD_GROUP_V1ALPHA1.schema, JSON, wanted, namespace="home")
    assert result is not None
    assert summarize(result.causes) == [f"spec.workloadRef.namespace: {one}" for one in found]


@pytest.mark.parametrize("metadata", [5, "x", [], {"annotations": 5}])
def test_metadata_of_wrong_structure_is_not_changed(metadata: Any) -> None:
    found = resolve(POD, JSON, {"metadata": metadata, "spec": {"workloadRef": REPLICA}})
    if metadata:
        assert found.value["metadata"] == metadata


# -------------------------------------------------------------------------------- merge patches


@pytest.mark.parametrize("form", TREES)
def test_alias_with_null_removes_nothing(form: str) -> None:
    found = resolve(JOB, form, job({"policy": None}))
    assert found.value == job({})
    assert found.warnings == []
    assert resolve(POD, form, {"spec": {"workloadRef": None}}).value == {"spec": {}}


@pytest.mark.parametrize("form", [MERGE_PATCH, STRATEGIC_PATCH])
def test_null_gives_way_to_the_name_with_a_value(form: str) -> None:
    kept: Object = {"schedulingPolicy": {"gang": {}}}
    assert resolve(JOB, form, job({"policy": None, **kept})).value == job(kept)


def test_field_that_changes_its_name_is_replaced_as_a_whole() -> None:
    wanted: Object = {"policy": {"gang": {}}, "schedulingPolicy": None}
    found = resolve(CRON_JOB, STRATEGIC_PATCH, cron_job(wanted))
    assert found.causes == []
    assert found.value == cron_job({"schedulingPolicy": {"$patch": "replace", "gang": {}}})


def apply_patch_with_manifest(patch: Object, manifest: Any) -> Object:
    """Return a patch as `kubectl apply` sends it, with the manifest."""
    text = manifest if isinstance(manifest, str) else orjson.dumps(manifest).decode()
    return {**patch, "metadata": {"annotations": {LAST_APPLIED_ANNOTATION: text}}}


@pytest.mark.parametrize("form", [MERGE_PATCH, STRATEGIC_PATCH])
def test_manifest_may_switch_to_the_stored_name(form: str) -> None:
    patch = apply_patch_with_manifest({"spec": {"scheduling": {"policy": None}}}, job(STORED))
    assert resolve(JOB, form, patch).value["spec"] == {"scheduling": {}}
    pod = apply_patch_with_manifest(
        {"spec": {"workloadRef": None}}, {"spec": {"schedulingGroup": {"podGroupName": "g"}}}
    )
    assert resolve(POD, form, pod).value["spec"] == {}


def test_manifest_item_is_matched_by_the_strings_of_the_patch() -> None:
    def replicated(name: str, scheduling: Object) -> Object:
        return {"name": name, "template": {"spec": {"scheduling": scheduling}}}

    items = [replicated("b", {"policy": None}), replicated("a", {"policy": None})]
    manifest = {"spec": {"replicatedJobs": [replicated("a", STORED), replicated("b", {})]}}
    patch = apply_patch_with_manifest({"spec": {"replicatedJobs": items}}, manifest)
    found = resolve(JOB_SET, STRATEGIC_PATCH, patch).value["spec"]["replicatedJobs"]
    assert found == [replicated("b", {"schedulingPolicy": None}), replicated("a", {})]


@pytest.mark.parametrize("form", [MERGE_PATCH, STRATEGIC_PATCH])
@pytest.mark.parametrize("left", [{}, {"schedulingPolicy": None}])
def test_manifest_without_a_former_field_removes_it(form: str, left: Object) -> None:
    patch = apply_patch_with_manifest({"spec": {"scheduling": {"policy": None}}}, job(left))
    assert resolve(JOB, form, patch).value["spec"] == {"scheduling": {"schedulingPolicy": None}}


@pytest.mark.parametrize("manifest", [{}, [], "no JSON", "null", {"spec": 1}])
def test_manifest_that_is_empty_or_malformed_removes_nothing(manifest: Any) -> None:
    patch = apply_patch_with_manifest({"spec": {"scheduling": {"policy": None}}}, manifest)
    assert resolve(JOB, STRATEGIC_PATCH, patch).value["spec"] == {"scheduling": {}}


def test_directives_of_a_strategic_patch_are_renamed() -> None:
    wanted = {"$retainKeys": ["policy", "resourceClaims"], "$setElementOrder/constraints": []}
    found = resolve(JOB, STRATEGIC_PATCH, job(wanted))
    assert found.value == job({
        "$retainKeys": ["schedulingPolicy", "resourceClaims"],
        "$setElementOrder/schedulingConstraints": [],
    })  # fmt: skip


# --------------------------------------------------------------------------------- JSON patches

OPERATIONS: list[tuple[Object, Object]] = [
    (
        {"op": "add", "path": "/spec/scheduling", "value": ALIASED},
        {"op": "add", "path": "/spec/scheduling", "value": STORED},
    ),
    (
        {"op": "replace", "path": "/spec/scheduling/policy/gang/minCount", "value": 3},
        {"op": "replace", "path": "/spec/scheduling/schedulingPolicy/gang/minCount", "value": 3},
    ),
    (
        {"op": "test", "path": "/spec/scheduling/constraints/topology/0/level", "value": "zone"},
        {
            "op": "test",
            "path": "/spec/scheduling/schedulingConstraints/topology/0/key",
            "value": "zone",
        },
    ),
    (
        {"op": "test", "path": "/spec/scheduling/constraints/topology/-", "value": {"level": "z"}},
        {
            "op": "test",
            "path": "/spec/scheduling/schedulingConstraints/topology/-",
            "value": {"key": "z"},
        },
    ),
    (
        {"op": "move", "from": "/spec/scheduling/policy", "path": "/spec/scheduling/disruption"},
        {
            "op": "move",
            "from": "/spec/scheduling/schedulingPolicy",
            "path": "/spec/scheduling/disruptionMode",
        },
    ),
    (
        {"op": "copy", "from": "/spec/scheduling/disruption/all", "path": "/metadata/policy"},
        {"op": "copy", "from": "/spec/scheduling/disruptionMode/all", "path": "/metadata/policy"},
    ),
    (
        {"op": "remove", "path": "/spec/scheduling/disruption"},
        {"op": "remove", "path": "/spec/scheduling/disruptionMode"},
    ),
    (
        {"op": "test", "path": "/spec/template/spec/workloadRef", "value": REPLICA},
        {
            "op": "test",
            "path": "/spec/template/spec/schedulingGroup",
            "value": {"podGroupName": "w-t-1"},
        },
    ),
    (
        {"op": "add", "path": "", "value": job(ALIASED)},
        {"op": "add", "path": "", "value": job(STORED)},
    ),
    ({"op": "add", "path": 5, "from": 6}, {"op": "add", "path": 5, "from": 6}),
]


@pytest.mark.parametrize(("step", "expected"), OPERATIONS)
def test_paths_and_values_of_operations_are_renamed(step: Object, expected: Object) -> None:
    found = resolve(JOB, JSON_PATCH, [step])
    assert found.value == [expected]
    assert found.causes == []


def test_json_patch_with_two_names_of_one_field_is_refused() -> None:
    steps = [
        {"op": "add", "path": "/spec/scheduling/schedulingPolicy", "value": {}},
        {"op": "replace", "path": "/spec/scheduling/policy", "value": {"basic": {}}},
    ]
    found = resolve(JOB, JSON_PATCH, steps)
    assert summarize(found.causes) == ["spec.scheduling.policy: Forbidden"]
    assert resolve(JOB, JSON_PATCH, [{**steps[0], "op": "test"}, steps[1]]).causes == []


def test_converted_field_can_only_be_written_as_a_whole() -> None:
    step = {"op": "add", "path": "/spec/workloadRef/podGroup", "value": "t"}
    found = resolve(POD, JSON_PATCH, [step])
    assert summarize(found.causes) == ["spec.workloadRef: Forbidden"]


@pytest.mark.parametrize(
    "step",
    [
        {"path": "/template/spec/workloadRef", "value": REPLICA},
        {"path": "/template/spec", "value": {"workloadRef": REPLICA}},
        {"path": "/template", "value": {"spec": {"workloadRef": REPLICA}}},
    ],
)
def test_annotations_of_a_json_patch_are_added_after_it_is_applied(step: Object) -> None:
    found = resolve(POD_TEMPLATE, JSON_PATCH, [{"op": "add", **step}])
    patched: Object = {"template": {"metadata": {"annotations": {"a": "b"}}, "spec": {}}}
    if step["path"] == "/template":
        patched = {"template": found.value[0]["value"]}
    annotate(patched, found.annotations)
    annotations = patched["template"]["metadata"]["annotations"]
    assert MARKS.items() <= annotations.items()


@pytest.mark.parametrize("left", ["gone", [], ["x"], None, {}])
def test_annotations_are_skipped_where_a_later_operation_removed_the_object(left: Any) -> None:
    for way in (("template", "0"), ("template", "x", "y")):
        patched = {"template": copy.deepcopy(left)}
        annotate(patched, [(way, MARKS)])
        assert patched == {"template": left}


def test_test_operation_adds_no_annotations() -> None:
    step = {"op": "test", "path": "/spec/workloadRef", "value": REPLICA}
    assert resolve(POD, JSON_PATCH, [step]).annotations == []
