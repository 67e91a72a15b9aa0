"""What can happen in an ordeal, as values: users, kubelets and administrators act, things break.

What users do are mostly the `Create`, `Patch` and `Delete` that controllers are made of; here is
the rest. A step that has nothing to act upon when its time comes does nothing, so that any part of
a plan can be run by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.meta import Key
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from tools.faults.channel import RequestFault


@dataclass(frozen=True, slots=True)
class FinishPod:
    """A pod that has a node comes to its end there."""

    pod: Key
    phase: str = "Succeeded"


@dataclass(frozen=True, slots=True)
class BindManually:
    """Somebody gives a pod a node without asking any scheduler."""

    pod: Key
    node: str


@dataclass(frozen=True, slots=True)
class DeleteOrphanedPods:
    """Whatever was on a node that is gone goes too."""

    node: str


@dataclass(frozen=True, slots=True)
class RemoveTerminatingPods:
    """Kubelets are done with so many of those who are leaving: these are gone for good."""

    max_pods: int


@dataclass(frozen=True, slots=True)
class StartScheduler:
    """A scheduler comes up, knowing nothing; there may be another."""

    slot: int


@dataclass(frozen=True, slots=True)
class StopScheduler:
    """A scheduler dies, whatever it was doing."""

    slot: int


@dataclass(frozen=True, slots=True)
class DelayWatches:
    """A scheduler hears of everything so many seconds late from now on."""

    slot: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DuplicateEvents:
    """A scheduler hears of everything twice from now on, or not any more."""

    slot: int
    on: bool


@dataclass(frozen=True, slots=True)
class BreakWatches:
    """The watches of a scheduler break off; if the past is forgotten meanwhile, it must list."""

    slot: int
    forget: bool


@dataclass(frozen=True, slots=True)
class FailBinds:
    """Something happens to the next binds of a scheduler."""

    slot: int
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class FailEvictions:
    """Something happens to the next evictions of a scheduler."""

    slot: int
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class FailRequests:
    """For some seconds a share of all requests of a scheduler goes wrong."""

    slot: int
    seconds: float
    share: float
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class SlowCommits:
    """Commits take up to so many seconds from now on."""

    seconds: float


UserAction = (
    Create | Patch | Delete | FinishPod | BindManually | DeleteOrphanedPods | RemoveTerminatingPods
)
InjectedFault = (
    StartScheduler
    | StopScheduler
    | DelayWatches
    | DuplicateEvents
    | BreakWatches
    | FailBinds
    | FailEvictions
    | FailRequests
    | SlowCommits
)


class PlanStep(NamedTuple):
    """What happens at a time, in seconds from the beginning."""

    at: float
    action: UserAction | InjectedFault
