"""Rules of Jobs: creation and updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.kinds import JOB
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, find_causes, make_stored

POD: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
TEMPLATE: Object = {"metadata": {}, "spec": POD}
INDEXED: Object = {"completionMode": "Indexed", "completions": 3}
MANY: Object = {"completionMode": "Indexed", "completions": 100_001, "backoffLimitPerIndex": 1}


def job(name: str = "x", **spec: Any) -> Object:
    return make_stored(JOB, {"metadata": {"name": name}, "spec": {"template": TEMPLATE, **spec}})


def with_pod(**fields: Any) -> Object:
    return {"metadata": {}, "spec": {**POD, **fields}}


# ---- creation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        ({"parallelism": -1}, ["parallelism: Invalid"]),
        ({"completions": -1}, ["completions: Invalid"]),
        ({"activeDeadlineSeconds": -1}, ["activeDeadlineSeconds: Invalid"]),
        ({"backoffLimit": -1}, ["backoffLimit: Invalid"]),
        ({"ttlSecondsAfterFinished": -1}, ["ttlSecondsAfterFinished: Invalid"]),
        ({"parallelism": 0, "completions": 0, "ttlSecondsAfterFinished": 0}, []),
        ({"completionMode": "Somehow"}, ["completionMode: NotSupported"]),
        ({"managedBy": "example.com/controller"}, []),
        ({"managedBy": "kueue"}, ["managedBy: Invalid"]),
        ({"managedBy": "/kueue"}, ["managedBy: Invalid"]),
        ({"managedBy": "Example/a b"}, ["managedBy: Invalid", "managedBy: Invalid"]),
        ({"managedBy": "example.com/" + "m" * 58}, ["managedBy: TooLong"]),
    ],
)
def test_job_is_validated(spec: Object, causes: CauseSummaries) -> None:
    assert find_causes(JOB, job(**spec)) == prefix_summaries("spec", causes)


def test_a_manager_has_a_name() -> None:
    new = job()
    new["spec"]["managedBy"] = ""
    assert find_causes(JOB, new) == ["spec.managedBy: Required"]


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({**INDEXED, "backoffLimitPerIndex": 2, "maxFailedIndexes": 3}, []),
        ({"completionMode": "Indexed", "parallelism": 2}, ["completions: Required"]),
        ({"backoffLimitPerIndex": 2}, ["backoffLimitPerIndex: Invalid"]),
        (
            {"backoffLimitPerIndex": 2, "maxFailedIndexes": 1},
            ["backoffLimitPerIndex: Invalid", "maxFailedIndexes: Invalid"],
        ),
        ({**INDEXED, "maxFailedIndexes": 1}, ["backoffLimitPerIndex: Required"]),
        ({**INDEXED, "completions": -1, "parallelism": 0}, ["completions: Invalid"]),
        ({**INDEXED, "parallelism": 100_001}, ["parallelism: Invalid"]),
        (
            {**INDEXED, "backoffLimitPerIndex": 1, "maxFailedIndexes": 4},
            ["maxFailedIndexes: Invalid"],
        ),
        ({**INDEXED, "backoffLimitPerIndex": -1}, ["backoffLimitPerIndex: Invalid"]),
        (MANY, ["maxFailedIndexes: Required"]),
        ({**MANY, "maxFailedIndexes": 10_000, "parallelism": 10_000}, []),
        (
            {**MANY, "maxFailedIndexes": 10_001, "parallelism": 10_001},
            ["parallelism: Invalid", "maxFailedIndexes: Invalid"],
        ),
        (
            {**MANY, "maxFailedIndexes": 100_001},
            ["maxFailedIndexes: Invalid", "maxFailedIndexes: Invalid"],
        ),
    ],
)
def test_indexes_have_limits(spec: Object, causes: CauseSummaries) -> None:
    assert find_causes(JOB, job(**spec)) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("policy", "more", "causes"),
    [
        ("OnFailure", {}, []),
        ("Always", {}, ["restartPolicy: Required"]),
        ("", {}, ["restartPolicy: Required"]),
        ("Maybe", {}, ["restartPolicy: NotSupported", "restartPolicy: NotSupported"]),
        ("OnFailure", {"podFailurePolicy": {"rules": []}}, ["restartPolicy: Invalid"]),
        ("Never", {"podFailurePolicy": {"rules": []}}, []),
    ],
)
def test_pods_of_a_job_come_to_an_end(policy: str, more: Object, causes: CauseSummaries) -> None:
    new = job(template=with_pod(restartPolicy=policy), **more)
    assert find_causes(JOB, new) == prefix_summaries("spec.template.spec", causes)


def test_a_job_without_a_template_lacks_two_things() -> None:
    assert find_causes(JOB, make_stored(JOB, {"spec": {}})) == [
        "spec.template.spec.containers: Required",
        "spec.template.spec.restartPolicy: Required",
    ]


def test_a_template_is_judged_as_a_pod_is() -> None:
    new = job(template=with_pod(hostname="No_Good", schedulingGroup={"podGroupName": "A B"}))
    assert find_causes(JOB, new) == prefix_summaries(
        "spec.template.spec", ["hostname: Invalid", "schedulingGroup.podGroupName: Invalid"]
    )


# ---- selection -----------------------------------------------------------------------------------


def test_a_job_selects_no_pods_but_its_own() -> None:
    new = job(selector={"matchLabels": {"a": "b"}})
    assert find_causes(JOB, new) == [
        "spec.selector: Invalid",
        "spec.template.metadata.labels: Invalid",
    ]


def test_a_job_may_select_by_hand_what_its_pods_have() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD}
    by_hand: Object = {"manualSelector": True, "template": template}
    assert find_causes(JOB, job(**by_hand, selector={"matchLabels": {"a": "b"}})) == []
    assert find_causes(JOB, job(**by_hand, selector={"matchLabels": {"a": "c"}})) == [
        "spec.template.metadata.labels: Invalid"
    ]
    assert find_causes(JOB, job(**by_hand)) == [
        "spec.selector: Required",
        "spec.template.metadata.labels: Invalid",
    ]


def test_malformed_selector_is_reported_once() -> None:
    odd = {"matchExpressions": [{"key": "a", "operator": "Like"}]}
    assert find_causes(JOB, job(selector=odd)) == [
        "spec.selector.matchExpressions[0].operator: Invalid"
    ]


def test_the_labels_of_a_job_are_not_those_of_another() -> None:
    labels = {"batch.kubernetes.io/job-name": "else"}
    new = job(template={"metadata": {"labels": labels}, "spec": POD})
    place = "spec.template.metadata.labels[batch.kubernetes.io/job-name]"
    assert find_causes(JOB, new) == [f"{place}: Invalid"]
    del new["spec"]["template"]["metadata"]["labels"]["job-name"]
    assert f"{place.replace('batch.kubernetes.io/', '')}: Required" in find_causes(JOB, new)


def test_the_name_of_an_indexed_job_leaves_room_for_the_index() -> None:
    name = "n" * 60
    assert find_causes(JOB, job(name, completionMode="Indexed", completions=100)) == []
    assert find_causes(JOB, job(name, completionMode="Indexed", completions=101)) == [
        "metadata.name: Invalid"
    ]
    assert find_causes(JOB, job(name, completions=101)) == []
    assert find_causes(JOB, job("a.b", completionMode="Indexed", completions=0)) == []
    assert find_causes(JOB, job("a.b", completionMode="Indexed", completions=1)) == [
        "metadata.name: Invalid"
    ]


# ---- changes -------------------------------------------------------------------------------------


def update_causes(old: Object, **spec: Any) -> CauseSummaries:
    new = change_stored(JOB, old, spec={**old["spec"], **spec})
    return find_causes(JOB, new, old)


@pytest.mark.parametrize(
    ("before", "change", "causes"),
    [
        ({}, {"parallelism": 4}, []),
        ({}, {"suspend": True, "activeDeadlineSeconds": 5, "backoffLimit": 1}, []),
        ({"completions": 4}, {"completions": 5}, ["completions: Invalid"]),
        (INDEXED, {"completions": 5, "parallelism": 5}, []),
        (INDEXED, {"completions": 5}, ["completions: Invalid"]),
        (INDEXED, {"completions": None}, ["completions: Required"]),
        (
            {"completions": 2},
            {"completionMode": "Indexed"},
            ["completionMode: Invalid"],
        ),
        ({}, {"managedBy": "example.com/x"}, ["managedBy: Invalid"]),
        ({}, {"parallelism": -1}, ["parallelism: Invalid"]),
        (
            INDEXED,
            {"successPolicy": {"rules": [{"succeededCount": 1}]}},
            ["successPolicy: Invalid"],
        ),
        (INDEXED, {"backoffLimitPerIndex": 1}, ["backoffLimitPerIndex: Invalid"]),
        (
            {"podReplacementPolicy": "Failed"},
            {"podFailurePolicy": {"rules": []}},
            ["podFailurePolicy: Invalid"],
        ),
    ],
)
def test_a_job_that_is_there_may_change_little(
    before: Object, change: Object, causes: CauseSummaries
) -> None:
    assert update_causes(job(**before), **change) == prefix_summaries("spec", causes)


def test_a_selector_never_changes() -> None:
    old = job()
    more = {"matchLabels": {**old["spec"]["selector"]["matchLabels"], "job-name": "x"}}
    assert update_causes(old, selector=more) == ["spec.selector: Invalid"]


AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
}}}  # fmt: skip


@pytest.mark.parametrize(
    "pod",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {"tolerations": [{"operator": "Exists"}]},
        {"schedulingGates": [{"name": "a"}]},
        {"affinity": AFFINITY},
        {"containers": [{**POD["containers"][0], "resources": {"requests": {"cpu": "2"}}}]},
    ],
)
@pytest.mark.parametrize(
    ("status", "suspend", "is_allowed"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"startTime": "2026-01-01T00:00:00Z"}, True, False),
        (
            {
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Suspended", "status": "True"}],
            },
            True,
            True,
        ),
        ({"active": 1}, True, False),
    ],
)
def test_where_pods_go_may_change_while_none_is_there(
    pod: Object, status: Object, suspend: bool, is_allowed: bool
) -> None:
    old = {**job(suspend=suspend), "status": status}
    template = copy.deepcopy(old["spec"]["template"])
    template["spec"] |= pod
    assert update_causes(old, template=template) == (
        [] if is_allowed else ["spec.template: Invalid"]
    )


def test_labels_and_annotations_of_pods_may_change_while_none_is_there() -> None:
    old = job(suspend=True)
    template = copy.deepcopy(old["spec"]["template"])
    template["metadata"]["labels"]["more"] = "1"
    template["metadata"]["annotations"] = {"a": "b"}
    assert update_causes(old, template=template) == []
    assert update_causes(job(), template=template) == ["spec.template: Invalid"]


@pytest.mark.parametrize(
    "pod",
    [
        {"containers": [{"name": "main", "image": "other:2"}]},
        {"containers": [*POD["containers"], {"name": "more", "image": "app:1"}]},
        {"schedulingGroup": {"podGroupName": "g"}},
        {"priorityClassName": "high"},
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone"}
        ]}}},
    ],
)  # fmt: skip
def test_what_pods_are_never_changes(pod: Object) -> None:
    old = job(suspend=True)
    template = copy.deepcopy(old["spec"]["template"])
    template["spec"] |= pod
    assert update_causes(old, template=template) == ["spec.template.spec: Invalid"]


def test_a_refused_change_shows_what_was_wanted() -> None:
    old = job(completions=4)
    (cause,) = validate(JOB, change_stored(JOB, old, spec={**old["spec"], "completions": 5}), old)
    assert str(cause) == "spec.completions: Invalid value: 5: field is immutable"
