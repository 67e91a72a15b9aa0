"""The aggregation of ClusterRoles."""

from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

ALL = {"clusterRoleSelectors": [{"matchLabels": {"for": "all"}}]}


def labelled_role(name: str, resource: str) -> Object:
    rule = {"apiGroups": [""], "resources": [resource], "verbs": ["get"]}
    return {"metadata": {"name": name, "labels": {"for": "all"}}, "rules": [rule]}


async def rules(c: Cluster, name: str) -> list[str]:
    found = await c.client.get(CLUSTER_ROLE, Key("", name))
    return [rule["resources"][0] for rule in found.get("rules") or ()]


@in_virtual_time
async def test_aggregated_role_has_the_rules_of_the_selected_roles() -> None:
    async with cluster() as c:
        await c.client.create(CLUSTER_ROLE, {"metadata": {"name": "all"}, "aggregationRule": ALL})
        await c.client.create(CLUSTER_ROLE, labelled_role("b", "pods"))
        await c.client.create(CLUSTER_ROLE, labelled_role("a", "nodes"))

        async def has_both() -> bool:
            return await rules(c, "all") == ["nodes", "pods"]

        await c.until(has_both)
        await c.client.delete(CLUSTER_ROLE, Key("", "a"))

        async def has_one() -> bool:
            return await rules(c, "all") == ["pods"]

        await c.until(has_one)


@in_virtual_time
async def test_changed_rules_of_an_aggregated_role_are_restored() -> None:
    async with cluster() as c:
        before = await rules(c, "view")
        await c.client.patch(CLUSTER_ROLE, Key("", "view"), {"rules": []})

        async def is_as_before() -> bool:
            return await rules(c, "view") == before

        await c.until(is_as_before)


@in_virtual_time
async def test_default_roles_need_no_update() -> None:
    async with cluster() as c:
        before = (await c.client.get(CLUSTER_ROLE, Key("", "admin")))["metadata"]

        async def is_late() -> bool:
            return c.clock.now() > 1_800_000_005.0

        await c.until(is_late)
        assert (await c.client.get(CLUSTER_ROLE, Key("", "admin")))["metadata"] == before
