"""Gangs with devices against a slow scheduler that tries every node and every choice of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.wire import Object
from phalanx.scheduler.decision import UNDECIDED, UNSCHEDULABLE, Placed, Waiting
from phalanx.scheduler.devices import allocator
from tests.scheduler.device_builders import (
    DRIVER,
    claim,
    decide,
    device,
    device_class,
    devices_of,
    exactly,
    gang,
    node,
    nodes_of,
    pod,
    resource_slice,
    state_of,
)

#: Of each device: numa node, kind, and what it takes of the counter of its card.
MODELS = st.tuples(st.sampled_from([0, 1]), st.sampled_from(["gpu", "nic"]), st.integers(0, 2))
CLUSTERS = st.lists(
    st.tuples(st.lists(MODELS, max_size=3), st.integers(0, 4)), min_size=1, max_size=3
)
#: Of each member: kind, number, constraint, and whether its node takes one pod only.
MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["gpu", "nic", "any"]),
        st.integers(1, 2),
        st.sampled_from([None, "matchAttribute", "distinctAttribute"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
Model = tuple[int, str, int]
GPU = device_class()


def published(number: int, model: Model) -> Object:
    numa, kind, slots = model
    counters: Object = {}
    if slots:
        taken = {"counterSet": "card", "counters": {"slots": {"value": str(slots)}}}
        counters = {"consumesCounters": [taken]}
    return device(f"d{number}", attributes={"numa": numa, "kind": kind}, **counters)


def choices(
    models: Sequence[Model], used: frozenset[int], slots: int, member: tuple[Any, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield the devices of a node that a member may have."""
    kind, count, constraint, _ = member
    free = [n for n, m in enumerate(models) if n not in used and kind in ("any", m[1])]
    for chosen in combinations(free, count):
        numa = {models[n][0] for n in chosen}
        if constraint and len(numa) != (1 if constraint == "matchAttribute" else count):
            continue
        if sum(models[n][2] for n in {*used, *chosen} if models[n][2]) <= slots or not any(
            models[n][2] for n in chosen
        ):
            yield chosen


def fits(
    cluster: Sequence[tuple[Sequence[Model], int]],
    members: Sequence[tuple[Any, ...]],
    used: tuple[frozenset[int], ...],
    cpus: tuple[int, ...],
) -> bool:
    """Whether some assignment of nodes and devices serves all members."""
    if not members:
        return True
    first, *rest = members
    needed = 2 if first[3] else 1
    for i, (models, slots) in enumerate(cluster):
        if cpus[i] < needed:
            continue
        left = (*cpus[:i], cpus[i] - needed, *cpus[i + 1 :])
        for chosen in choices(models, used[i], slots, first):
            taken = (*used[:i], used[i] | set(chosen), *used[i + 1 :])
            if fits(cluster, rest, taken, left):
                return True
    return False


def requests(members: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    for n, (kind, count, constraint, _) in enumerate(members):
        expression = f'device.attributes["{DRIVER}"].kind == "{kind}"'
        selectors = [] if kind == "any" else [{"cel": {"expression": expression}}]
        constraints = [{constraint: f"{DRIVER}/numa"}] if constraint else []
        yield claim(f"c{n}", exactly(count=count, selectors=selectors), constraints=constraints)


@given(CLUSTERS, MEMBERS)
def test_gang_with_devices_is_placed_or_refused_rightly(
    cluster: list[tuple[list[Model], int]], members: list[tuple[Any, ...]]
) -> None:
    state = state_of(
        [node(f"n{i}", 3) for i in range(len(cluster))],
        [
            GPU,
            *(
                resource_slice(
                    f"n{i}",
                    [published(n, one) for n, one in enumerate(models)],
                    sharedCounters=[{"name": "card", "counters": {"slots": {"value": str(slots)}}}],
                )
                for i, (models, slots) in enumerate(cluster)
            ),
            *requests(members),
        ],
        [
            pod(f"m{n}", f"c{n}", group="g", cpu="2" if member[3] else "1")
            for n, member in enumerate(members)
        ],
        [gang("g", len(members))],
    )
    decision = decide(state)
    can_fit = fits(cluster, members, tuple(frozenset() for _ in cluster), tuple(3 for _ in cluster))
    if isinstance(decision, Placed):
        assert can_fit
        _check_devices(cluster, members, decision)
    else:
        assert isinstance(decision, Waiting)
        assert not can_fit or decision.reason != UNSCHEDULABLE


def _check_devices(
    cluster: Sequence[tuple[Sequence[Model], int]],
    members: Sequence[tuple[Any, ...]],
    decision: Placed,
) -> None:
    """Every member has valid devices of its own node, and none is given twice."""
    given_devices, places = devices_of(decision), nodes_of(decision)
    used: dict[str, frozenset[int]] = {}
    for n, member in enumerate(members):
        place = places[f"m{n}"]
        models, slots = cluster[int(place[1:])]
        chosen = tuple(int(one.removeprefix(f"{place}/d")) for one in given_devices[f"c{n}"])
        before = used.get(place, frozenset())
        assert tuple(sorted(chosen)) in choices(models, before, slots, member)
        used[place] = before | set(chosen)


def test_search_for_devices_that_ends_at_its_limit_is_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocator, "MAX_STEPS", 5)
    devices = [device(f"d{n}", attributes={"numa": n}) for n in range(8)]
    same = claim("c", exactly(count=3), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    state = state_of([node("n1")], [GPU, resource_slice("n1", devices), same], [pod("p", "c")])
    decision = decide(state)
    assert isinstance(decision, Waiting)
    assert decision.reason == UNDECIDED
    assert decision.undecided == "the search for devices of a node ended at its limit"
