from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from msgspec import json

from phalanx.api.batch import JobRunTime
from phalanx.api.meta import Key, ObjectMeta, Ref, composite_pod_group_ref, pod_group_ref, pod_ref
from phalanx.api.other_kinds import (
    ClaimConsumer,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
)
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    ENTITY_EVENTS,
    PEER_EVENTS,
    Binding,
    ClaimReservation,
    ClusterEvent,
    Decision,
    GroupOutcome,
    Impossible,
    Placed,
    Preempting,
    Refusal,
    UnplacedPod,
    Victim,
    VolumeAssignment,
    Waiting,
)
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    BindingsRolledBack,
    CompositePodGroupObserved,
    CSIDriverObserved,
    CSINodeObserved,
    CSIStorageCapacityObserved,
    DecisionLogRecord,
    DecisionMade,
    DeviceClassObserved,
    DeviceTaintRuleObserved,
    DisruptionBudgetObserved,
    EntityPopped,
    EntityRestored,
    EvictionsCancelled,
    JobObserved,
    LogStarted,
    NamespaceObserved,
    NodeObserved,
    PersistentVolumeClaimObserved,
    PersistentVolumeObserved,
    PodGroupObserved,
    PodObserved,
    PodsAssumed,
    PodsNominated,
    RecordEncoder,
    ReservationsPlanned,
    ResourceClaimObserved,
    ResourceSliceObserved,
    SearchFinished,
    ServiceObserved,
    SolverAnswered,
    StorageClassObserved,
    VolumeAttachmentObserved,
    decode_decision,
    encode_decision,
    entity_version,
    read_records,
)
from phalanx.scheduler.queue.queued_entity import (
    EncodedRef,
    MemberAttempts,
    QueuedEntityCheckpoint,
    QueueSortKey,
    decode_ref,
    encode_ref,
)
from phalanx.scheduler.reservation.reservation import (
    KeptAmount,
    Reservation,
    ReservationOrder,
)
from phalanx.scheduler.search.solver import Solved, SolverGaveUp, SolverPending, Unsolvable
from tests.scheduler.builders import alone, composite, entity, gang, key, node, pod
from tests.scheduler.device_builders import claim, device_class, gpus, resource_slice, taint_rule
from tests.scheduler.volume_builders import (
    csi_driver,
    csi_node,
    storage_capacity,
    storage_class,
    volume,
    volume_attachment,
    volume_claim,
)

