"""Volumes in a GroupBinding: claims are bound in the transaction that binds the pods.

Each claim must exist, have the given uid, not be deleted and not be bound. Its volume must exist
and must not be reserved for another claim. Claim and volume are written as the volume binder writes
them, so that nothing is left to be done: the volume with its reference to the claim, both with
their phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from phalanx.api.storage import BIND_COMPLETED, BOUND_BY_CONTROLLER
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder
from phalanx.store.kv import KeyValue, StoreWrite


class VolumeRefused(Exception):
    """A claim of a GroupBinding cannot be bound to its volume."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class VolumeBindings:
    """The claims and volumes of one GroupBinding, as they will be written."""

    context: ServerContext
    namespace: str
    _claims: dict[str, tuple[KeyValue, Object]] = field(default_factory=dict)
    _volumes: dict[str, tuple[KeyValue, Object]] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Bind a claim to a volume. Raises VolumeRefused."""
        name, uid = str(entry.get("claim", "")), str(entry.get("uid", ""))
        if name in self._claims:
            raise VolumeRefused("FieldValueDuplicate", f'claim "{name}" is bound twice')
        record = self.context.store.pending(PERSISTENT_VOLUME_CLAIM.store_key(self.namespace, name))
        claim = decode_record(record) if record else None
        if record is None or claim is None or claim["metadata"]["uid"] != uid:
            raise VolumeRefused("ClaimGone", f'claim "{name}" does not have the given uid')
        meta, spec = claim["metadata"], claim["spec"]
        if meta.get("deletionTimestamp"):
            raise VolumeRefused("ClaimChanged", f'claim "{name}" is being deleted')
        if spec.get("volumeName") or BIND_COMPLETED in (meta.get("annotations") or {}):
            raise VolumeRefused("ClaimChanged", f'claim "{name}" is bound already')
        volume = self._take_volume(str(entry.get("volume", "")), claim)
        meta["annotations"] = {
            **(meta.get("annotations") or {}),
            BIND_COMPLETED: "yes",
            BOUND_BY_CONTROLLER: "yes",
        }
        spec["volumeName"] = volume["metadata"]["name"]
        claim["status"] = {
            **(claim.get("status") or {}),
            "phase": "Bound",
            "accessModes": deepcopy(volume["spec"].get("accessModes") or []),
            "capacity": deepcopy(volume["spec"].get("capacity") or {}),
        }
        self._claims[name] = (record, claim)

    def _take_volume(self, name: str, claim: Object) -> Object:
        """Reserve a volume for a claim. Raises VolumeRefused."""
        record = self.context.store.pending(PERSISTENT_VOLUME.store_key("", name))
        if record is None:
            raise VolumeRefused("VolumeGone", f'volume "{name}" not found')
        if name in self._volumes:
            raise VolumeRefused("VolumeInUse", f'volume "{name}" is given to two claims')
        volume, meta = decode_record(record), claim["metadata"]
        reference = volume["spec"].get("claimRef")
        if volume["metadata"].get("deletionTimestamp"):
            raise VolumeRefused("VolumeChanged", f'volume "{name}" is being deleted')
        if reference is None:
            annotations = volume["metadata"].get("annotations") or {}
            volume["metadata"]["annotations"] = {**annotations, BOUND_BY_CONTROLLER: "yes"}
        elif (reference.get("namespace"), reference.get("name")) != (
            self.namespace,
            meta["name"],
        ) or reference.get("uid", "") not in ("", meta["uid"]):
            raise VolumeRefused("VolumeInUse", f'volume "{name}" belongs to another claim')
        volume["spec"]["claimRef"] = {
            "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
            "kind": PERSISTENT_VOLUME_CLAIM.name,
            "namespace": self.namespace,
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
        }
        status = volume.get("status") or {}
        if status.get("phase") != "Bound":
            transition = {"lastPhaseTransitionTime": self.context.now_timestamp()}
            volume["status"] = {**status, "phase": "Bound", **transition}
        self._volumes[name] = (record, volume)
        return volume

    def writes(self) -> list[StoreWrite]:
        """The writes of the claims and volumes."""
        found = [*self._claims.values(), *self._volumes.values()]
        return [StoreWrite(record.key, encoder(obj), record.revision) for record, obj in found]
