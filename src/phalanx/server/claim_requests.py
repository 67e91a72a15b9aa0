"""Requests to create the ResourceClaims of one template: they differ only in names.

The resource claim controller creates one claim for each pod of a gang. `admission_cache.py` admits
the first of them and makes the others from it. What differs is cut out of the request:

    metadata.name, metadata.generateName, and name and uid of the only owner
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

from phalanx.api.wire import Object

_PLAIN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PLAIN_UID = re.compile(r"[0-9a-f-]{36}")
#: The fields of an owner reference that needs no permission of the client.
_OWNER_FIELDS = {"apiVersion", "kind", "name", "uid", "controller"}
_OWNERS, _OWNERS_FIELD = "ownerReferences", "f:ownerReferences"


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
            item = f'k:{{"uid":"{names.owner_uid}"}}'
            entry["fieldsV1"]["f:metadata"][_OWNERS_FIELD] = {
                item if field.startswith("k:") else field: value for field, value in owners.items()
            }
