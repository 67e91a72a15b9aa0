"""The cluster of the oracle: nodes with lists of pods on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from phalanx.api.core import Node, Pod
from phalanx.api.resources import pod_requests, scored_requests
from tests.scheduler.oracle_settings import Settings


@dataclass
class Machine:
    """A node and what is on it."""

    node: Node
    room: dict[str, int]
    pods: list[Pod] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)
    #: The same without those who were only promised a place, if there are any.
    bare: Machine | None = None

    @property
    def labels(self) -> dict[str, str]:
        return self.node.metadata.labels

    def add(self, pod: Pod) -> None:
        self.pods.append(pod)
        self.used.update(pod_requests(pod))
        self.scored.update(scored_requests(pod))
        if self.bare:
            self.bare.add(pod)

    def images(self) -> dict[str, int]:
        return {name: one.size_bytes for one in self.node.status.images for name in one.names}

    def ports(self) -> Iterator[tuple[str, str, int]]:
        for pod in self.pods:
            for container in pod.spec.containers:
                for port in container.ports:
                    if port.host_port:
                        yield port.host_ip or "0.0.0.0", port.protocol, port.host_port


@dataclass
class World:
    """All nodes by name, the labels of namespaces, the selectors of services; how to place.

    `bare` is the same without those who were only promised a place: whoever comes must be allowed
    in both.
    """

    machines: dict[str, Machine]
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    services: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    bare: World | None = None

    def besides(self, bare: World) -> World:
        """This world, which has some more pods than another that is kept along with it."""
        self.bare = bare
        for name, machine in self.machines.items():
            machine.bare = bare.machines[name]
        return self

    def residents(self) -> Iterator[tuple[Machine, Pod]]:
        for machine in self.machines.values():
            for pod in machine.pods:
                yield machine, pod
