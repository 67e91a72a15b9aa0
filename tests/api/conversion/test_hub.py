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
def test_every_kind_knows_the_one_that_it_is_stored_as(kind: Kind, stored: Kind) -> None:
    assert hub_kind(kind) is stored
    assert is_stored(kind) == (kind is stored)


def test_what_is_only_made_is_not_stored() -> None:
    assert not is_stored(GROUP_BINDING)
    assert all({"list", "watch", "delete"} <= set(kind.verbs) for kind in STORED_KINDS)


def test_who_walks_the_stored_kinds_meets_every_object_once() -> None:
    prefixes = [kind.store_prefix() for kind in STORED_KINDS]
    assert len(set(prefixes)) == len(prefixes)
    lasting = [kind for kind in KINDS if "watch" in kind.verbs]
    assert {hub_kind(kind).store_prefix() for kind in lasting} == set(prefixes)


def test_versions_of_one_kind_share_what_is_stored() -> None:
    for kind, conversion in CONVERSIONS.items():
        if kind.group == conversion.hub.group:
            assert kind.store_key("n", "a") == conversion.hub.store_key("n", "a")
            assert kind.subresources == conversion.hub.subresources
