"""AssumedClaims: what is assumed for the claims of pods until the API shows it.

An assumption ends with the first of these:

    the claim is observed with its devices or volume, or is gone    `end_claim`
    the bind of the pod has failed, or the pod is gone              `end_pod`

That the pod is observed on a node does not end it. The claim may be observed later than the pod,
and another client may have bound the pod, so that the bind of this scheduler fails afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from phalanx.api.meta import Key

T = TypeVar("T")


class AssumedClaims(Generic[T]):
    """Assumptions by the uid of the pod and the key of the claim."""

    def __init__(self) -> None:
        self._by_pod: dict[str, dict[Key, T]] = {}
        self._pods: dict[Key, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_pod)

    def __contains__(self, claim: Key) -> bool:
        return claim in self._pods

    def add(self, uid: str, claim: Key, assumed: T) -> None:
        """Assume something for the claim of a pod."""
        self._by_pod.setdefault(uid, {})[claim] = assumed
        self._pods.setdefault(claim, {})[uid] = None

    def end_pod(self, uid: str) -> list[Key]:
        """End the assumptions of a pod; returns the claims for which no other pod has one."""
        ended = self._by_pod.pop(uid, {})
        for claim in ended:
            del self._pods[claim][uid]
        free = [claim for claim in ended if not self._pods[claim]]
        for claim in free:
            del self._pods[claim]
        return free

    def end_claim(self, claim: Key) -> None:
        """End the assumptions of all pods for a claim."""
        for uid in self._pods.pop(claim, ()):
            claims = self._by_pod[uid]
            del claims[claim]
            if not claims:
                del self._by_pod[uid]

    def items(self) -> Iterator[tuple[Key, T]]:
        """Yield each claim with what was assumed last, sorted by claim."""
        for claim, uids in sorted(self._pods.items()):
            yield claim, self._by_pod[next(reversed(uids))][claim]
