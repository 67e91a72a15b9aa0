"""The plans of the volume binder: pure functions of a claim or a volume and what they refer to.

A claim and a volume are bound in four writes. Each is conditional and is repeated after a crash:

    1  volume  spec.claimRef, and bound-by-controller unless the volume named the claim before
    2  volume  status.phase Bound
    3  claim   spec.volumeName and bind-completed, and bound-by-controller unless it named it before
    4  claim   status.phase Bound, with the capacity and access modes of the volume

    claim                                       plan
    names no volume, Immediate                  bind the best volume, else provision
    names no volume, WaitForFirstConsumer       provision once it has a selected node; else wait
    names a volume                              bind it, if it is free and fits
    bound, its volume is gone or not its own    phase Lost

    volume                                      phase
    without claim                               Available
    its claim names it                          Bound
    its claim is gone                           Released; Failed if it cannot be reclaimed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.core import Node, NodeAffinity
from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from phalanx.api.meta import ObjectMeta
from phalanx.api.storage import (
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    find_mismatch,
    find_volume,
)
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Action, Patch
from phalanx.scheduler.cluster.node_constraints import required_terms_of


class BindingNotice(NamedTuple):
    """An event about a claim or volume, recorded once per reason and message."""

    reason: str
    message: str
    type: str = "Normal"


class BindingPlan(NamedTuple):
    """What to write, and what to tell the user.

    With `needs_confirmation` the plan rests on the absence of the partner, or of the class, which
    the caches may not show yet: it must be confirmed with the API first.
    """

    actions: Sequence[Action] = ()
    notice: BindingNotice | None = None
    needs_confirmation: bool = False


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A claim, the volume that it names, the volumes that it may bind, its class and consumers."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume | None
    candidates: Sequence[PersistentVolume]
    storage_class: StorageClass | None
    default_class: str = ""
    has_unscheduled_pod: bool = False


# ---- claims --------------------------------------------------------------------------------------


def plan_claim(state: ClaimState) -> BindingPlan:
    """Plan the next writes about a claim."""
    claim = state.claim
    if BIND_COMPLETED in claim.metadata.annotations:
        return _plan_bound_claim(state)
    if claim.metadata.deletion_timestamp:
        return BindingPlan()
    if claim.spec.volume_name:
        return _plan_named_volume(state)
    if claim.spec.storage_class_name is None and not claim.storage_class and state.default_class:
        change = {"spec": {"storageClassName": state.default_class}}
        return BindingPlan([_claim_patch(claim, change)])
    candidates = state.candidates
    if _waits_for_consumer(state):
        # The scheduler chooses the others. Even with a selected node the binder must not take one
        # of them: the scheduler may have counted on it for another claim.
        candidates = [one for one in candidates if one.is_reserved_for(claim)]
    volume = find_volume(claim, candidates)
    if volume is None:
        return _plan_provisioning(state)
    # Without a class object claims bind at once, so its absence must be certain.
    is_class_missing = bool(claim.storage_class) and state.storage_class is None
    return BindingPlan(_bind(claim, volume), needs_confirmation=is_class_missing)


def _waits_for_consumer(state: ClaimState) -> bool:
    found = state.storage_class
    return found is not None and found.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


def is_usable_from(volume: PersistentVolume, node: Node) -> bool:
    """Whether the node affinity of a volume allows a node."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    terms = required_terms_of(
        NodeAffinity(required_during_scheduling_ignored_during_execution=affinity.required)
    )
    meta = node.metadata
    return any(term.matches(meta.name, meta.labels) for term in terms or ())


