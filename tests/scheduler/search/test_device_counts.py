"""Counts of devices in the exact search: shortages are proven, and never wrongly.

Random gangs ask for devices of different sizes, some with alternatives, beside CPUs. Devices belong
to one node or are reached from everywhere. A refused gang has no placement; where every device
belongs to one node, each refusal is proven.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any, NamedTuple

import pytest

from phalanx.api.core import Pod
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import run_steps
from phalanx.scheduler.decision import UNSCHEDULABLE, Decision, Placed, Waiting
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from tests.scheduler.device_builders import (
    claim,
    device,
    device_class,
    exactly,
    gang,
    node,
    pod,
    resource_slice,
)

SOLVER = HighsSolver()
LARGE = {"cel": {"expression": 'device.attributes["gpu.example"].size == "large"'}}
SMALL = {"cel": {"expression": 'device.attributes["gpu.example"].size == "small"'}}
SELECTORS: dict[str, list[Any]] = {"any": [], "large": [LARGE], "small": [SMALL]}


class Request(NamedTuple):
    """So many devices of a size, or the alternatives of them; `any` is of both sizes."""

    alternatives: tuple[tuple[str, int], ...]

    def spec(self, name: str) -> dict[str, Any]:
        if len(self.alternatives) == 1:
            ((size, count),) = self.alternatives
            return exactly(name, count, selectors=SELECTORS[size])
        found = [
            {
                "name": f"a{number}",
                "deviceClassName": "gpu",
                "count": count,
                "selectors": SELECTORS[size],
            }
            for number, (size, count) in enumerate(self.alternatives)
        ]
        return {"name": name, "firstAvailable": found}


class Instance(NamedTuple):
    """Nodes by CPU, devices by size and node ("": every node), members by CPU and requests."""

    nodes: dict[str, int]
    devices: list[tuple[str, str]]
    members: list[tuple[int, list[Request]]]

    def can_be_placed(self) -> bool:
        """Try every assignment of nodes."""
        return any(
            all(
                sum(cpu for (cpu, _), on in zip(self.members, nodes, strict=True) if on == name)
                <= room
                for name, room in self.nodes.items()
            )
            and self._has_devices(nodes)
            for nodes in product(self.nodes, repeat=len(self.members))
        )

    def _has_devices(self, nodes: tuple[str, ...]) -> bool:
        requests = [
            (one, on) for (_, wanted), on in zip(self.members, nodes, strict=True) for one in wanted
        ]
        for choice in product(*(one.alternatives for one, _ in requests)):
            wanted = [
                (size, on)
                for (size, count), (_, on) in zip(choice, requests, strict=True)
                for _ in range(count)
            ]
            if self._match(wanted, set()):
                return True
        return False

    def _match(self, wanted: list[tuple[str, str]], used: set[int]) -> bool:
        if not wanted:
            return True
        (size, on), *rest = wanted
        for number, (kind, reach) in enumerate(self.devices):
            is_free = number not in used and reach in ("", on) and size in ("any", kind)
            if is_free and self._match(rest, used | {number}):
                return True
        return False

    def decide(self) -> Decision:
        slices, pods, claims = [], list[Pod](), []
        for name in (*self.nodes, ""):
            found = [
                device(f"gpu-{number}", attributes={"size": size})
                for number, (size, reach) in enumerate(self.devices)
                if reach == name
            ]
            if found:
                where: dict[str, Any] = {} if name else {"allNodes": True}
                slices.append(resource_slice(name, found, pool=name or "net", **where))
        for number, (cpu, requests) in enumerate(self.members):
            named = []
            for index, one in enumerate(requests):
                claims.append(claim(f"c{number}-{index}", one.spec("gpu")))
                named.append(f"c{number}-{index}")
            requested = {"requests": {"cpu": str(cpu)}}
            container = {"name": "main", "image": "main", "resources": requested}
            pods.append(pod(f"m{number}", *named, group="g", containers=[container]))
        state = load_state(
            ClusterObjects(
                [node(name, cpu) for name, cpu in self.nodes.items()],
                [gang("g", len(pods))],
                pods,
                devices=[device_class(), *slices, *claims],
            )
        )
        entity = state.pop(0.0)
        assert entity is not None
        return run_steps(state.cycle(entity), SOLVER)


def generate(seed: int, *, is_local: bool) -> Instance:
    random = Random(seed)
    nodes = {f"n{n}": random.randint(2, 5) for n in range(random.randint(1, 3))}
    reaches = [*nodes] if is_local else [*nodes, ""]
    sizes = ["small", "large"]
    devices = [(random.choice(sizes), random.choice(reaches)) for _ in range(random.randint(2, 7))]
    members = []
    for _ in range(random.randint(2, 4)):
        requests = []
        for _ in range(random.choice((1, 1, 2))):
            count = 1 if is_local else random.choice((1, 1, 2))
            alternatives = [(random.choice(("any", "small", "large")), count)]
            if random.random() < 0.2:
                alternatives.append((random.choice(sizes), random.randint(1, 2)))
            requests.append(Request(tuple(alternatives)))
        members.append((random.randint(1, 2), requests))
    return Instance(nodes, devices, members)


def check(seed: int, *, is_local: bool) -> str:
    """Compare a decision with every placement; returns what it says."""
    instance = generate(seed, is_local=is_local)
    decision, exists = instance.decide(), instance.can_be_placed()
    if isinstance(decision, Placed):
        assert exists, seed
        return "placed"
    assert isinstance(decision, Waiting)
    assert not (exists and decision.reason == UNSCHEDULABLE), seed
    return "proven" if decision.reason == UNSCHEDULABLE else "missed" if exists else "undecided"


@pytest.mark.parametrize("is_local", [True, False])
def test_shortages_of_devices_are_proven_and_never_wrongly(is_local: bool) -> None:
    found = [check(seed, is_local=is_local) for seed in range(30)]
    assert found.count("proven") > 5
    assert found.count("undecided") <= found.count("proven") / 5


@pytest.mark.slow
@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("first", range(0, 600, 200))
def test_many_shortages_of_devices_are_never_proven_wrongly(first: int, is_local: bool) -> None:
    for seed in range(first, first + 200):
        check(seed, is_local=is_local)


ONE_ANY, ONE_LARGE = Request((("any", 1),)), Request((("large", 1),))


@pytest.mark.parametrize(
    ("devices", "members"),
    [
        # Members of two shapes share the devices of one node.
        ([("small", "n0")] * 3, [(1, [ONE_ANY]), (1, [ONE_ANY]), (2, [ONE_ANY]), (2, [ONE_ANY])]),
        # Two large ones are needed beside two of any size, of three devices.
        (
            [("small", "n0"), ("large", "n0"), ("large", "n1")],
            [(1, [ONE_LARGE]), (1, [ONE_LARGE]), (1, [ONE_ANY]), (2, [ONE_ANY])],
        ),
        # Every node reaches the same three devices.
        ([("small", "")] * 3, [(1, [ONE_ANY]), (1, [ONE_ANY]), (2, [ONE_ANY]), (2, [ONE_ANY])]),
    ],
    ids=["one-node", "sizes", "network"],
)
def test_gang_with_too_few_devices_is_proven_unschedulable(
    devices: list[tuple[str, str]], members: list[tuple[int, list[Request]]]
) -> None:
    decision = Instance({"n0": 8, "n1": 8}, devices, members).decide()
    assert isinstance(decision, Waiting)
    assert decision.reason == UNSCHEDULABLE


def test_one_more_device_is_enough() -> None:
    members = [(1, [ONE_ANY]), (1, [ONE_ANY]), (2, [ONE_ANY]), (2, [ONE_ANY])]
    for reach in ("n0", ""):
        assert isinstance(
            Instance({"n0": 8, "n1": 8}, [("small", reach)] * 4, members).decide(), Placed
        )
