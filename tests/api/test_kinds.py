"""Rows of kinds: paths, names and store keys."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    JOB,
    KINDS,
    REPLICATION_CONTROLLER,
    SECRET,
    Kind,
)


def test_no_two_kinds_share_a_url_path() -> None:
    places = [(kind.group, kind.version, kind.plural) for kind in KINDS]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("kind", "api_version", "resource", "qualified"),
    [
        (SECRET, "v1", "secrets", "Secret"),
        (JOB, "batch/v1", "jobs.batch", "Job.batch"),
    ],
)
def test_kind_has_resource_and_qualified_name(
    kind: Kind, api_version: str, resource: str, qualified: str
) -> None:
    assert (kind.api_version, kind.resource, kind.qualified_name) == (
        api_version,
        resource,
        qualified,
    )
    assert kind.list_name == f"{kind.name}List"


def test_object_has_a_url_path_and_a_store_key() -> None:
    assert JOB.url_path("n", "j", "status") == "/apis/batch/v1/namespaces/n/jobs/j/status"
    assert JOB.store_key("n", "j") == "/batch/jobs/n/j"
    assert CLUSTER_ROLE.url_path("n", "r").endswith("/v1/clusterroles/r")
    assert CLUSTER_ROLE.store_key("n", "r") == f"/{CLUSTER_ROLE.group}/clusterroles/r"


def test_field_selector_with_another_name_has_a_path() -> None:
    for kind in KINDS:
        assert set(kind.selectable_field_paths) <= set(kind.selectable_fields)


def test_only_jobs_and_replication_controllers_orphan_their_dependents_by_default() -> None:
    orphaning = {kind for kind in KINDS if kind.orphans_by_default}
    assert orphaning == {JOB, REPLICATION_CONTROLLER}
