from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.kinds import NODE, POD
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SeededRandom
from phalanx.sim import virtual_time as loop
from phalanx.sim.events import CreateGang
from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import EPOCH, ScenarioAudit, run_scenario
from phalanx.sim.timeline import ApiObserver
from phalanx.store.memory import MemoryStore


def test_simulation_runs_hours_of_virtual_time() -> None:
    timeline = run_scenario(parse_scenario("nodes: {}\nat 0: {pod: a, run: 2h}\nuntil: 3h"))
    assert [line.event for line in timeline.lines] == ["Placed", "Running", "Finished"]
    assert timeline.lines[-1].time == pytest.approx(2 * 3600, abs=0.1)


def test_violation_ends_the_run_and_names_seed_and_revision() -> None:
    async def overcommit_node() -> None:
        """Bind a pod to a node without capacity, bypassing the scheduler."""
        clock, random = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(3)
        plane = ControlPlane(
            MemoryStore(), clock, random, ComponentConfig(without=("scheduler", "nodes"))
        )
        client = plane.client("vandal")
        report = ScenarioAudit(ApiObserver(plane.client("observer")), seed=3)
        async with plane.running(), asyncio.TaskGroup() as group:
            group.create_task(report.observer.run())
            await report.align_start()
            await client.create(NODE, {"metadata": {"name": "tiny"}})
            await client.create(POD, _pod("big"))
            target = {"target": {"kind": "Node", "name": "tiny"}}
            await client.post(POD.url_path("default", "big", "binding"), target)
            await asyncio.sleep(10)

    with pytest.raises(ExceptionGroup) as raised:
        loop.run_virtual(overcommit_node)
    (inner,) = raised.value.exceptions
    assert "seed 3, revision " in repr(inner)
    assert re.search(r"t=0\.00\d: node tiny holds cpu 1 but has cpu 0", repr(inner))
    assert "Violation" in repr(inner)


def _pod(name: str) -> dict[str, Any]:
    amounts = {"requests": {"cpu": "1"}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": amounts}]},
    }


# ---- invariants in random scenarios: `run_scenario` raises a Violation if one breaks -------------

TIMES = st.integers(0, 300).map(lambda tenths: tenths / 10)
GPUS = 10


@st.composite
def gangs(draw: st.DrawFn) -> dict[str, Any]:
    """A gang that fits in an empty cluster and finishes by itself."""
    pods = draw(st.integers(1, GPUS // 2))
    return {
        "pods": pods,
        "each": {"gpu": draw(st.integers(1, 2))},
        "min": draw(st.integers(1, pods)),
        "run": draw(st.integers(0, 15)),
        "priority": draw(st.sampled_from([0, 0, 7])),
    }


@st.composite
def scenarios(draw: st.DrawFn, disturbed: bool) -> str:
    nodes = draw(st.sampled_from([1, 5]))
    events: dict[float, list[dict[str, Any]]] = {}
    for number, gang in enumerate(draw(st.lists(gangs(), min_size=1, max_size=6))):
        at, name = draw(TIMES), f"g{number}"
        events.setdefault(at, []).append({"gang": name, **gang})
        for later, event in draw(disturbances(name)) if disturbed else ():
            events.setdefault(round(at + later, 3), []).append(event)
    if disturbed:
        events.setdefault(draw(TIMES), []).append({"remove node": "spare"})
    scenario = {
        "seed": draw(st.integers(0, 1000)),
        "nodes": [
            {"count": nodes, "each": {"gpu": GPUS // nodes}},
            {"name": "spare", "each": {"gpu": 2}},
        ],
        "until": 300,
    }
    return yaml.safe_dump(scenario | {f"at {at}": events[at] for at in sorted(events)})


def disturbances(gang: str) -> st.SearchStrategy[list[tuple[float, dict[str, Any]]]]:
    """Other events while the gang arrives, waits or runs; its deletion, if any, comes last."""
    events: list[dict[str, Any]] = [
        {"cordon": "node-0"},
        {"uncordon": "node-0"},
        {"add nodes": {"each": {"gpu": 4}}},
        {"finish": gang},
        {"join": gang, "pods": 2},
        {"set min": {"gang": gang, "to": 2}},
    ]
    delay = st.sampled_from([0.001, 0.004, 0.007, 1.0, 5.0])
    other_events = st.lists(st.tuples(delay, st.sampled_from(events)), max_size=2)
    end = st.sampled_from([[], [(5.001, {"delete": gang})]])
    return st.builds(list.__add__, other_events, end)


#: A simulation takes longer than most examples, so a share of the profile's examples runs.
FEWER_EXAMPLES = settings(max_examples=settings().max_examples // 6)


@given(scenarios(disturbed=True))
@FEWER_EXAMPLES
def test_no_gang_is_ever_partially_bound_and_no_node_overcommitted(text: str) -> None:
    run_scenario(parse_scenario(text))


@given(scenarios(disturbed=False))
@FEWER_EXAMPLES
def test_every_gang_that_fits_is_placed_once_arrivals_stop(text: str) -> None:
    scenario = parse_scenario(text)
    gangs = {event.name for moment in scenario.moments for event in moment.events
             if isinstance(event, CreateGang)}  # fmt: skip
    assert {
        line.subject for line in run_scenario(scenario).lines if line.event == "Placed"
    } == gangs
