"""Which pods are a Job's."""

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
    is_controlled_by,
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
    found = pod(name, leaving=more.pop("leaving", False))
    owners = (owner,) if owner else ()
    meta = replace(found.metadata, labels=more, owner_references=owners)
    return replace(found, metadata=meta)


def of(one: Job) -> OwnerReference:
    return OwnerReference("batch/v1", "Job", one.metadata.name, one.metadata.uid, True)


def test_pods_that_fit_are_kept_and_others_given_up() -> None:
    one = selecting(app="a")
    found = claim_pods(one, [labelled("x", of(one), app="a"), labelled("y", of(one), app="b")], [])
    assert (names(tuple(found.owned)), names(tuple(found.to_disown))) == (["x"], ["y"])


def test_pods_of_nobody_that_fit_are_adopted() -> None:
    one = selecting(app="a")
    loose = [labelled("x", app="a"), labelled("y", app="b"), labelled("z", app="a", leaving=True)]
    assert names(tuple(claim_pods(one, [], loose).to_adopt)) == ["x"]


def test_a_job_that_is_being_deleted_neither_takes_nor_gives() -> None:
    one = selecting(DELETED, app="a")
    owned = [labelled("x", of(one), app="a"), labelled("y", of(one), app="b")]
    found = claim_pods(one, owned, [labelled("z", app="a")])
    assert (names(tuple(found.owned)), found.to_adopt, found.to_disown) == (["x"], [], [])


def test_a_job_without_a_selector_that_can_be_read_adopts_nobody() -> None:
    bad = job(selector={"matchExpressions": [{"key": "a", "operator": "Near"}]})
    for one in (job(), bad):
        assert claim_pods(one, [], [labelled("x", app="a")]).to_adopt == []


def test_a_job_that_has_ended_wants_nobody() -> None:
    free = labelled("x", app="a")
    assert would_adopt(selecting(app="a"), free)
    assert not would_adopt(selecting(status={"conditions": [condition("Complete")]}, app="a"), free)


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        (OwnerReference("batch/v1", "Job", "train", "u", True), [("default", "train")]),
        (OwnerReference("batch/v1", "Job", "train", "u", False), []),
        (OwnerReference("example.com/v1", "Job", "train", "u", True), []),
        (OwnerReference("batch/v1", "CronJob", "train", "u", True), []),
    ],
)
def test_a_pod_is_of_the_job_that_controls_it(
    reference: OwnerReference, key: list[tuple[str, str]]
) -> None:
    assert job_keys(labelled("x", reference)) == key


def test_a_pod_of_an_earlier_namesake_is_not_the_jobs() -> None:
    one = job()
    assert is_controlled_by(labelled("x", of(one)), one)
    assert not is_controlled_by(labelled("x", replace(of(one), uid="before")), one)


def test_a_loose_pod_is_found_where_a_job_that_fits_it_looks() -> None:
    free = labelled("x", app="a", tier="b")
    assert selector_index_key(selecting(app="a", tier="b")) in orphan_index_keys(free)
    assert selector_index_key(job(selector={"matchExpressions": []})) in orphan_index_keys(free)
    assert selector_index_key(selecting(app="c")) not in orphan_index_keys(free)
    assert orphan_index_keys(labelled("x", of(job()), app="a")) == []
