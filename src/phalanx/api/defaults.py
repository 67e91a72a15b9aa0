"""What an object gets without saying it: rows per kind, walked in order, in place.

`apply_defaults` runs on every object that is read, new or changed, and may run again. Before the
rows of a kind it adds what the schema itself tells (`Schema.fill`). `apply_creation` runs once and
gives a new object the state that it begins with, whatever its maker said. What depends on other
objects (priority classes, namespaces) is admission and lives in the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.api.kinds import KINDS
from phalanx.api.poddefaults import begin_pod, default_pod
from phalanx.api.schema import schema
from phalanx.api.wire import Object

Default = Callable[[Object], None]
Creation = Callable[[Object, str], None]

_PREEMPTS = "PreemptLowerPriority"
NAME_LABEL = "kubernetes.io/metadata.name"


def apply_defaults(kind_name: str, obj: Object) -> None:
    """Add in place what nobody said."""
    schema(_SCHEMAS[kind_name]).fill(obj)
    for default in _DEFAULTS.get(kind_name, ()):
        default(obj)


def apply_creation(kind_name: str, obj: Object, now: str) -> None:
    """Give a new object the state that it begins with."""
    for begin in _CREATION.get(kind_name, ()):
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


def _activate(obj: Object, now: str) -> None:
    finalizers = obj["spec"].setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def _forget_status(obj: Object, now: str) -> None:
    obj["status"] = {}


_SCHEMAS: Mapping[str, str] = {kind.name: kind.schema for kind in reversed(KINDS)}

_DEFAULTS: Mapping[str, tuple[Default, ...]] = {
    "Namespace": (_label_with_name,),
    "Node": (_allocate_capacity, _name_range_twice),
    "Pod": (default_pod,),
    "PriorityClass": (_let_class_preempt,),
    "PodGroup": (_let_group_preempt,),
}

_CREATION: Mapping[str, tuple[Creation, ...]] = {
    "Namespace": (_activate,),
    "Pod": (begin_pod,),
    "PodGroup": (_forget_status,),
}