REFUSED = UnplacedPod(
    key("a"), "uid-a", Refusal(3, (("Insufficient cpu", 3),), ("add one",), CAPACITY_EVENTS)
)
DECISIONS: list[Decision] = [
    Placed(None, (Binding(key("a"), "uid-a", "n"),), (REFUSED,)),
    Placed(
        None,
        (Binding(key("a"), "uid-a", "n"),),
        volumes=(VolumeAssignment(key("data"), "uid", "uid-a", "n"),),
    ),
    Waiting(key("g"), (REFUSED, UnplacedPod(key("b"), "uid-b", None)), 2, 1, 1, 0, PEER_EVENTS),
    Impossible(key("g"), (), "SchedulerError", "no", "edit it", ENTITY_EVENTS),
    Preempting(
        Waiting(
            key("t"),
            (REFUSED,),
            2,
            1,
            1,
            0,
            PEER_EVENTS,
            preemption="helps",
            nominated=(Binding(key("a"), "uid-a", "n"),),
            parts=(
                GroupOutcome(composite_pod_group_ref(key("t")), None),
                GroupOutcome(pod_group_ref(key("g")), None),
            ),
        ),
        (Victim(key("v"), "uid-v", "n", composite_pod_group_ref(key("w"))),),
    ),
]
MEMORY = QueuedEntityCheckpoint(
    id=encode_ref(pod_group_ref(key("g"))),
    state="BACKING_OFF",
    timestamp=1.5,
    sequence=3,
    ready=0.5,
    attempts=2,
    failures=1,
    errors=0,
    until=9.0,
    wakes_on=(ClusterEvent.NODE_ADDED,),
    queued=QueueSortKey(True, 0, 1.5, 3),
    members=(MemberAttempts(key("a"), 2, 0.1),),
    others=(key("b"),),
)
BINDINGS = (Binding(key("a"), "uid-a", "n"),)
RECORDS: list[DecisionLogRecord] = [
    LogStarted(0.0, FORMAT, "1.2", ("packer",), {"profiles": []}, 7, False),
    NamespaceObserved(1.0, "default", {"team": "a"}),
    NamespaceObserved(1.0, "gone", None),
    ServiceObserved(1.0, key("s"), {"app": "web"}),
    NodeObserved(1.0, "n", node("n", {"zone": "a"}, allocatable={"cpu": 1.5})),
    PodGroupObserved(1.0, key("g"), gang("g", 2)),
    CompositePodGroupObserved(1.0, key("t"), composite("t", 2)),
    DisruptionBudgetObserved(
        1.0,
        key("b"),
        PodDisruptionBudget(
            ObjectMeta(name="b"), PodDisruptionBudgetSpec({"matchLabels": {"a": "b"}})
        ),
    ),
    JobObserved(1.0, key("j"), JobRunTime("uid-j", 60, 0.5, expected_run_time=30.0)),
    JobObserved(1.0, key("gone"), None),
    ReservationsPlanned(
        1.0,
        (
            Reservation(
                ReservationOrder(-5, 0.5, pod_group_ref(key("g"))),
                None,
                (Binding(key("a"), "uid-a", "n"),),
                (KeptAmount("n", "cpu", 500),),
                reserved_at=1.0,
                progress_at=1.0,
                missing=0.5,
                waits_for=("job/j",),
                groups=(key("g"),),
                domains=(("r1", 1),),
            ),
        ),
        ((pod_group_ref(key("t")), 0.75),),
    ),
    PodObserved(1.0, key("a"), pod("a", "g", cpu="1")),
    ResourceSliceObserved(1.0, "slice-n", resource_slice("n", gpus(2))),
    DeviceClassObserved(1.0, "gpu", device_class()),
    DeviceTaintRuleObserved(1.0, "off", taint_rule("off", taint={"key": "x", "effect": "None"})),
    ResourceClaimObserved(1.0, key("one"), claim("one")),
    ResourceClaimObserved(1.0, key("gone"), None),
    StorageClassObserved(1.0, Key("", "disk"), storage_class("disk")),
    CSIDriverObserved(1.0, Key("", "disk.example"), csi_driver("disk.example")),
    CSINodeObserved(1.0, Key("", "n"), csi_node("n", limit=2)),
    CSIStorageCapacityObserved(1.0, key("c"), storage_capacity("c", "10Gi", {"zone": "a"})),
    VolumeAttachmentObserved(1.0, Key("", "va"), volume_attachment("va", "n", "v")),
    PersistentVolumeObserved(1.0, Key("", "v"), volume("v", nodes=("n",))),
    PersistentVolumeClaimObserved(1.0, key("data"), volume_claim("data")),
    PersistentVolumeClaimObserved(1.0, key("gone"), None),
    PodsAssumed(1.0, BINDINGS, (), (VolumeAssignment(key("data"), "uid", "uid-a", "n", "v"),)),
    PodsAssumed(1.0, BINDINGS),
    PodsAssumed(
        1.0,
        BINDINGS,
        (ClaimReservation(key("one"), "uid", ClaimConsumer("pods", "a", "uid-a"), "uid-a"),),
    ),
    EntityRestored(1.0, MEMORY),
    EntityPopped(
        2.0, entity_version(entity(gang("g", 1), [pod("a", "g")], [pod("b", "g", on="n")]))
    ),
    EntityPopped(2.0, entity_version(alone(pod("a")))),
    SolverAnswered(2.5, Solved((0, 3))),
    SolverAnswered(2.5, Unsolvable()),
    SolverAnswered(2.5, SolverGaveUp("it is hard")),
    SolverAnswered(2.5, SolverPending()),
    SearchFinished(2.5),
    DecisionMade(3.0, key("a"), {"Placed": {"group": None, "bindings": [], "leftovers": []}}),
    BindingsRolledBack(4.0, BINDINGS),
    EvictionsCancelled(5.0, ((key("v"), "uid-v"),)),
    PodsNominated(6.0, BINDINGS, ((key("v"), "uid-v"),)),
]


