"""Admission: one table of the steps that change, refuse or charge an object before it is stored.

Each row of `ADMISSION_STEPS` declares the phase and the operations in which the step runs, the
kinds that it applies to, and the kinds that it reads from the store. Steps of a phase run in the
order of the table; a step changes the object in place, refuses it with an ApiError, or adds writes
to the transaction.

    resolve ─▶ defaulting, field ownership ─▶ mutate ─▶ validation rules ─▶ validate ─▶ charge
                └────────────────── cached for pods (`admission_cache.py`) ──────┘      each time

Steps of the phases `resolve`, `mutate` and `validate` read committed objects. `charge` reads
uncommitted ones too, because two requests must never use the same part of a quota. A step must
read only the kinds that it declares: the admission cache is invalidated by exactly those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from phalanx.api.conversion.hub import causes_in_version
from phalanx.api.errors import Cause, forbidden, not_found
from phalanx.api.kinds import (
    CERTIFICATE_SIGNING_REQUEST,
    COMPOSITE_POD_GROUP,
    IP_ADDRESS,
    KINDS,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_QUOTA,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_CIDR,
    STORAGE_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.scheduling import POD_GROUP_PROTECTION_FINALIZER
from phalanx.api.storage import PV_PROTECTION_FINALIZER, PVC_PROTECTION_FINALIZER
from phalanx.api.wire import Object
from phalanx.server import (
    group_priorities,
    leader_worker_set_pods,
    limit_ranges,
    resource_quotas,
    service_account_admission,
    service_allocator,
    storage_admission,
)
from phalanx.server.context import ServerContext
from phalanx.server.objects import (
    decode_record,
    forbidden_error,
    not_found_error,
    raise_if_invalid,
)
from phalanx.server.request_info import RequestInfo
from phalanx.server.security import certificate_signer
from phalanx.store.kv import KeyValue, StoreWrite

Phase = Literal["resolve", "mutate", "validate", "charge"]
Operation = Literal["CREATE", "UPDATE", "DELETE"]

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
#: The label of namespaces whose claims may have admin access to devices.
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
#: Namespaces that always exist.
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_DEFAULT_TOLERATION_SECONDS = 300
#: Stored bytes without these need not be decoded to know that the field is absent.
_DELETION_TIMESTAMP_BYTES, _GLOBAL_DEFAULT_BYTES = b'"deletionTimestamp"', b'"globalDefault"'
_PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
#: How messages name the kinds that have a priority.
_PRIORITY_KIND_LABELS = {
    "Pod": "pod",
    "PodGroup": "pod group",
    "CompositePodGroup": "composite pod group",
}


class AdmissionRequest(msgspec.Struct):
    """The object that a request wants to store, and the stored one that it replaces.

    `object` is empty when the object is deleted. `writes` are committed together with the object.
    """

    context: ServerContext
    request_info: RequestInfo
    object: Object
    old: Object | None = None
    writes: list[StoreWrite] = msgspec.field(default_factory=list)


class AdmissionStep(NamedTuple):
    """One row of the table; `plugin` is named as in Kubernetes where that has such a plugin."""

    plugin: str
    phase: Phase
    operations: tuple[Operation, ...]
    #: None: every kind.
    kinds: Collection[Kind] | None
    #: None: every kind.
    reads: Collection[Kind] | None
    run: Callable[[AdmissionRequest], None]

    def applies_to(self, phase: Phase, operation: Operation, kind: Kind) -> bool:
        """Whether the step runs for a request of this kind."""
        is_due = self.phase == phase and operation in self.operations
        return is_due and (self.kinds is None or kind in self.kinds)


def run_phase(phase: Phase, operation: Operation, request: AdmissionRequest) -> None:
    """Run the steps of one phase on a request."""
    for run in _steps(phase, operation, request.request_info.kind):
        run(request)


def kinds_read(operation: Operation, *kinds: Kind) -> frozenset[Kind]:
    """The kinds whose objects decide how objects of kinds are admitted, except for charging."""
    phases: tuple[Phase, ...] = ("resolve", "mutate", "validate")
    steps = [
        step
        for step in ADMISSION_STEPS
        if any(step.applies_to(phase, operation, kind) for phase in phases for kind in kinds)
    ]
    return frozenset(
        read for step in steps for read in (KINDS if step.reads is None else step.reads)
    )


@lru_cache(maxsize=4096)
def _steps(
    phase: Phase, operation: Operation, kind: Kind
) -> tuple[Callable[[AdmissionRequest], None], ...]:
    steps = (step for step in ADMISSION_STEPS if step.applies_to(phase, operation, kind))
    return tuple(step.run for step in steps)


# ---- namespaces ----------------------------------------------------------------------------------


def is_terminating_or_missing(context: ServerContext, namespace: str) -> bool:
    """Whether a namespace takes no new objects: it is being deleted, or does not exist."""
    record = context.store.get(NAMESPACE.store_key("", namespace))
    return record is None or _is_terminating(record)


def _is_terminating(record: KeyValue) -> bool:
    is_marked = _DELETION_TIMESTAMP_BYTES in record.value
    return is_marked and bool(decode_record(record)["metadata"].get("deletionTimestamp"))


def check_namespace(request: AdmissionRequest) -> None:
    """Refuse a new object in a namespace that is missing or being deleted."""
    request_info = request.request_info
    if not request_info.kind.namespaced:
        return
    record = request.context.store.get(NAMESPACE.store_key("", request_info.namespace))
    if record is None:
        raise not_found_error(NAMESPACE, request_info.namespace)
    if _is_terminating(record):
        detail = (
            f"unable to create new content in namespace {request_info.namespace} because it is "
            "being terminated"
        )
        cause = Cause("metadata.namespace", "NamespaceTerminating", detail)
        raise forbidden_error(
            request_info.kind, _object_name(request.object), detail, causes=(cause,)
        )


def _protect_system_namespaces(request: AdmissionRequest) -> None:
    request_info = request.request_info
    if request_info.name in SYSTEM_NAMESPACES:
        raise forbidden_error(
            request_info.kind, request_info.name, "this namespace may not be deleted"
        )


def _object_name(obj: Object) -> str:
    # The validation rules that require a name run after the mutating steps.
    return str(obj["metadata"].get("name", ""))


# ---- nodes and pods ------------------------------------------------------------------------------


def _taint_new_node(request: AdmissionRequest) -> None:
    taints = request.object.setdefault("spec", {}).setdefault("taints", [])
    if not any(t.get("key") == NOT_READY and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def _complete_group_pod(request: AdmissionRequest) -> None:
    """Complete a pod of a LeaderWorkerSet, as the webhook of that project does."""
    pod = request.object
    if leader_worker_set_pods.is_group_pod(pod):
        try:
            leader_worker_set_pods.complete_pod(pod)
        except leader_worker_set_pods.IncompletePod as error:
            raise forbidden_error(POD, _object_name(pod), str(error)) from None


def _add_service_account(request: AdmissionRequest) -> None:
    context = request.context
    if context.admits_service_accounts:
        service_account_admission.add_service_account(
            context.store, request.request_info.namespace, request.object
        )


def _add_default_tolerations(request: AdmissionRequest) -> None:
    if request.request_info.subresource:
        return
    tolerations = request.object["spec"].setdefault("tolerations", [])
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _DEFAULT_TOLERATION_SECONDS,
                }
            )


def _tolerates(toleration: Object, key: str) -> bool:
    has_effect = toleration.get("effect", "") in ("", "NoExecute")
    return has_effect and toleration.get("key", "") in ("", key)


# ---- limit ranges and quotas ---------------------------------------------------------------------


def _apply_limit_range_defaults(request: AdmissionRequest) -> None:
    limit_ranges.apply_defaults(
        request.context.store, request.request_info.namespace, request.object
    )


def _check_limit_ranges(request: AdmissionRequest) -> None:
    request_info, old = request.request_info, request.old
    if request_info.subresource or (old is not None and "deletionTimestamp" in old["metadata"]):
        return
    limit_ranges.check_limits(
        request.context.store, request_info.kind, request_info.namespace, obj=request.object
    )


def _recompute_quota_status(request: AdmissionRequest) -> None:
    resource_quotas.recompute_status(request.context, request.old, request.object)


def _charge_quotas(request: AdmissionRequest) -> None:
    request.writes += resource_quotas.quota_writes(
        request.context,
        request.request_info.stored_kind,
        old=request.old,
        new=request.object or None,
    )


# ---- priority ------------------------------------------------------------------------------------


def _drop_default_preemption_policy(request: AdmissionRequest) -> None:
    # Conversion fills in this default for versions that have no such field. The policy of the
    # priority class must win over it.
    spec = request.object["spec"]
    if spec.get("preemptionPolicy") == _PREEMPT_LOWER_PRIORITY:
        del spec["preemptionPolicy"]


def _mark_group_without_priority(request: AdmissionRequest) -> None:
    group_priorities.mark_group(request.object)


def _take_member_priority(request: AdmissionRequest) -> None:
    group_priorities.take_member_priority(request.context.store, request.object)


def _lower_group_priority(request: AdmissionRequest) -> None:
    request.writes += group_priorities.lower_group_priority(request.context.store, request.object)


def _set_priority(request: AdmissionRequest) -> None:
    """Take priority and preemption policy from the PriorityClass; refuse other values."""
    kind, spec = request.request_info.kind, request.object.setdefault("spec", {})
    priority_class = _find_priority_class(request)
    policy = priority_class.get("preemptionPolicy") or _PREEMPT_LOWER_PRIORITY
    value, name = priority_class.get("value", 0), _object_name(request.object)
    if spec.get("priority", value) != value:
        raise forbidden_error(kind, name, _priority_mismatch_message(kind, spec["priority"], value))
    if spec.get("preemptionPolicy", policy) != policy:
        raise forbidden_error(
            kind,
            name,
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
            f"provided in {_PRIORITY_KIND_LABELS[kind.name]} spec; priority admission controller "
            f"computed {policy} from the given PriorityClass name",
        )
    spec["priority"], spec["preemptionPolicy"] = value, policy
    if priority_class.get("metadata"):
        spec["priorityClassName"] = priority_class["metadata"]["name"]


def _keep_priority(request: AdmissionRequest) -> None:
    """Keep the priority of a pod that an update leaves out."""
    assert request.old is not None
    for field in ("priority", "preemptionPolicy"):
        if field in request.old.get("spec", {}):
            request.object.setdefault("spec", {}).setdefault(field, request.old["spec"][field])


def _priority_mismatch_message(kind: Kind, given: int, computed: int) -> str:
    if kind is POD:
        return (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority "
            f"admission controller computed {computed} from the given PriorityClass name"
        )
    return (
        f"priority set in the {_PRIORITY_KIND_LABELS[kind.name]} ({given}) must match the priority "
        f"computed ({computed}) based on the priority class set in the spec"
    )


def _find_priority_class(request: AdmissionRequest) -> Object:
    """The class that the object names, else the global default with the lowest value, else {}."""
    name = request.object["spec"].get("priorityClassName", "")
    if not name:
        defaults = [c for c in _default_priority_classes(request) if c.get("globalDefault")]
        return min(defaults, key=lambda c: int(c.get("value", 0)), default={})
    record = request.context.store.get(PRIORITY_CLASS.store_key("", name))
    if record is None:
        detail = f"no PriorityClass with name {name} was found"
        raise forbidden_error(request.request_info.kind, _object_name(request.object), detail)
    return decode_record(record)


def _default_priority_classes(request: AdmissionRequest) -> list[Object]:
    """The classes that have the field `globalDefault`, true or false."""
    records = request.context.store.range(PRIORITY_CLASS.store_prefix())
    return [decode_record(record) for record in records if _GLOBAL_DEFAULT_BYTES in record.value]


def _check_single_default_class(request: AdmissionRequest) -> None:
    if not request.object.get("globalDefault"):
        return
    for other in _default_priority_classes(request):
        name = other["metadata"]["name"]
        if other.get("globalDefault") and name != _object_name(request.object):
            detail = (
                f"PriorityClass {name} is already marked as default. Only one default can exist"
            )
            raise forbidden_error(PRIORITY_CLASS, _object_name(request.object), detail)


# ---- volumes -------------------------------------------------------------------------------------


def _set_default_storage_class(request: AdmissionRequest) -> None:
    storage_admission.set_default_class(request.context.store, request.object)


def _check_claim_expansion(request: AdmissionRequest) -> None:
    assert request.old is not None
    why = storage_admission.find_expansion_refusal(
        request.context.store, request.old, request.object
    )
    if why:
        raise forbidden_error(PERSISTENT_VOLUME_CLAIM, _object_name(request.object), why)


# ---- services ------------------------------------------------------------------------------------


def _allocate_service_addresses(request: AdmissionRequest) -> None:
    if not request.request_info.subresource:
        service_allocator.allocate(request.context, request.object, request.old)


def _record_service_addresses(request: AdmissionRequest) -> None:
    request.writes += service_allocator.allocation_writes(
        request.context, request.object or None, request.old
    )


# ---- pod groups ----------------------------------------------------------------------------------


def _protect_by(finalizer: str) -> Callable[[AdmissionRequest], None]:
    return lambda request: storage_admission.add_finalizer(request.object, finalizer)


def _resolve_pod_group_template(request: AdmissionRequest) -> None:
    """Copy the fields that a PodGroup leaves to the template of a Workload that it refers to.

    In v1alpha1 and v1alpha2 a PodGroup may consist of a reference only. The fields are copied once,
    on creation: later changes of the Workload do not affect the PodGroup, and an update that
    contains only the reference keeps the stored fields.
    """
    request_info, old = request.request_info, request.old
    spec = request.object.get("spec", {})
    reference = spec.get("workloadRef", {})
    workload, template = reference.get("workloadName"), reference.get("templateName")
    if spec.get("schedulingPolicy") or not (workload and template):
        return
    if old is not None:
        _copy_missing_fields(spec, old["spec"])
        return
    store = request.context.store
    record = store.get(WORKLOAD.store_key(request_info.namespace, workload))
    if record is None:
        if store.get(NAMESPACE.store_key("", request_info.namespace)) is None:
            return  # `check_namespace` reports the missing namespace.
        detail = (
            f'no Workload with this name in namespace "{request_info.namespace}"; create it first, '
            "or set spec.schedulingPolicy"
        )
        _refuse_reference(request, not_found("spec.workloadRef.workloadName", workload, detail))
        return
    templates = _pod_group_templates(decode_record(record)["spec"])
    found = next((t for t in templates if t["name"] == template), None)
    if found is None:
        detail = f'Workload "{workload}" has no PodGroup template with this name'
        _refuse_reference(request, not_found("spec.workloadRef.templateName", template, detail))
        return
    priority_class = spec.get("priorityClassName") or found.get("priorityClassName")
    if found.get("preemptionPolicy") == "Never" and not priority_class:
        request_info.warnings.append(
            f'preemptionPolicy of template "{template}" is ignored: only a PriorityClass can '
            "disable preemption for a PodGroup"
        )
    _copy_missing_fields(spec, found, exclude=("name", "preemptionPolicy"))


def _refuse_reference(request: AdmissionRequest, cause: Cause) -> None:
    kind = request.request_info.kind
    raise_if_invalid(kind, _object_name(request.object), causes_in_version(kind, [cause]))


def _copy_missing_fields(spec: Object, source: Object, exclude: Collection[str] = ()) -> None:
    spec.pop("schedulingPolicy", None)
    for field, value in source.items():
        if field not in exclude:
            spec.setdefault(field, value)


def _pod_group_templates(spec: Object) -> Iterator[Object]:
    """The PodGroup templates of a Workload, including those below composite templates."""
    yield from spec.get("podGroupTemplates") or ()
    for composite in spec.get("compositePodGroupTemplates") or ():
        yield from _pod_group_templates(composite)


def _check_admin_access(request: AdmissionRequest) -> None:
    """Refuse admin access to devices in a namespace without the label that allows it.

    As in Kubernetes the cause names the first such request, and has the path of a claim for
    templates too.
    """
    kind, spec = request.request_info.kind, request.object.get("spec") or {}
    if kind is RESOURCE_CLAIM_TEMPLATE:
        spec = spec.get("spec") or {}
    requests = (spec.get("devices") or {}).get("requests") or ()
    causes = [
        forbidden(
            f"spec.devices.requests[{number}].adminAccess",
            f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the "
            "containing namespace",
        )
        for number, one in enumerate(requests)
        if (one.get("exactly") or {}).get("adminAccess")
    ][:1]
    if causes:
        record = request.context.store.get(NAMESPACE.store_key("", request.request_info.namespace))
        labels = decode_record(record)["metadata"].get("labels") or {} if record else {}
        if labels.get(ADMIN_ACCESS_LABEL) != "true":
            raise_if_invalid(kind, _object_name(request.object), causes)


# ---- the table -----------------------------------------------------------------------------------


def _versions(kind: Kind) -> tuple[Kind, ...]:
    """A kind in all versions that are served."""
    return tuple(other for other in KINDS if other.qualified_name == kind.qualified_name)


_CREATE: tuple[Operation, ...] = ("CREATE",)
_UPDATE: tuple[Operation, ...] = ("UPDATE",)
_DELETE: tuple[Operation, ...] = ("DELETE",)
_ANY_KIND = None
_POD_GROUPS = _versions(POD_GROUP)
_OLD_POD_GROUPS = (POD_GROUP_V1ALPHA1, POD_GROUP_V1ALPHA2)
_PRIORITY_KINDS = (POD, *_POD_GROUPS, *_versions(COMPOSITE_POD_GROUP))
_PRIORITY_CLASSES = _versions(PRIORITY_CLASS)
_CERTIFICATE_REQUESTS = (CERTIFICATE_SIGNING_REQUEST,)

#: Columns: plugin, phase, operations, kinds, kinds that the step reads, function.
ADMISSION_STEPS: tuple[AdmissionStep, ...] = (
    AdmissionStep("PodGroupTemplate", "resolve", _CREATE + _UPDATE, _OLD_POD_GROUPS,
                  (WORKLOAD, NAMESPACE), _resolve_pod_group_template),
    AdmissionStep("NamespaceLifecycle", "mutate", _CREATE, _ANY_KIND,
                  (NAMESPACE,), check_namespace),
    AdmissionStep("NamespaceLifecycle", "validate", _DELETE, (NAMESPACE,),
                  (), _protect_system_namespaces),
    AdmissionStep("TaintNodesByCondition", "mutate", _CREATE, (NODE,),
                  (), _taint_new_node),
    AdmissionStep("LeaderWorkerSet", "mutate", _CREATE, (POD,),
                  (), _complete_group_pod),
    AdmissionStep("CertificateSubject", "mutate", _CREATE, _CERTIFICATE_REQUESTS,
                  (), certificate_signer.set_requester),
    AdmissionStep("CertificateSubjectRestriction", "mutate", _CREATE, _CERTIFICATE_REQUESTS,
                  (), certificate_signer.check_subject_groups),
    AdmissionStep("CertificateApproval", "mutate", _UPDATE, _CERTIFICATE_REQUESTS,
                  (), certificate_signer.check_permission),
    AdmissionStep("CertificateSigning", "mutate", _UPDATE, _CERTIFICATE_REQUESTS,
                  (), certificate_signer.sign_approved_request),
    AdmissionStep("ServiceAccount", "mutate", _CREATE, (POD,),
                  (SERVICE_ACCOUNT,), _add_service_account),
    AdmissionStep("LimitRanger", "mutate", _CREATE, (POD,),
                  (LIMIT_RANGE,), _apply_limit_range_defaults),
    AdmissionStep("Priority", "mutate", _CREATE, _OLD_POD_GROUPS,
                  (), _drop_default_preemption_policy),
    AdmissionStep("Priority", "mutate", _CREATE, _OLD_POD_GROUPS,
                  (), _mark_group_without_priority),
    AdmissionStep("Priority", "mutate", _CREATE, _PRIORITY_KINDS,
                  (PRIORITY_CLASS,), _set_priority),
    AdmissionStep("Priority", "mutate", _UPDATE, (POD,),
                  (), _keep_priority),
    AdmissionStep("Priority", "mutate", _CREATE, _OLD_POD_GROUPS,
                  (POD,), _take_member_priority),
    AdmissionStep("Priority", "charge", _CREATE, (POD,),
                  (), _lower_group_priority),
    AdmissionStep("Priority", "mutate", _CREATE + _UPDATE, _PRIORITY_CLASSES,
                  (PRIORITY_CLASS,), _check_single_default_class),
    AdmissionStep("DefaultTolerationSeconds", "mutate", _CREATE + _UPDATE, (POD,),
                  (), _add_default_tolerations),
    AdmissionStep("PodGroupProtection", "mutate", _CREATE, _POD_GROUPS,
                  (), _protect_by(POD_GROUP_PROTECTION_FINALIZER)),
    AdmissionStep("StorageObjectInUseProtection", "mutate", _CREATE, (PERSISTENT_VOLUME,),
                  (), _protect_by(PV_PROTECTION_FINALIZER)),
    AdmissionStep("StorageObjectInUseProtection", "mutate", _CREATE, (PERSISTENT_VOLUME_CLAIM,),
                  (), _protect_by(PVC_PROTECTION_FINALIZER)),
    AdmissionStep("DefaultStorageClass", "mutate", _CREATE, (PERSISTENT_VOLUME_CLAIM,),
                  (STORAGE_CLASS,), _set_default_storage_class),
    AdmissionStep("PersistentVolumeClaimResize", "validate", _UPDATE, (PERSISTENT_VOLUME_CLAIM,),
                  (STORAGE_CLASS,), _check_claim_expansion),
    AdmissionStep("ServiceAddresses", "mutate", _CREATE + _UPDATE, (SERVICE,),
                  (SERVICE, SERVICE_CIDR, IP_ADDRESS), _allocate_service_addresses),
    AdmissionStep("ServiceAddresses", "charge", _CREATE + _UPDATE + _DELETE, (SERVICE,),
                  (SERVICE, IP_ADDRESS), _record_service_addresses),
    AdmissionStep("LimitRanger", "validate", _CREATE, (POD,),
                  (LIMIT_RANGE,), _check_limit_ranges),
    AdmissionStep("LimitRanger", "validate", _CREATE + _UPDATE, (PERSISTENT_VOLUME_CLAIM,),
                  (LIMIT_RANGE,), _check_limit_ranges),
    AdmissionStep("DRAAdminAccess", "validate", _CREATE, (RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE),
                  (NAMESPACE,), _check_admin_access),
    AdmissionStep("ResourceQuota", "validate", _CREATE + _UPDATE, (RESOURCE_QUOTA,),
                  _ANY_KIND, _recompute_quota_status),
    AdmissionStep("ResourceQuota", "charge", _CREATE + _UPDATE + _DELETE, _ANY_KIND,
                  (RESOURCE_QUOTA,), _charge_quotas),
)  # fmt: skip
