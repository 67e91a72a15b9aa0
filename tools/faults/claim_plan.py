"""Volumes and devices in the plan of a fault run: their objects, and gangs that claim them.

Each gang with claims chooses one row of `CLAIM_SORTS`. Few volumes, devices and attach slots, so
that gangs compete; users delete claims, volumes, devices and classes, and create them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from phalanx.api.kinds import (
    CSI_NODE,
    DEVICE_CLASS,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    STORAGE_CLASS,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from phalanx.controllers.volumes.provisioner import DRIVER, PROVISIONER
from tools.faults.manifests import HOSTNAME

#: The classes: bound at once, volumes that exist on nodes, and volumes that are provisioned.
SHARED, LOCAL, DYNAMIC = "shared", "local", "dynamic"
DEVICE_DRIVER, GPU_CLASS, GPU_TEMPLATE = "gpu.example.com", "gpu", "gpu"
#: An extended resource that devices of the class serve.
SERVED_RESOURCE = "example.com/served"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_WAIT = "WaitForFirstConsumer"
_TAINT = {"key": "broken", "effect": "NoSchedule"}
_EXTRA_VOLUMES = 3
#: Few names of claims that several gangs use.
_COMMON_CLAIMS = ("common-0", "common-1")

Schedule = Callable[[float, Create | Patch | Delete], None]


def storage_class(name: str) -> Object:
    """Return a class of volumes."""
    provisioned = {"delaySeconds": "1.5", "failureRate": "0.3", "topologyKey": HOSTNAME}
    return {
        "metadata": {"name": name},
        "provisioner": PROVISIONER if name == DYNAMIC else _NO_PROVISIONER,
        "volumeBindingMode": "Immediate" if name == SHARED else _WAIT,
        "parameters": provisioned if name == DYNAMIC else {},
    }


def volume(name: str, size: int, node: str = "", *, exclusive: bool = False) -> Object:
    """Return a volume: of one node, or of all; an exclusive one is for one pod at a time."""
    modes = ["ReadWriteOncePod"] if exclusive else ["ReadWriteOnce", "ReadWriteMany"]
    spec: Object = {
        "capacity": {"storage": f"{size}Gi"},
        "accessModes": modes,
        "storageClassName": LOCAL if node else SHARED,
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/{name}"},
    }
    if node:
        term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return {"metadata": {"name": name}, "spec": spec}


def volume_claim(key: Key, storage: str, size: int = 1, *, mode: str = "ReadWriteOnce") -> Object:
    """Return a claim for a volume."""
    return {
        "metadata": {"name": key.name, "namespace": key.namespace},
        "spec": _volume_claim_spec(storage, size, mode),
    }


def _volume_claim_spec(storage: str, size: int, mode: str) -> Object:
    return {
        "accessModes": [mode],
        "resources": {"requests": {"storage": f"{size}Gi"}},
        "storageClassName": storage,
    }


def device_class() -> Object:
    """Return the class of all devices, which serves an extended resource too."""
    expression = f'device.driver == "{DEVICE_DRIVER}"'
    return {
        "metadata": {"name": GPU_CLASS},
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            "extendedResourceName": SERVED_RESOURCE,
        },
    }


def device_requests(count: int = 1) -> Object:
    """Return the spec of a claim for devices."""
    exactly = {"deviceClassName": GPU_CLASS, "count": count}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def slice_spec(rng: Random, node: str, generation: int) -> Object:
    """Return the spec of a ResourceSlice with up to four devices, some tainted."""
    devices: list[Object] = [{"name": f"gpu-{number}"} for number in range(rng.randint(1, 4))]
    for one in devices:
        if rng.random() < 0.1:
            one["taints"] = [_TAINT]
    return {
        "driver": DEVICE_DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "devices": devices,
    }


def attach_limit(rng: Random) -> Object:
    """Return the spec of a CSINode."""
    allocatable = rng.choice((None, {"count": 1}, {"count": 2}, {"count": 4}))
    driver: Object = {"name": DRIVER, "nodeID": "n", "topologyKeys": []}
    if allocatable:
        driver["allocatable"] = allocatable
    return {"drivers": [driver]}


@dataclass
class GangClaims:
    """The claims of one gang: objects to create, and what members and group say about them."""

    key: Key
    rng: Random
    #: What was claimed, with its kind.
    objects: list[tuple[Kind, Object]] = field(default_factory=list)
    group_fields: Object = field(default_factory=dict)
    add: Sequence[Callable[[GangClaims, Object], None]] = ()

    def add_to(self, pod: Object) -> Object:
        """Return a member with its claims; they are appended to `objects`."""
        made = {**pod, "spec": {**pod["spec"]}}
        for add in self.add:
            add(self, made)
        return made

    def claim_volume(self, pod: Object, name: str, storage: str, *, mode: str) -> None:
        """Let a member use a claim for a volume."""
        key = Key(self.key.namespace, name)
        made = volume_claim(key, storage, self.rng.choice((1, 1, 2)), mode=mode)
        if name not in [one["metadata"]["name"] for _, one in self.objects]:
            self.objects.append((PERSISTENT_VOLUME_CLAIM, made))
        source = {"persistentVolumeClaim": {"claimName": name}}
        _append(pod, "volumes", {"name": f"v{len(pod['spec'].get('volumes', []))}", **source})


def _append(pod: Object, field_name: str, entry: Object) -> None:
    pod["spec"][field_name] = [*pod["spec"].get(field_name, []), entry]


def _own_volume(storage: str) -> Callable[[GangClaims, Object], None]:
    def add(claims: GangClaims, pod: Object) -> None:
        claims.claim_volume(
            pod, f"{pod['metadata']['name']}-{storage}", storage, mode="ReadWriteOnce"
        )

    return add


def _common_volume(storage: str, mode: str) -> Callable[[GangClaims, Object], None]:
    def add(claims: GangClaims, pod: Object) -> None:
        claims.claim_volume(pod, f"{claims.key.name}-{mode.lower()}", storage, mode=mode)

    return add


def _exclusive_volume(claims: GangClaims, pod: Object) -> None:
    name = claims.rng.choice(_COMMON_CLAIMS)
    claims.claim_volume(pod, name, SHARED, mode="ReadWriteOncePod")


def _ephemeral_volume(claims: GangClaims, pod: Object) -> None:
    template = {"spec": _volume_claim_spec(DYNAMIC, 1, "ReadWriteOnce")}
    _append(pod, "volumes", {"name": "e", "ephemeral": {"volumeClaimTemplate": template}})


def _named_devices(claims: GangClaims, pod: Object) -> None:
    name = f"{pod['metadata']['name']}-gpu"
    meta = {"name": name, "namespace": claims.key.namespace}
    spec = device_requests(claims.rng.choice((1, 1, 2)))
    claims.objects.append((RESOURCE_CLAIM, {"metadata": meta, "spec": spec}))
    _append(pod, "resourceClaims", {"name": "named", "resourceClaimName": name})


def _common_devices(claims: GangClaims, pod: Object) -> None:
    """Let all members use one claim by its name."""
    name = f"{claims.key.name}-gpu"
    if not claims.objects:
        meta = {"name": name, "namespace": claims.key.namespace}
        claims.objects.append((RESOURCE_CLAIM, {"metadata": meta, "spec": device_requests()}))
    _append(pod, "resourceClaims", {"name": "common", "resourceClaimName": name})


_FROM_TEMPLATE: Object = {"name": "gpu", "resourceClaimTemplateName": GPU_TEMPLATE}


def _template_devices(claims: GangClaims, pod: Object) -> None:
    _append(pod, "resourceClaims", _FROM_TEMPLATE)


def _group_devices(claims: GangClaims, pod: Object) -> None:
    claims.group_fields = {"resourceClaims": [_FROM_TEMPLATE]}
    _append(pod, "resourceClaims", _FROM_TEMPLATE)


def _served_devices(claims: GangClaims, pod: Object) -> None:
    container = pod["spec"]["containers"][0]
    resources: Any = container["resources"]
    more = {SERVED_RESOURCE: "1"}
    changed = {
        "requests": {**resources["requests"], **more},
        "limits": {**resources["limits"], **more},
    }
    pod["spec"]["containers"] = [{**container, "resources": changed}]


#: What the members of a gang claim.
CLAIM_SORTS: tuple[Sequence[Callable[[GangClaims, Object], None]], ...] = (
    (_own_volume(SHARED),),
    (_own_volume(LOCAL),),
    (_own_volume(LOCAL),),
    (_own_volume(DYNAMIC),),
    (_own_volume(DYNAMIC), _own_volume(LOCAL)),
    (_common_volume(DYNAMIC, "ReadWriteMany"),),
    (_common_volume(LOCAL, "ReadWriteMany"),),
    (_exclusive_volume,),
    (_ephemeral_volume,),
    (_named_devices,),
    (_common_devices,),
    (_template_devices,),
    (_template_devices, _own_volume(LOCAL)),
    (_group_devices,),
    (_group_devices, _own_volume(DYNAMIC)),
    (_served_devices,),
)


class ClaimPlan:
    """Schedules the objects of volumes and devices; a seed's generator calls it."""

    def __init__(
        self, rng: Random, schedule: Schedule, nodes: Sequence[str], *, namespaces: Sequence[str]
    ) -> None:
        self._rng, self._schedule, self._nodes = rng, schedule, nodes
        self._volume_count, self._generation = 0, 1
        #: The claims that were created so far.
        self._claims: list[tuple[Kind, Object]] = []
        self._classes = [
            (DEVICE_CLASS, device_class()),
            *((STORAGE_CLASS, storage_class(name)) for name in (SHARED, LOCAL, DYNAMIC)),
        ]
        for kind, made in self._classes:
            schedule(0.0, Create(kind, made))
        for namespace in namespaces:
            meta = {"name": GPU_TEMPLATE, "namespace": namespace}
            template = {"metadata": meta, "spec": {"spec": device_requests()}}
            schedule(0.0, Create(RESOURCE_CLAIM_TEMPLATE, template))
        for node in nodes:
            self._publish_slice(node, 0.0)
            made = {"metadata": {"name": node}, "spec": attach_limit(rng)}
            schedule(0.0, Create(CSI_NODE, made))
            self._create_volume(node)
            self._create_volume("")

    def choose(self, key: Key) -> GangClaims | None:
        """Choose the claims of a gang; some gangs have none."""
        if self._rng.random() < 0.25:
            return None
        return GangClaims(key, self._rng, add=self._rng.choice(CLAIM_SORTS))

    def schedule_claims(self, claims: GangClaims, life: float, spell: float) -> None:
        """Create the claims of a gang, before or after its pods, and delete most of them."""
        for kind, made in claims.objects:
            meta = made["metadata"]
            self._claims.append((kind, made))
            self._schedule(self._rng.uniform(0.0, spell), Create(kind, made))
            if self._rng.random() < 0.8 and meta["name"] not in _COMMON_CLAIMS:
                key = Key(meta["namespace"], meta["name"])
                self._schedule(life + self._rng.uniform(0.0, 3.0), Delete(kind, key, ""))

    def add_volume(self) -> None:
        """Create a volume, which is deleted later."""
        self._create_volume(self._rng.choice((*self._nodes, "")))

    def replace_slice(self) -> None:
        """Publish other devices of a node, or none for a while."""
        node = self._rng.choice(self._nodes)
        self._generation += 1
        if self._rng.random() < 0.3:
            self._schedule(0.0, Delete(RESOURCE_SLICE, Key("", node), ""))
            self._publish_slice(node, self._rng.uniform(0.0, 6.0))
            return
        change = {"spec": slice_spec(self._rng, node, self._generation)}
        self._schedule(0.0, Patch(RESOURCE_SLICE, Key("", node), change))

    def replace_class(self) -> None:
        """Delete a class, and create it again."""
        kind, made = self._rng.choice(self._classes)
        self._schedule(0.0, Delete(kind, Key("", made["metadata"]["name"]), ""))
        self._schedule(self._rng.uniform(0.0, 6.0), Create(kind, made))

    def change_attach_limit(self) -> None:
        """Change how many volumes a node can attach, or do not say it for a while."""
        node = self._rng.choice(self._nodes)
        self._schedule(0.0, Delete(CSI_NODE, Key("", node), ""))
        made = {"metadata": {"name": node}, "spec": attach_limit(self._rng)}
        self._schedule(self._rng.choice((0.01, 4.0)), Create(CSI_NODE, made))

    def replace_claim(self) -> None:
        """Delete a claim of a gang that may live, and mostly create it again."""
        if not self._claims:
            return
        kind, made = self._rng.choice(self._claims[-12:])
        meta = made["metadata"]
        self._schedule(0.0, Delete(kind, Key(meta["namespace"], meta["name"]), ""))
        if self._rng.random() < 0.7:
            self._schedule(self._rng.uniform(0.0, 3.0), Create(kind, made))

    def _publish_slice(self, node: str, after: float) -> None:
        spec = slice_spec(self._rng, node, self._generation)
        self._schedule(after, Create(RESOURCE_SLICE, {"metadata": {"name": node}, "spec": spec}))

    def _create_volume(self, node: str) -> None:
        for _ in range(self._rng.randint(1, _EXTRA_VOLUMES)):
            self._volume_count += 1
            key, size = Key("", f"pv{self._volume_count}"), self._rng.choice((1, 2, 5))
            exclusive = not node and self._rng.random() < 0.4
            made = volume(key.name, size, node, exclusive=exclusive)
            self._schedule(self._rng.uniform(0.0, 1.0), Create(PERSISTENT_VOLUME, made))
            self._schedule(self._rng.uniform(15.0, 60.0), Delete(PERSISTENT_VOLUME, key, ""))
