"""The steps of a fault run as values.

Most steps of users are the `Create`, `Patch` and `Delete` actions of controllers; this module has
the others. A step without a matching object does nothing, so that any part of a plan can be run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.meta import Key
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from tools.faults.channel import RequestFault


@dataclass(frozen=True, slots=True)
class FinishPod:
    """A bound pod ends."""

    pod: Key
    phase: str = "Succeeded"


@dataclass(frozen=True, slots=True)
class BindManually:
    """A user binds a pod by hand."""

    pod: Key
    node: str


@dataclass(frozen=True, slots=True)
class DeleteOrphanedPods:
    """Pods of deleted nodes are deleted."""

    node: str


@dataclass(frozen=True, slots=True)
class RemoveTerminatingPods:
    """Kubelets finish a number of terminating pods."""

    max_pods: int


@dataclass(frozen=True, slots=True)
class StartScheduler:
    """A scheduler starts with empty caches; another one may run."""

    slot: int


@dataclass(frozen=True, slots=True)
class StopScheduler:
    """A scheduler is killed."""

    slot: int


@dataclass(frozen=True, slots=True)
class DelayWatches:
    """The watches of a scheduler lag from now on."""

    slot: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DuplicateEvents:
    """The watches of a scheduler repeat every event from now on, or stop repeating."""

    slot: int
    on: bool


@dataclass(frozen=True, slots=True)
class BreakWatches:
    """The watches of a scheduler break; with `forget` the store is compacted, so it must list."""

    slot: int
    forget: bool


@dataclass(frozen=True, slots=True)
class FailBinds:
    """The next binds of a scheduler fail in given ways."""

    slot: int
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class FailEvictions:
    """The next evictions of a scheduler fail in given ways."""

    slot: int
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class FailRequests:
    """A share of a scheduler's requests fails for some seconds."""

    slot: int
    seconds: float
    share: float
    faults: tuple[RequestFault, ...]


@dataclass(frozen=True, slots=True)
class SlowCommits:
    """Commits take longer from now on."""

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
    """A step and its time in seconds from the start."""

    at: float
    action: UserAction | InjectedFault
