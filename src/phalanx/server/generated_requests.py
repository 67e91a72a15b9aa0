"""Requests of controllers to create equal pods and ResourceClaims, which differ in names only.

`admission_cache.py` admits the first of them and makes the others from it. What differs is cut out
of the request here.

    pods of a Job, of the Jobs of one JobSet and of equal JobSets:
        metadata.generateName, name and uid of the only owner, the labels and annotations that
        identify the Job and the index of a pod, spec.hostname, spec.subdomain, the name of its
        PodGroup
    ResourceClaims of one template, one for each pod of a gang:
        metadata.name, metadata.generateName, and name and uid of the only owner
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

from phalanx.api.job_sets import JOB_SET_LABELS
from phalanx.api.wire import Object

#: The beginning of a request in which the server generates the name.
GENERATED_NAME = b'{"metadata":{"generateName":'
#: Values that every validation rule allows, in the order of `_varying_fields`: the prefix of the
#: name first. Each is at most as long as a label may be.
_PLAIN_VALUES = re.compile(
    r"[a-z0-9](?:[a-z0-9-]{0,56}[a-z0-9])?-(?:\n[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*"
)
#: The labels, and annotations of the same names, that identify the Job of a pod and its index.
_IDENTITY_LABELS = (
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    *JOB_SET_LABELS,
)
#: Fields by which admission reads the labels of a pod: `matchLabelKeys` and `mismatchLabelKeys`.
_LABEL_READERS = b"atchLabelKeys"
_PLAIN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN_UID = re.compile(r"[0-9a-f-]{36}")
#: The fields of an owner reference that needs no permission of the client.
_OWNER_FIELDS = {"apiVersion", "kind", "name", "uid", "controller"}
_OWNERS, _OWNERS_FIELD = "ownerReferences", "f:ownerReferences"


# ---- pods ----------------------------------------------------------------------------------------


def split_pod_request(body: bytes | Object) -> tuple[bytes, list[str]] | None:
    """Return a request without what differs, and that; None if it is not as a controller's."""
    try:
        pod: Object = orjson.loads(body) if isinstance(body, bytes) else body
        # Compact JSON has no duplicate keys, of which only one would be seen here.
        if pod is not body and orjson.dumps(pod) != body:
            return None
        fields = _varying_fields(pod)
        values = [holder[field] for holder, field in fields]
        text = "\n".join(values)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    # A value with a line break would pass for two. A pod that also has a name keeps it.
    is_plain = text.count("\n") == len(values) - 1 and _PLAIN_VALUES.fullmatch(text)
    if not is_plain or "name" in pod["metadata"]:
        return None
    for holder, field in fields:
        holder[field] = ""
    try:
        rest = orjson.dumps(pod)
    except orjson.JSONEncodeError:
        return None
    finally:
        for (holder, field), value in zip(fields, values, strict=True):
            holder[field] = value
    return None if _LABEL_READERS in rest else (rest, values)


def has_values(pod: Object, values: list[str]) -> bool:
    """Whether an admitted pod has the values of its request."""
    return [holder[field] for holder, field in _varying_fields(pod)] == values


class SharedPod:
    """An admitted pod that becomes one equal pod after the other: only what differs is replaced.

    All of them are the same object. A caller must encode it before it awaits anything: the next
    request changes it again.
    """

    def __init__(self, pod: Object) -> None:
        copied: Object = orjson.loads(orjson.dumps(pod))
        # The name comes first in the stored layout.
        meta = copied["metadata"] = {"name": "", **copied["metadata"]}
        self._pod, self._meta, self._fields = copied, meta, _varying_fields(copied)
        (self._owner,) = meta["ownerReferences"]
        #: Where managedFields names the owner.
        self._owner_fields: list[Object] = [
            owners
            for entry in meta.get("managedFields", ())
            if (owners := entry["fieldsV1"].get("f:metadata", {}).get("f:ownerReferences"))
        ]

    def become(self, values: list[str], uid: str, now: str) -> Object:
        """Return the pod with other values, a uid and a time; it has no name yet."""
        meta, before = self._meta, _owner_element(self._owner["uid"])
        meta["name"], meta["uid"], meta["creationTimestamp"] = "", uid, now
        meta.pop("resourceVersion", None)
        for entry in meta.get("managedFields", ()):
            entry["time"] = now
        for (holder, field), value in zip(self._fields, values, strict=True):
            holder[field] = value
        for owners in self._owner_fields:
            if (fields := owners.pop(before, None)) is not None:
                owners[_owner_element(self._owner["uid"])] = fields
        return self._pod


def _varying_fields(pod: Object) -> list[tuple[Object, str]]:
    """The fields in which pods of controllers differ: each with the object that has it.

    Raises an exception for a pod of another form.
    """
    meta, spec = pod["metadata"], pod["spec"]
    (owner,) = meta["ownerReferences"]
    fields: list[tuple[Object, str]] = [(meta, "generateName"), (owner, "name"), (owner, "uid")]
    for holder in (meta.get("labels") or {}, meta.get("annotations") or {}):
        fields += [(holder, name) for name in _IDENTITY_LABELS if name in holder]
    fields += [(spec, name) for name in ("hostname", "subdomain") if name in spec]
    if "schedulingGroup" in spec:
        fields.append((spec["schedulingGroup"], "podGroupName"))
    return fields


# ---- ResourceClaims ------------------------------------------------------------------------------


class ClaimNames(NamedTuple):
    """The names in which claims of one template differ."""

    name: str
    prefix: str
    owner: str
    owner_uid: str


def split_claim_request(body: bytes) -> tuple[bytes, ClaimNames] | None:
    """Return a request without its names, and the names; None if it is not as the controller's."""
    try:
        claim = orjson.loads(body)
    except ValueError:
        return None
    # Compact JSON has no duplicate keys, of which only one would be seen here.
    if not isinstance(claim, dict) or orjson.dumps(claim) != body:
        return None
    meta = claim.get("metadata")
    if not isinstance(meta, dict):
        return None
    owners = meta.get(_OWNERS)
    if not isinstance(owners, list) or len(owners) != 1 or not isinstance(owners[0], dict):
        return None
    if owners[0].keys() != _OWNER_FIELDS:
        return None
    names = ClaimNames(
        meta.pop("name", ""),
        meta.pop("generateName", ""),
        owners[0].pop("name"),
        owners[0].pop("uid"),
    )
    if not all(isinstance(name, str) for name in names) or not names.prefix.endswith("-"):
        return None
    plain = (names.name, names.prefix.rstrip("-"), names.owner)
    if not all(map(_PLAIN_NAME.fullmatch, plain)) or not _PLAIN_UID.fullmatch(names.owner_uid):
        return None
    return orjson.dumps(claim), names


def rename_claim(claim: Object, names: ClaimNames) -> None:
    """Give an admitted claim other names, also where managedFields names its owner."""
    meta = claim["metadata"]
    meta["name"], meta["generateName"] = names.name, names.prefix
    (owner,) = meta[_OWNERS]
    owner["name"], owner["uid"] = names.owner, names.owner_uid
    for entry in meta.get("managedFields", ()):
        owners = entry.get("fieldsV1", {}).get("f:metadata", {}).get(_OWNERS_FIELD)
        if owners:
            item = _owner_element(names.owner_uid)
            entry["fieldsV1"]["f:metadata"][_OWNERS_FIELD] = {
                item if field.startswith("k:") else field: value for field, value in owners.items()
            }


def _owner_element(uid: str) -> str:
    """How managedFields name the owner reference of a uid."""
    return f'k:{{"uid":"{uid}"}}'
