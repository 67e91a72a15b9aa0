"""Keeps the EndpointSlices and Endpoints of Services: informers, queues and reconciles.

    Services, Pods, Nodes, slices, Endpoints ─▶ queue of Services ─▶ slices and Endpoints
    Endpoints written by hand                ─▶ queue of Endpoints ─▶ slices that mirror them

Changes of pods are collected for a moment, so that a rolling update costs few writes. The
controllers are disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import ENDPOINT_SLICE, ENDPOINTS, SERVICE
from phalanx.api.meta import Key
from phalanx.api.other_kinds import Endpoints, EndpointSlice
from phalanx.client.client import Client
from phalanx.controllers.endpoints.addresses import find_endpoints
from phalanx.controllers.endpoints.plans import (
    ENDPOINTS_MANAGED_BY_LABEL,
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    SERVICE_NAME_LABEL,
    SLICE_CONTROLLER,
    is_mirrored,
    plan_endpoints,
    plan_mirror,
    plan_slices,
    slice_labels,
    wanted_slices,
)
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)

_WORKERS = 4
#: Seconds for which changes of the pods, slices and Endpoints of one Service are collected.
_EVENT_DELAY = 0.1


class EndpointSliceController:
    """Writes EndpointSlices and Endpoints of Services until cancelled."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._informers = (
            informers.of(Service),
            informers.of(Pod),
            informers.of(Node),
            informers.of(EndpointSlice),
            informers.of(Endpoints),
        )
        self._services, self._pods = self._informers[0].cache, self._informers[1].cache
        self._nodes, self._slices = self._informers[2].cache, self._informers[3].cache
        self._endpoints = self._informers[4].cache
        self._slices_by_service = self._slices.index(_slice_keys)
        self._services_by_label = self._services.index(_selected_labels)
        self._pods_by_label = self._pods.index(_addressed_labels)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, on_error=treat_conflict_as_stale
        )
        self._mirrors: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile_mirror, on_error=treat_conflict_as_stale
        )
        self._services.subscribe(self._on_service_change)
        self._pods.subscribe(self._on_pod_change)
        self._slices.subscribe(self._on_slice_change)
        self._endpoints.subscribe(self._on_endpoints_change)

    async def run(self) -> None:
        """Keep slices and Endpoints of Services with a selector until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    async def run_mirrors(self) -> None:
        """Mirror Endpoints of Services without a selector until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await self._mirrors.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: the slices and Endpoints of one Service."""
        service = self._services.get(key)
        present = self._slices_by_service[SLICE_CONTROLLER, key]
        endpoints = self._endpoints.get(key)
        if service is None:
            # The garbage collector deletes the slices; Endpoints have no owner. Those that were
            # written by hand stay.
            if endpoints is None or ENDPOINTS_MANAGED_BY_LABEL not in endpoints.metadata.labels:
                return ReconcilePlan()
            return ReconcilePlan([Delete(ENDPOINTS, key, endpoints.metadata.uid)])
        if service.metadata.deletion_timestamp:
            return ReconcilePlan()
        if not service.spec.selector or service.spec.type == "ExternalName":
            return ReconcilePlan()
        pods = [
            pod
            for label in _selected_labels(service)
            for pod in self._pods_by_label[label]
            if service.spec.selector.items() <= pod.metadata.labels.items()
        ]
        found = find_endpoints(service, pods)
        nodes = {
            name: node
            for name in {pod.spec.node_name for pod in pods}
            if (node := self._nodes.get(Key("", name)))
        }
        return ReconcilePlan(
            [
                *plan_slices(
                    SERVICE,
                    service.metadata,
                    slice_labels(service),
                    wanted=wanted_slices(service, found, nodes),
                    present=present,
                ),
                *plan_endpoints(service, found, endpoints),
            ]
        )

    def reconcile_mirror(self, key: Key) -> ReconcilePlan:
        """Plan: the slices that mirror Endpoints."""
        endpoints, service = self._endpoints.get(key), self._services.get(key)
        present = self._slices_by_service[MIRRORING_CONTROLLER, key]
        if endpoints is None or not is_mirrored(endpoints, service):
            return ReconcilePlan(
                [Delete(ENDPOINT_SLICE, one.metadata.key, one.metadata.uid) for one in present]
            )
        return ReconcilePlan(plan_mirror(endpoints, present))

    def _on_service_change(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        if service is not None:
            self._loop.queue.add(service.metadata.key)
            self._mirrors.queue.add(service.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if not self._services:
            return
        # A pod without an address is in no slice.
        for pod in (old, new):
            for label in _addressed_labels(pod) if pod is not None else ():
                for service in self._services_by_label[label]:
                    if pod and service.spec.selector.items() <= pod.metadata.labels.items():
                        self._loop.queue.add_after(service.metadata.key, _EVENT_DELAY)

    def _on_slice_change(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for one in (old, new):
            for manager, key in _slice_keys(one) if one is not None else ():
                if manager == SLICE_CONTROLLER:
                    # Most are our own writes: the Endpoints of the same sync are seen by then.
                    self._loop.queue.add_after(key, _EVENT_DELAY)
                else:
                    self._mirrors.queue.add(key)

    def _on_endpoints_change(self, old: Endpoints | None, new: Endpoints | None) -> None:
        endpoints = new or old
        if endpoints is not None:
            self._loop.queue.add_after(endpoints.metadata.key, _EVENT_DELAY)
            self._mirrors.queue.add(endpoints.metadata.key)


def _slice_keys(one: EndpointSlice) -> list[tuple[str, Key]]:
    labels = one.metadata.labels
    manager, service = labels.get(MANAGED_BY_LABEL, ""), labels.get(SERVICE_NAME_LABEL, "")
    return [(manager, Key(one.metadata.namespace, service))] if manager and service else []


#: A namespace, and a label of pods in it.
LabelKey = tuple[str, str, str]


def _selected_labels(service: Service) -> list[LabelKey]:
    """One of the labels that a selector requires: all pods that it selects have it."""
    selector = service.spec.selector
    return [(service.metadata.namespace, *min(selector.items()))] if selector else []


def _labels(pod: Pod) -> list[LabelKey]:
    namespace = pod.metadata.namespace
    return [(namespace, name, value) for name, value in pod.metadata.labels.items()]


def _addressed_labels(pod: Pod) -> list[LabelKey]:
    return _labels(pod) if pod.status.pod_ips else []
