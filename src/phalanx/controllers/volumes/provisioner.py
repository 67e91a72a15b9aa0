"""Provisions volumes for clusters with simulated nodes: the StorageClass `simulated`.

No storage exists behind these volumes, as no process runs in simulated pods. The provisioner
follows the protocol of external provisioners: it acts on claims that the binder has annotated with
its name, creates a volume that names the claim, and deletes volumes that are released.

    parameter of the class    meaning
    delaySeconds              how long provisioning takes; 1 if absent
    failureRate               share of the attempts that fail, from 0 to 1; 0 if absent
    topologyKey               volumes can be used from nodes with the same value of this label only

After a failure the selected node is removed from the claim, so that the scheduler selects again; a
claim without one is tried again after the delay. The class is created with the first simulated
node, and is the default class if there is none.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE, Node
from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from phalanx.api.meta import Key
from phalanx.api.storage import (
    BIND_COMPLETED,
    DEFAULT_CLASS_ANNOTATIONS,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    is_default_class,
)
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
    treat_conflict_as_stale,
)
from phalanx.randomness import Random

PROVISIONER = "phalanx.dev/simulated"
CLASS_NAME = "simulated"
#: The CSI driver that the volumes name.
DRIVER = "simulated.phalanx.dev"
_DEFAULT_DELAY = 1.0
_WORKERS = 4


class SimulatedProvisioner:
    """Provisions and deletes simulated volumes until cancelled; `record` receives the events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        random: Random,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock, self._random = clock, random
        self._informers = (
            informers.of(PersistentVolumeClaim),
            informers.of(PersistentVolume),
            informers.of(StorageClass),
            informers.of(Node),
        )
        self._claims, self._volumes = self._informers[0].cache, self._informers[1].cache
        self._classes, self._nodes = self._informers[2].cache, self._informers[3].cache
        self._claims_by_class = self._claims.index(lambda claim: [claim.storage_class])
        #: When the current attempt for each claim ends, and whether it fails.
        self._attempts: dict[tuple[str, str], tuple[float, bool]] = {}
        self._claim_loop: ReconcileLoop[Key] = ReconcileLoop(
            client,
            self.reconcile_claim,
            _WORKERS,
            record=record,
            on_error=treat_conflict_as_stale,
        )
        self._volume_loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile_volume)
        self._class_loop: ReconcileLoop[str] = ReconcileLoop(client, self.reconcile_class)
        self._claims.subscribe(self._on_claim_change)
        self._volumes.subscribe(self._on_volume_change)
        self._classes.subscribe(self._on_class_change)
        self._nodes.subscribe(self._on_node_change)

    async def run_claims(self) -> None:
        """Provision volumes until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._claim_loop.run()

    async def run_volumes(self) -> None:
        """Delete released volumes until cancelled."""
        await self._volume_loop.run()

    async def run_class(self) -> None:
        """Create the class when the first simulated node appears."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._class_loop.run()

    def reconcile_class(self, name: str) -> ReconcilePlan:
        """Plan: create the class unless it exists; the default class unless there is one."""
        if Key("", name) in self._classes:
            return ReconcilePlan()
        metas = [one.metadata for one in self._classes.values()]
        has_default = any(is_default_class(meta.annotations) for meta in metas)
        annotations = {} if has_default else {DEFAULT_CLASS_ANNOTATIONS[0]: "true"}
        new: Object = {
            "metadata": {"name": name, "annotations": annotations},
            "provisioner": PROVISIONER,
            "volumeBindingMode": WAIT_FOR_FIRST_CONSUMER,
            "reclaimPolicy": "Delete",
            "allowVolumeExpansion": False,
        }
        return ReconcilePlan([Create(STORAGE_CLASS, new)])

    def reconcile_claim(self, key: Key) -> ReconcilePlan:
        """Plan: create the volume of a claim after the delay, or let the attempt fail."""
        claim = self._claims.get(key)
        if claim is None or not _is_ours(claim):
            return ReconcilePlan()
        found = self._classes.get(Key("", claim.storage_class))
        if found is None:
            return ReconcilePlan()
        selected = claim.metadata.annotations.get(SELECTED_NODE, "")
        if not selected and found.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER:
            return ReconcilePlan()
        if Key("", _volume_name(claim)) in self._volumes:
            self._attempts.pop((claim.metadata.uid, selected), None)
            return ReconcilePlan()
        attempt = (claim.metadata.uid, selected)
        if attempt not in self._attempts:
            fails = self._random.between(0.0, 1.0) < _number(found, "failureRate", 0.0)
            end = self._clock.now() + _number(found, "delaySeconds", _DEFAULT_DELAY)
            self._attempts[attempt] = (end, fails)
        end, fails = self._attempts[attempt]
        if (left := end - self._clock.now()) > 0:
            return ReconcilePlan(requeue_after=left)
        if fails:
            del self._attempts[attempt]
            return _fail(claim, selected)
        volume = _build_volume(claim, found, self._nodes.get(Key("", selected)))
        message = f"Successfully provisioned volume {_volume_name(claim)}"
        return ReconcilePlan(
            [
                Create(PERSISTENT_VOLUME, volume),
                _provisioning_event(claim, "ProvisioningSucceeded", message),
            ]
        )

    def reconcile_volume(self, key: Key) -> ReconcilePlan:
        """Plan: delete a volume of ours that is released, if its reclaim policy says so."""
        volume = self._volumes.get(key)
        if volume is None or not _is_to_delete(volume):
            return ReconcilePlan()
        return ReconcilePlan([Delete(PERSISTENT_VOLUME, key, volume.metadata.uid)])

    def _on_claim_change(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        if new is not None and _is_ours(new):
            self._claim_loop.queue.add(new.metadata.key)
        elif old is not None:
            meta = old.metadata
            self._attempts.pop((meta.uid, meta.annotations.get(SELECTED_NODE, "")), None)

    def _on_volume_change(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None and _is_to_delete(new):
            self._volume_loop.queue.add(new.metadata.key)

    def _on_class_change(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if new is not None and new.provisioner == PROVISIONER:
            for claim in self._claims_by_class[new.metadata.name]:
                self._claim_loop.queue.add(claim.metadata.key)

    def _on_node_change(self, old: Node | None, new: Node | None) -> None:
        is_added = old is None and new is not None
        node_type = new.metadata.annotations.get(NODE_TYPE_ANNOTATION) if new else None
        if is_added and node_type == SIMULATED_NODE_TYPE:
            self._class_loop.queue.add(CLASS_NAME)


def _is_ours(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim waits for a volume of this provisioner."""
    meta = claim.metadata
    return (
        meta.annotations.get(STORAGE_PROVISIONER) == PROVISIONER
        and BIND_COMPLETED not in meta.annotations
        and not claim.spec.volume_name
        and not meta.deletion_timestamp
    )


def _is_to_delete(volume: PersistentVolume) -> bool:
    meta = volume.metadata
    return (
        meta.annotations.get(PROVISIONED_BY) == PROVISIONER
        and volume.status.phase == "Released"
        and volume.spec.persistent_volume_reclaim_policy == "Delete"
        and not meta.deletion_timestamp
    )


def _volume_name(claim: PersistentVolumeClaim) -> str:
    return f"pvc-{claim.metadata.uid}"


def _number(storage_class: StorageClass, parameter: str, default: float) -> float:
    """Return a parameter of a class as a number from 0 on; the default if it is none."""
    try:
        return max(float(storage_class.parameters.get(parameter, default)), 0.0)
    except ValueError:
        return default


def _fail(claim: PersistentVolumeClaim, selected: str) -> ReconcilePlan:
    """Report a failed attempt; without a selected node, a later one follows."""
    where = f" for node {selected}" if selected else ""
    message = f"failed to provision volume{where}: simulated failure"
    actions: list[Action] = [_provisioning_event(claim, "ProvisioningFailed", message)]
    if not selected:
        return ReconcilePlan(actions, requeue_after=0.0)
    meta = claim.metadata
    # Conditional on the version: the scheduler may have selected another node.
    change = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {SELECTED_NODE: None},
        }
    }
    return ReconcilePlan([Patch(PERSISTENT_VOLUME_CLAIM, meta.key, change), *actions])


def _build_volume(
    claim: PersistentVolumeClaim, storage_class: StorageClass, node: Node | None
) -> Object:
    meta, spec = claim.metadata, claim.spec
    new: Object = {
        "accessModes": list(spec.access_modes),
        "capacity": {"storage": claim.requested_storage},
        "claimRef": {
            "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
            "kind": PERSISTENT_VOLUME_CLAIM.name,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
        "csi": {"driver": DRIVER, "volumeHandle": meta.uid},
        "mountOptions": list(storage_class.mount_options),
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy,
        "storageClassName": storage_class.metadata.name,
        "volumeMode": spec.volume_mode,
    }
    if spec.volume_attributes_class_name:
        new["volumeAttributesClassName"] = spec.volume_attributes_class_name
    key = storage_class.parameters.get("topologyKey", "")
    value = node.metadata.labels.get(key) if node is not None else None
    if value is not None:
        expression = {"key": key, "operator": "In", "values": [value]}
        term = {"matchExpressions": [expression]}
        new["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {
        "metadata": {"name": _volume_name(claim), "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": new,
    }


def _provisioning_event(claim: PersistentVolumeClaim, reason: str, message: str) -> RecordEvent:
    severity = "Warning" if reason == "ProvisioningFailed" else "Normal"
    return RecordEvent(
        ObjectEvent(PERSISTENT_VOLUME_CLAIM, claim.metadata, reason, message=message, type=severity)
    )
