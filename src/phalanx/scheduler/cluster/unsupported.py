"""What pods may ask for that this scheduler does not give yet.

Such a pod is refused with a reason and never placed as if it had not asked. A row goes when the
feature comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from phalanx.api.core import PodSpec


class PodRow(NamedTuple):
    """Whether a pod asks for it, and how it is called."""

    asked: Callable[[PodSpec], bool]
    what: str


def _volume_claims(spec: PodSpec) -> bool:
    return any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes)


UNSUPPORTED = (
    PodRow(_volume_claims, "volume claims"),
    PodRow(lambda spec: bool(spec.resource_claims), "resource claims"),
)


def unsupported(spec: PodSpec) -> str:
    """The first thing that a pod asks for and does not get, or nothing."""
    return next((row.what for row in UNSUPPORTED if row.asked(spec)), "")
