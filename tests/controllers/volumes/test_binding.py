"""Plans of the volume binder: pure functions of a claim or volume and what they refer to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from phalanx.api.storage import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    find_volume,
)
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Action, Patch
from phalanx.controllers.volumes.binding import ClaimState, plan_claim, plan_volume

BOUND = {BIND_COMPLETED: "yes"}


def claim(
    size: str = "1Gi", annotations: Object | None = None, phase: str = "Pending", **spec: Any
) -> PersistentVolumeClaim:
    meta = {
        "name": "c",
        "namespace": "n",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": annotations or {},
    }
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    obj = {
        "metadata": meta,
        "spec": {"storageClassName": "disk", **wanted, **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(obj, PersistentVolumeClaim)


def volume(
    name: str = "v",
    size: str = "1Gi",
    phase: str = "Available",
    *,
    labels: Object | None = None,
    annotations: Object | None = None,
    **spec: Any,
) -> PersistentVolume:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "9", "labels": labels or {}}
    meta["annotations"] = annotations or {}
    offered = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}
    obj = {
        "metadata": meta,
        "spec": {"storageClassName": "disk", **offered, **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(obj, PersistentVolume)


def storage_class(mode: str = "Immediate", provisioner: str = "disk.example") -> StorageClass:
    obj = {
        "metadata": {"name": "disk"},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    }
    return msgspec.convert(obj, StorageClass)


def reference(uid: str = "u", name: str = "c") -> Object:
    return {"namespace": "n", "name": name, "uid": uid}


def changes(actions: Sequence[Action]) -> list[Object]:
    """What each patch changes, without its preconditions."""
    found: list[Object] = []
    for action in actions:
        assert isinstance(action, Patch)
        assert isinstance(action.change, dict)
        meta = {
            key: value
            for key, value in action.change["metadata"].items()
            if key not in ("uid", "resourceVersion")
        }
        rest = {key: value for key, value in action.change.items() if key != "metadata"}
        found.append({**rest, **({"metadata": meta} if meta else {})})
    return found


def state(found: PersistentVolumeClaim, *volumes: PersistentVolume, **more: Any) -> ClaimState:
    named = {one.metadata.name: one for one in volumes}
    more.setdefault("storage_class", storage_class())
    return ClaimState(found, named.get(found.spec.volume_name), volumes, **more)


# ---- which volume --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "volumes", "name"),
    [
        (claim("2Gi"), [volume("a", "8Gi"), volume("b", "4Gi"), volume("c", "1Gi")], "b"),
        (claim(), [volume("b"), volume("a")], "a"),
        (claim(), [volume("a"), volume("z", "9Gi", claimRef=reference(""))], "z"),
        (claim(), [volume("a", claimRef=reference("other"))], ""),
        (claim(), [volume("a", claimRef=reference("", name="other"))], ""),
        (claim(), [volume("a", phase="Released"), volume("b", phase="Pending")], ""),
        (claim(), [volume("a", storageClassName="other")], ""),
        (claim(volumeMode="Block"), [volume("a")], ""),
        (claim(accessModes=["ReadWriteMany"]), [volume("a")], ""),
        (claim(volumeAttributesClassName="gold"), [volume("a")], ""),
        (
            claim(selector={"matchLabels": {"a": "b"}}),
            [volume("a"), volume("b", labels={"a": "b"})],
            "b",
        ),
    ],
)
def test_the_smallest_fitting_volume_is_found(
    wanted: PersistentVolumeClaim, volumes: list[PersistentVolume], name: str
) -> None:
    found = find_volume(wanted, volumes)
    assert (found.metadata.name if found else "") == name


# ---- claims --------------------------------------------------------------------------------------


def test_claim_and_volume_are_bound_in_four_writes() -> None:
    plan = plan_claim(state(claim(), volume(size="4Gi")))
    first, second, third, fourth = changes(plan.actions)
    assert first["spec"]["claimRef"]["uid"] == "u"
    assert first["metadata"] == {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
    assert second == {"status": {"phase": "Bound", "message": None}}
    assert third == {
        "metadata": {"annotations": {**BOUND, BOUND_BY_CONTROLLER: "yes"}},
        "spec": {"volumeName": "v"},
    }
    assert fourth["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": "4Gi"},
    }


def test_the_first_write_is_conditional_on_the_version_of_the_volume() -> None:
    action = plan_claim(state(claim(), volume())).actions[0]
    assert isinstance(action, Patch)
    assert isinstance(action.change, dict)
    assert action.change["metadata"]["resourceVersion"] == "9"


def test_only_a_partner_that_the_binder_chose_is_marked() -> None:
    named = plan_claim(state(claim(volumeName="v"), volume()))
    assert changes(named.actions)[0]["metadata"]["annotations"] == {BOUND_BY_CONTROLLER: "yes"}
    assert changes(named.actions)[2]["metadata"]["annotations"] == BOUND
    reserved = plan_claim(state(claim(), volume(claimRef=reference(""))))
    assert "metadata" not in changes(reserved.actions)[0]
    assert BOUND_BY_CONTROLLER in changes(reserved.actions)[2]["metadata"]["annotations"]


def test_a_binding_is_completed_after_a_crash() -> None:
    half = claim(annotations=BOUND, volumeName="v")
    plan = plan_claim(state(half, volume(phase="Bound", claimRef=reference())))
    assert [list(change) for change in changes(plan.actions)] == [["status"]]


WAITING = storage_class("WaitForFirstConsumer")
SELECTED = {SELECTED_NODE: "node-1"}


@pytest.mark.parametrize(
    ("given", "reason", "is_bound"),
    [
        (state(claim(), storage_class=WAITING), "WaitForFirstConsumer", False),
        (
            state(claim(), volume(), storage_class=WAITING, has_unscheduled_pod=True),
            "WaitForPodScheduled",
            False,
        ),
        (state(claim(), volume(claimRef=reference("")), storage_class=WAITING), "", True),
        (
            state(claim(annotations=SELECTED), volume(), storage_class=WAITING),
            "ExternalProvisioning",
            False,
        ),
        (
            state(
                claim(annotations=SELECTED), volume(claimRef=reference("")), storage_class=WAITING
            ),
            "",
            True,
        ),
        (state(claim(storageClassName="")), "FailedBinding", False),
        (state(claim(), storage_class=None), "ProvisioningFailed", False),
        (
            state(claim(), storage_class=storage_class(provisioner="kubernetes.io/no-provisioner")),
            "ProvisioningFailed",
            False,
        ),
        (state(claim()), "ExternalProvisioning", False),
        (state(claim(volumeName="absent")), "", False),
        (state(claim(volumeName="v"), volume(claimRef=reference("x"))), "FailedBinding", False),
        (state(claim("2Gi", volumeName="v"), volume()), "VolumeMismatch", False),
    ],
)
def test_an_unbound_claim_binds_or_says_what_it_waits_for(
    given: ClaimState, reason: str, is_bound: bool
) -> None:
    plan = plan_claim(given)
    assert (plan.notice.reason if plan.notice else "") == reason
    assert (len(plan.actions) == 4) == is_bound


def test_provisioning_is_requested_once() -> None:
    first = plan_claim(state(claim()))
    (change,) = changes(first.actions)
    assert change["metadata"]["annotations"][STORAGE_PROVISIONER] == "disk.example"
    again = plan_claim(state(claim(annotations=change["metadata"]["annotations"])))
    assert again.actions == ()


def test_a_claim_without_class_gets_a_later_default_class() -> None:
    found = claim(storageClassName=None)
    plan = plan_claim(state(found, default_class="fast", storage_class=None))
    assert changes(plan.actions) == [{"spec": {"storageClassName": "fast"}}]


def test_binding_without_a_class_object_needs_confirmation() -> None:
    assert plan_claim(state(claim(), volume(), storage_class=None)).needs_confirmation
    assert not plan_claim(state(claim(), volume())).needs_confirmation


@pytest.mark.parametrize(
    ("spec", "volumes", "reason"),
    [
        ({"volumeName": "v"}, [], "ClaimLost"),
        ({}, [], "ClaimLost"),
        ({"volumeName": "v"}, [volume(claimRef=reference("other"))], "ClaimMisbound"),
    ],
)
def test_a_bound_claim_whose_volume_is_gone_is_lost(
    spec: Object, volumes: list[PersistentVolume], reason: str
) -> None:
    plan = plan_claim(state(claim(annotations=BOUND, phase="Bound", **spec), *volumes))
    assert plan.notice is not None
    assert plan.notice.reason == reason
    assert plan.needs_confirmation
    assert changes(plan.actions)[0]["status"]["phase"] == "Lost"
    lost = plan_claim(state(claim(annotations=BOUND, phase="Lost", **spec), *volumes))
    assert (lost.actions, lost.notice) == ((), None)


def test_a_claim_that_is_being_deleted_is_not_bound() -> None:
    found = claim()
    meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2027-01-01T00:00:00Z")
    deleted = msgspec.structs.replace(found, metadata=meta)
    assert plan_claim(state(deleted, volume())).actions == ()


# ---- volumes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "partner", "phase"),
    [
        (volume(phase="Pending"), None, "Available"),
        (volume(phase="Pending", claimRef=reference("")), None, "Available"),
        (volume(phase="Available"), None, ""),
        (volume(claimRef=reference()), claim(volumeName="v"), "Bound"),
        (volume(claimRef=reference()), claim(), ""),
        (volume(phase="Bound", claimRef=reference()), None, "Released"),
        (volume(phase="Bound", claimRef=reference("old")), claim(volumeName="v"), "Released"),
        (volume(phase="Released", claimRef=reference()), None, ""),
        (
            volume(
                phase="Released",
                claimRef=reference(),
                persistentVolumeReclaimPolicy="Delete",
                annotations={PROVISIONED_BY: "disk.example"},
            ),
            None,
            "",
        ),
        (
            volume(phase="Released", claimRef=reference(), persistentVolumeReclaimPolicy="Delete"),
            None,
            "Failed",
        ),
        (
            volume(phase="Released", claimRef=reference(), persistentVolumeReclaimPolicy="Recycle"),
            None,
            "Failed",
        ),
        (
            volume(phase="Failed", claimRef=reference(), persistentVolumeReclaimPolicy="Recycle"),
            None,
            "",
        ),
    ],
)
def test_phase_of_a_volume_follows_its_claim(
    found: PersistentVolume, partner: PersistentVolumeClaim | None, phase: str
) -> None:
    plan = plan_volume(found, partner)
    assert [change["status"]["phase"] for change in changes(plan.actions)] == (
        [phase] if phase else []
    )
    assert plan.needs_confirmation == (phase == "Released")
    assert (plan.notice is not None) == (phase == "Failed")


def test_a_volume_whose_claim_is_bound_elsewhere_is_free_again() -> None:
    elsewhere = claim(volumeName="other")
    chosen = volume(claimRef=reference(), annotations={BOUND_BY_CONTROLLER: "yes"})
    (change,) = changes(plan_volume(chosen, elsewhere).actions)
    assert change["spec"] == {"claimRef": None}
    (change,) = changes(plan_volume(volume(claimRef=reference()), elsewhere).actions)
    assert change["spec"] == {"claimRef": {"uid": None, "resourceVersion": None}}


def test_reserved_volume_that_is_too_small_is_not_bound() -> None:
    small = volume("small", "1Gi", claimRef=reference(""))
    plan = plan_claim(state(claim("5Gi"), small, volume("large", "9Gi")))
    assert "large" in str(plan.actions)
    assert "small" not in str(plan.actions)
    block = volume("block", "9Gi", claimRef=reference(""), volumeMode="Block")
    assert not any("block" in str(one) for one in plan_claim(state(claim("5Gi"), block)).actions)
