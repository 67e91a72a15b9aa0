"""Claims in a GroupBinding: devices are allocated in the transaction that binds the pods.

Each claim must exist, have the given uid and not be deleted. A claim that gets an allocation must
have none, and no other claim may have its devices. The claim is reserved for its consumer and gets
the finalizer that keeps it while devices are allocated to it.

The claim that has a device alone is a hidden record. It is compared and swapped in every
transaction that changes the allocation of a claim, so that two schedulers never allocate one device
twice.

    /phalanx.dev/devices/gpu.example.com/node-1/gpu-0   the uid of the claim
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.api.dynamic_resources import (
    CLAIM_FINALIZER,
    EXTENDED_RESOURCE_CLAIM,
    NEW_SHARE_ID,
)
from phalanx.api.kinds import POD, RESOURCE_CLAIM
from phalanx.api.meta import controller_of
from phalanx.api.other_kinds import POD_CLAIM_NAME
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder
from phalanx.store.kv import KeyValue, Store, StoreWrite

#: Store prefix of the records.
DEVICE_PREFIX = "/phalanx.dev/devices/"
#: The most consumers for which a claim can be reserved.
MAX_CONSUMERS = 256


class ClaimRefused(Exception):
    """A claim of a GroupBinding cannot be allocated or reserved."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class ClaimBindings:
    """The claims of one GroupBinding, as they will be written."""

    context: ServerContext
    namespace: str
    #: By pod uid: its status about the claim that is created for its extended resources.
    extended: dict[str, Object] = field(default_factory=dict)
    #: By name: its stored record, the records of its devices before, and the claim.
    _claims: dict[str, tuple[KeyValue | None, set[str], Object]] = field(default_factory=dict)
    #: By the key of its record: the claim, by uid, that has a device.
    _holders: dict[str, str] = field(default_factory=dict)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Allocate and reserve a claim. Raises ClaimRefused."""
        name, allocation = str(entry.get("name", "")), entry.get("allocation")
        if entry.get("spec") is not None:
            self._create(entry)
            return
        claim = self._claim(name, str(entry.get("uid", "")))
        status = claim.setdefault("status", {})
        if allocation is not None and status.get("allocation"):
            raise ClaimRefused(
                "ClaimChanged", f'claim "{name}" got allocated elsewhere in the meantime'
            )
        if isinstance(allocation, dict):
            status["allocation"] = self._checked_allocation(name, claim, allocation)
        elif not status.get("allocation"):
            raise ClaimRefused("ClaimChanged", f'claim "{name}" has no allocation')
        consumer, reserved = entry.get("consumer"), status.setdefault("reservedFor", [])
        if isinstance(consumer, dict) and consumer.get("uid") not in [r["uid"] for r in reserved]:
            if len(reserved) >= MAX_CONSUMERS:
                raise ClaimRefused("ClaimChanged", f'claim "{name}" is in use by too many others')
            reserved.append(consumer)
        finalizers = claim["metadata"].setdefault("finalizers", [])
        if CLAIM_FINALIZER not in finalizers:
            finalizers.append(CLAIM_FINALIZER)

    def _create(self, entry: Mapping[str, Any]) -> None:
        """Create the claim for the extended resources of a pod. Raises ClaimRefused."""
        prefix, pod = str(entry.get("name", "")), entry.get("consumer") or {}
        name = prefix + self.context.random.suffix()
        key = RESOURCE_CLAIM.store_key(self.namespace, name)
        if self.context.store.pending(key) is not None:
            raise ClaimRefused("ClaimChanged", f'claim "{name}" exists')
        owner = {
            "apiVersion": POD.api_version,
            "kind": POD.name,
            "name": pod.get("name", ""),
            "uid": pod.get("uid", ""),
            "controller": True,
        }
        claim: Object = {
            "metadata": {
                "name": name,
                "generateName": prefix,
                "namespace": self.namespace,
                "uid": self.context.random.uid(),
                "creationTimestamp": self.context.now_timestamp(),
                "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
                "ownerReferences": [owner],
                "finalizers": [CLAIM_FINALIZER],
            },
            "spec": entry["spec"],
            "status": {"reservedFor": [pod]},
        }
        claim["status"]["allocation"] = self._checked_allocation(
            name, claim, entry.get("allocation") or {}
        )
        self._claims[name] = (None, set(), claim)
        self.extended[owner["uid"]] = {
            "resourceClaimName": name,
            "requestMappings": entry.get("requestMappings") or [],
        }

    def served_resources(self, pod_uid: str) -> set[str]:
        """The extended resources of a pod that devices serve."""
        mappings = self.extended.get(pod_uid, {}).get("requestMappings") or ()
        return {one["resourceName"] for one in mappings}

    def writes(self) -> list[StoreWrite]:
        """The writes of the claims and of the records of their devices."""
        found: list[StoreWrite] = []
        for record, before, claim in self._claims.values():
            key = RESOURCE_CLAIM.store_key(self.namespace, claim["metadata"]["name"])
            found.append(StoreWrite(key, encoder(claim), record.revision if record else 0))
            after = set(_device_keys(claim))
            found += _record_writes(
                self.context.store, before=before, after=after, uid=claim["metadata"]["uid"]
            )
        return found

    def _claim(self, name: str, uid: str) -> Object:
        if name not in self._claims:
            record = self.context.store.pending(RESOURCE_CLAIM.store_key(self.namespace, name))
            if record is None:
                raise ClaimRefused("ClaimGone", f'claim "{name}" not found')
            claim = decode_record(record)
            self._claims[name] = (record, set(_device_keys(claim)), claim)
        meta = self._claims[name][2]["metadata"]
        if meta["uid"] != uid:
            raise ClaimRefused("ClaimGone", f'claim "{name}" does not have the given uid')
        if meta.get("deletionTimestamp"):
            raise ClaimRefused("ClaimChanged", f'claim "{name}" is being deleted')
        return self._claims[name][2]

    def _checked_allocation(self, name: str, claim: Object, allocation: Object) -> Object:
        """Refuse devices that another claim has; give each share of a device its id."""
        # A copy: the client may keep the request.
        allocation = msgspec.msgpack.decode(msgspec.msgpack.encode(allocation))
        for result in _results(allocation):
            if result.get("shareID") == NEW_SHARE_ID:
                result["shareID"] = self.context.random.uid()
        mine = claim["metadata"]["uid"]
        for key in _device_keys({"status": {"allocation": allocation}}):
            record = self.context.store.pending(key)
            holder = record.value.decode() if record else mine
            if self._holders.setdefault(key, holder) != mine:
                device = key.removeprefix(DEVICE_PREFIX)
                raise ClaimRefused(
                    "DeviceInUse", f'claim "{name}": device {device} is allocated to another claim'
                )
        return allocation


def device_writes(store: Store, old: Object | None, new: Object | None) -> list[StoreWrite]:
    """The writes that update the records of devices when the allocation of a claim changes.

    A record of another claim is left alone: a client other than a scheduler may allocate a device
    twice, as in Kubernetes.
    """
    uid = (new or old or {}).get("metadata", {}).get("uid", "")
    return _record_writes(
        store, before=set(_device_keys(old)), after=set(_device_keys(new)), uid=uid
    )


def _record_writes(
    store: Store, *, before: set[str], after: set[str], uid: str
) -> list[StoreWrite]:
    """The writes that change the records of the devices of a claim."""
    found, holder = [], uid.encode()
    for key in sorted(before ^ after):
        record = store.pending(key)
        if key in after and record is None:
            found.append(StoreWrite(key, lambda revision: holder, 0))
        elif key in before and record is not None and record.value == holder:
            found.append(StoreWrite(key, None, record.revision))
    return found


def owner_status_writes(store: Store, claim: Object) -> list[StoreWrite]:
    """The write that names a new claim in the status of the pod that it was created for.

    The resource claim controller would patch the status when it observes the claim. The same
    transaction saves a request for every pod of a large gang.
    """
    meta = claim["metadata"]
    entry = (meta.get("annotations") or {}).get(POD_CLAIM_NAME)
    owner = controller_of(claim)
    if not entry or owner is None or owner.get("kind") != POD.name:
        return []
    record = store.pending(POD.store_key(meta["namespace"], owner["name"]))
    pod = decode_record(record) if record else None
    if record is None or pod is None or pod["metadata"]["uid"] != owner.get("uid"):
        return []
    statuses = pod["status"].setdefault("resourceClaimStatuses", [])
    entries = pod["spec"].get("resourceClaims") or ()
    is_from_template = any(
        one["name"] == entry and one.get("resourceClaimTemplateName") for one in entries
    )
    if not is_from_template or any(one["name"] == entry for one in statuses):
        return []
    statuses.append({"name": entry, "resourceClaimName": meta["name"]})
    return [StoreWrite(record.key, encoder(pod), record.revision)]


def _device_keys(claim: Object | None) -> Iterator[str]:
    """Yield the records of the devices that a claim has alone."""
    status = (claim or {}).get("status") or {}
    for result in _results(status.get("allocation") or {}):
        if not result.get("adminAccess") and "shareID" not in result:
            yield f"{DEVICE_PREFIX}{result['driver']}/{result['pool']}/{result['device']}"


def _results(allocation: Object) -> Iterable[Object]:
    return (allocation.get("devices") or {}).get("results") or ()
