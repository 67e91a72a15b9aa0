"""Rules and defaults of roles and bindings."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    RBAC_GROUP,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

READ: Object = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
PATHS: Object = {"verbs": ["get"], "nonResourceURLs": ["/healthz"]}


@pytest.mark.parametrize(
    ("rule", "causes"),
    [
        (READ, []),
        ({**READ, "verbs": []}, ["verbs: Required"]),
        ({"verbs": ["get"]}, ["apiGroups: Required", "resources: Required"]),
        ({**PATHS, "resources": ["pods"]}, ["nonResourceURLs: Invalid"]),
    ],
)
def test_a_rule_is_about_verbs_on_something(rule: Object, causes: CauseSummaries) -> None:
    assert creation_causes(CLUSTER_ROLE, {"rules": [rule]}) == prefix_summaries("rules[0]", causes)


def test_paths_are_not_in_a_namespace() -> None:
    assert creation_causes(CLUSTER_ROLE, {"rules": [PATHS]}) == []
    assert creation_causes(ROLE, {"rules": [READ, PATHS]}) == ["rules[1].nonResourceURLs: Invalid"]


@pytest.mark.parametrize(
    ("rule", "causes"),
    [
        ({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}, []),
        ({}, ["clusterRoleSelectors: Required"]),
        (
            {"clusterRoleSelectors": [{"matchLabels": {"a b": "c"}}]},
            ["clusterRoleSelectors[0].matchLabels: Invalid", "clusterRoleSelectors[0]: Invalid"],
        ),
    ],
)
def test_a_role_may_be_put_together_of_others(rule: Object, causes: CauseSummaries) -> None:
    assert creation_causes(CLUSTER_ROLE, {"aggregationRule": rule}) == prefix_summaries(
        "aggregationRule", causes
    )


def binding(*subjects: Object, **role: Any) -> Object:
    return {"roleRef": {"kind": "ClusterRole", "name": "view", **role}, "subjects": list(subjects)}


@pytest.mark.parametrize("kind", [ROLE_BINDING, CLUSTER_ROLE_BINDING])
@pytest.mark.parametrize(
    ("bound", "causes"),
    [
        (binding({"kind": "User", "name": "me"}, {"kind": "Group", "name": "system:all"}), []),
        (binding({"kind": "ServiceAccount", "name": "a", "namespace": "n"}), []),
        (binding(name=""), ["roleRef.name: Required"]),
        (binding(name="a/b"), ["roleRef.name: Invalid"]),
        (binding(kind="Pod"), ["roleRef.kind: NotSupported"]),
        (binding(apiGroup="apps"), ["roleRef.apiGroup: NotSupported"]),
        (binding({"kind": "Robot", "name": "r"}), ["subjects[0].kind: NotSupported"]),
        (binding({"kind": "User", "name": ""}), ["subjects[0].name: Required"]),
        (
            binding({"kind": "User", "name": "a", "apiGroup": "apps"}),
            ["subjects[0].apiGroup: NotSupported"],
        ),
        (
            binding({"kind": "ServiceAccount", "name": "A", "namespace": "n", "apiGroup": "x"}),
            ["subjects[0].name: Invalid", "subjects[0].apiGroup: NotSupported"],
        ),
    ],
)
def test_role_binding_subjects_are_validated(
    kind: Kind, bound: Object, causes: CauseSummaries
) -> None:
    assert creation_causes(kind, bound) == causes


def test_service_account_in_a_cluster_role_binding_needs_a_namespace() -> None:
    account = binding({"kind": "ServiceAccount", "name": "a"})
    assert creation_causes(ROLE_BINDING, account) == []
    assert creation_causes(CLUSTER_ROLE_BINDING, account) == ["subjects[0].namespace: Required"]


def test_a_role_of_a_namespace_is_bound_in_it() -> None:
    assert creation_causes(ROLE_BINDING, binding(kind="Role")) == []
    assert creation_causes(CLUSTER_ROLE_BINDING, binding(kind="Role")) == [
        "roleRef.kind: NotSupported"
    ]


def test_users_and_groups_belong_to_the_group_of_roles() -> None:
    account = {"kind": "ServiceAccount", "name": "a", "namespace": "n"}
    new = make_stored(ROLE_BINDING, binding({"kind": "User", "name": "me"}, account))
    assert new["roleRef"]["apiGroup"] == RBAC_GROUP
    assert [subject.get("apiGroup", "") for subject in new["subjects"]] == [RBAC_GROUP, ""]


def test_a_binding_keeps_its_role() -> None:
    old = make_stored(ROLE_BINDING, binding())
    new = change_stored(ROLE_BINDING, old, roleRef={"kind": "Role", "name": "edit"})
    assert find_causes(ROLE_BINDING, new, old) == ["roleRef: Invalid"]
    assert find_causes(ROLE_BINDING, change_stored(ROLE_BINDING, old, subjects=[]), old) == []


@pytest.mark.parametrize("kind", [ROLE, CLUSTER_ROLE])
def test_a_role_may_have_a_colon_in_its_name(kind: Kind) -> None:
    assert creation_causes(kind, {"metadata": {"name": "system:node"}}) == []
    assert creation_causes(kind, {"metadata": {"name": "a%b"}}) == ["metadata.name: Invalid"]
