"""The steps between an object that was read and one that is stored: may it be, and what is added.

A table of steps, each for some kinds, in order; each changes the object in place or refuses. They
read what is committed, so a class or namespace that was acknowledged is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phalanx.api.errors import Cause
from phalanx.api.kinds import NAMESPACE, POD, PRIORITY_CLASS, Kind
from phalanx.api.scheduling import PROTECTION_FINALIZER
from phalanx.api.versions.workload import VERSIONS
from phalanx.api.wire import Object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.limitranges import add_limits
from phalanx.server.objects import decoded, forbidden, not_found
from phalanx.store.kv import Record

Step = Callable[[Context, Call, Object], None]

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
#: Namespaces that are always there.
LASTING = ("default", "kube-system", "kube-public", "kube-node-lease")
_EVICTION_SECONDS = 300
#: What stored bytes do not hold need not be looked for in what they mean.
_DELETED, _DEFAULT = b'"deletionTimestamp"', b'"globalDefault"'
_PREEMPTS = "PreemptLowerPriority"


def admit(context: Context, call: Call, obj: Object) -> None:
    """Take a new object through every step that concerns its kind."""
    for step in (*_EVERY, *_STEPS.get(call.kind.qualified, ())):
        step(context, call, obj)


def admit_deletion(call: Call) -> None:
    """Refuse the deletion of what must stay."""
    if call.kind is NAMESPACE and call.name in LASTING:
        raise forbidden(call.kind, call.name, "this namespace may not be deleted")


def is_closing(context: Context, namespace: str) -> bool:
    """Whether nothing new may come to a namespace: it is being deleted, or not there."""
    record = context.store.get(NAMESPACE.key("", namespace))
    return record is None or _is_ending(record)


def _is_ending(record: Record) -> bool:
    is_marked = _DELETED in record.value
    return is_marked and bool(decoded(record)["metadata"].get("deletionTimestamp"))


def _name(obj: Object) -> str:
    """The name, which the rules ask for only after admission."""
    return str(obj["metadata"].get("name", ""))


def _namespace_is_there(context: Context, call: Call, obj: Object) -> None:
    if not call.kind.namespaced:
        return
    record = context.store.get(NAMESPACE.key("", call.namespace))
    if record is None:
        raise not_found(NAMESPACE, call.namespace)
    if _is_ending(record):
        why = f"unable to create new content in namespace {call.namespace} because it is being"
        cause = Cause("metadata.namespace", "NamespaceTerminating", f"{why} terminated")
        raise forbidden(call.kind, _name(obj), f"{why} terminated", (cause,))


def _node_is_not_ready_yet(context: Context, call: Call, obj: Object) -> None:
    taints = obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == NOT_READY and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def _tolerates_short_outages(context: Context, call: Call, obj: Object) -> None:
    tolerations = obj["spec"].setdefault("tolerations", [])
    for key in (NOT_READY, UNREACHABLE):
        if not any(_covers(toleration, key) for toleration in tolerations):
            tolerations.append({
                "key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": _EVICTION_SECONDS,
            })  # fmt: skip


def _covers(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in (
        "", "NoExecute",
    )  # fmt: skip


def _is_protected(context: Context, call: Call, obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if PROTECTION_FINALIZER not in finalizers:
        finalizers.append(PROTECTION_FINALIZER)


def _is_the_only_default(context: Context, call: Call, obj: Object) -> None:
    if not obj.get("globalDefault"):
        return
    for other in _classes(context):
        name = other["metadata"]["name"]
        if other.get("globalDefault") and name != _name(obj):
            why = f"PriorityClass {name} is already marked as default. Only one default can exist"
            raise forbidden(PRIORITY_CLASS, _name(obj), why)


def _leaves_preemption_to_its_class(context: Context, call: Call, obj: Object) -> None:
    """Who writes a version without a preemption policy has not asked for the one by default."""
    if call.kind in VERSIONS and obj["spec"].get("preemptionPolicy") == _PREEMPTS:
        del obj["spec"]["preemptionPolicy"]


def _priority(context: Context, call: Call, obj: Object) -> None:
    """Priority and preemption policy come from the class, never from the client alone."""
    spec = obj.setdefault("spec", {})
    wanted = _class_of(context, call, obj)
    policy = wanted.get("preemptionPolicy") or _PREEMPTS
    value, name = wanted.get("value", 0), _name(obj)
    if spec.get("priority", value) != value:
        raise forbidden(call.kind, name, _wrong_priority(call.kind, spec["priority"], value))
    if spec.get("preemptionPolicy", policy) != policy:
        raise forbidden(call.kind, name, (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
            f"provided in {_CALLED[call.kind.name]} spec; priority admission controller computed "
            f"{policy} from the given PriorityClass name"
        ))  # fmt: skip
    spec["priority"], spec["preemptionPolicy"] = value, policy
    if wanted.get("metadata"):
        spec["priorityClassName"] = wanted["metadata"]["name"]


_CALLED = {"Pod": "pod", "PodGroup": "pod group", "CompositePodGroup": "composite pod group"}


def _wrong_priority(kind: Kind, given: int, computed: int) -> str:
    if kind is POD:
        return (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority "
            f"admission controller computed {computed} from the given PriorityClass name"
        )
    return (
        f"priority set in the {_CALLED[kind.name]} ({given}) must match the priority computed "
        f"({computed}) based on the priority class set in the spec"
    )


def _class_of(context: Context, call: Call, obj: Object) -> Object:
    name = obj["spec"].get("priorityClassName", "")
    if not name:
        defaults = [c for c in _classes(context) if c.get("globalDefault")]
        return min(defaults, key=lambda c: int(c.get("value", 0)), default={})
    record = context.store.get(PRIORITY_CLASS.key("", name))
    if record is None:
        why = f"no PriorityClass with name {name} was found"
        raise forbidden(call.kind, _name(obj), why)
    return decoded(record)


def _classes(context: Context) -> list[dict[str, Any]]:
    """Those that may be the default."""
    records = context.store.range(PRIORITY_CLASS.prefix())
    return [decoded(record) for record in records if _DEFAULT in record.value]


_EVERY: tuple[Step, ...] = (_namespace_is_there,)
_STEPS: Mapping[str, tuple[Step, ...]] = {
    "Node": (_node_is_not_ready_yet,),
    "Pod": (add_limits, _priority, _tolerates_short_outages),
    "PodGroup.scheduling.k8s.io": (_leaves_preemption_to_its_class, _priority, _is_protected),
    "CompositePodGroup.scheduling.k8s.io": (_priority,),
    "PriorityClass.scheduling.k8s.io": (_is_the_only_default,),
}
