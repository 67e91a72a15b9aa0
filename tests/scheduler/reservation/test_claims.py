"""Reservations of entities with devices and volumes: which get one, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from phalanx.api.core import Pod
from phalanx.scheduler.decision import Preempting, Waiting
from phalanx.scheduler.queue.decision_log import (
    DecisionLogRecord,
    LogStarted,
    PodObserved,
    RecordEncoder,
    ReservationsPlanned,
    read_records,
)
from phalanx.scheduler.queue.scheduler_state import (
    ClusterObjects,
    load_state,
    observe_device_object,
)
from tests.scheduler.builders import key
from tests.scheduler.device_builders import (
    allocated,
    claim,
    device,
    device_class,
    exactly,
    gang,
    gpus,
    node,
    pod,
    resource_slice,
)
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler
from tests.scheduler.volume_builders import (
    csi_node,
    csi_volume,
    host,
    storage_class,
    volume,
    volume_claim,
)

CLASS = device_class()
LARGE = {
    "cel": {"expression": 'device.capacity["gpu.example"].memory.isGreaterThan(quantity("99Gi"))'}
}


def slices(count: int = 1) -> list[Any]:
    """Devices of 80Gi on n0 and n1."""
    found = [device(f"gpu-{n}", capacity={"memory": "80Gi"}) for n in range(count)]
    return [resource_slice(name, found) for name in ("n0", "n1")]


def member(name: str, *claims: str, **fields: Any) -> Pod:
    """A pod that ends; with a node, after 1000 seconds."""
    if "on" in fields:
        fields.setdefault("activeDeadlineSeconds", 1000)
    return pod(name, *claims, **{"restartPolicy": "Never", **fields})


def with_volume(name: str, *claims: str, **fields: Any) -> Pod:
    """The same with volumes."""
    volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in claims]
    return member(name, volumes=volumes, **fields)


def run(
    pods: Iterable[Pod], devices: Iterable[Any] = (), volumes: Iterable[Any] = ()
) -> VirtualScheduler:
    """Run two nodes until the gang g of one pod has waited for long enough."""
    scheduler = VirtualScheduler()
    scheduler.state = load_state(
        ClusterObjects(
            [host("n0"), host("n1")] if volumes else [node("n0"), node("n1")],
            [gang("g", 1)],
            list(pods),
            devices=list(devices),
            volumes=list(volumes),
        )
    )
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    return scheduler


@pytest.mark.parametrize(
    "devices",
    [
        [*slices(), claim("c", exactly(deviceClassName="nope")), CLASS],
        [*slices(), claim("c", exactly(selectors=[LARGE])), CLASS],
        [*slices(2), claim("c", exactly(count=3)), CLASS],
        [claim("c"), CLASS],
    ],
    ids=["no-class", "no-such-device", "too-many", "no-devices"],
)
def test_gang_whose_devices_do_not_exist_gets_no_reservation(devices: list[Any]) -> None:
    scheduler = run([member("g-0", "c", group="g")], devices)
    assert "g" in scheduler.decisions
    assert scheduler.reservations == {}
    scheduler.submit("other", [member("other-0", group="other", cpu="8")])
    assert scheduler.run_pass(130) == ["other"]


@pytest.mark.parametrize(
    "volumes",
    [
        [storage_class(), volume("v", nodes=["n9"], claim="c"), volume_claim("c", bound_to="v")],
        [storage_class(), volume_claim("c")],
        [storage_class()],
    ],
    ids=["volume-elsewhere", "no-volume", "no-claim"],
)
def test_gang_whose_volumes_reach_no_node_gets_no_reservation(volumes: list[Any]) -> None:
    scheduler = run([with_volume("g-0", "c", group="g")], volumes=volumes)
    assert "g" in scheduler.decisions
    assert scheduler.reservations == {}


def used_devices(**fields: Any) -> VirtualScheduler:
    """Both devices are used by pods: that of n0 by one that ends, that of n1 by one that stays."""
    return run(
        [
            member("a", "used-a", on="n0", **fields),
            pod("b", "used-b", on="n1"),
            member("g-0", "c", group="g"),
        ],
        [
            *slices(),
            CLASS,
            allocated("used-a", "n0/gpu-0", "a"),
            allocated("used-b", "n1/gpu-0", "b"),
            claim("c"),
        ],
    )


def test_devices_of_pods_that_end_are_expected_to_be_free_then() -> None:
    reservation = used_devices().reservations["g"]
    assert (reservation.expected_start, reservation.nodes) == (1000, ("n0",))


@pytest.mark.parametrize("ends", [(1000, 3000), (3000, 1000)])
def test_start_is_expected_when_the_first_pod_with_a_device_ends(ends: tuple[int, int]) -> None:
    others = [member(f"o{n}", on="n0", cpu="10m", activeDeadlineSeconds=n) for n in range(70, 90)]
    scheduler = run(
        [
            member("a", "used-a", on="n0", activeDeadlineSeconds=ends[0]),
            member("b", "used-b", on="n1", activeDeadlineSeconds=ends[1]),
            *others,
            member("g-0", "c", group="g"),
        ],
        [
            *slices(),
            CLASS,
            allocated("used-a", "n0/gpu-0", "a"),
            allocated("used-b", "n1/gpu-0", "b"),
            claim("c"),
        ],
    )
    assert scheduler.reservations["g"].expected_start == 1000


def test_devices_of_pods_with_an_unknown_end_make_the_start_unknown() -> None:
    reservation = used_devices(activeDeadlineSeconds=None).reservations["g"]
    assert (reservation.expected_start, reservation.nodes) == (None, ("n0",))


def test_devices_of_pods_that_never_end_are_not_waited_for() -> None:
    assert used_devices(restartPolicy="Always", activeDeadlineSeconds=None).reservations == {}


def test_devices_whose_consumer_is_gone_count_as_free() -> None:
    scheduler = run(
        [member("g-0", "c", group="g"), member("full", on="n1", cpu="8")],
        [*slices(), CLASS, allocated("used-a", "n0/gpu-0", "gone"), claim("c")],
    )
    assert scheduler.reservations["g"].nodes == ("n0",)


def test_volume_of_one_pod_is_expected_to_be_free_when_the_pod_ends() -> None:
    modes: dict[str, Any] = {"accessModes": ["ReadWriteOncePod"]}
    volumes = [
        storage_class(),
        volume("v", claim="c", **modes),
        volume_claim("c", bound_to="v", **modes),
    ]
    scheduler = run(
        [with_volume("a", "c", on="n0"), with_volume("g-0", "c", group="g")], volumes=volumes
    )
    assert scheduler.reservations["g"].expected_start == 1000


def reserved_devices(is_network: bool) -> VirtualScheduler:
    """The gang g needs four of five devices, of which pods use two until 1,000 s."""
    devices = resource_slice("", gpus(5), pool="net", allNodes=True)
    if not is_network:
        devices = resource_slice("n0", gpus(5), pool="net")
    used = [allocated(f"used-{n}", f"net/gpu-{n}", f"a{n}", node="n0") for n in range(2)]
    scheduler = run(
        [*(member(f"a{n}", f"used-{n}", on="n0") for n in range(2)), member("g-0", "c", group="g")],
        [devices, CLASS, *used, claim("c", exactly(count=4))],
    )
    assert scheduler.reservations["g"].expected_start == 1000
    return scheduler


def start_other(scheduler: VirtualScheduler, count: int, **fields: Any) -> bool:
    """Submit a gang of one pod that needs so many devices; whether it starts."""
    scheduler.state.observe(observe_device_object(claim("o", exactly(count=count)), 70))
    scheduler.submit("other", [member("other-0", "o", group="other", **fields)])
    return scheduler.run_pass(70) == ["other"]


@pytest.mark.parametrize("is_network", [False, True])
def test_planned_devices_are_kept_from_others(is_network: bool) -> None:
    scheduler = reserved_devices(is_network)
    assert not start_other(scheduler, 2)
    decision = scheduler.decisions["other"]
    assert isinstance(decision, Waiting)
    assert [one.name for one in decision.holders] == ["g"]
    assert "held by a reservation for podgroup/g" in scheduler.message("other")


@pytest.mark.parametrize("is_network", [False, True])
def test_other_devices_of_a_reserved_node_stay_open(is_network: bool) -> None:
    scheduler = reserved_devices(is_network)
    assert start_other(scheduler, 1)
    scheduler.run_pass(80)
    assert scheduler.reservations["g"].expected_start == 1000


@pytest.mark.parametrize(("seconds", "starts"), [(900, True), (940, False)])
def test_planned_devices_are_used_by_a_gang_that_ends_in_time(seconds: int, starts: bool) -> None:
    assert start_other(reserved_devices(False), 2, activeDeadlineSeconds=seconds) is starts


def test_planned_devices_are_kept_while_the_gang_is_nominated() -> None:
    scheduler = reserved_devices(False)
    scheduler.run_pass(975)
    decision = scheduler.decisions["g"]
    assert isinstance(decision, Waiting)
    assert [one.node for one in decision.nominated] == ["n0"]
    scheduler.state.observe(observe_device_object(claim("o", exactly(count=2)), 980))
    scheduler.submit("other", [member("other-0", "o", group="other")])
    assert scheduler.run_pass(980) == []


def test_held_gang_starts_when_the_devices_are_not_kept_any_more() -> None:
    scheduler = reserved_devices(False)
    assert not start_other(scheduler, 2)
    scheduler.state.observe(PodObserved(90, key("g-0"), None))
    assert scheduler.run_pass(90) == ["other"]


def test_gang_is_nominated_for_no_devices_that_a_reservation_plans_with() -> None:
    scheduler = reserved_devices(False)
    scheduler.state.observe(observe_device_object(claim("o", exactly(count=2)), 70))
    pods = [member("other-0", "o", group="other", priority=-5)]
    scheduler.submit("other", pods, gang("other", 1, priority=-5))
    low = member("low", on="n0", cpu="4", priority=-9, activeDeadlineSeconds=9000)
    scheduler.run_pods(low)
    assert scheduler.run_pass(70) == []
    assert not isinstance(scheduler.decisions["other"], Preempting)


def test_attach_slots_of_a_reserved_gang_are_kept_from_others() -> None:
    used = ["a", "c0", "c1", "o"]
    volumes = [
        storage_class(),
        csi_node("n0", limit=3),
        csi_node("n1", limit=0),
        *(csi_volume(f"v-{name}", claim=name) for name in used),
        *(volume_claim(name, bound_to=f"v-{name}") for name in used),
    ]
    ending = [with_volume("a", "a", on="n0"), member("full", on="n0", cpu="2")]
    scheduler = run([*ending, with_volume("g-0", "c0", "c1", group="g", cpu="2")], volumes=volumes)
    assert scheduler.reservations["g"].expected_start == 1000
    scheduler.submit("one", [with_volume("one-0", "o", group="one", cpu="10m")])
    assert scheduler.run_pass(70) == []
    assert "held by a reservation" in scheduler.message("one")


def test_reservation_with_devices_is_recorded_and_read_as_it_is() -> None:
    current = reserved_devices(False).state.reservations.current
    records: list[DecisionLogRecord] = [
        LogStarted(0.0, 1, "test", ()),
        ReservationsPlanned(61, current),
    ]
    assert list(read_records(RecordEncoder().encode(records))) == list(enumerate(records, 1))
    assert current[0].claims
