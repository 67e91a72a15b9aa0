"""Pods that are created alike: what was found out about one holds for the next of another name.

The members of a gang differ in their names alone, those of many gangs in the names of their groups
besides, and they are sent one after the other. The first goes the long way; what came out of it is
kept under its request with those names cut out, so that the next ones only get names, a uid and a
time of their own.

    POST ─▶ alike one that was admitted? ─▶ a copy under its own name ─▶ store
                     └─▶ no: bodies, defaults, ownership, admission, rules ─▶ kept ─▶ store

Who may, what is taken and what quotas allow is asked every time. All is forgotten when anything
changes that admission looks at; what anybody is warned of, and what depends on a time or on the
rights of its sender, is never kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from phalanx.api.conversion.workload_references import WORKLOAD_ANNOTATIONS
from phalanx.api.kinds import LIMIT_RANGE, NAMESPACE, POD, PRIORITY_CLASS
from phalanx.api.wire import Object, UserInfo
from phalanx.randomness import Random
from phalanx.server.request_info import RequestInfo
from phalanx.store.kv import StoreChange, StoreReader

#: How many are kept: gangs are made one after the other, by few at a time.
MAX_CACHED_PODS = 64
#: A name that every rule allows: the pod's own, first in its metadata, and that of its group.
_PLAIN_NAME = rb'"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"'
_POD_NAME = re.compile(rb'"metadata"\s*:\s*\{\s*"name"\s*:\s*' + _PLAIN_NAME)
_GROUP_NAME_KEY = b'"podGroupName"'
_GROUP_NAME = re.compile(_GROUP_NAME_KEY + rb"\s*:\s*" + _PLAIN_NAME)
#: Marks on a pod that stand or fall with its group.
_GROUP_ANNOTATIONS = frozenset(WORKLOAD_ANNOTATIONS)
#: What admission looks at beside the pod.
_ADMISSION_PREFIXES = tuple(
    kind.store_prefix() for kind in (NAMESPACE, PRIORITY_CLASS, LIMIT_RANGE)
)


class AdmissionCacheKey(NamedTuple):
    """All of a request that its outcome depends on, but for the names."""

    path: str
    content: str
    user_agent: str
    user: UserInfo
    body_parts: tuple[bytes, ...]


class CacheablePod(NamedTuple):
    """A request to create a pod, and the names that it gives: the pod's, and its group's if any."""

    key: AdmissionCacheKey
    name: str
    group: str


class AdmissionCache:
    """Admitted pods by the requests that made them."""

    def __init__(self, store: StoreReader) -> None:
        self._pods: dict[AdmissionCacheKey, bytes] = {}
        store.subscribe(self._invalidate)

    def parse_request(self, call: RequestInfo) -> CacheablePod | None:
        """What a request has in common with others, if it is one that may be like another."""
        body, headers = call.request.body, call.request.headers
        if call.kind is not POD or call.query or not isinstance(body, bytes):
            return None
        cuts = _name_spans(body)
        if cuts is None:
            return None
        content, agent = headers.get("content-type", ""), headers.get("user-agent", "")
        (begin, end), (start, stop) = cuts
        pieces = body[:begin], body[end:start], body[stop:]
        request = AdmissionCacheKey(call.request.path, content, agent, call.request.user, pieces)
        return CacheablePod(request, body[begin:end].decode(), body[start:stop].decode())

    def instantiate(self, cacheable: CacheablePod, random: Random, now: str) -> Object | None:
        """The pod that a request makes, if one like it was admitted."""
        known = self._pods.get(cacheable.key)
        if known is None:
            return None
        pod: Object = orjson.loads(known)
        meta = pod["metadata"]
        meta["name"], meta["uid"], meta["creationTimestamp"] = cacheable.name, random.uid(), now
        for entry in meta.get("managedFields", ()):
            entry["time"] = now
        if cacheable.group:
            pod["spec"]["schedulingGroup"]["podGroupName"] = cacheable.group
        return pod

    def remember(self, cacheable: CacheablePod, call: RequestInfo, pod: Object) -> None:
        """Remember what a request has led to, if it will lead to the same again."""
        meta, group = pod["metadata"], pod["spec"].get("schedulingGroup") or {}
        if call.warnings or "ownerReferences" in meta or "conditions" in pod["status"]:
            return
        marks = _GROUP_ANNOTATIONS & meta.get("annotations", {}).keys()
        if marks or group.get("podGroupName", "") != cacheable.group:
            return
        self._pods[cacheable.key] = orjson.dumps(pod)
        if len(self._pods) > MAX_CACHED_PODS:
            del self._pods[next(iter(self._pods))]

    def _invalidate(self, changes: Sequence[StoreChange]) -> None:
        if self._pods and any(change.key.startswith(_ADMISSION_PREFIXES) for change in changes):
            self._pods.clear()


def _name_spans(body: bytes) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Where the names of a pod and of its group stand in a body; None where that is not plain."""
    name = _POD_NAME.search(body, 0, 512)
    # One brace before it: no metadata but the pod's own.
    if name is None or body.count(b"{", 0, name.start()) != 1:
        return None
    if _GROUP_NAME_KEY not in body:
        return name.span(1), (len(body), len(body))
    group = _GROUP_NAME.search(body, name.end())
    return (name.span(1), group.span(1)) if group and body.count(_GROUP_NAME_KEY) == 1 else None