def _plan_provisioning(state: ClaimState) -> BindingPlan:
    """Plan for a claim without a volume: ask the provisioner of its class, or say why not."""
    claim, found, name = state.claim, state.storage_class, state.claim.storage_class
    if not name:
        detail = "no persistent volumes available for this claim and no storage class is set"
        return BindingPlan(notice=BindingNotice("FailedBinding", detail))
    if found is None:
        detail = f'storageclass.storage.k8s.io "{name}" not found'
        return BindingPlan(notice=BindingNotice("ProvisioningFailed", detail, "Warning"))
    if _waits_for_consumer(state) and SELECTED_NODE not in claim.metadata.annotations:
        return BindingPlan(
            notice=_WAIT_FOR_POD if state.has_unscheduled_pod else _WAIT_FOR_CONSUMER
        )
    if found.provisioner == NO_PROVISIONER:
        detail = "no volume plugin matched name: kubernetes.io/no-provisioner"
        return BindingPlan(notice=BindingNotice("ProvisioningFailed", detail, "Warning"))
    notice = BindingNotice(
        "ExternalProvisioning",
        f"Waiting for a volume to be created either by the external provisioner "
        f"'{found.provisioner}' or manually by the system administrator. If volume creation is "
        "delayed, please verify that the provisioner is running and correctly registered.",
    )
    wanted = dict.fromkeys((STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER), found.provisioner)
    if all(claim.metadata.annotations.get(key) == value for key, value in wanted.items()):
        return BindingPlan(notice=notice)
    return BindingPlan([_claim_patch(claim, {"metadata": {"annotations": wanted}})], notice)


_WAIT_FOR_CONSUMER = BindingNotice(
    "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
)
_WAIT_FOR_POD = BindingNotice("WaitForPodScheduled", "waiting for the pod to be scheduled")


def _plan_named_volume(state: ClaimState) -> BindingPlan:
    """Plan for a claim that names a volume: bind it, unless it is another claim's or unfit."""
    claim, volume = state.claim, state.volume
    if volume is None:
        return BindingPlan()
    if volume.is_reserved_for(claim):
        return BindingPlan(_bind(claim, volume))
    name = volume.metadata.name
    if volume.spec.claim_ref is not None:
        detail = f'volume "{name}" already bound to a different claim.'
        return BindingPlan(notice=BindingNotice("FailedBinding", detail, "Warning"))
    if mismatch := find_mismatch(claim, volume):
        detail = f'Cannot bind to requested volume "{name}": {mismatch}'
        return BindingPlan(notice=BindingNotice("VolumeMismatch", detail, "Warning"))
    return BindingPlan(_bind(claim, volume))


def _plan_bound_claim(state: ClaimState) -> BindingPlan:
    """Plan for a bound claim: complete the binding, or mark the claim as lost."""
    claim, volume = state.claim, state.volume
    if volume is not None and (volume.spec.claim_ref is None or volume.is_reserved_for(claim)):
        return BindingPlan(_bind(claim, volume))
    if claim.status.phase == "Lost":
        return BindingPlan()
    if volume is not None:
        notice = BindingNotice(
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
            "Warning",
        )
    else:
        what = "its PersistentVolume" if claim.spec.volume_name else "reference to PersistentVolume"
        detail = f"Bound claim has lost {what}. Data on the volume is lost!"
        notice = BindingNotice("ClaimLost", detail, "Warning")
    status = {"phase": "Lost", "accessModes": None, "capacity": None}
    patch = _claim_patch(claim, {"status": status}, subresource="status")
    return BindingPlan([patch], notice, needs_confirmation=True)


