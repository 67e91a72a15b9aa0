"""Properties of garbage collection: which objects remain after any deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import NotFound
from phalanx.api.kinds import CONFIG_MAP, SECRET, Kind
from phalanx.api.wire import Object
from phalanx.sim.virtual_time import run_virtual
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_recovery import SERVER_ONLY
from tests.controllers.owned_objects import (
    create_config,
    delete_object,
    owner_reference,
    running_collector,
)

POLICIES = ("Background", "Foreground", "Orphan")


class Step(NamedTuple):
    """The deletion of one object, and the pause after it."""

    name: str
    how: str
    pause: float


class DeletionScenario(NamedTuple):
    """Objects with the names of their owners, owners first; and the deletions."""

    owners: dict[str, list[str]]
    blocks: bool
    steps: list[Step]


@st.composite
def deletion_scenarios(draw: st.DrawFn, pauses: Sequence[float]) -> DeletionScenario:
    names = [f"o{number}" for number in range(draw(st.integers(2, 9)))]
    owners = {
        name: draw(st.lists(st.sampled_from(names[:at]), max_size=3, unique=True)) if at else []
        for at, name in enumerate(names)
    }
    deleted = draw(st.lists(st.sampled_from(names), max_size=5, unique=True))
    how, pause = st.sampled_from(POLICIES), st.sampled_from(pauses)
    return DeletionScenario(
        owners, draw(st.booleans()), [Step(name, draw(how), draw(pause)) for name in deleted]
    )


def kind_of(name: str) -> Kind:
    """Return the kind of an object: two kinds, so that their caches differ in age."""
    return (CONFIG_MAP, SECRET)[int(name[1:]) % 2]


async def run_scenario(c: Cluster, scenario: DeletionScenario) -> list[Step]:
    """Create all objects and perform the deletions; return those whose object existed."""
    created: dict[str, Object] = {}
    for name, owners in scenario.owners.items():
        references = [owner_reference(created[one], blocks=scenario.blocks) for one in owners]
        created[name] = await create_config(c, name, *references, kind=kind_of(name))
    performed = []
    for step in scenario.steps:
        try:
            await delete_object(c, step.name, step.how, kind=kind_of(step.name))
            performed.append(step)
        except NotFound:
            pass
        await asyncio.sleep(step.pause)
    return performed


async def remaining(c: Cluster) -> dict[str, list[str]]:
    """Return all objects with the names of their owners."""
    found = [item for kind in (CONFIG_MAP, SECRET) for item in (await c.client.list(kind)).items]
    metas = [item["metadata"] for item in found]
    return {m["name"]: [o["name"] for o in m.get("ownerReferences", [])] for m in metas}


async def wait_until_idle(c: Cluster) -> dict[str, list[str]]:
    await asyncio.sleep(90)
    before = c.store.revision
    await asyncio.sleep(600)
    assert c.store.revision == before
    return await remaining(c)


def expected_objects(scenario: DeletionScenario) -> dict[str, list[str]]:
    """Return the objects that successive deletions must leave."""
    left = {name: list(owners) for name, owners in scenario.owners.items()}
    for step in scenario.steps:
        if left.pop(step.name, None) is None:
            continue
        gone = {step.name}
        for name, owners in list(left.items()):
            if not gone.intersection(owners):
                continue
            left[name] = [one for one in owners if one not in gone]
            if not left[name] and not (step.how == "Orphan" and step.name in owners):
                gone.add(name)
                del left[name]
    return left


def orphaning_owners(c: Cluster) -> set[str]:
    """Return the objects whose first deletion had the policy Orphan."""
    names = set()
    for change in c.store.changes(0):
        if change.before is not None and change.after is not None:
            before = orjson.loads(change.before.value)["metadata"]
            after = orjson.loads(change.after.value)["metadata"]
            if "deletionTimestamp" not in before and "orphan" in after.get("finalizers", ()):
                names.add(after["name"])
    return names


@settings(max_examples=40)
@given(deletion_scenarios(pauses=(30.0,)))
def test_successive_deletions_leave_the_expected_objects(scenario: DeletionScenario) -> None:
    async def story() -> None:
        async with cluster(without=SERVER_ONLY) as c, running_collector(c):
            await run_scenario(c, scenario)
            assert await wait_until_idle(c) == expected_objects(scenario)

    run_virtual(story)


@pytest.mark.slow
@settings(max_examples=60)
@given(deletion_scenarios(pauses=(0.0, 0.0, 0.02, 0.3)), st.sampled_from((0.0, 0.05, 0.5)))
def test_concurrent_deletions_leave_no_dangling_reference_and_delete_no_orphan(
    scenario: DeletionScenario, lag: float
) -> None:
    async def story() -> None:
        async with (
            cluster(without=SERVER_ONLY) as c,
            running_collector(c, lagging_client(c, lag)[1]),
        ):
            deleted = {step.name for step in await run_scenario(c, scenario)}
            remaining_objects = await wait_until_idle(c)
            assert {
                name: owners
                for name, owners in remaining_objects.items()
                if set(owners) - set(remaining_objects)
            } == {}
            orphaning = orphaning_owners(c)
            for name in scenario.owners.keys() - remaining_objects.keys() - deleted:
                owners = set(scenario.owners[name])
                assert owners
                assert not owners & remaining_objects.keys()
                assert not owners <= orphaning

    run_virtual(story)
