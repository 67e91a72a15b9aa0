"""What a PodGroup takes from the template that it refers to, where it says nothing itself.

In its old versions a PodGroup may only name a template of a Workload. It gets what the template
says, once, when it is made: from then on it stands for itself, whatever becomes of the Workload.
Whom it may preempt is no matter of either: that comes from its priority class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from phalanx.api.causes import Causes, not_found
from phalanx.api.kinds import NAMESPACE, POD_GROUP_V1ALPHA1, POD_GROUP_V1ALPHA2, WORKLOAD
from phalanx.api.wire import Object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import decoded

#: The kinds whose objects may leave it at a reference.
_REFERRING = (POD_GROUP_V1ALPHA1, POD_GROUP_V1ALPHA2)
_ADVICE = "create it first, or give the PodGroup a schedulingPolicy of its own"


def complete(context: Context, call: Call, obj: Object, old: Object | None) -> Causes:
    """Add in place what a stored PodGroup leaves to its template, or what is wrong with that.

    One that was completed once stays so: an update that leaves it at the reference keeps what is.
    """
    if call.kind not in _REFERRING:
        return ()
    spec = obj.get("spec", {})
    reference = spec.get("workloadRef", {})
    workload, template = reference.get("workloadName"), reference.get("templateName")
    if spec.get("schedulingPolicy") or not (workload and template):
        return ()
    if old is not None:
        return _take(spec, old["spec"])
    record = context.store.get(WORKLOAD.key(call.namespace, workload))
    if record is None and context.store.get(NAMESPACE.key("", call.namespace)) is None:
        return ()  # Admission has a better word for that.
    if record is None:
        detail = f'no Workload of that name in namespace "{call.namespace}"; {_ADVICE}'
        return [not_found("spec.workloadRef.workloadName", workload, detail)]
    found = next((t for t in _templates(decoded(record)["spec"]) if t["name"] == template), None)
    if found is None:
        detail = f'Workload "{workload}" has no template of that name for pod groups'
        return [not_found("spec.workloadRef.templateName", template, detail)]
    if found.get("preemptionPolicy") == "Never" and not _class_of(spec, found):
        call.warnings.append(
            f'the preemptionPolicy of template "{template}" is not taken: only a PriorityClass '
            "can say that a PodGroup preempts nobody"
        )
    return _take(spec, found, but=("name", "preemptionPolicy"))


def _class_of(spec: Object, found: Object) -> str:
    return str(spec.get("priorityClassName") or found.get("priorityClassName") or "")


def _take(spec: Object, said: Object, but: Collection[str] = ()) -> Causes:
    spec.pop("schedulingPolicy", None)
    for field, value in said.items():
        if field not in but:
            spec.setdefault(field, value)
    return ()


def _templates(spec: Object) -> Iterator[Object]:
    """The templates of pod groups in a Workload or below a composite template."""
    yield from spec.get("podGroupTemplates") or ()
    for composite in spec.get("compositePodGroupTemplates") or ():
        yield from _templates(composite)
