"""Lease as the node lifecycle controller reads it. Partial and frozen."""

from __future__ import annotations

from msgspec import Struct

from phalanx.api.meta import ObjectMeta


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """The time of the last renewal."""

    renew_time: str | None = None


class Lease(Struct, frozen=True):
    """A Lease, the heartbeat of a node."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
