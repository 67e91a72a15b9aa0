"""EndpointSlice and Endpoints as our components read them. Partial and frozen."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.meta import ObjectMeta


class EndpointSlice(Struct, frozen=True, rename="camel"):
    """An EndpointSlice; its endpoints and ports are only compared, so they stay JSON."""

    metadata: ObjectMeta
    address_type: str = "IPv4"
    endpoints: tuple[dict[str, Any], ...] | None = ()
    ports: tuple[dict[str, Any], ...] | None = ()


class Endpoints(Struct, frozen=True):
    """An Endpoints object; its subsets stay JSON."""

    metadata: ObjectMeta
    subsets: tuple[dict[str, Any], ...] | None = ()
