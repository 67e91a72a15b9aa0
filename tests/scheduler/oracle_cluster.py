"""The cluster of the oracle: nodes with lists of pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from phalanx.api.core import Node, Pod
from phalanx.api.resources import nonzero_requests, pod_requests
from tests.scheduler.oracle_settings import OracleSettings


@dataclass
class OracleNode:
    """A node and its pods."""

    node: Node
    allocatable: dict[str, int]
    pods: list[Pod] = field(default_factory=list)
    requested: Counter[str] = field(default_factory=Counter)
    nonzero_requested: Counter[str] = field(default_factory=Counter)
    #: The same node without nominated pods, if there are any.
    without_nominated: OracleNode | None = None

    @property
    def labels(self) -> dict[str, str]:
        return self.node.metadata.labels

    def add(self, pod: Pod) -> None:
        self.pods.append(pod)
        self.requested.update(pod_requests(pod))
        self.nonzero_requested.update(nonzero_requests(pod))
        if self.without_nominated:
            self.without_nominated.add(pod)

    def images(self) -> dict[str, int]:
        return {name: one.size_bytes for one in self.node.status.images for name in one.names}

    def ports(self) -> Iterator[tuple[str, str, int]]:
        for pod in self.pods:
            for container in pod.spec.containers:
                for port in container.ports:
                    if port.host_port:
                        yield port.host_ip or "0.0.0.0", port.protocol, port.host_port


@dataclass
class OracleCluster:
    """All nodes by name, the labels of namespaces, the selectors of Services, the settings.

    `without_nominated` is the same cluster without nominated pods: filters must allow a pod in
    both.
    """

    nodes: dict[str, OracleNode]
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    services: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    settings: OracleSettings = field(default_factory=OracleSettings)
    without_nominated: OracleCluster | None = None

    def with_alternative(self, without_nominated: OracleCluster) -> OracleCluster:
        """Attach the same cluster without nominated pods."""
        self.without_nominated = without_nominated
        for name, node in self.nodes.items():
            node.without_nominated = without_nominated.nodes[name]
        return self

    def assigned_pods(self) -> Iterator[tuple[OracleNode, Pod]]:
        for node in self.nodes.values():
            for pod in node.pods:
                yield node, pod
