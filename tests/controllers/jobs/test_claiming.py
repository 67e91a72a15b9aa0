"""Which pods are a Job's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.meta import OwnerReference
from phalanx.api.wire import Object
from phalanx.controllers.jobs.claiming import claim, is_of, job_key, place, places, wants
from tests.controllers.jobs.making import condition, job, names, pod

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
    found = claim(one, [labelled("x", of(one), app="a"), labelled("y", of(one), app="b")], [])
    assert (names(tuple(found.own)), names(tuple(found.disown))) == (["x"], ["y"])


def test_pods_of_nobody_that_fit_are_adopted() -> None:
    one = selecting(app="a")
    loose = [labelled("x", app="a"), labelled("y", app="b"), labelled("z", app="a", leaving=True)]
    assert names(tuple(claim(one, [], loose).adopt)) == ["x"]


def test_a_job_that_is_being_deleted_neither_takes_nor_gives() -> None:
    one = selecting(DELETED, app="a")
    owned = [labelled("x", of(one), app="a"), labelled("y", of(one), app="b")]
    found = claim(one, owned, [labelled("z", app="a")])
    assert (names(tuple(found.own)), found.adopt, found.disown) == (["x"], [], [])


def test_a_job_without_a_selector_that_can_be_read_adopts_nobody() -> None:
    bad = job(selector={"matchExpressions": [{"key": "a", "operator": "Near"}]})
    for one in (job(), bad):
        assert claim(one, [], [labelled("x", app="a")]).adopt == []


def test_a_job_that_has_ended_wants_nobody() -> None:
    free = labelled("x", app="a")
    assert wants(selecting(app="a"), free)
    assert not wants(selecting(status={"conditions": [condition("Complete")]}, app="a"), free)


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
    assert job_key(labelled("x", reference)) == key


def test_a_pod_of_an_earlier_namesake_is_not_the_jobs() -> None:
    one = job()
    assert is_of(labelled("x", of(one)), one)
    assert not is_of(labelled("x", replace(of(one), uid="before")), one)


def test_a_loose_pod_is_found_where_a_job_that_fits_it_looks() -> None:
    free = labelled("x", app="a", tier="b")
    assert place(selecting(app="a", tier="b")) in places(free)
    assert place(job(selector={"matchExpressions": []})) in places(free)
    assert place(selecting(app="c")) not in places(free)
    assert places(labelled("x", of(job()), app="a")) == []
