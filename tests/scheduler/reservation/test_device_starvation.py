"""A gang that needs many devices beside a stream of small pods that need one or two."""

from __future__ import annotations

import random
from heapq import heapify, heappop, heappush
from typing import Any

import pytest

from phalanx.api.core import Pod
from phalanx.api.dynamic_resources import DeviceClass, ResourceSlice
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.queue.decision_log import ResourceClaimObserved
from phalanx.scheduler.queue.scheduler_state import observe_device_object
from tests.scheduler.builders import key
from tests.scheduler.device_builders import (
    claim,
    device_class,
    exactly,
    gang,
    gpus,
    node,
    pod,
    resource_slice,
)
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler

NODES, DEVICES, HOUR = 8, 4, 3600.0
ARRIVAL, LAST, LARGE = 5 * HOUR, 40 * HOUR, "large"


class DeviceStream:
    """Small pods at a load of 0.7, and after five hours a gang that needs six whole nodes."""

    def __init__(self, seed: int, *, is_network: bool, is_known: bool) -> None:
        chance, self._is_known = random.Random(seed), is_known
        self._scheduler = VirtualScheduler([node(f"n{i}", cpu=64) for i in range(NODES)])
        slices = [resource_slice(f"n{i}", gpus(DEVICES)) for i in range(NODES)]
        if is_network:
            slices = [resource_slice("", gpus(NODES * DEVICES), pool="net", allNodes=True)]
        objects: list[ResourceSlice | DeviceClass] = [*slices, device_class()]
        for one in objects:
            self._scheduler.state.observe(observe_device_object(one, 0))
        self._seconds, self._devices, time = {LARGE: 4 * HOUR}, {LARGE: DEVICES}, 0.0
        #: Time, whether a gang ends or arrives, and its name.
        self._events = [(ARRIVAL, 0, LARGE)]
        while time < LAST:
            time += chance.expovariate(0.7 * NODES * DEVICES / 1.5) * HOUR
            name = f"s{len(self._events)}"
            self._devices[name] = chance.choice((1, 2))
            self._seconds[name] = chance.expovariate(1.0) * HOUR
            self._events.append((time, 0, name))
        heapify(self._events)
        self._scheduler.on_placed = self._start

    def run(self) -> float:
        """Return how long the gang waits."""
        scheduler = self._scheduler
        while self._events:
            scheduler.now, is_end, name = heappop(self._events)
            if is_end:
                scheduler.end(name)
                scheduler.state.observe(
                    ResourceClaimObserved(scheduler.now, key(f"{name}-0"), None)
                )
            else:
                self._submit(name)
            scheduler.run_pass()
            if LARGE in scheduler.bound:
                break
        return scheduler.now - ARRIVAL

    def _submit(self, name: str) -> None:
        size, fields = 6 if name == LARGE else 1, dict[str, Any](restartPolicy="Never")
        if self._is_known:
            fields["activeDeadlineSeconds"] = int(self._seconds[name]) + 1
        for number in range(size):
            made = claim(f"{name}-{number}", exactly(count=self._devices[name]))
            self._scheduler.state.observe(observe_device_object(made, self._scheduler.now))
        names = [f"{name}-{number}" for number in range(size)]
        pods = [pod(one, one, group=name, cpu="100m", **fields) for one in names]
        self._scheduler.submit(name, pods, gang(name, size))

    def _start(self, name: str, pods: list[Pod]) -> None:
        decision, now = self._scheduler.decisions[name], self._scheduler.now
        assert isinstance(decision, Placed)
        for one in decision.claims:
            consumer = {"resource": "pods", "name": one.claim.name, "uid": one.pod_uid}
            status = {"allocation": one.allocation, "reservedFor": [consumer]}
            self._scheduler.state.observe(
                observe_device_object(claim(one.claim.name, exactly(), status=status), now)
            )
        heappush(self._events, (now + self._seconds[name], 1, name))


@pytest.mark.slow
@pytest.mark.parametrize("is_network", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gang_with_many_devices_starts_beside_a_stream_of_small_pods(
    seed: int, is_network: bool
) -> None:
    assert DeviceStream(seed, is_network=is_network, is_known=True).run() < 3 * HOUR
    assert DeviceStream(seed, is_network=is_network, is_known=False).run() < 6 * HOUR
