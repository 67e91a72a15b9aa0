"""What a PodGroup takes from the template that it refers to, where it says nothing itself.

In its old versions a PodGroup may only name a template of a Workload. It gets what the template
says, once, when it is made: from then on it stands for itself, whatever becomes of the Workload.
Whom it may preempt is no matter of either: that comes from its priority class.

LimitRanges: what a container, a pod or a claim of a namespace gets, may and must ask for.

Two steps of admission. `add_limits` comes before all other steps that change a pod, so that they
and the quality of service see it whole; `check_limits` comes after the rules of the kind, as in
Kubernetes, and before quotas. Both read what is committed. A LimitRange looks at one object alone;
what all of them may hold together is for `quotas.py`.

The steps between an object that was read and one that is stored: may it be, and what is added.

A table of steps, each for some kinds, in order; each changes the object in place or refuses. They
read what is committed, so a class or namespace that was acknowledged is there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from phalanx.api.conversion.hub import VERSION_MAPPINGS
from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, not_found
from phalanx.api.kinds import (
    LIMIT_RANGE,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.quantity import exact_value
from phalanx.api.scheduling import POD_GROUP_PROTECTION_FINALIZER
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, forbidden_error, not_found_error
from phalanx.server.request_info import RequestInfo
from phalanx.server.resource_quotas import Usage, format_milli, pod_requests_and_limits
from phalanx.store.kv import KeyValue

#: The kinds whose objects may leave it at a reference.
_TEMPLATE_REF_KINDS = (POD_GROUP_V1ALPHA1, POD_GROUP_V1ALPHA2)
_MISSING_WORKLOAD_HINT = "create it first, or give the PodGroup a schedulingPolicy of its own"


def fill_from_template(
    context: ServerContext, call: RequestInfo, obj: Object, old: Object | None
) -> Causes:
    """Add in place what a stored PodGroup leaves to its template, or what is wrong with that.

    One that was completed once stays so: an update that leaves it at the reference keeps what is.
    """
    if call.kind not in _TEMPLATE_REF_KINDS:
        return ()
    spec = obj.get("spec", {})
    reference = spec.get("workloadRef", {})
    workload, template = reference.get("workloadName"), reference.get("templateName")
    if spec.get("schedulingPolicy") or not (workload and template):
        return ()
    if old is not None:
        return _copy_missing_fields(spec, old["spec"])
    record = context.store.get(WORKLOAD.store_key(call.namespace, workload))
    if record is None and context.store.get(NAMESPACE.store_key("", call.namespace)) is None:
        return ()  # Admission has a better word for that.
    if record is None:
        detail = (
            f'no Workload of that name in namespace "{call.namespace}"; {_MISSING_WORKLOAD_HINT}'
        )
        return [not_found("spec.workloadRef.workloadName", workload, detail)]
    found = next(
        (t for t in _pod_group_templates(decode_record(record)["spec"]) if t["name"] == template),
        None,
    )
    if found is None:
        detail = f'Workload "{workload}" has no template of that name for pod groups'
        return [not_found("spec.workloadRef.templateName", template, detail)]
    if found.get("preemptionPolicy") == "Never" and not _template_priority_class(spec, found):
        call.warnings.append(
            f'the preemptionPolicy of template "{template}" is not taken: only a PriorityClass '
            "can say that a PodGroup preempts nobody"
        )
    return _copy_missing_fields(spec, found, exclude=("name", "preemptionPolicy"))


def _template_priority_class(spec: Object, found: Object) -> str:
    return str(spec.get("priorityClassName") or found.get("priorityClassName") or "")


def _copy_missing_fields(spec: Object, source: Object, exclude: Collection[str] = ()) -> Causes:
    spec.pop("schedulingPolicy", None)
    for field, value in source.items():
        if field not in exclude:
            spec.setdefault(field, value)
    return ()


def _pod_group_templates(spec: Object) -> Iterator[Object]:
    """The templates of pod groups in a Workload or below a composite template."""
    yield from spec.get("podGroupTemplates") or ()
    for composite in spec.get("compositePodGroupTemplates") or ():
        yield from _pod_group_templates(composite)


LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
#: What is said of which containers, in the order of the annotation.
_CONTAINER_FIELDS = (("containers", "container"), ("initContainers", "init container"))
#: Which types of limits are for objects of which kind.
_LIMIT_TYPES: Mapping[Kind, tuple[str, ...]] = {
    POD: ("Container", "Pod"),
    PERSISTENT_VOLUME_CLAIM: ("PersistentVolumeClaim",),
}

Quantities = dict[str, str]
#: What one container, pod or claim asks for and may use, by `request` and `limit`.
StatedResources = Mapping[str, Quantities]


class _LimitBound(NamedTuple):
    """One bound, and what is stated there: `request`, `limit`, both or neither."""

    resource: str
    limit_type: str
    amount: str
    stated: Mapping[str, str]


#: Why what is stated is out of bounds, or nothing.
BoundCheck = Callable[[_LimitBound], str]


def add_limits(context: ServerContext, call: RequestInfo, pod: Object) -> None:
    """Have containers ask for and be limited to what the namespace says, where they do not say."""
    items = _limit_items(context, call.namespace, ("Container",))
    requests: Quantities = {}
    limits: Quantities = {}
    for item in items:
        requests = {**item.get("defaultRequest", {}), **requests}
        limits = {**item.get("default", {}), **limits}
    if not items:
        return
    notes = [
        note
        for part, word in _CONTAINER_FIELDS
        for container in pod["spec"].get(part, ())
        for note in _apply_defaults(container, word, requests, limits)
    ]
    if notes:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[LIMIT_RANGER_ANNOTATION] = "LimitRanger plugin set: " + "; ".join(notes)


def check_limits(
    context: ServerContext, call: RequestInfo, new: Object, old: Object | None = None
) -> None:
    """Refuse an object that is out of bounds; not a pod that is there, nor what is going away."""
    is_let_be = old is not None and (call.kind is POD or "deletionTimestamp" in old["metadata"])
    if call.kind not in _LIMIT_TYPES or call.subresource or is_let_be:
        return
    items = _limit_items(context, call.namespace, _LIMIT_TYPES[call.kind])
    if found := list(dict.fromkeys(why for item in items for why in _violations(item, new))):
        told = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise forbidden_error(call.kind, new["metadata"]["name"], told)


def _limit_items(
    context: ServerContext, namespace: str, limit_types: tuple[str, ...]
) -> list[Object]:
    """What the LimitRanges of a namespace say about some types, in the order of their names."""
    return [
        item
        for record in context.store.range(LIMIT_RANGE.store_prefix(namespace))
        for item in decode_record(record)["spec"].get("limits") or ()
        if item["type"] in limit_types
    ]


def _apply_defaults(
    container: Object, label: str, requests: Quantities, limits: Quantities
) -> Iterator[str]:
    """Complete the resources of a container; say what was added."""
    resources = container.setdefault("resources", {})
    for part, defaults in (("request", requests), ("limit", limits)):
        stated = resources.get(f"{part}s") or {}
        added = {name: amount for name, amount in defaults.items() if name not in stated}
        if added:
            resources[f"{part}s"] = {**stated, **added}
            yield f"{', '.join(sorted(added))} {part} for {label} {container['name']}"


def _violations(item: Object, obj: Object) -> Iterator[str]:
    """What of an object is out of the bounds of one type."""
    row = _LIMIT_TYPE_RULES[item["type"]]
    for asked in row.resources_of(obj, item):
        for part, judge in row.checks:
            for name, amount in item.get(part, {}).items():
                stated = {word: known[name] for word, known in asked.items() if name in known}
                if why := judge(_LimitBound(name, item["type"], amount, stated)):
                    yield why


# ---- what is asked -------------------------------------------------------------------------------


def _container_resources(pod: Object, item: Object) -> Iterator[StatedResources]:
    for sort, _ in _CONTAINER_FIELDS:
        for container in pod["spec"].get(sort, ()):
            resources = container.get("resources") or {}
            yield {part: resources.get(f"{part}s") or {} for part in ("request", "limit")}


def _pod_resources(pod: Object, item: Object) -> Iterator[StatedResources]:
    """Sums, written in the style of the bounds that they are held against."""
    styles = {**item.get("min", {}), **item.get("max", {})}

    def shown(total: Usage) -> Quantities:
        return {name: format_milli(amount, styles.get(name, "")) for name, amount in total.items()}

    requests, limits = pod_requests_and_limits(pod)
    yield {"request": shown(requests), "limit": shown(limits)}


def _claim_resources(claim: Object, item: Object) -> Iterator[StatedResources]:
    yield {"request": (claim["spec"].get("resources") or {}).get("requests") or {}}


# ---- how it is judged ----------------------------------------------------------------------------


def _bound_check(
    label: str, is_beyond: Callable[[Fraction, Fraction], bool], *parts: str
) -> BoundCheck:
    """A judge to whom the first of these parts must be stated, and none be beyond the bound."""

    def judge(bound: _LimitBound) -> str:
        told = f"{label} {bound.resource} usage per {bound.limit_type} is {bound.amount}"
        if parts[0] not in bound.stated:
            return f"{told}.  No {parts[0]} is specified"
        for part in parts:
            stated = bound.stated.get(part, bound.amount)
            if is_beyond(exact_value(stated), exact_value(bound.amount)):
                return f"{told}, but {part} is {stated}"
        return ""

    return judge


def _check_ratio(bound: _LimitBound) -> str:
    told = f"{bound.resource} max limit to request ratio per {bound.limit_type} is {bound.amount}"
    request, limit = (exact_value(bound.stated.get(part, "0")) for part in ("request", "limit"))
    for part, stated in (("request", request), ("limit", limit)):
        if not stated:
            return f"{told}, but no {part} is specified or {part} is 0"
    given = limit / request
    return (
        f"{told}, but provided ratio is {float(given):f}"
        if given > exact_value(bound.amount)
        else ""
    )


class _LimitType(NamedTuple):
    """How limits of one type are enforced: on what, and which part of them by whom."""

    resources_of: Callable[[Object, Object], Iterator[StatedResources]]
    checks: tuple[tuple[str, BoundCheck], ...]


_MINIMUM = ("min", _bound_check("minimum", operator.lt, "request", "limit"))
_MAXIMUM = ("max", _bound_check("maximum", operator.gt, "limit", "request"))
_MAXIMUM_REQUEST = ("max", _bound_check("maximum", operator.gt, "request"))
_RATIO = ("maxLimitRequestRatio", _check_ratio)

_LIMIT_TYPE_RULES: Mapping[str, _LimitType] = {
    "Container": _LimitType(_container_resources, (_MINIMUM, _MAXIMUM, _RATIO)),
    "Pod": _LimitType(_pod_resources, (_MINIMUM, _MAXIMUM, _RATIO)),
    "PersistentVolumeClaim": _LimitType(_claim_resources, (_MINIMUM, _MAXIMUM_REQUEST)),
}


AdmissionStep = Callable[[ServerContext, RequestInfo, Object], None]

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
#: Namespaces that are always there.
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_DEFAULT_TOLERATION_SECONDS = 300
#: What stored bytes do not hold need not be looked for in what they mean.
_DELETION_TIMESTAMP_BYTES, _GLOBAL_DEFAULT_BYTES = b'"deletionTimestamp"', b'"globalDefault"'
_PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"


def admit(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    """Take a new object through every step that concerns its kind."""
    for step in (*_COMMON_STEPS, *_KIND_STEPS.get(call.kind.qualified_name, ())):
        step(context, call, obj)


def admit_deletion(call: RequestInfo) -> None:
    """Refuse the deletion of what must stay."""
    if call.kind is NAMESPACE and call.name in SYSTEM_NAMESPACES:
        raise forbidden_error(call.kind, call.name, "this namespace may not be deleted")


def is_terminating_or_missing(context: ServerContext, namespace: str) -> bool:
    """Whether nothing new may come to a namespace: it is being deleted, or not there."""
    record = context.store.get(NAMESPACE.store_key("", namespace))
    return record is None or _is_terminating(record)


def _is_terminating(record: KeyValue) -> bool:
    is_marked = _DELETION_TIMESTAMP_BYTES in record.value
    return is_marked and bool(decode_record(record)["metadata"].get("deletionTimestamp"))


def _object_name(obj: Object) -> str:
    """The name, which the rules ask for only after admission."""
    return str(obj["metadata"].get("name", ""))


def _check_namespace(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    if not call.kind.namespaced:
        return
    record = context.store.get(NAMESPACE.store_key("", call.namespace))
    if record is None:
        raise not_found_error(NAMESPACE, call.namespace)
    if _is_terminating(record):
        why = f"unable to create new content in namespace {call.namespace} because it is being"
        cause = Cause("metadata.namespace", "NamespaceTerminating", f"{why} terminated")
        raise forbidden_error(call.kind, _object_name(obj), f"{why} terminated", (cause,))


def _taint_new_node(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    taints = obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == NOT_READY and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def _add_default_tolerations(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    tolerations = obj["spec"].setdefault("tolerations", [])
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append({
                "key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": _DEFAULT_TOLERATION_SECONDS,
            })  # fmt: skip


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in (
        "", "NoExecute",
    )  # fmt: skip


def _add_protection_finalizer(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if POD_GROUP_PROTECTION_FINALIZER not in finalizers:
        finalizers.append(POD_GROUP_PROTECTION_FINALIZER)


def _check_single_default_class(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    if not obj.get("globalDefault"):
        return
    for other in _default_priority_classes(context):
        name = other["metadata"]["name"]
        if other.get("globalDefault") and name != _object_name(obj):
            why = f"PriorityClass {name} is already marked as default. Only one default can exist"
            raise forbidden_error(PRIORITY_CLASS, _object_name(obj), why)


def _drop_default_preemption_policy(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    """Who writes a version without a preemption policy has not asked for the one by default."""
    if (
        call.kind in VERSION_MAPPINGS
        and obj["spec"].get("preemptionPolicy") == _PREEMPT_LOWER_PRIORITY
    ):
        del obj["spec"]["preemptionPolicy"]


def _set_priority(context: ServerContext, call: RequestInfo, obj: Object) -> None:
    """Priority and preemption policy come from the class, never from the client alone."""
    spec = obj.setdefault("spec", {})
    wanted = _find_priority_class(context, call, obj)
    policy = wanted.get("preemptionPolicy") or _PREEMPT_LOWER_PRIORITY
    value, name = wanted.get("value", 0), _object_name(obj)
    if spec.get("priority", value) != value:
        raise forbidden_error(
            call.kind, name, _priority_mismatch_message(call.kind, spec["priority"], value)
        )
    if spec.get("preemptionPolicy", policy) != policy:
        raise forbidden_error(
            call.kind,
            name,
            (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
                f"provided in {_KIND_LABELS[call.kind.name]} spec; priority admission controller computed "
                f"{policy} from the given PriorityClass name"
            ),
        )
    spec["priority"], spec["preemptionPolicy"] = value, policy
    if wanted.get("metadata"):
        spec["priorityClassName"] = wanted["metadata"]["name"]


_KIND_LABELS = {"Pod": "pod", "PodGroup": "pod group", "CompositePodGroup": "composite pod group"}


def _priority_mismatch_message(kind: Kind, given: int, computed: int) -> str:
    if kind is POD:
        return (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority "
            f"admission controller computed {computed} from the given PriorityClass name"
        )
    return (
        f"priority set in the {_KIND_LABELS[kind.name]} ({given}) must match the priority computed "
        f"({computed}) based on the priority class set in the spec"
    )


def _find_priority_class(context: ServerContext, call: RequestInfo, obj: Object) -> Object:
    name = obj["spec"].get("priorityClassName", "")
    if not name:
        defaults = [c for c in _default_priority_classes(context) if c.get("globalDefault")]
        return min(defaults, key=lambda c: int(c.get("value", 0)), default={})
    record = context.store.get(PRIORITY_CLASS.store_key("", name))
    if record is None:
        why = f"no PriorityClass with name {name} was found"
        raise forbidden_error(call.kind, _object_name(obj), why)
    return decode_record(record)


def _default_priority_classes(context: ServerContext) -> list[dict[str, Any]]:
    """Those that may be the default."""
    records = context.store.range(PRIORITY_CLASS.store_prefix())
    return [decode_record(record) for record in records if _GLOBAL_DEFAULT_BYTES in record.value]


_COMMON_STEPS: tuple[AdmissionStep, ...] = (_check_namespace,)
_KIND_STEPS: Mapping[str, tuple[AdmissionStep, ...]] = {
    "Node": (_taint_new_node,),
    "Pod": (add_limits, _set_priority, _add_default_tolerations),
    "PodGroup.scheduling.k8s.io": (
        _drop_default_preemption_policy,
        _set_priority,
        _add_protection_finalizer,
    ),
    "CompositePodGroup.scheduling.k8s.io": (_set_priority,),
    "PriorityClass.scheduling.k8s.io": (_check_single_default_class,),
}
