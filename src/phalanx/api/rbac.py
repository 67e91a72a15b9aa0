"""ClusterRole as the role aggregation controller reads it. Partial and frozen."""

from __future__ import annotations

from msgspec import Struct

from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object


class AggregationRule(Struct, frozen=True, rename="camel"):
    """The selectors of the ClusterRoles whose rules a ClusterRole aggregates."""

    cluster_role_selectors: tuple[Object, ...] = ()


class ClusterRole(Struct, frozen=True, rename="camel"):
    """A ClusterRole. Its rules are only compared and copied, so they stay JSON."""

    metadata: ObjectMeta
    rules: tuple[Object, ...] | None = ()
    aggregation_rule: AggregationRule | None = None
