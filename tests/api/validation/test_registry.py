"""Rules for metadata and for the small kinds, and what holds for the rules of every kind.

Rules that hold only while a gate is on.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.feature_gates import DEFAULT_GATES, resolve_gates
from phalanx.api.kinds import (
    CONFIG_MAP,
    EVENT,
    EVENTS_EVENT,
    JOB,
    KINDS,
    LEASE,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    Kind,
)
from phalanx.api.schema import schema
from phalanx.api.validation.registry import check_gated_rules, validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, summarize
from tests.api.schema_strategies import objects


def validation_causes(
    kind: Kind, new: Object, old: Object | None = None, part: str = ""
) -> CauseSummaries:
    return summarize(validate(kind, new, old, subresource=part))


def config(meta: Object | None = None, **fields: Any) -> Object:
    return {"metadata": {"name": "x", "namespace": "n", **(meta or {})}, **fields}


@pytest.mark.parametrize(
    ("meta", "causes"),
    [
        ({}, []),
        ({"name": "Upper"}, ["metadata.name: Invalid"]),
        ({"name": ""}, ["metadata.name: Required"]),
        ({"name": "a" * 254}, ["metadata.name: Invalid"]),
        ({"generateName": "pre-"}, []),
        ({"generateName": "Bad_"}, ["metadata.generateName: Invalid"]),
        ({"namespace": ""}, ["metadata.namespace: Required"]),
        ({"namespace": "a.b"}, ["metadata.namespace: Invalid"]),
        ({"generation": -1}, ["metadata.generation: Invalid"]),
        ({"labels": {"a b": "c"}}, ["metadata.labels: Invalid"]),
        ({"labels": {"a": "b c"}}, ["metadata.labels: Invalid"]),
        ({"annotations": {"a b": "c"}}, ["metadata.annotations: Invalid"]),
        ({"annotations": {"Example.com/X": "any thing\n"}}, []),
        ({"annotations": {"a": "x" * 262_144}}, ["metadata.annotations: TooLong"]),
        ({"finalizers": ["a.b/c", "foregroundDeletion"]}, []),
        ({"finalizers": ["bare"]}, ["metadata.finalizers[0]: Invalid"]),
        (
            {"finalizers": ["a b"]},
            ["metadata.finalizers: Invalid", "metadata.finalizers[0]: Invalid"],
        ),
        ({"finalizers": ["a.b/c d"]}, ["metadata.finalizers: Invalid"]),
        ({"finalizers": ["orphan", "foregroundDeletion"]}, ["metadata.finalizers: Invalid"]),
    ],
)
def test_metadata_has_its_formats(meta: Object, causes: CauseSummaries) -> None:
    assert validation_causes(CONFIG_MAP, config(meta)) == causes


def test_the_name_of_a_namespace_is_a_label_and_that_of_an_event_anything() -> None:
    assert validation_causes(NAMESPACE, {"metadata": {"name": "a.b"}}) == ["metadata.name: Invalid"]
    assert validation_causes(NAMESPACE, {"metadata": {"name": "a", "namespace": "b"}}) == [
        "metadata.namespace: Forbidden"
    ]
    assert validation_causes(EVENT, event(name="Web.17F")) == []
    assert validation_causes(EVENT, event(name="a/b")) == ["metadata.name: Invalid"]


def owner(**fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", **fields}


def test_owner_reference_needs_all_fields() -> None:
    refs = [owner(), {"kind": "Pod", "name": "", "uid": ""}]
    assert validation_causes(CONFIG_MAP, config({"ownerReferences": refs})) == [
        "metadata.ownerReferences[1].apiVersion: Required",
        "metadata.ownerReferences[1].name: Required",
        "metadata.ownerReferences[1].uid: Required",
    ]


def test_one_owner_controls_and_events_own_nothing() -> None:
    two = [owner(controller=True), owner(name="q", controller=True)]
    assert validation_causes(CONFIG_MAP, config({"ownerReferences": two})) == [
        "metadata.ownerReferences: Invalid"
    ]
    assert validation_causes(CONFIG_MAP, config({"ownerReferences": [owner(kind="Event")]})) == [
        "metadata.ownerReferences[0]: Invalid"
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "y"), ("namespace", "m"), ("uid", "v"), ("creationTimestamp", "later")],
)
def test_identity_fields_of_metadata_are_immutable(field: str, value: str) -> None:
    old = config({"uid": "u", "creationTimestamp": "then"})
    new = config({"uid": "u", "creationTimestamp": "then", field: value})
    assert validation_causes(CONFIG_MAP, new, old) == [f"metadata.{field}: Invalid"]


def test_a_generation_never_falls() -> None:
    causes = validation_causes(CONFIG_MAP, config({"generation": 1}), config({"generation": 2}))
    assert causes == ["metadata.generation: Invalid"]


def test_what_is_being_deleted_gets_no_new_finalizers() -> None:
    old = config({"deletionTimestamp": "now", "finalizers": ["a.b/c"]})
    new = config({"deletionTimestamp": "now", "finalizers": ["a.b/c", "a.b/d"]})
    (cause,) = validate(CONFIG_MAP, new, old)
    assert summarize([cause]) == ["metadata.finalizers: Forbidden"]
    assert cause.message.endswith('found new finalizers []string{"a.b/d"}')
    assert validation_causes(CONFIG_MAP, old, new) == []


def test_each_cause_is_reported_once() -> None:
    bad = config({"labels": {"a b": "x", "c": "a b"}})
    assert len(validate(CONFIG_MAP, bad, None)) == 2


# ---- ConfigMap -----------------------------------------------------------------------------------


def test_a_config_map_has_fit_keys_and_a_limit() -> None:
    assert validation_causes(CONFIG_MAP, config(data={"a b": "1"})) == ["data[a b]: Invalid"]
    assert validation_causes(CONFIG_MAP, config(data={"a": "1"}, binaryData={"a": ""})) == [
        "data[a]: Invalid"
    ]
    assert validation_causes(CONFIG_MAP, config(data={"a": "x" * (2**20 + 1)})) == ["[]: TooLong"]
    assert validation_causes(CONFIG_MAP, config(data={"a": "x" * 2**20})) == []


def test_an_immutable_config_map_stays_as_it_is() -> None:
    old = config(immutable=True, data={"a": "1"})
    assert validation_causes(CONFIG_MAP, config(immutable=True, data={"a": "2"}), old) == [
        "data: Forbidden"
    ]
    assert validation_causes(CONFIG_MAP, config(data={"a": "1"}), old) == ["immutable: Forbidden"]
    assert (
        validation_causes(
            CONFIG_MAP, config({"labels": {"x": "y"}}, immutable=True, data={"a": "1"}), old
        )
        == []
    )


# ---- Event ---------------------------------------------------------------------------------------


def event(name: str = "e", about: str = "n", **fields: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "n"},
        "involvedObject": {"namespace": about},
        **fields,
    }


def test_an_event_stands_in_the_namespace_of_its_object() -> None:
    assert validation_causes(EVENT, event(about="elsewhere")) == [
        "involvedObject.namespace: Invalid"
    ]
    assert validation_causes(EVENT, event(about="")) == ["involvedObject.namespace: Invalid"]
    nodes = event(about="")
    nodes["metadata"]["namespace"] = "default"
    assert validation_causes(EVENT, nodes) == []


def test_events_v1_event_needs_its_reporting_fields() -> None:
    said = {"action": "a", "reason": "r", "reportingInstance": "i"}
    assert (
        validation_causes(EVENT, event(eventTime="now", reportingComponent="a.b/c", **said)) == []
    )
    assert {
        one.split(":")[0] for one in validation_causes(EVENT, event(about="m", eventTime="now"))
    } == {
        "reportingComponent",
        "reportingInstance",
        "action",
        "reason",
    }
    long = event(eventTime="now", reportingComponent="c", **{**said, "reason": "r" * 129})
    assert validation_causes(EVENT, long) == ["reason: Invalid"]
    lost = event(about="", eventTime="now", reportingComponent="c", **said)
    assert validation_causes(EVENT, lost) == ["involvedObject.namespace: Invalid"]


def test_events_v1_event_has_a_whole_series_and_no_deprecated_field() -> None:
    said = {"action": "a", "reason": "r", "reportingInstance": "i", "reportingComponent": "c"}
    made = event(eventTime="now", type="Normal", **said)
    whole = {"count": 2, "lastObservedTime": "now"}
    assert validation_causes(EVENTS_EVENT, {**made, "series": whole}) == []
    assert validation_causes(EVENTS_EVENT, {**made, "series": {}}) == [
        "series.lastObservedTime: Required",
        "series.count: Invalid",
    ]
    assert validation_causes(EVENT, {**made, "series": {}}) == []
    assert validation_causes(EVENTS_EVENT, {**made, "count": 1, "firstTimestamp": "now"}) == [
        "firstTimestamp: Invalid",
        "count: Invalid",
    ]
    short = {**made, "series": {"count": 1, "lastObservedTime": "now"}}
    assert validation_causes(EVENTS_EVENT, short, made) == ["series.count: Invalid"]
    assert validation_causes(EVENTS_EVENT, short, short) == []


# ---- Lease ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"leaseDurationSeconds": 10, "leaseTransitions": 0, "holderIdentity": ""}, []),
        ({"leaseDurationSeconds": 0}, ["spec.leaseDurationSeconds: Invalid"]),
        ({"leaseTransitions": -1}, ["spec.leaseTransitions: Invalid"]),
        ({"preferredHolder": "h", "strategy": "Newest"}, []),
    ],
)
def test_a_lease_counts_in_positive_numbers(spec: Object, causes: CauseSummaries) -> None:
    assert validation_causes(LEASE, config(spec=spec)) == causes


# ---- Namespace -----------------------------------------------------------------------------------


def test_the_finalizers_of_a_namespace_are_qualified() -> None:
    made = {"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes", "bare"]}}
    assert validation_causes(NAMESPACE, made) == ["spec.finalizers: Invalid"]
    assert validation_causes(NAMESPACE, made, made) == []
    causes = ["spec.finalizers[1]: Invalid"]
    assert validation_causes(NAMESPACE, made, made, "finalize") == causes


def test_a_lease_has_finalizers_without_a_domain() -> None:
    assert validation_causes(LEASE, config({"finalizers": ["bare"]})) == []
    assert validation_causes(LEASE, config({"finalizers": ["a b"]})) == [
        "metadata.finalizers: Invalid"
    ]


# ---- PriorityClass -------------------------------------------------------------------------------


def priority(name: str = "p", value: int = 1, **fields: Any) -> Object:
    policy = fields.pop("preemptionPolicy", "PreemptLowerPriority")
    return {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy, **fields}


@pytest.mark.parametrize(
    ("made", "causes"),
    [
        (priority(), []),
        (priority(value=-5), []),
        (priority(value=1_000_000_001), ["value: Forbidden"]),
        (priority("system-mine"), ["metadata.name: Forbidden"]),
        (priority("system-node-critical"), ["metadata.name: Forbidden"]),
        (priority("system-node-critical", 2_000_001_000), []),
        (
            priority("system-node-critical", 2_000_001_000, globalDefault=True),
            ["metadata.name: Forbidden"],
        ),
        (priority(preemptionPolicy="Maybe"), ["preemptionPolicy: NotSupported"]),
    ],
)
def test_a_priority_class_is_a_users_or_the_systems(made: Object, causes: CauseSummaries) -> None:
    assert validation_causes(PRIORITY_CLASS, made) == causes


def test_what_a_priority_class_means_never_changes() -> None:
    assert validation_causes(PRIORITY_CLASS, priority(value=2), priority()) == ["value: Forbidden"]
    assert validation_causes(PRIORITY_CLASS, priority(preemptionPolicy="Never"), priority()) == [
        "preemptionPolicy: Invalid"
    ]
    assert validation_causes(PRIORITY_CLASS, priority(description="new"), priority()) == []


# ---- every kind ----------------------------------------------------------------------------------


@pytest.mark.mostly_slow(quick_every=8)
@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for kind in KINDS for part in ("", *kind.subresources)],
    ids=lambda value: getattr(value, "name", value),
)
@given(data=st.data())
def test_every_normalized_object_can_be_validated(
    kind: Kind, part: str, data: st.DataObject
) -> None:
    """Rules find causes or none; they never stumble, and never change what they look at."""
    new, old = (data.draw(objects(kind.schema)) for _ in range(2))
    for obj in (new, old):
        schema(kind.schema).normalize(obj)
        apply_defaults(kind, obj)
        if not part:
            prepare_for_create(kind, obj, "2026-01-01T00:00:00Z")
    before = copy.deepcopy((new, old))
    for causes in (
        validate(kind, new, None, subresource=part),
        validate(kind, new, old, subresource=part),
    ):
        assert all(cause.field and cause.message for cause in causes)
    assert validate(kind, new, new, subresource=part) is not None
    assert (new, old) == before


ON = resolve_gates({"JobGangInference": True})


def job(parallelism: int, completions: int, mode: str = "Indexed", **more: Any) -> Object:
    spec: Object = {"parallelism": parallelism, "completions": completions, "completionMode": mode}
    return {"metadata": {"name": "j"}, "spec": {**spec, **more}}


GANG: Object = {"schedulingPolicy": {"gang": {}}}


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        (job(4, 4), job(5, 5), True),
        (job(2, 4), job(4, 4), True),
        (job(4, 4), job(4, 4), False),
        (job(4, 4), job(2, 4), False),
        (job(4, 4), job(1, 1), False),
        (job(4, 4, "NonIndexed"), job(5, 5, "NonIndexed"), False),
        (job(4, 4, scheduling=GANG), job(5, 5, scheduling=GANG), False),
        (job(4, 4, gangPolicy={"policy": "JobAsGang"}),
         job(5, 5, gangPolicy={"policy": "JobAsGang"}), False),
    ],
)  # fmt: skip
def test_what_becomes_a_gang_by_its_shape_keeps_its_parallelism_while_the_gate_is_on(
    old: Object, new: Object, is_refused: bool
) -> None:
    found = check_gated_rules(ON, JOB, new, old=old)
    assert [cause.field for cause in found] == (["spec.parallelism"] if is_refused else [])
    assert check_gated_rules(DEFAULT_GATES, JOB, new, old=old) == []


def test_what_is_made_is_not_judged_by_what_it_was() -> None:
    assert check_gated_rules(ON, JOB, job(4, 4), old=None) == []
    assert check_gated_rules(ON, POD, {"metadata": {"name": "p"}, "spec": {}}, old=None) == []
