"""Conditions of CompositePodGroups as a function of results and children."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.meta import Condition
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.api.wire import ANONYMOUS, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import Listing
from phalanx.client.transports import InProcessTransport
from phalanx.controllers.reconcile_loop import Patch
from phalanx.controllers.scheduling.composite_status_writer import CompositeStatusWriter
from phalanx.controllers.scheduling.status_writer import ConditionUpdate
from tests.controllers.scheduling.test_status_writer import FrozenClock, refuse_request
from tests.scheduler.builders import composite, gang, key

LOST = ConditionUpdate("False", "SchedulerError", "no answer")


def leaf(name: str, *, placed: bool, parent: str = "t") -> PodGroup:
    conditions = (Condition(POD_GROUP_INITIALLY_SCHEDULED, "True"),) if placed else ()
    group = gang(name, 1, parent=parent)
    return replace(group, status=replace(group.status, conditions=conditions))


def written_conditions(
    *leaves: PodGroup, roots: tuple[CompositePodGroup, ...] = (composite("t", 2),),
    update: ConditionUpdate | None = None, placed: int = 0, about: str = "t",
) -> list[Object]:  # fmt: skip
    """The conditions that are written."""
    groups: ObjectCache[PodGroup] = ObjectCache()
    composites: ObjectCache[CompositePodGroup] = ObjectCache()
    groups.replace(Listing(leaves, 9))
    composites.replace(Listing(roots, 9))
    client = Client(InProcessTransport(refuse_request, ANONYMOUS))
    reporter = CompositeStatusWriter(
        client, groups, composites, clock=FrozenClock(), placed_members=lambda key: placed
    )
    if update:
        reporter.report_composite(roots[0].metadata, update)
    found = []
    for action in reporter.reconcile(key(about)).actions:
        assert isinstance(action, Patch)
        assert isinstance(action.change, dict)
        found += action.change["status"]["conditions"]
    return found


def statuses(conditions: list[Object]) -> list[tuple[str, str]]:
    return [(one["type"], one.get("status") or one["$patch"]) for one in conditions]


def test_the_result_is_written() -> None:
    found = written_conditions(leaf("a", placed=False), update=LOST)
    assert statuses(found) == [(COMPOSITE_INITIALLY_SCHEDULED, "False")]
    assert found[0]["message"] == "no answer"


def test_scheduled_children_make_their_parent_scheduled() -> None:
    both = leaf("a", placed=True), leaf("b", placed=True)
    for update in (None, LOST):
        assert statuses(written_conditions(*both, update=update)) == [
            (COMPOSITE_INITIALLY_SCHEDULED, "True")
        ]
    one_is_too_few = leaf("a", placed=True), leaf("b", placed=False)
    assert written_conditions(*one_is_too_few) == []


@pytest.mark.parametrize(("placed", "spared"), [(0, False), (1, True)])
def test_a_disruption_target_condition_is_removed_once_the_group_is_back(
    placed: int, spared: bool
) -> None:
    conditions = (
        Condition(COMPOSITE_INITIALLY_SCHEDULED, "True"), Condition(DISRUPTION_TARGET, "True"),
    )  # fmt: skip
    root = composite("t", 1)
    root = replace(root, status=replace(root.status, conditions=conditions))
    between = composite("s", 1, parent="t")
    below = leaf("a", placed=True, parent="s")
    found = written_conditions(below, roots=(root, between), placed=placed)
    assert statuses(found) == ([(DISRUPTION_TARGET, "delete")] if spared else [])
