from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING
from phalanx.randomness import SeededRandom
from phalanx.server.security.bootstrap_policy import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACED_BINDINGS,
    ensure_bootstrap_policy,
)
from tests.builders import in_virtual_time
from tests.server.api import Api, names

NOW = "2027-01-15T08:00:00Z"


@in_virtual_time
async def test_every_cluster_has_the_roles_and_bindings_of_the_table() -> None:
    api = await Api.start()
    roles = (await api.ask("GET", CLUSTER_ROLE.url_path())).body
    bindings = (await api.ask("GET", CLUSTER_ROLE_BINDING.url_path())).body
    assert set(names(roles)) == set(CLUSTER_ROLES)
    assert set(names(bindings)) == set(CLUSTER_BINDINGS)
    own = (await api.ask("GET", ROLE_BINDING.url_path())).body
    places = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in own["items"]}
    assert places == set(NAMESPACED_BINDINGS)
    uids = [one["metadata"]["uid"] for one in (*roles["items"], *bindings["items"], *own["items"])]
    assert len(set(uids)) == len(uids)


@in_virtual_time
async def test_what_is_written_is_what_the_api_takes() -> None:
    api = await Api.start()
    for kind in (CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING):
        for one in (await api.ask("GET", kind.url_path())).body["items"]:
            strict, meta = {"fieldValidation": "Strict"}, one["metadata"]
            path = kind.url_path(meta.get("namespace", ""), meta["name"])
            answer = await api.ask("PUT", path, one, query=strict)
            assert answer.code == 200, answer.body
            assert answer.body.get("rules") == one.get("rules")


@in_virtual_time
async def test_a_second_start_writes_nothing() -> None:
    api = await Api.start()
    before = api.store.revision
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_what_was_taken_away_comes_back_and_what_was_added_stays() -> None:
    api = await Api.start()
    view = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    mine = {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}
    await api.ask("PUT", CLUSTER_ROLE.url_path("", "system:aggregate-to-view"),
                  {**view, "rules": [mine, *view["rules"][1:]]})  # fmt: skip
    await api.ask("DELETE", CLUSTER_ROLE.url_path("", "cluster-admin"))
    path = CLUSTER_ROLE_BINDING.url_path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    await api.ask("PUT", path, {**found, "subjects": []})
    await ensure_bootstrap_policy(api.store, NOW)
    again = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    assert mine in again["rules"]
    assert all(rule in again["rules"] for rule in view["rules"])
    assert (await api.get(CLUSTER_ROLE, "cluster-admin", ""))["rules"]
    assert (await api.ask("GET", path)).body["subjects"] == found["subjects"]


@in_virtual_time
async def test_who_does_not_want_that_says_so() -> None:
    api = await Api.start()
    path = CLUSTER_ROLE_BINDING.url_path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    found["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false"
    await api.ask("PUT", path, {**found, "subjects": []})
    before = api.store.revision
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_no_lots_are_drawn() -> None:
    api, chance = Api(), SeededRandom(1)
    api.server.context.random.uid()
    chance.uid()
    await ensure_bootstrap_policy(api.store, NOW)
    assert api.server.context.random.uid() == chance.uid()
