"""What a scheduler must believe: all that the API showed up to the revisions that it has seen.

Made from the store's log and the revisions of the scheduler's informers, never from what they hold,
so that whatever is lost between the watch and the snapshot comes to light. `instance` adds what the
scheduler has decided and not yet seen come true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.answers import Event
from phalanx.controllers.loop import Informers, Thing
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.sim.tail import Tail

_STRUCTS: Mapping[Kind, type[Any]] = {
    POD: Pod, NODE: Node, POD_GROUP: PodGroup, NAMESPACE: Thing, SERVICE: Service,
    COMPOSITE_POD_GROUP: CompositePodGroup, POD_DISRUPTION_BUDGET: Budget,
}  # fmt: skip


_NOBODY: Mapping[Key, str] = {}


class _Part:
    """One kind: the log, how far of it was seen, and what that amounts to."""

    def __init__(self, log: list[Event[Any]]) -> None:
        self.objects: dict[Key, Any] = {}
        self._log, self._position = log, 0

    def catch_up(self, revision: int) -> None:
        log = self._log
        while self._position < len(log) and log[self._position].revision <= revision:
            event = log[self._position]
            key = event.object.metadata.key
            if event.type == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = event.object
            self._position += 1


class Shadow:
    """Follows one scheduler through its informers."""

    def __init__(self, tail: Tail, informers: Informers) -> None:
        self._parts = {kind: _Part(tail.log[kind]) for kind in _STRUCTS}
        self._informers = informers

    @property
    def pods(self) -> Mapping[Key, Pod]:
        """The pods that it has seen."""
        return self._parts[POD].objects

    def catch_up(self) -> None:
        """See what the scheduler has seen since."""
        for kind, part in self._parts.items():
            part.catch_up(self._informers.of(kind, _STRUCTS[kind]).cache.revision)

    def cluster(
        self, assumed: Mapping[Key, str], promised: Mapping[Key, str] = _NOBODY,
        doomed: Collection[str] = (),
    ) -> Cluster:  # fmt: skip
        """The cluster as it must believe it to be: some pods are as good as bound, have been
        promised a node, or are to be evicted.
        """
        spaces = self._parts[NAMESPACE].objects
        pods = dict(self.pods)
        for key in assumed.keys() & pods.keys():
            pods[key] = _placed(pods[key], assumed[key])
        for key in promised.keys() & pods.keys():
            pods[key] = _promised(pods[key], promised[key])
        return Cluster(
            nodes=list(self._parts[NODE].objects.values()),
            groups=[
                *self._parts[POD_GROUP].objects.values(),
                *self._parts[COMPOSITE_POD_GROUP].objects.values(),
            ],
            pods=list(pods.values()),
            services=list(self._parts[SERVICE].objects.values()),
            namespaces={key.name: space.metadata.labels for key, space in spaces.items()},
            budgets=list(self._parts[POD_DISRUPTION_BUDGET].objects.values()),
            doomed=doomed,
        )


def _placed(pod: Pod, node: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=node))


def _promised(pod: Pod, node: str) -> Pod:
    return replace(pod, status=replace(pod.status, nominated_node_name=node))
