"""Finds the scheduling objects of an owner: by reference, never by name.

    a Workload that refers to the owner and has    is
    this owner, by uid, as its controller          owned: created, resized and recreated by us
    no controller and no managed-by annotation     the user's: used as it is, never changed
    anything else                                  ignored: a leftover, or another controller's

The same holds for the PodGroups and CompositePodGroups of that Workload. If more than one object is
usable, none is used: the owner falls back to pods without a group, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from phalanx.api.meta import ObjectMeta
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    CompositePodGroup,
    PodGroup,
    Workload,
)

SchedulingObjectT = TypeVar("SchedulingObjectT", Workload, PodGroup, CompositePodGroup)


@dataclass(frozen=True, slots=True)
class Fallback:
    """Why pods are scheduled without a group: the reason of an event or condition, and its text."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ObjectFound(Generic[SchedulingObjectT]):
    """Exactly one object is usable; `is_owned` if the owner controls it."""

    obj: SchedulingObjectT
    is_owned: bool


@dataclass(frozen=True, slots=True)
class ObjectMissing:
    """No object is usable."""


@dataclass(frozen=True, slots=True)
class ObjectUnusable(Generic[SchedulingObjectT]):
    """The usable objects are ambiguous or malformed: pods are scheduled without a group.

    `redundant` is the owner's own object if the only other one is the user's.
    """

    fallback: Fallback
    redundant: SchedulingObjectT | None = None


LookupResult = ObjectFound[SchedulingObjectT] | ObjectMissing | ObjectUnusable[SchedulingObjectT]


def find_usable(
    candidates: Sequence[SchedulingObjectT],
    owner_uid: str,
    *,
    plural: str,
    owner_kind: str,
    include_terminating: bool = False,
) -> LookupResult[SchedulingObjectT]:
    """Find the only candidate that the owner controls or that the user has created.

    A terminating PodGroup counts (`include_terminating`): its finalizer keeps it as long as it has
    members.
    """
    usable = [
        one
        for one in candidates
        if _is_usable(one.metadata, owner_uid)
        and (include_terminating or not one.metadata.deletion_timestamp)
    ]
    if not usable:
        return ObjectMissing()
    if len(usable) == 1:
        return ObjectFound(usable[0], is_owned=usable[0].metadata.controller is not None)
    owned = [one for one in usable if one.metadata.controller]
    names = ", ".join(sorted(one.metadata.name for one in usable))
    text = f"{len(usable)} {plural} refer to the {owner_kind}: {names}"
    redundant = owned[0] if len(owned) == 1 and len(usable) == 2 else None
    return ObjectUnusable(Fallback(f"Ambiguous{plural.removesuffix('s')}", text), redundant)


def _is_usable(meta: ObjectMeta, owner_uid: str) -> bool:
    controller = meta.controller
    if controller is not None:
        return controller.uid == owner_uid
    return MANAGED_BY_ANNOTATION not in meta.annotations
