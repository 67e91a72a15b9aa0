"""A cache of admitted pods and claims: another one that differs only in names skips admission.

Members of a gang differ in their names and in the claim that they name, for devices or a volume;
members of different gangs in the name of their PodGroup too, and clients create them in turn. The
first pod takes the full path. The result is cached under its request with those names cut out; the
next pods get their own names, uid and timestamps. Pods of controllers, with generated names and an
owner, are cached in the same way, and so are ResourceClaims from one template
(`generated_requests.py`).

    POST ─▶ cached? ─▶ copy with its own names ─▶ charge quotas ─▶ store
               └─▶ no: parse, admission, validation ─▶ cache ─▶ charge quotas ─▶ store

Authorization, name conflicts and quotas are checked for every pod, and its owner reference if the
name is generated. The cache is cleared when an object changes whose kind admission reads
(`admission.kinds_read`). Results with warnings, and those that depend on the time or otherwise on
the permissions of the user, are never cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from phalanx.api.conversion.workload_references import WORKLOAD_ANNOTATIONS
from phalanx.api.kinds import POD, RESOURCE_CLAIM, Kind
from phalanx.api.wire import Object, UserInfo
from phalanx.randomness import Random
from phalanx.server.generated_requests import (
    GENERATED_NAME,
    ClaimNames,
    SharedPod,
    has_values,
    rename_claim,
    split_claim_request,
    split_pod_request,
)
from phalanx.server.leader_worker_set_pods import is_group_pod
from phalanx.server.request_info import RequestInfo
from phalanx.store.kv import StoreChange, StoreReader

#: The kinds whose objects are cached.
CACHED_KINDS = (POD, RESOURCE_CLAIM)
#: Few gangs are created at the same time, so few entries are enough.
MAX_CACHED_OBJECTS = 64
#: The size of the largest request that is cached: its body and its object stay in memory.
MAX_CACHED_BODY = 64 * 1024
#: A name that every validation rule allows. The name of the pod comes first in its metadata.
_PLAIN_NAME = rb'"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"'
_POD_NAME = re.compile(rb'"metadata"\s*:\s*\{\s*"name"\s*:\s*' + _PLAIN_NAME)
_GROUP_NAME_KEY = b'"podGroupName"'
_CLAIM_NAME_KEYS = (b'"resourceClaimName"', b'"claimName"')
_GROUP_NAME = re.compile(_GROUP_NAME_KEY + rb"\s*:\s*" + _PLAIN_NAME)
_CLAIM_NAME = re.compile(rb'"(?:resourceClaimName|claimName)"\s*:\s*' + _PLAIN_NAME)
#: Annotations of a pod that depend on its PodGroup.
_GROUP_ANNOTATIONS = frozenset(WORKLOAD_ANNOTATIONS)


class AdmissionCacheKey(NamedTuple):
    """The parts of a request that decide the result, without the names."""

    path: str
    content: str
    user_agent: str
    user: UserInfo
    body_parts: tuple[bytes, ...]


class CacheablePod(NamedTuple):
    """A request to create a pod, with the names of the pod, its PodGroup and its claim.

    A pod without a group, or without a claim of a given name, has "" for it.
    """

    key: AdmissionCacheKey
    name: str
    group: str
    claim: str


class GeneratedPod(NamedTuple):
    """A request to create a pod of a controller, with the values in which such pods differ."""

    key: AdmissionCacheKey
    values: list[str]


class CacheableClaim(NamedTuple):
    """A request to create a ResourceClaim from a template, with the names that differ."""

    key: AdmissionCacheKey
    names: ClaimNames


CacheableRequest = CacheablePod | GeneratedPod | CacheableClaim


class AdmissionCache:
    """Admitted pods and claims by the requests that created them."""

    def __init__(self, store: StoreReader, read_kinds: Iterable[Kind]) -> None:
        self._admitted: dict[AdmissionCacheKey, bytes | SharedPod] = {}
        self._prefixes = tuple(kind.store_prefix() for kind in read_kinds)
        store.subscribe(self._invalidate)

    def parse_request(self, request_info: RequestInfo) -> CacheableRequest | None:
        """The cache key and the names of a request; None if it cannot be cached."""
        body = request_info.request.body
        if request_info.query:
            return None
        if request_info.kind is POD:
            if isinstance(body, bytes) and not body.startswith(GENERATED_NAME):
                return _parse_pod(request_info, body)
            split = split_pod_request(body)
            return GeneratedPod(_cache_key(request_info, (split[0],)), split[1]) if split else None
        if not isinstance(body, bytes):
            return None
        if request_info.kind is RESOURCE_CLAIM and (found := split_claim_request(body)):
            return CacheableClaim(_cache_key(request_info, (found[0],)), found[1])
        return None

    def instantiate(self, cacheable: CacheableRequest, random: Random, now: str) -> Object | None:
        """A new object for a request, made from a cached one; None if none is cached.

        The name of a `GeneratedPod` is "" until the server generates it. Such an object must be
        encoded before anything is awaited.
        """
        cached = self._admitted.get(cacheable.key)
        if cached is None:
            return None
        if isinstance(cached, SharedPod):
            assert isinstance(cacheable, GeneratedPod)
            return cached.become(cacheable.values, random.uid(), now)
        obj: Object = orjson.loads(cached)
        meta = obj["metadata"]
        meta["uid"], meta["creationTimestamp"] = random.uid(), now
        for entry in meta.get("managedFields", ()):
            entry["time"] = now
        if isinstance(cacheable, CacheablePod):
            meta["name"] = cacheable.name
            if cacheable.group:
                obj["spec"]["schedulingGroup"]["podGroupName"] = cacheable.group
            if cacheable.claim:
                source, field = _find_claim_name(obj)
                source[field] = cacheable.claim
        elif isinstance(cacheable, CacheableClaim):
            rename_claim(obj, cacheable.names)
        return obj

    def remember(self, cacheable: CacheableRequest, request_info: RequestInfo, obj: Object) -> None:
        """Cache an admitted object, if the same request would give the same result again."""
        is_large = sum(map(len, cacheable.key.body_parts)) > MAX_CACHED_BODY
        if request_info.warnings or is_large:
            return
        if not isinstance(cacheable, CacheableClaim) and not _is_reproducible(cacheable, obj):
            return
        is_pod = isinstance(cacheable, GeneratedPod)
        self._admitted[cacheable.key] = SharedPod(obj) if is_pod else orjson.dumps(obj)
        if len(self._admitted) > MAX_CACHED_OBJECTS:
            del self._admitted[next(iter(self._admitted))]

    def _invalidate(self, changes: Sequence[StoreChange]) -> None:
        if self._admitted and any(change.key.startswith(self._prefixes) for change in changes):
            self._admitted.clear()


def _cache_key(request_info: RequestInfo, parts: tuple[bytes, ...]) -> AdmissionCacheKey:
    request = request_info.request
    headers = request.headers
    content, agent = headers.get("content-type", ""), headers.get("user-agent", "")
    return AdmissionCacheKey(request.path, content, agent, request.user, parts)


def _parse_pod(request_info: RequestInfo, body: bytes) -> CacheablePod | None:
    spans = _name_spans(body)
    if spans is None:
        return None
    (begin, end), (start, stop), (claim_start, claim_stop) = spans
    claim = ""
    parts: tuple[bytes, ...] = body[:begin], body[end:start], body[stop:]
    if claim_start != claim_stop:
        claim = body[claim_start:claim_stop].decode()
        first, second = sorted(spans[1:])
        between = body[end : first[0]], body[first[1] : second[0]]
        parts = body[:begin], *between, body[second[1] :]
    key = _cache_key(request_info, parts)
    return CacheablePod(key, body[begin:end].decode(), body[start:stop].decode(), claim)


def _is_reproducible(cacheable: CacheablePod | GeneratedPod, pod: Object) -> bool:
    """Whether another pod of the request differs from an admitted one only in the given names."""
    meta, group = pod["metadata"], pod["spec"].get("schedulingGroup") or {}
    if "conditions" in pod["status"] or _GROUP_ANNOTATIONS & meta.get("annotations", {}).keys():
        return False
    if is_group_pod(pod):
        return False  # Its labels and environment follow from its name.
    if isinstance(cacheable, GeneratedPod):
        return has_values(pod, cacheable.values)
    if "ownerReferences" in meta or group.get("podGroupName", "") != cacheable.group:
        return False
    source, field = _find_claim_name(pod)
    return not cacheable.claim or source.get(field) == cacheable.claim


def _find_claim_name(pod: Object) -> tuple[Object, str]:
    """The object that has the name of a pod's only claim, and the field; {} if it has none."""
    for entry in pod["spec"].get("resourceClaims") or ():
        return entry, "resourceClaimName"
    for volume in pod["spec"].get("volumes") or ():
        if "persistentVolumeClaim" in volume:
            return volume["persistentVolumeClaim"], "claimName"
    return {}, ""


#: Where a name stands in a body; an empty span at the end of the body stands for no name.
NameSpan = tuple[int, int]


def _name_spans(body: bytes) -> tuple[NameSpan, NameSpan, NameSpan] | None:
    """Where the names of the pod, its PodGroup and its claim stand; None if that is unclear."""
    name = _POD_NAME.search(body, 0, 512)
    # With one brace before it, this is the metadata of the pod and not of a nested object.
    if name is None or body.count(b"{", 0, name.start()) != 1:
        return None
    group = claim = len(body), len(body)
    if _GROUP_NAME_KEY in body:
        found = _GROUP_NAME.search(body, name.end())
        if found is None or body.count(_GROUP_NAME_KEY) != 1:
            return None
        group = found.span(1)
    if count := sum(map(body.count, _CLAIM_NAME_KEYS)):
        found = _CLAIM_NAME.search(body, name.end())
        if found is None or count != 1:
            return None
        claim = found.span(1)
    return name.span(1), group, claim
