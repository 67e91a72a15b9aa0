"""Cluster roles as readers need them: rules, and the selectors of roles whose rules they have."""

from __future__ import annotations

from msgspec import Struct

from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object


class AggregationRule(Struct, frozen=True, rename="camel"):
    """The selectors of cluster roles whose rules a role has too."""

    cluster_role_selectors: tuple[Object, ...] = ()


class ClusterRole(Struct, frozen=True, rename="camel"):
    """A cluster role. Its rules are only ever compared and copied, so they stay as they are."""

    metadata: ObjectMeta
    rules: tuple[Object, ...] | None = ()
    aggregation_rule: AggregationRule | None = None
