"""Which requests the claim for extended resources has, and which containers use them."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.wire import Object
from phalanx.scheduler.devices.extended_resources import extended_requests
from phalanx.scheduler.devices.inventory import DeviceInventory
from tests.scheduler.device_builders import device_class

GPU = "example.com/gpu"


def container(name: str, gpus: int, **fields: str) -> Object:
    """A container that requests devices."""
    resources = {"requests": {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}}
    return {"name": name, "image": "x", "resources": resources, **fields}


def requests_of(
    inits: list[Object], containers: list[Object]
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """The number of devices of each request, and the requests of each container."""
    inventory = DeviceInventory()
    inventory.update_class("gpu", device_class(extendedResourceName=GPU))
    spec = {"initContainers": inits, "containers": containers}
    pod = msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)
    found = extended_requests(pod, {GPU}, inventory)
    used: dict[str, list[str]] = {}
    for one in found.mappings:
        used.setdefault(one.container, []).append(one.request)
    return {one.name: one.number for one in found.requests}, used


def test_each_container_has_its_own_devices() -> None:
    numbers, used = requests_of([], [container("a", 1), container("b", 2), container("c", 0)])
    assert numbers == {"container-0-request-1": 1, "container-1-request-1": 2}
    assert used == {"a": ["container-0-request-1"], "b": ["container-1-request-1"]}


@pytest.mark.parametrize(("wanted", "own"), [(1, 0), (2, 0), (3, 1)])
def test_init_container_uses_the_devices_of_later_containers_first(wanted: int, own: int) -> None:
    numbers, used = requests_of([container("init", wanted)], [container("main", 2)])
    assert numbers.pop("container-1-request-1") == 2
    assert numbers == ({"container-0-request-1": own} if own else {})
    assert used["init"] == ["container-1-request-1", *numbers]


def test_init_containers_share_what_they_need_beyond_the_containers() -> None:
    numbers, used = requests_of(
        [container("one", 2), container("two", 4), container("three", 1)], [container("main", 1)]
    )
    assert numbers == {"container-1-request-1": 3, "container-3-request-1": 1}
    both = ["container-3-request-1", "container-1-request-1"]
    assert used == {
        "main": ["container-3-request-1"],
        "one": both,
        "two": both,
        "three": both[:1],
    }


def test_sidecar_keeps_its_devices_beside_the_containers() -> None:
    numbers, used = requests_of(
        [container("side", 1, restartPolicy="Always"), container("init", 1)], [container("main", 1)]
    )
    assert numbers == {"container-0-request-1": 1, "container-2-request-1": 1}
    assert used["init"] == ["container-2-request-1"]