def _bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> list[Action]:
    """The writes that are missing until a claim and a volume are bound."""
    actions: list[Action] = []
    reference, meta = volume.spec.claim_ref, claim.metadata
    if reference is None or reference.uid != meta.uid:
        change: Object = {"spec": {"claimRef": claim_reference(meta)}}
        if reference is None:
            change["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
        actions.append(_volume_patch(volume, change))
    if volume.status.phase != "Bound":
        actions.append(_phase_patch(volume, "Bound"))
    if claim.spec.volume_name != volume.metadata.name or BIND_COMPLETED not in meta.annotations:
        annotations = {BIND_COMPLETED: "yes"}
        if not claim.spec.volume_name:
            annotations[BOUND_BY_CONTROLLER] = "yes"
        change = {
            "metadata": {"annotations": annotations},
            "spec": {"volumeName": volume.metadata.name},
        }
        actions.append(_claim_patch(claim, change))
    spec, status = volume.spec, claim.status
    # Once it is bound, a claim keeps the capacity that a resize has reached.
    if status.phase != "Bound" or not status.capacity:
        got = {
            "phase": "Bound",
            "accessModes": list(spec.access_modes),
            "capacity": dict(spec.capacity),
        }
        change = {"metadata": {"uid": meta.uid}, "status": got}
        actions.append(Patch(PERSISTENT_VOLUME_CLAIM, meta.key, change, subresource="status"))
    return actions


# ---- volumes -------------------------------------------------------------------------------------


def plan_volume(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> BindingPlan:
    """Plan the next writes about a volume; `claim` is the one that its reference names."""
    reference = volume.spec.claim_ref
    if reference is None or not reference.uid:
        # A volume that the user reserved for a claim is available to that claim.
        return BindingPlan(_move_to(volume, "Available"))
    if claim is None or claim.metadata.uid != reference.uid:
        return _plan_release(volume)
    if claim.spec.volume_name == volume.metadata.name:
        return BindingPlan(_move_to(volume, "Bound"))
    if claim.spec.volume_name:
        return BindingPlan(_unbind(volume))
    return BindingPlan()  # The claim completes the binding.


def _plan_release(volume: PersistentVolume) -> BindingPlan:
    """Plan for a volume whose claim is gone, by its reclaim policy.

    What a provisioner has provisioned, it deletes. Nothing here can delete or recycle others.
    """
    policy, meta = volume.spec.persistent_volume_reclaim_policy, volume.metadata
    if volume.status.phase not in ("Released", "Failed"):
        return BindingPlan([_phase_patch(volume, "Released")], needs_confirmation=True)
    if volume.status.phase == "Failed" or policy == "Retain":
        return BindingPlan()
    if policy == "Delete" and PROVISIONED_BY in meta.annotations:
        return BindingPlan()
    detail = f'no volume plugin can {policy.lower()} volume "{meta.name}"'
    if policy == "Delete":
        notice = BindingNotice("VolumeFailedDelete", detail, "Warning")
    else:
        notice = BindingNotice("VolumeFailedRecycle", detail, "Warning")
    return BindingPlan([_phase_patch(volume, "Failed", detail)], notice)


def _move_to(volume: PersistentVolume, phase: str) -> list[Action]:
    return [] if volume.status.phase == phase else [_phase_patch(volume, phase)]


def _unbind(volume: PersistentVolume) -> list[Action]:
    """Free a volume whose claim is bound to another one; a user's reservation stays."""
    if BOUND_BY_CONTROLLER in volume.metadata.annotations:
        change: Object = {
            "metadata": {"annotations": {BOUND_BY_CONTROLLER: None}},
            "spec": {"claimRef": None},
        }
    else:
        change = {"spec": {"claimRef": {"uid": None, "resourceVersion": None}}}
    return [_volume_patch(volume, change)]


# ---- patches -------------------------------------------------------------------------------------


def claim_reference(claim: ObjectMeta) -> Object:
    """Return the reference by which a volume names its claim."""
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.name,
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
    }


def _conditional(meta: ObjectMeta, change: Object) -> Object:
    """A change of exactly this version: a concurrent binding must not be overwritten."""
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return {**change, "metadata": {**preconditions, **change.get("metadata", {})}}


def _claim_patch(claim: PersistentVolumeClaim, change: Object, *, subresource: str = "") -> Patch:
    meta = claim.metadata
    change = _conditional(meta, change)
    return Patch(PERSISTENT_VOLUME_CLAIM, meta.key, change, subresource=subresource)


def _volume_patch(volume: PersistentVolume, change: Object) -> Patch:
    meta = volume.metadata
    return Patch(PERSISTENT_VOLUME, meta.key, _conditional(meta, change))


def _phase_patch(volume: PersistentVolume, phase: str, message: str = "") -> Patch:
    meta = volume.metadata
    status: Object = {"phase": phase, "message": message or None}
    change = {"metadata": {"uid": meta.uid}, "status": status}
    return Patch(PERSISTENT_VOLUME, meta.key, change, subresource="status")
