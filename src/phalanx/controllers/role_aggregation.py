"""Aggregated cluster roles: their rules are written into them, for whoever reads them.

A role with an aggregation rule has the rules of all roles that its selectors find, in the order of
their names. The server needs nobody for that: it looks the rules up when it is asked. On a foreign
API server this loop is off: it has one of its own.
"""

from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE
from phalanx.api.meta import Key
from phalanx.api.rbac import ClusterRole
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers, Patch, ReconcileLoop, ReconcilePlan


class ClusterRoleAggregationController:
    """Keeps the rules of aggregated roles. Touches no others."""

    def __init__(self, client: Client, informers: Informers) -> None:
        informer = informers.of(CLUSTER_ROLE, ClusterRole)
        self._synced, self._roles = informer.synced, informer.cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile)
        self._roles.subscribe(self._changed)

    async def run(self) -> None:
        """Gather rules until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Write the rules of an aggregated role where they are not what they should be."""
        role = self._roles.get(key)
        if role is None or role.aggregation_rule is None:
            return ReconcilePlan()
        rules = self._aggregate_rules(role)
        if rules == list(role.rules or ()):
            return ReconcilePlan()
        change = {"metadata": {"resourceVersion": role.metadata.resource_version}, "rules": rules}
        return ReconcilePlan([Patch(CLUSTER_ROLE, key, change)])

    def _aggregate_rules(self, role: ClusterRole) -> list[Object]:
        found: list[Object] = []
        for other in sorted(self._roles.values(), key=lambda one: one.metadata.name):
            if other is not role and _selects_role(role, other):
                found += [rule for rule in other.rules or () if rule not in found]
        return found

    def _changed(self, old: ClusterRole | None, new: ClusterRole | None) -> None:
        """Any role may be one that an aggregated one has, or had, the rules of."""
        for role in self._roles.values():
            if role.aggregation_rule is not None:
                self._loop.queue.add(role.metadata.key)


def _selects_role(role: ClusterRole, other: ClusterRole) -> bool:
    assert role.aggregation_rule is not None
    labels = other.metadata.labels
    return any(
        selector_matches(one, labels) for one in role.aggregation_rule.cluster_role_selectors
    )
