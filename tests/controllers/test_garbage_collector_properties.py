"""Whatever is deleted: what garbage collection must leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import NotFound
from phalanx.api.kinds import CONFIG_MAP, SECRET, Kind
from phalanx.api.wire import Object
from phalanx.sim.virtual_time import run_virtual
from tests.controllers.cluster import Cluster, cluster, lagging_client
from tests.controllers.crash_stories import SERVER_ONLY
from tests.controllers.owned_objects import (
    create_config,
    delete_object,
    owner_reference,
    running_collector,
)

POLICIES = ("Background", "Foreground", "Orphan")


class Step(NamedTuple):
    """The deletion of one object, and for how long to wait then."""

    name: str
    how: str
    pause: float


class DeletionScenario(NamedTuple):
    """Objects with the names of their owners, all of which came before them; what is deleted."""

    owners: dict[str, list[str]]
    blocks: bool
    steps: list[Step]


@st.composite
def deletion_scenarios(draw: st.DrawFn, pauses: Sequence[float]) -> DeletionScenario:
    names = [f"o{number}" for number in range(draw(st.integers(2, 9)))]
    above = {
        name: draw(st.lists(st.sampled_from(names[:at]), max_size=3, unique=True)) if at else []
        for at, name in enumerate(names)
    }
    doomed = draw(st.lists(st.sampled_from(names), max_size=5, unique=True))
    how, pause = st.sampled_from(POLICIES), st.sampled_from(pauses)
    return DeletionScenario(
        above, draw(st.booleans()), [Step(name, draw(how), draw(pause)) for name in doomed]
    )


def kind_of(name: str) -> Kind:
    """Half of them are of another kind, of which one hears at another time."""
    return (CONFIG_MAP, SECRET)[int(name[1:]) % 2]


async def run_scenario(c: Cluster, plot: DeletionScenario) -> list[Step]:
    """Make everything, delete what is to be deleted; the steps that met somebody."""
    made: dict[str, Object] = {}
    for name, above in plot.owners.items():
        references = [owner_reference(made[one], blocks=plot.blocks) for one in above]
        made[name] = await create_config(c, name, *references, kind=kind_of(name))
    met = []
    for step in plot.steps:
        try:
            await delete_object(c, step.name, step.how, kind=kind_of(step.name))
            met.append(step)
        except NotFound:
            pass
        await asyncio.sleep(step.pause)
    return met


async def remaining(c: Cluster) -> dict[str, list[str]]:
    """Everything that is there, with the names of its owners."""
    found = [item for kind in (CONFIG_MAP, SECRET) for item in (await c.client.list(kind)).items]
    metas = [item["metadata"] for item in found]
    return {m["name"]: [o["name"] for o in m.get("ownerReferences", [])] for m in metas}


async def after_quiet(c: Cluster) -> dict[str, list[str]]:
    await asyncio.sleep(90)
    before = c.store.revision
    await asyncio.sleep(600)
    assert c.store.revision == before
    return await remaining(c)


def expected(plot: DeletionScenario) -> dict[str, list[str]]:
    """What one deletion after the other must leave."""
    left = {name: list(above) for name, above in plot.owners.items()}
    for step in plot.steps:
        if left.pop(step.name, None) is None:
            continue
        gone = {step.name}
        for name, above in list(left.items()):
            if not gone.intersection(above):
                continue
            left[name] = [one for one in above if one not in gone]
            if not left[name] and not (step.how == "Orphan" and step.name in above):
                gone.add(name)
                del left[name]
    return left


def orphaned(c: Cluster) -> set[str]:
    """Those whose very first word was that their dependents should stay."""
    names = set()
    for change in c.store.changes(0):
        if change.before is not None and change.after is not None:
            was = orjson.loads(change.before.value)["metadata"]
            now = orjson.loads(change.after.value)["metadata"]
            if "deletionTimestamp" not in was and "orphan" in now.get("finalizers", ()):
                names.add(now["name"])
    return names


@settings(max_examples=40)
@given(deletion_scenarios(pauses=(30.0,)))
def test_one_deletion_after_the_other_leaves_what_it_must(plot: DeletionScenario) -> None:
    async def story() -> None:
        async with cluster(without=SERVER_ONLY) as c, running_collector(c):
            await run_scenario(c, plot)
            assert await after_quiet(c) == expected(plot)

    run_virtual(story)


@settings(max_examples=60)
@given(deletion_scenarios(pauses=(0.0, 0.0, 0.02, 0.3)), st.sampled_from((0.0, 0.05, 0.5)))
def test_whatever_is_deleted_nobody_is_left_without_an_owner_and_nobody_is_lost(
    plot: DeletionScenario, lag: float
) -> None:
    async def story() -> None:
        async with (
            cluster(without=SERVER_ONLY) as c,
            running_collector(c, lagging_client(c, lag)[1]),
        ):
            deleted = {step.name for step in await run_scenario(c, plot)}
            there = await after_quiet(c)
            assert {name: above for name, above in there.items() if set(above) - set(there)} == {}
            spared = orphaned(c)
            for name in plot.owners.keys() - there.keys() - deleted:
                above = set(plot.owners[name])
                assert above
                assert not above & there.keys()
                assert not above <= spared

    run_virtual(story)
