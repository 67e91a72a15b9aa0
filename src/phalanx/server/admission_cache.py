"""A cache of admitted pods: creating another pod that differs only in names skips admission.

Members of a gang differ in their names and in the claim that they name, for devices or a volume;
members of different gangs in the name of their PodGroup too, and clients create them in turn. The
first pod takes the full path. The result is cached under its request with those names cut out; the
next pods get their own names, uid and timestamps.

    POST ─▶ cached? ─▶ copy with its own names ─▶ charge quotas ─▶ store
               └─▶ no: parse, admission, validation ─▶ cache ─▶ charge quotas ─▶ store

Authorization, name conflicts and quotas are checked for every pod. The cache is cleared when an
object changes whose kind admission reads (`admission.kinds_read`). Results with warnings, and those
that depend on the time or on the permissions of the user, are never cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from phalanx.api.conversion.workload_references import WORKLOAD_ANNOTATIONS
from phalanx.api.kinds import POD, Kind
from phalanx.api.wire import Object, UserInfo
from phalanx.randomness import Random
from phalanx.server.leader_worker_set_pods import is_group_pod
from phalanx.server.request_info import RequestInfo
from phalanx.store.kv import StoreChange, StoreReader

#: Few gangs are created at the same time, so few entries are enough.
MAX_CACHED_PODS = 64
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


class AdmissionCache:
    """Admitted pods by the requests that created them."""

    def __init__(self, store: StoreReader, read_kinds: Iterable[Kind]) -> None:
        self._pods: dict[AdmissionCacheKey, bytes] = {}
        self._prefixes = tuple(kind.store_prefix() for kind in read_kinds)
        store.subscribe(self._invalidate)

    def parse_request(self, request_info: RequestInfo) -> CacheablePod | None:
        """The cache key and the names of a request; None if it cannot be cached."""
        body, headers = request_info.request.body, request_info.request.headers
        if request_info.kind is not POD or request_info.query or not isinstance(body, bytes):
            return None
        spans = _name_spans(body)
        if spans is None:
            return None
        content, agent = headers.get("content-type", ""), headers.get("user-agent", "")
        (begin, end), (start, stop), (claim_start, claim_stop) = spans
        claim = body[claim_start:claim_stop].decode()
        parts: tuple[bytes, ...] = body[:begin], body[end:start], body[stop:]
        if claim:
            first, second = sorted(spans[1:])
            between = body[end : first[0]], body[first[1] : second[0]]
            parts = body[:begin], *between, body[second[1] :]
        key = AdmissionCacheKey(
            request_info.request.path, content, agent, request_info.request.user, parts
        )
        return CacheablePod(key, body[begin:end].decode(), body[start:stop].decode(), claim)

    def instantiate(self, cacheable: CacheablePod, random: Random, now: str) -> Object | None:
        """A new pod for a request, made from a cached one; None if none is cached."""
        cached = self._pods.get(cacheable.key)
        if cached is None:
            return None
        pod: Object = orjson.loads(cached)
        meta = pod["metadata"]
        meta["name"], meta["uid"], meta["creationTimestamp"] = cacheable.name, random.uid(), now
        for entry in meta.get("managedFields", ()):
            entry["time"] = now
        if cacheable.group:
            pod["spec"]["schedulingGroup"]["podGroupName"] = cacheable.group
        if cacheable.claim:
            source, field = _find_claim_name(pod)
            source[field] = cacheable.claim
        return pod

    def remember(self, cacheable: CacheablePod, request_info: RequestInfo, pod: Object) -> None:
        """Cache an admitted pod, if the same request would give the same result again."""
        meta, group = pod["metadata"], pod["spec"].get("schedulingGroup") or {}
        if request_info.warnings or "ownerReferences" in meta or "conditions" in pod["status"]:
            return
        if is_group_pod(pod):
            return  # Its labels and environment follow from its name.
        has_group_annotations = _GROUP_ANNOTATIONS & meta.get("annotations", {}).keys()
        if has_group_annotations or group.get("podGroupName", "") != cacheable.group:
            return
        source, field = _find_claim_name(pod)
        if cacheable.claim and source.get(field) != cacheable.claim:
            return
        self._pods[cacheable.key] = orjson.dumps(pod)
        if len(self._pods) > MAX_CACHED_PODS:
            del self._pods[next(iter(self._pods))]

    def _invalidate(self, changes: Sequence[StoreChange]) -> None:
        if self._pods and any(change.key.startswith(self._prefixes) for change in changes):
            self._pods.clear()


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
