"""ClaimIndex: which pending pods wait for a claim, of devices or of a volume."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.meta import Key


class ClaimIndex:
    """The claims that pending pods name."""

    def __init__(self) -> None:
        self._pods_by_claim: dict[Key, dict[Key, None]] = {}
        self._claims_by_pod: dict[Key, tuple[Key, ...]] = {}

    def __contains__(self, pod: Key) -> bool:
        return pod in self._claims_by_pod

    def update(self, pod: Key, claims: Iterable[Key]) -> None:
        """Note which claims a pending pod names; none if it is not pending."""
        for claim in self._claims_by_pod.pop(pod, ()):
            del self._pods_by_claim[claim][pod]
            if not self._pods_by_claim[claim]:
                del self._pods_by_claim[claim]
        if named := tuple(dict.fromkeys(claims)):
            self._claims_by_pod[pod] = named
            for claim in named:
                self._pods_by_claim.setdefault(claim, {})[pod] = None

    def pods_of(self, claim: Key) -> list[Key]:
        """Return the pending pods that name a claim."""
        return list(self._pods_by_claim.get(claim, ()))
