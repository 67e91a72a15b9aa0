from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING
from phalanx.chance import SeededChance
from phalanx.server.security.bootstrap import ensure
from phalanx.server.security.roles import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES
from tests.builders import in_virtual_time
from tests.server.api import Api, names

NOW = "2027-01-15T08:00:00Z"


@in_virtual_time
async def test_every_cluster_has_the_roles_and_bindings_of_the_table() -> None:
    api = await Api.started()
    roles = (await api.ask("GET", CLUSTER_ROLE.path())).body
    bindings = (await api.ask("GET", CLUSTER_ROLE_BINDING.path())).body
    assert set(names(roles)) == set(CLUSTER_ROLES)
    assert set(names(bindings)) == set(CLUSTER_BINDINGS)
    own = (await api.ask("GET", ROLE_BINDING.path())).body
    places = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in own["items"]}
    assert places == set(BINDINGS)
    uids = [one["metadata"]["uid"] for one in (*roles["items"], *bindings["items"], *own["items"])]
    assert len(set(uids)) == len(uids)


@in_virtual_time
async def test_what_is_written_is_what_the_api_takes() -> None:
    api = await Api.started()
    for kind in (CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING):
        for one in (await api.ask("GET", kind.path())).body["items"]:
            strict, meta = {"fieldValidation": "Strict"}, one["metadata"]
            path = kind.path(meta.get("namespace", ""), meta["name"])
            answer = await api.ask("PUT", path, one, query=strict)
            assert answer.code == 200, answer.body
            assert answer.body.get("rules") == one.get("rules")


@in_virtual_time
async def test_a_second_start_writes_nothing() -> None:
    api = await Api.started()
    before = api.store.revision
    await ensure(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_what_was_taken_away_comes_back_and_what_was_added_stays() -> None:
    api = await Api.started()
    view = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    mine = {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}
    await api.ask("PUT", CLUSTER_ROLE.path("", "system:aggregate-to-view"),
                  {**view, "rules": [mine, *view["rules"][1:]]})  # fmt: skip
    await api.ask("DELETE", CLUSTER_ROLE.path("", "cluster-admin"))
    path = CLUSTER_ROLE_BINDING.path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    await api.ask("PUT", path, {**found, "subjects": []})
    await ensure(api.store, NOW)
    again = await api.get(CLUSTER_ROLE, "system:aggregate-to-view", "")
    assert mine in again["rules"]
    assert all(rule in again["rules"] for rule in view["rules"])
    assert (await api.get(CLUSTER_ROLE, "cluster-admin", ""))["rules"]
    assert (await api.ask("GET", path)).body["subjects"] == found["subjects"]


@in_virtual_time
async def test_who_does_not_want_that_says_so() -> None:
    api = await Api.started()
    path = CLUSTER_ROLE_BINDING.path("", "system:discovery")
    found = (await api.ask("GET", path)).body
    found["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false"
    await api.ask("PUT", path, {**found, "subjects": []})
    before = api.store.revision
    await ensure(api.store, NOW)
    assert api.store.revision == before


@in_virtual_time
async def test_no_lots_are_drawn() -> None:
    api, chance = Api(), SeededChance(1)
    api.server.context.chance.uid()
    chance.uid()
    await ensure(api.store, NOW)
    assert api.server.context.chance.uid() == chance.uid()
