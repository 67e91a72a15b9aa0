"""Kinds that are served in several versions and stored in one."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.hub import CONVERSIONS, STORED_KINDS, hub_kind, is_stored
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    EVENT,
    EVENTS_EVENT,
    GROUP_BINDING,
    KINDS,
    POD_GROUP,
    POD_GROUP_V1ALPHA3,
    WORKLOAD,
    WORKLOAD_V1ALPHA3,
    Kind,
)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (EVENTS_EVENT, EVENT),
        (POD_GROUP_V1ALPHA3, POD_GROUP),
        (WORKLOAD_V1ALPHA3, WORKLOAD),
        (COMPOSITE_POD_GROUP, COMPOSITE_POD_GROUP),
        (POD_GROUP, POD_GROUP),
    ],
)
def test_every_kind_has_a_stored_kind(kind: Kind, stored: Kind) -> None:
    assert hub_kind(kind) is stored
    assert is_stored(kind) == (kind is stored)


def test_kinds_without_watch_are_not_stored() -> None:
    assert not is_stored(GROUP_BINDING)
    assert all({"list", "watch", "delete"} <= set(kind.verbs) for kind in STORED_KINDS)


def test_stored_kinds_have_distinct_store_prefixes() -> None:
    prefixes = [kind.store_prefix() for kind in STORED_KINDS]
    assert len(set(prefixes)) == len(prefixes)
    lasting = [kind for kind in KINDS if "watch" in kind.verbs]
    assert {hub_kind(kind).store_prefix() for kind in lasting} == set(prefixes)


def test_versions_of_a_kind_share_stored_objects() -> None:
    for kind, conversion in CONVERSIONS.items():
        if kind.group == conversion.hub.group:
            assert kind.store_key("n", "a") == conversion.hub.store_key("n", "a")
            assert kind.subresources == conversion.hub.subresources
