"""What an object gets without saying it: rows per kind, walked in order, in place.

`apply_defaults` runs on every object that is read, new or changed, and may run again. Before the
rows of a kind it adds what the schema itself tells (`Schema.fill`). `apply_creation` runs once and
gives a new object the state that it begins with, whatever its maker said. What depends on other
objects (priority classes, namespaces) is admission and lives in the server.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from functools import lru_cache

import orjson

from phalanx.api import kinds
from phalanx.api.defaults.job import begin_job, default_cron_job, default_job, default_pod_template
from phalanx.api.defaults.jobset import default_job_set
from phalanx.api.defaults.leaderworkerset import default_leader_worker_set
from phalanx.api.defaults.pod import begin_pod, default_pod
from phalanx.api.defaults.service import begin_service, default_service
from phalanx.api.kinds import RBAC, Kind
from phalanx.api.packing import LONGEST, REMEMBERED, packed
from phalanx.api.schema import schema
from phalanx.api.wire import Object

Default = Callable[[Object], None]
Creation = Callable[[Object, str], None]

_PREEMPTS = "PreemptLowerPriority"
_METADATA = "meta.v1.ObjectMeta"
#: Kinds whose objects come in numbers that say the same, and get the same whatever their metadata.
_ALIKE = (kinds.POD,)
NAME_LABEL = "kubernetes.io/metadata.name"
_BUDGET_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def apply_defaults(kind: Kind, obj: Object) -> None:
    """Add in place what nobody said."""
    if kind in _ALIKE:
        said = packed({key: value for key, value in obj.items() if key != "metadata"})
        if len(said) <= LONGEST:
            schema(_METADATA).fill(obj.setdefault("metadata", {}))
            obj.update(orjson.loads(_completed(kind, said)))
            return
    _complete(kind, obj)


def _complete(kind: Kind, obj: Object) -> None:
    schema(kind.schema).fill(obj)
    for default in _DEFAULTS.get(kind.qualified, ()):
        default(obj)


@lru_cache(maxsize=REMEMBERED)
def _completed(kind: Kind, said: bytes) -> bytes:
    """An object without its metadata, completed: found out once for the same words."""
    obj = {"metadata": {}, **orjson.loads(said)}
    _complete(kind, obj)
    del obj["metadata"]
    return packed(obj)


def apply_creation(kind: Kind, obj: Object, now: str) -> None:
    """Give a new object the state that it begins with."""
    for begin in _CREATION.get(kind.qualified, ()):
        begin(obj, now)


def _label_with_name(obj: Object) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"].setdefault("labels", {})[NAME_LABEL] = name


def _name_range_twice(obj: Object) -> None:
    """The first range of pod addresses stands in two places; who says one says both."""
    spec = obj["spec"]
    first = spec.get("podCIDR") or next(iter(spec.get("podCIDRs", ())), "")
    if first:
        spec["podCIDR"] = first
        if first not in spec.get("podCIDRs", ())[:1]:
            spec["podCIDRs"] = [first]


def _allocate_capacity(obj: Object) -> None:
    status = obj["status"]
    if "allocatable" not in status and "capacity" in status:
        status["allocatable"] = dict(status["capacity"])


def _let_class_preempt(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", _PREEMPTS)


def _let_group_preempt(obj: Object) -> None:
    obj["spec"].setdefault("preemptionPolicy", _PREEMPTS)


def _encode_texts(obj: Object) -> None:
    """Texts are stored as what they encode to, over what was said under the same key."""
    for key, text in obj.pop("stringData", {}).items():
        encoded = binascii.b2a_base64(text.encode(), newline=False).decode()
        obj.setdefault("data", {})[key] = encoded


def _be_opaque(obj: Object) -> None:
    obj.setdefault("type", "Opaque")


def _limit_containers(obj: Object) -> None:
    """What a container may use and gets where it does not say, from the limits for all of them."""
    for limit in obj["spec"].get("limits") or ():
        if limit["type"] == "Container":
            limits = {**limit.get("max", {}), **limit.get("default", {})}
            requests = {**limit.get("min", {}), **limits, **limit.get("defaultRequest", {})}
            limit |= {"default": limits} if limits else {}
            limit |= {"defaultRequest": requests} if requests else {}


def _keep_volume(obj: Object) -> None:
    obj["spec"].setdefault("persistentVolumeReclaimPolicy", "Retain")


def _hold_files(obj: Object) -> None:
    obj["spec"].setdefault("volumeMode", "Filesystem")


def _name_groups(obj: Object) -> None:
    """Roles, users and groups belong to one API group; accounts are of the core one."""
    obj["roleRef"]["apiGroup"] = obj["roleRef"].get("apiGroup") or RBAC
    for subject in obj.get("subjects", ()):
        if subject["kind"] in ("User", "Group"):
            subject["apiGroup"] = subject.get("apiGroup") or RBAC


def _ask_for_one(obj: Object) -> None:
    """A request is for one device, unless it is for another number or for all."""
    for request in obj["spec"].get("devices", {}).get("requests", ()):
        exactly = [request["exactly"]] if "exactly" in request else []
        for wanted in (*exactly, *request.get("firstAvailable", ())):
            if wanted.setdefault("allocationMode", "ExactCount") == "ExactCount":
                wanted.setdefault("count", 1)


def _ask_for_one_in_template(obj: Object) -> None:
    _ask_for_one(obj["spec"])


def _activate(obj: Object, now: str) -> None:
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _forget_status(obj: Object, now: str) -> None:
    obj["status"] = {}


def _have_no_status(obj: Object, now: str) -> None:
    obj.pop("status", None)


def _count_nothing(obj: Object, now: str) -> None:
    obj["status"] = dict.fromkeys(_BUDGET_COUNTS, 0)


def _await_claim(obj: Object, now: str) -> None:
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": now}


def _await_volume(obj: Object, now: str) -> None:
    obj["status"] = {"phase": "Pending"}


#: By the kind as messages call it.
_DEFAULTS: Mapping[str, tuple[Default, ...]] = {
    kinds.NAMESPACE.qualified: (_label_with_name,),
    kinds.NODE.qualified: (_allocate_capacity, _name_range_twice),
    kinds.POD.qualified: (default_pod,),
    kinds.POD_TEMPLATE.qualified: (default_pod_template,),
    kinds.SECRET.qualified: (_encode_texts, _be_opaque),
    kinds.SERVICE.qualified: (default_service,),
    kinds.PERSISTENT_VOLUME.qualified: (_keep_volume, _hold_files),
    kinds.PERSISTENT_VOLUME_CLAIM.qualified: (_hold_files,),
    kinds.LIMIT_RANGE.qualified: (_limit_containers,),
    kinds.JOB.qualified: (default_job,),
    kinds.CRON_JOB.qualified: (default_cron_job,),
    kinds.ROLE_BINDING.qualified: (_name_groups,),
    kinds.CLUSTER_ROLE_BINDING.qualified: (_name_groups,),
    kinds.PRIORITY_CLASS.qualified: (_let_class_preempt,),
    kinds.POD_GROUP.qualified: (_let_group_preempt,),
    kinds.COMPOSITE_POD_GROUP.qualified: (_let_group_preempt,),
    kinds.RESOURCE_CLAIM.qualified: (_ask_for_one,),
    kinds.RESOURCE_CLAIM_TEMPLATE.qualified: (_ask_for_one_in_template,),
    kinds.JOB_SET.qualified: (default_job_set,),
    kinds.LEADER_WORKER_SET.qualified: (default_leader_worker_set,),
}

_CREATION: Mapping[str, tuple[Creation, ...]] = {
    kinds.NAMESPACE.qualified: (_activate,),
    kinds.POD.qualified: (begin_pod,),
    kinds.SERVICE.qualified: (begin_service,),
    kinds.PERSISTENT_VOLUME.qualified: (_await_claim,),
    kinds.PERSISTENT_VOLUME_CLAIM.qualified: (_await_volume,),
    kinds.RESOURCE_QUOTA.qualified: (_forget_status,),
    kinds.JOB.qualified: (begin_job,),
    kinds.CRON_JOB.qualified: (_forget_status,),
    kinds.POD_DISRUPTION_BUDGET.qualified: (_count_nothing,),
    kinds.POD_GROUP.qualified: (_forget_status,),
    kinds.COMPOSITE_POD_GROUP.qualified: (_forget_status,),
    kinds.RESOURCE_CLAIM.qualified: (_forget_status,),
    kinds.JOB_SET.qualified: (_have_no_status,),
    kinds.LEADER_WORKER_SET.qualified: (_have_no_status,),
}
