"""The ClusterRole aggregation controller: writes the rules of aggregated ClusterRoles.

A ClusterRole with an aggregation rule has the rules of all ClusterRoles that its selectors match,
in the order of their names, without duplicates. The controller writes them only for readers of the
API: the server aggregates rules itself when it authorizes a request. The controller is disabled on
a foreign API server, which has its own.
"""

from __future__ import annotations

from phalanx.api.kinds import CLUSTER_ROLE
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ClusterRole
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers, Patch, ReconcileLoop, ReconcilePlan


class ClusterRoleAggregationController:
    """Updates the rules of aggregated ClusterRoles until cancelled; never changes others."""

    def __init__(self, client: Client, informers: Informers) -> None:
        informer = informers.of(ClusterRole)
        self._synced, self._roles = informer.synced, informer.cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile)
        self._roles.subscribe(self._on_change)

    async def run(self) -> None:
        """Update rules until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: patch the rules of an aggregated ClusterRole if they differ."""
        role = self._roles.get(key)
        if role is None or role.aggregation_rule is None:
            return ReconcilePlan()
        rules = self._aggregate_rules(role)
        if rules == list(role.rules or ()):
            return ReconcilePlan()
        change = {"metadata": {"resourceVersion": role.metadata.resource_version}, "rules": rules}
        return ReconcilePlan([Patch(CLUSTER_ROLE, key, change)])

    def _aggregate_rules(self, role: ClusterRole) -> list[Object]:
        assert role.aggregation_rule is not None
        selectors = role.aggregation_rule.cluster_role_selectors
        rules: list[Object] = []
        for other in sorted(self._roles.values(), key=lambda other: other.metadata.name):
            labels = other.metadata.labels
            if other is not role and any(
                selector_matches(selector, labels) for selector in selectors
            ):
                rules += [rule for rule in other.rules or () if rule not in rules]
        return rules

    def _on_change(self, old: ClusterRole | None, new: ClusterRole | None) -> None:
        """Enqueue all aggregated ClusterRoles: each may select the changed one, or have done so."""
        for role in self._roles.values():
            if role.aggregation_rule is not None:
                self._loop.queue.add(role.metadata.key)