def test_decisions_are_spelled_as_in_earlier_versions() -> None:
    fields = encode_decision(DECISIONS[-1])["Preempting"]
    victim = [["default", "v"], "uid-v", "n", ["default", "w"], True]
    groups = [[["default", "t"], True, None], [["default", "g"], False, None]]
    assert json.decode(json.encode([fields["victims"], fields["waiting"]["parts"]])) == [
        [victim],
        groups,
    ]
    assert fields["waiting"]["promised"] == ((("default", "a"), "uid-a", "n"),)
    assert not {"nominated", "relaxation_delay"} & fields["waiting"].keys()


@pytest.mark.parametrize(
    ("ref", "encoded"),
    [
        (pod_ref(key("a")), (False, key("a"), False)),
        (pod_group_ref(key("a")), (True, key("a"), False)),
        (composite_pod_group_ref(key("a")), (True, key("a"), True)),
    ],
)
def test_references_are_spelled_as_in_earlier_versions(ref: Ref, encoded: EncodedRef) -> None:
    assert encode_ref(ref) == encoded
    assert decode_ref(encoded) == ref


def test_records_survive_encoding() -> None:
    assert list(read_records(RecordEncoder().encode(RECORDS))) == list(enumerate(RECORDS, 1))


def test_begin_record_of_an_older_version_gets_defaults() -> None:
    line = b'{"is":"begin","at":0.0,"format":1,"version":"1.2","schedulers":["packer"]}'
    beginning = msgspec.json.decode(line, type=LogStarted)
    assert beginning == LogStarted(0.0, FORMAT, "1.2", ("packer",), None, 0, groups_preempt=True)


def test_examples_contain_every_type_of_record() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(DecisionLogRecord))


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: type(one).__name__)
def test_decisions_survive_encoding(decision: Decision) -> None:
    assert decode_decision(encode_decision(decision)) == decision


def test_examples_contain_every_type_of_decision() -> None:
    assert {type(decision) for decision in DECISIONS} == set(get_args(Decision))


def test_sets_are_encoded_in_a_fixed_order() -> None:
    encoded = encode_decision(DECISIONS[2])["Waiting"]
    assert encoded["wakes_on"] == sorted(PEER_EVENTS)
    assert encoded["pods"][0][2]["wakes_on"] == sorted(CAPACITY_EVENTS)


@pytest.mark.parametrize("encoded", [{}, {"Guessed": {}}, {"Placed": {"bindings": 3}}])
def test_invalid_decision_is_rejected(encoded: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"decision|Expected|missing"):
        decode_decision(encoded)


def test_line_is_a_json_object() -> None:
    (line,) = RecordEncoder().encode([NamespaceObserved(1.0, "default", {"team": "a"})])
    text = b'{"is":"namespace","at":1.0,"name":"default","labels":{"team":"a"},"seal":"'
    assert line.startswith(text)
    assert line.endswith(b'"}\n')


def test_entity_version_contains_the_observed_objects() -> None:
    version = entity_version(entity(gang("g", 1), [pod("a", "g")], [pod("b", "g", on="n")]))
    assert (version.key, version.group, version.scheduler) == (
        Key("default", "g"),
        "",
        "default-scheduler",
    )
    assert [(one.name, one.uid) for one in version.members] == [("a", "uid-a")]
    assert version.others == (("b", "uid-b"),)
    assert entity_version(alone(pod("a"))).group is None
