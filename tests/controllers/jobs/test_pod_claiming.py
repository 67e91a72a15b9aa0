"""Which pods a Job owns, adopts and releases."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import OwnerReference
from phalanx.api.wire import Object
from phalanx.controllers.jobs.job_pods import (
    claim_pods,
    job_keys,
    orphan_index_keys,
    selector_index_key,
    would_adopt,
)
from tests.controllers.jobs.job_builders import condition, job, names, pod

DELETED = {"deletionTimestamp": "2027-01-15T08:00:00Z"}


def selecting(meta: Object | None = None, status: Object | None = None, **labels: str) -> Job:
    return job(status, meta=meta, selector={"matchLabels": labels})


def labelled(name: str, owner: OwnerReference | None = None, **more: Any) -> Pod:
    found = pod(name, terminating=more.pop("terminating", False))
    owners = (owner,) if owner else ()
    meta = replace(found.metadata, labels=more, owner_references=owners)
    return replace(found, metadata=meta)


def reference_to(one: Job) -> OwnerReference:
    return OwnerReference("batch/v1", "Job", one.metadata.name, one.metadata.uid, True)


def test_matching_pods_are_owned_and_others_released() -> None:
    one = selecting(app="a")
    found = claim_pods(
        one,
        [labelled("x", reference_to(one), app="a"), labelled("y", reference_to(one), app="b")],
        [],
    )
    assert (names(tuple(found.owned)), names(tuple(found.to_release))) == (["x"], ["y"])


def test_matching_orphans_are_adopted() -> None:
    one = selecting(app="a")
    orphans = [
        labelled("x", app="a"),
        labelled("y", app="b"),
        labelled("z", app="a", terminating=True),
    ]
    assert names(tuple(claim_pods(one, [], orphans).to_adopt)) == ["x"]


def test_deleted_job_neither_adopts_nor_releases_pods() -> None:
    one = selecting(DELETED, app="a")
    owned = [labelled("x", reference_to(one), app="a"), labelled("y", reference_to(one), app="b")]
    found = claim_pods(one, owned, [labelled("z", app="a")])
    assert (names(tuple(found.owned)), found.to_adopt, found.to_release) == (["x"], [], [])


def test_job_without_a_valid_selector_adopts_no_pod() -> None:
    bad = job(selector={"matchExpressions": [{"key": "a", "operator": "Near"}]})
    for one in (job(), bad):
        assert claim_pods(one, [], [labelled("x", app="a")]).to_adopt == []


def test_finished_job_adopts_no_pod() -> None:
    orphan = labelled("x", app="a")
    assert would_adopt(selecting(app="a"), orphan)
    assert not would_adopt(
        selecting(status={"conditions": [condition("Complete")]}, app="a"), orphan
    )


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        (OwnerReference("batch/v1", "Job", "train", "u", True), [("default", "train")]),
        (OwnerReference("batch/v1", "Job", "train", "u", False), []),
        (OwnerReference("example.com/v1", "Job", "train", "u", True), []),
        (OwnerReference("batch/v1", "CronJob", "train", "u", True), []),
    ],
)
def test_pod_belongs_to_the_job_that_controls_it(
    reference: OwnerReference, key: list[tuple[str, str]]
) -> None:
    assert job_keys(labelled("x", reference)) == key


def test_pod_of_an_earlier_job_of_the_same_name_is_not_owned() -> None:
    one = job()
    former = replace(reference_to(one), uid="before")
    assert labelled("x", reference_to(one)).metadata.is_controlled_by(one.metadata.uid)
    assert not labelled("x", former).metadata.is_controlled_by(one.metadata.uid)


def test_orphan_is_indexed_under_the_key_of_every_matching_job() -> None:
    orphan = labelled("x", app="a", tier="b")
    assert selector_index_key(selecting(app="a", tier="b")) in orphan_index_keys(orphan)
    assert selector_index_key(job(selector={"matchExpressions": []})) in orphan_index_keys(orphan)
    assert selector_index_key(selecting(app="c")) not in orphan_index_keys(orphan)
    assert orphan_index_keys(labelled("x", reference_to(job()), app="a")) == []
