"""What a scheduling configuration says, whatever level of a workload it is for.

    SchedulingConfig
      policy             Basic | Gang            how the members of a group are scheduled
      topology           label keys              what all of them must share
      disruption_mode    Single | All            what goes when one of them must go
      resource_claims    ResourceClaim …         devices that pods of the group share
      priority_class_name, priority, preemption_policy

A group of pods and a group of groups are described alike; which of the two it is, `template.py`
decides when it writes a configuration down. A policy or mode that is not known here is kept as it
stands (`Unknown`): it is refused later, and never lost. The classes also name what a controller
supports (`allowlist.py`). Only values; nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Basic:
    """Each member by itself, as ever."""

    member: ClassVar[str] = "basic"


@dataclass(frozen=True, slots=True)
class Gang:
    """All or nothing, from so many members on: pods of a group, groups of a composite.

    None leaves the number to the controller.
    """

    member: ClassVar[str] = "gang"
    min_count: int | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """Members can be disrupted one by one."""

    member: ClassVar[str] = "single"


@dataclass(frozen=True, slots=True)
class All:
    """Members are disrupted together."""

    member: ClassVar[str] = "all"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A policy or mode that is none of the known ones, or several at once: as the user wrote it."""

    block: Mapping[str, Any]


Policy = Basic | Gang | Unknown
DisruptionMode = Single | All | Unknown
#: What a controller can say that it supports.
Option = type[Basic] | type[Gang] | type[Single] | type[All]


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim for devices, by its name or by the template that it is made of."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulingConfig:
    """How one group is to be scheduled; what is left out says nothing.

    >>> SchedulingConfig(policy=Gang(min_count=4), topology=("topology.kubernetes.io/rack",)).policy
    Gang(min_count=4)
    """

    policy: Policy | None = None
    topology: tuple[str, ...] = ()
    disruption_mode: DisruptionMode | None = None
    resource_claims: tuple[ResourceClaim, ...] = ()
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""

    def overridden_by(self, other: SchedulingConfig) -> SchedulingConfig:
        """This, with each piece that the other one speaks of as the other says: wholly, or not.

        >>> default = SchedulingConfig(policy=Gang(4), topology=("zone",))
        >>> default.overridden_by(SchedulingConfig(policy=Gang()))
        ... # doctest: +ELLIPSIS
        SchedulingConfig(policy=Gang(min_count=None), topology=('zone',), ...)
        """
        pieces = {}
        for piece in fields(self):
            said = getattr(other, piece.name)
            pieces[piece.name] = getattr(self, piece.name) if said in _UNSAID else said
        return SchedulingConfig(**pieces)


#: How a configuration says nothing about a piece; a priority of zero says something.
_UNSAID = (None, (), "")
#: Says nothing at all.
SILENT = SchedulingConfig()
