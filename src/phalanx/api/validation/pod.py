"""Validation of Pods: creation, updates, subresources and status.

These fields may change after creation; everything else is immutable:

    image of a container                        any image
    activeDeadlineSeconds                       set, or lowered
    tolerations                                 added; tolerationSeconds to any value
    schedulingGates                             removed
    nodeSelector, required node affinity        narrowed, while the pod has gates
    preferred node affinity                     any change, while the pod has gates
    terminationGracePeriodSeconds               from a negative number to 1

The subresources `resize` and `ephemeralcontainers` are checked for their own fields only: the
server resets all other fields to the stored object first (`server/request_bodies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.defaults.pod import qos_class
from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_found,
    prefix_causes,
)
from phalanx.api.formats import (
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    cached,
    each,
    find_duplicate_items,
    if_changed,
    if_present,
    on_create,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.containers import COMMON_CONTAINER_FIELDS
from phalanx.api.validation.pod_spec import CONTAINER_FIELDS, POD_SPEC
from phalanx.api.validation.resources import check_resources
from phalanx.api.validation.volumes import check_mounts, valid_volume_names
from phalanx.api.wire import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MUTABLE_FIELDS_MESSAGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_DEADLINE = "activeDeadlineSeconds"
_GRACE_PERIOD = "terminationGracePeriodSeconds"
_ADDITIONS_ONLY_MESSAGE = "only additions are allowed (no mutations or deletions)"


def _check_new_pod(new: Any, old: Any) -> Causes:
    """Refuse fields that a new Pod cannot have."""
    found: list[Cause] = []
    if new.get("ephemeralContainers"):
        found.append(forbidden("ephemeralContainers", "cannot be set on create"))
    if new.get("nodeName") and new.get("schedulingGates"):
        detail = "cannot be set until all schedulingGates have been cleared"
        found.append(forbidden("nodeName", detail))
    return found


def _check_token_account(new: Any, old: Any) -> Causes:
    """Refuse the token of a service account in a pod that has none."""
    if new.get("serviceAccountName"):
        return ()
    detail = "must not be specified when serviceAccountName is not set"
    return [
        forbidden(f"volumes[{at}].projected.sources[{number}].serviceAccountToken", detail)
        for at, volume in enumerate(new.get("volumes", ()))
        for number, source in enumerate((volume.get("projected") or {}).get("sources", ()))
        if "serviceAccountToken" in source
    ]


def _check_spec_update(new: Any, old: Any) -> Causes:
    if old is CREATED or new == old:
        return ()
    if causes := _check_container_count(new, old):
        return causes
    deadline, old_deadline = new.get(_DEADLINE), old.get(_DEADLINE)
    found: list[Cause] = []
    if deadline is not None and old_deadline is not None and deadline > old_deadline:
        return [invalid(_DEADLINE, deadline, "must be less than or equal to previous value")]
    if deadline is None and old_deadline is not None:
        detail = "must not update from a positive integer to nil value"
        found.append(invalid(_DEADLINE, None, detail))
    return [
        *found,
        *_check_tolerations_update(new, old),
        *_check_gates_update(new, old),
        *(_check_narrowing(new, old) if old.get("schedulingGates") else ()),
        *_check_immutable_fields(new, old),
    ]


def _check_container_count(new: Object, old: Object) -> list[Cause]:
    return [
        forbidden(field, "pod updates may not add or remove containers")
        for field in CONTAINER_FIELDS
        if len(new.get(field, ())) != len(old.get(field, ()))
    ]


def _check_tolerations_update(new: Object, old: Object) -> list[Cause]:
    after = {_toleration_identity(toleration) for toleration in new.get("tolerations", ())}
    if all(_toleration_identity(toleration) in after for toleration in old.get("tolerations", ())):
        return []
    detail = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden("tolerations", detail)]


def _toleration_identity(toleration: Object) -> tuple[Any, ...]:
    return tuple(toleration.get(key) for key in ("key", "operator", "value", "effect"))


def _check_gates_update(new: Object, old: Object) -> list[Cause]:
    before = {gate.get("name") for gate in old.get("schedulingGates", ())}
    return [
        forbidden(
            f"schedulingGates[{at}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for at, gate in enumerate(new.get("schedulingGates", ()))
        if gate.get("name") not in before
    ]


def _check_narrowing(new: Object, old: Object) -> list[Cause]:
    """Allow a gated pod to restrict its nodes further, never to widen them."""
    selector = new.get("nodeSelector", {})
    found: list[Cause] = []
    if any(selector.get(key) != value for key, value in old.get("nodeSelector", {}).items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        found.append(invalid("nodeSelector", selector, detail))
    place = f"affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    return [
        *found,
        *prefix_causes(place, _check_narrower_terms(_required_terms(new), _required_terms(old))),
    ]


def _required_terms(spec: Object) -> list[Object]:
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED, {})
    terms: list[Object] = required.get("nodeSelectorTerms", [])
    return terms


def _check_narrower_terms(new: list[Object], old: list[Object]) -> list[Cause]:
    if not old:
        return []
    if len(new) != len(old):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid("", new, detail)]
    return [
        invalid(f"[{at}]", after, _ADDITIONS_ONLY_MESSAGE)
        for at, (after, before) in enumerate(zip(new, old, strict=True))
        if not _keeps_requirements(after, before)
    ]


def _keeps_requirements(new: Object, old: Object) -> bool:
    """Whether a term begins with its old requirements; an empty term stays empty."""
    if not old.get("matchExpressions") and not old.get("matchFields"):
        return new == old
    return all(
        new.get(field, [])[: len(old.get(field, []))] == old.get(field, [])
        for field in ("matchExpressions", "matchFields")
    )


def _check_immutable_fields(new: Object, old: Object) -> list[Cause]:
    return (
        []
        if _immutable_part(new, old) == _immutable_part(old, old)
        else [forbidden("", _MUTABLE_FIELDS_MESSAGE)]
    )


def _immutable_part(spec: Object, old: Object) -> Object:
    """Return a spec without the fields that may change."""
    mutable = {_DEADLINE, "tolerations", "schedulingGates"}
    if old.get("schedulingGates"):
        mutable |= {"nodeSelector", "affinity"}
    if old.get(_GRACE_PERIOD, 0) < 0 and spec.get(_GRACE_PERIOD) in (1, old[_GRACE_PERIOD]):
        mutable.add(_GRACE_PERIOD)
    immutable = {key: value for key, value in spec.items() if key not in mutable}
    if "affinity" in mutable:
        immutable["affinity"] = _without_field(spec.get("affinity", {}), "nodeAffinity")
    for field in CONTAINER_FIELDS:
        immutable[field] = [_without_field(one, "image") for one in spec.get(field, ())]
    return immutable


def _without_field(obj: Object, field: str) -> Object:
    return {key: value for key, value in obj.items() if key != field}


check_pod: Check = struct(
    (
        "spec",
        if_present(
            cached(
                all_of(
                    POD_SPEC, _check_token_account, on_create(_check_new_pod), _check_spec_update
                )
            )
        ),
    )
)


#: Fields that an ephemeral container does not support.
_UNSUPPORTED_EPHEMERAL_FIELDS = (
    "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources",
    "resizePolicy", "restartPolicy", "restartPolicyRules",
)  # fmt: skip


def _check_qos_class_unchanged(new: Any, old: Any) -> Causes:
    new_class = qos_class(new.get("spec", {}))
    if old is CREATED or new_class == qos_class(old.get("spec", {})):
        return ()
    return [invalid("spec", new_class, "Pod QOS Class may not change as a result of resizing")]


_RESIZED_CONTAINERS: Check = optional(each(struct(("resources", optional(check_resources)))))

_RESIZED_SPEC = struct(
    ("spec", struct(("containers", _RESIZED_CONTAINERS), ("initContainers", _RESIZED_CONTAINERS)))
)


def check_resize(new: Any, old: Any) -> Causes:
    """Check new resources of containers: valid and of the same QoS class."""
    return [
        *_RESIZED_SPEC(new, old),
        *_check_qos_class_unchanged(new, old),
        *_check_resized_resources(new, old),
        *_check_kept_resources(new, old),
    ]


def _check_resized_resources(new: Any, old: Any) -> Causes:
    """Refuse changes of resources other than CPU and memory."""
    if old is CREATED or _other_resources(new) == _other_resources(old):
        return ()
    return [forbidden("spec", "only cpu and memory resources are mutable")]


def _other_resources(pod: Object) -> list[Object]:
    """Return what containers request and limit, without CPU and memory."""
    return [
        {
            f"{part}.{name}": amount
            for part in ("limits", "requests")
            for name, amount in container.get("resources", {}).get(part, {}).items()
            if name not in _RESIZABLE
        }
        for field in CONTAINER_FIELDS
        for container in pod.get("spec", {}).get(field, ())
    ]


_RESIZABLE = ("cpu", "memory")


def _check_kept_resources(new: Any, old: Any) -> Causes:
    """Refuse a resize without a resource that a container requests or limits."""
    if old is CREATED:
        return ()
    return [
        forbidden(f"spec.{field}[{at}].resources.{part}", f"resource {part} cannot be removed")
        for field in CONTAINER_FIELDS
        for at, pair in enumerate(
            zip(old["spec"].get(field, ()), new.get("spec", {}).get(field, ()), strict=False)
        )
        for part in ("requests", "limits")
        if _resource_names(pair[0], part) - _resource_names(pair[1], part)
    ]


def _resource_names(container: Object, part: str) -> set[str]:
    return set((container.get("resources") or {}).get(part) or ())


def _check_existing_ephemeral(new: Any, old: Any) -> Causes:
    """Refuse to remove or change an ephemeral container."""
    if old is CREATED:
        return ()
    wanted = {one.get("name"): one for one in new.get("spec", {}).get("ephemeralContainers", ())}
    found: list[Cause] = []
    for one in old.get("spec", {}).get("ephemeralContainers") or ():
        name = one.get("name")
        if wanted.get(name) != one:
            verb = "changed" if name in wanted else "removed"
            detail = f'existing ephemeral containers "{name}" may not be {verb}'
            found.append(forbidden("spec.ephemeralContainers", detail))
    return found


def check_ephemeral_containers(new: Any, old: Any) -> Causes:
    """Check ephemeral containers: new ones may be added, existing ones stay as they are."""
    spec = new.get("spec", {})
    names = [c.get("name") for part in ("containers", "initContainers") for c in spec.get(part, ())]
    volumes = valid_volume_names(spec.get("volumes", ()))
    found: list[Any] = []
    for at, container in enumerate(spec.get("ephemeralContainers", ())):
        causes = [
            *COMMON_CONTAINER_FIELDS(container, CREATED),
            *(
                forbidden(field, "cannot be set for an Ephemeral Container")
                for field in _UNSUPPORTED_EPHEMERAL_FIELDS
                if container.get(field)
            ),
        ]
        if container.get("name") in names:
            causes.append(duplicate("name", container["name"]))
        causes += [
            forbidden(f"volumeMounts[{place}].{field}", "cannot be set for an Ephemeral Container")
            for place, mount in enumerate(container.get("volumeMounts") or ())
            for field in ("subPath", "subPathExpr")
            if mount.get(field)
        ]
        mounts = check_mounts([container], volumes)
        causes += [Cause(c.field.removeprefix("[0]."), c.reason, c.message) for c in mounts]
        target = container.get("targetContainerName")
        if target and target not in [c.get("name") for c in spec.get("containers", ())]:
            causes.append(not_found("targetContainerName", target))
        names.append(container.get("name"))
        found += prefix_causes(f"spec.ephemeralContainers[{at}]", causes)
    return [*found, *_check_existing_ephemeral(new, old)]


_NODE_NAME = string_format(validate_dns_subdomain)


def _check_qos_class_immutable(new: Any, old: Any) -> Causes:
    before = None if old is CREATED else old.get("qosClass")
    if not before or new.get("qosClass", before) == before:
        return ()
    return [invalid("qosClass", new.get("qosClass"), IMMUTABLE)]


def _check_address(new: Any, old: Any) -> Causes:
    return [invalid("", new.get("ip", ""), fault) for fault in validate_ip(new.get("ip", ""))]


def _check_one_address_per_family(new: Any, old: Any) -> Causes:
    families = [":" in one.get("ip", "") for one in new]
    found = [duplicate(f"[{at}]", new[at]) for at in find_duplicate_items(new, "ip")]
    if len(families) > len(set(families)):
        detail = "may specify no more than one IP for each IP family"
        found.append(invalid("", new, detail))
    return found


_ADDRESSES = optional(all_of(each(_check_address), _check_one_address_per_family))


def _check_host_address(new: Any, old: Any) -> Causes:
    addresses = new.get("hostIPs", ())
    if not addresses or addresses[0].get("ip") == new.get("hostIP"):
        return ()
    return [invalid("hostIPs[0].ip", addresses[0].get("ip"), "must be equal to `hostIP`")]


def _check_claim_statuses(new: Any, old: Any) -> Causes:
    known = {claim.get("name") for claim in new.get("spec", {}).get("resourceClaims", ())}
    statuses = new.get("status", {}).get("resourceClaimStatuses", ())
    detail = "must match the name of an entry in `spec.resourceClaims`"
    found: list[Cause] = [
        invalid(f"[{at}].name", status.get("name"), detail)
        for at, status in enumerate(statuses)
        if status.get("name") not in known
    ]
    twice = [
        duplicate(f"[{at}].name", statuses[at]["name"])
        for at in find_duplicate_items(statuses, "name")
    ]
    return prefix_causes("status.resourceClaimStatuses", [*found, *twice])


def _check_condition_types(new: Any, old: Any) -> Causes:
    """Check condition types; Kubernetes reports their causes below `metadata`."""
    types = [one.get("type", "") for one in new.get("status", {}).get("conditions", ())]
    return [
        invalid(f"metadata.conditions[{at}].Type", kind, fault)
        for at, kind in enumerate(types)
        for fault in validate_label_key(kind)
    ]


def _check_terminated_containers(new: Any, old: Any) -> Causes:
    """Refuse restarting a terminated container whose policy forbids restarts."""
    if old is CREATED:
        return ()
    policy = old["spec"].get("restartPolicy", "")
    sidecars = [
        container.get("name")
        for container in old["spec"].get("initContainers", ())
        if container.get("restartPolicy") == "Always"
    ]
    return [
        *_check_not_restarted("containerStatuses", new, old, policy=policy),
        *_check_not_restarted(
            "initContainerStatuses", new, old, policy=policy, restartable=sidecars
        ),
        *_check_not_restarted("ephemeralContainerStatuses", new, old, policy="Never"),
    ]


def _check_not_restarted(
    field: str, new: Object, old: Object, *, policy: str, restartable: Sequence[Any] = ()
) -> list[Cause]:
    after = {one.get("name"): one for one in new.get("status", {}).get(field, ())}
    found: list[Cause] = []
    for at, status in enumerate(old.get("status", {}).get(field, ())):
        name = status.get("name")
        if name in restartable or not _is_finally_terminated(status, policy) or name not in after:
            continue
        if "terminated" not in after[name].get("state", {}):
            detail = "may not be transitioned to non-terminated state"
            found.append(forbidden(f"status.{field}[{at}].state", detail))
    return found


def _is_finally_terminated(status: Object, policy: str) -> bool:
    terminated = status.get("state", {}).get("terminated")
    if terminated is None or policy == "Always":
        return False
    return policy != "OnFailure" or terminated.get("exitCode", 0) == 0


def _check_observed_generation(new: Any, old: Any) -> Causes:
    return () if new >= 0 else [invalid("", new, "must be a non-negative integer")]


_POD_STATUS_FIELDS = all_of(
    struct(
        ("observedGeneration", optional(_check_observed_generation)),
        ("nominatedNodeName", if_changed(optional(_NODE_NAME))),
        ("podIPs", if_changed(_ADDRESSES)),
        ("hostIPs", if_changed(_ADDRESSES)),
    ),
    _check_host_address,
    _check_qos_class_immutable,
)

check_pod_status: Check = all_of(
    struct(("status", if_present(_POD_STATUS_FIELDS))),
    _check_condition_types,
    _check_claim_statuses,
    _check_terminated_containers,
)
