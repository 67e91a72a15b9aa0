"""Further parts of a recorded outcome, which a scenario lists under `look`; compared exactly.

placement    the node of every pod
claims       ResourceClaims: allocation, reservations, owners, finalizers
devices      how many claims have each device
claimrefs    the claims that pods and PodGroups name in their status
{get, keep}  fields of one object
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from phalanx.api.wire import Object
from tests.sim.recorded_outcome import ObjectsByKind, find_owners

_SUFFIX = re.compile("[bcdfghjklmnpqrstvwxz2456789]{5}")
_ANNOTATION_PREFIX = "resource.kubernetes.io/"


def stable_name(obj: Object) -> str:
    """Return the name of an object; `*` stands for the generated part."""
    meta = obj["metadata"]
    name, prefix = str(meta["name"]), str(meta.get("generateName") or "")
    is_generated = prefix and name.startswith(prefix) and _SUFFIX.fullmatch(name[len(prefix) :])
    return f"{prefix}*" if is_generated else name


def _by_name(pairs: Iterable[tuple[str, Any]]) -> Object:
    """Return values by name; several of one name as a sorted list."""
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {
        name: values[0] if len(values) == 1 else sorted(values, key=_sort_key)
        for name, values in sorted(found.items())
    }


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _results(claim: Object) -> list[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def describe_claims(objects: ObjectsByKind) -> Object:
    """Describe the ResourceClaims by name."""
    return _by_name((stable_name(claim), _claim(claim)) for claim in objects["ResourceClaim"])


def _claim(claim: Object) -> Object:
    status, meta = claim.get("status") or {}, claim["metadata"]
    allocation = status.get("allocation") or {}
    annotations = meta.get("annotations") or {}
    return {
        "allocated": bool(allocation),
        "results": [{k: v for k, v in r.items() if k != "shareID"} for r in _results(claim)],
        "nodes": allocation.get("nodeSelector"),
        "configs": len((allocation.get("devices") or {}).get("config") or ()),
        "reservedFor": sorted(
            f"{one['resource']} {one['name']}" for one in status.get("reservedFor") or ()
        ),
        "annotations": {
            k: v for k, v in sorted(annotations.items()) if k.startswith(_ANNOTATION_PREFIX)
        },
        "spec": claim["spec"] if "extended" in stable_name(claim) else None,
        "owners": find_owners(claim),
        "finalizers": sorted(meta.get("finalizers") or ()),
        "deleting": bool(meta.get("deletionTimestamp")),
    }


def count_claims_per_device(objects: ObjectsByKind) -> Object:
    """Count the claims that have each device."""
    found: dict[str, int] = {}
    for claim in objects["ResourceClaim"]:
        for result in _results(claim):
            name = f"{result['driver']}/{result['pool']}/{result['device']}"
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def describe_claim_references(objects: ObjectsByKind) -> Object:
    """Describe the claims that pods and PodGroups name."""
    names = {claim["metadata"]["name"]: stable_name(claim) for claim in objects["ResourceClaim"]}

    def references(obj: Object) -> Iterator[Any]:
        status = obj.get("status") or {}
        for one in sorted(status.get("resourceClaimStatuses") or (), key=_sort_key):
            name = one.get("resourceClaimName")
            yield [one["name"], names.get(name, name)]
        if extended := status.get("extendedResourceClaimStatus"):
            name = extended["resourceClaimName"]
            yield {
                "extended": names.get(name, name),
                "requests": extended.get("requestMappings"),
            }

    found = [
        (f"{kind}/{stable_name(obj)}", list(references(obj)))
        for kind in ("Pod", "PodGroup")
        for obj in objects[kind]
    ]
    return _by_name((name, value) for name, value in found if value)
