from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING
from phalanx.randomness import SeededRandom
from phalanx.server.security.bootstrap_policy import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACED_BINDINGS,
)
from phalanx.server.security.bootstrap_writer import ensure_bootstrap_policy
from tests.builders import in_virtual_time
from tests.server.api import Api, names

NOW = "2027-01-15T08:00:00Z"


@in_virtual_time
async def test_every_cluster_has_the_bootstrap_roles_and_bindings() -> None:
    api = await Api.start()
    roles = (await api.ask("GET", CLUSTER_ROLE.url_path())).body
    bindings = (await api.ask("GET", CLUSTER_ROLE_BINDING.url_path())).body
    assert set(names(roles)) == set(CLUSTER_ROLES)
    assert set(names(bindings)) == set(CLUSTER_BINDINGS)
    role_bindings = (await api.ask("GET", ROLE_BINDING.url_path())).body
    names_found = {
        (obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in role_bindings["items"]
    }
    assert names_found == set(NAMESPACED_BINDINGS)
    uids = [
        obj["metadata"]["uid"]
        for obj in (*roles["items"], *bindings["items"], *role_bindings["items"])
    ]
    assert len(set(uids)) == len(uids)


@in_virtual_time
async def test_bootstrap_objects_pass_strict_validation() -> None:
    api = await Api.start()
    for kind in (CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING):
        for obj in (await api.ask("GET", kind.url_path())).body["items"]:
            strict, meta = {"fieldValidation": "Strict"}, obj["metadata"]
            path = kind.url_path(meta.get("namespace", ""), meta["name"])
            response = await api.ask("PUT", path, obj, query=strict)
            assert response.code == 200, response.body
            assert response.body.get("rules") == obj.get("rules")


@in_virtual_time
async def test_second_start_writes_nothing() -> None:
    api = await Api.start()
    before = api.store.revision
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_removed_rules_are_restored_and_added_rules_kept() -> None:
    api = await Api.start()
    view = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    added_rule = {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}
    await api.ask("PUT", CLUSTER_ROLE.url_path("", "system:aggregate-to-view"),
                  {**view, "rules": [added_rule, *view["rules"][1:]]})  # fmt: skip
    await api.ask("DELETE", CLUSTER_ROLE.url_path("", "cluster-admin"))
    path = CLUSTER_ROLE_BINDING.url_path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    await api.ask("PUT", path, {**found, "subjects": []})
    await ensure_bootstrap_policy(api.store, NOW)
    restored = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    assert added_rule in restored["rules"]
    assert all(rule in restored["rules"] for rule in view["rules"])
    assert (await api.get(CLUSTER_ROLE, "cluster-admin", ""))["rules"]
    assert (await api.ask("GET", path)).body["subjects"] == found["subjects"]


@in_virtual_time
async def test_object_with_autoupdate_false_is_not_restored() -> None:
    api = await Api.start()
    path = CLUSTER_ROLE_BINDING.url_path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    found["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false"
    await api.ask("PUT", path, {**found, "subjects": []})
    before = api.store.revision
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_bootstrap_policy_uses_no_randomness() -> None:
    api, random = Api(), SeededRandom(1)
    api.server.context.random.uid()
    random.uid()
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.server.context.random.uid() == random.uid()
