"""Validation of a pod spec, of a Pod or of a template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.api.defaults.pod import sum_container_requests
from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_dns_subdomain_with_underscore,
    validate_ip,
)
from phalanx.api.validation.checks import (
    Check,
    all_of,
    cached,
    each,
    find_duplicate_items,
    if_present,
    in_range,
    mandatory,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.api.validation.containers import (
    APP_ARMOR_PROFILE,
    CONTAINER,
    RESTART_POLICIES,
    SECCOMP_PROFILE,
    USER_ID,
    check_host_network_ports,
    check_host_ports,
    check_init_container,
)
from phalanx.api.validation.metadata import LABEL_KEY, check_labels
from phalanx.api.validation.pod_os import (
    WINDOWS_OPTIONS,
    check_host_processes,
    check_os,
    check_proc_mounts,
)
from phalanx.api.validation.pod_scheduling import (
    AFFINITY,
    SCHEDULING_GROUP,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
    check_constraint_counts,
    check_scheduling_gates,
)
from phalanx.api.validation.resources import (
    check_container_claims,
    check_pod_level_consistency,
    check_pod_level_resources,
    check_resources,
)
from phalanx.api.validation.volumes import VOLUMES, check_mounts, valid_volume_names
from phalanx.api.wire import Object

_LABEL = string_format(validate_dns_label)
_SUBDOMAIN = string_format(validate_dns_subdomain)
_MAX_SECONDS = 2**31 - 1
_MAX_NAMESERVERS, _MAX_SEARCHES, _MAX_SEARCH_LIST = 3, 32, 2048
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_CLAIM_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
_MAX_SYSCTL = 253
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
#: Fields that hold containers.
CONTAINER_FIELDS = ("containers", "initContainers")


def _container_lists(spec: Object) -> Iterator[tuple[str, list[Object]]]:
    for field in CONTAINER_FIELDS:
        yield field, spec.get(field, [])


def _check_container_names(new: Any, old: Any) -> Causes:
    """Require unique names among all containers."""
    seen: set[str] = set()
    found: list[Cause] = []
    for field, containers in _container_lists(new):
        for at, container in enumerate(containers):
            name = container.get("name", "")
            if name in seen:
                found.append(duplicate(f"{field}[{at}].name", name))
            seen.add(name)
    return found


def _check_ports(new: Any, old: Any) -> Causes:
    """Refuse conflicting host ports; init containers run one after the other and may share them."""
    containers = new.get("containers", ())
    found = check_host_ports(containers)
    if new.get("hostNetwork"):
        found += check_host_network_ports(containers)
    alone: list[Cause] = []
    for at, container in enumerate(new.get("initContainers", ())):
        causes = check_host_ports([container])
        own = [Cause(c.field.removeprefix("[0]."), c.reason, c.message) for c in causes]
        alone += prefix_causes(f"initContainers[{at}]", own)
    return [*prefix_causes("containers", found), *alone]


def _check_volume_references(new: Any, old: Any) -> Causes:
    volumes = valid_volume_names(new.get("volumes", ()))
    return [
        cause
        for field, containers in _container_lists(new)
        for cause in prefix_causes(field, check_mounts(containers, volumes))
    ]


def _check_claim_references(new: Any, old: Any) -> Causes:
    """Require that containers use resource claims of the pod."""
    known = [claim.get("name", "") for claim in new.get("resourceClaims", ())]
    found: list[Cause] = []
    for field, containers in _container_lists(new):
        for at, container in enumerate(containers):
            if claims := container.get("resources", {}).get("claims"):
                place = f"{field}[{at}].resources.claims"
                found += prefix_causes(place, check_container_claims(claims, known))
    return found


def _check_dns(new: Any, old: Any) -> Causes:
    """Check the DNS configuration; the policy None has nameservers of its own."""
    config = new.get("dnsConfig")
    if new.get("dnsPolicy") == "None":
        if config is None:
            detail = "must provide `dnsConfig` when `dnsPolicy` is None"
            return [required("dnsConfig", detail)]
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required("dnsConfig.nameservers", detail)]
    return () if config is None else prefix_causes("dnsConfig", _DNS_CONFIG(config, old))


def _max_entries(limit: int, noun: str) -> Check:
    def check(new: Any, old: Any) -> Causes:
        if len(new) <= limit:
            return ()
        return [invalid("", new, f"must not have more than {limit} {noun}")]

    return check


def _check_search_list(new: Any, old: Any) -> Causes:
    if len(" ".join(path or "" for path in new)) <= _MAX_SEARCH_LIST:
        return ()
    detail = f"must not have more than {_MAX_SEARCH_LIST} characters (including spaces) in the "
    return [invalid("", new, f"{detail}search list")]


def _validate_search_path(text: str) -> Sequence[str]:
    """Validate a domain; labels may have underscores, the last dot may be there."""
    if text == ".":
        return ()
    return validate_dns_subdomain_with_underscore(text.removesuffix("."))


def _check_dns_option(new: Any, old: Any) -> Causes:
    return () if new.get("name") else [required("", "must not be empty")]


_DNS_CONFIG = struct(
    (
        "nameservers",
        optional(
            all_of(_max_entries(_MAX_NAMESERVERS, "nameservers"), each(string_format(validate_ip)))
        ),
    ),
    (
        "searches",
        optional(
            all_of(
                _max_entries(_MAX_SEARCHES, "search paths"),
                _check_search_list,
                each(string_format(_validate_search_path)),
            )
        ),
    ),
    ("options", optional(each(_check_dns_option))),
)


def _check_pod_level_requests(new: Any, old: Any) -> Causes:
    resources: Object = new.get("resources") or {}
    if not (resources.get("requests") or resources.get("limits")):
        return ()
    return check_pod_level_consistency(new, sum_container_requests(new))


def _check_process_namespace(new: Any, old: Any) -> Causes:
    if not (new.get("hostPID") and new.get("shareProcessNamespace")):
        return ()
    detail = "ShareProcessNamespace and HostPID cannot both be enabled"
    return [invalid("shareProcessNamespace", True, detail)]


#: Fields of the host's namespaces, as Kubernetes writes them in the causes.
_HOST_NAMESPACES = {"hostNetwork": "hostNetwork", "hostPID": "HostPID", "hostIPC": "HostIPC"}


def _check_host_users(new: Any, old: Any) -> Causes:
    """Refuse namespaces of the host for a pod with a user namespace of its own."""
    if new.get("hostUsers") is not False:
        return ()
    detail = "when `hostUsers` is false"
    return [forbidden(shown, detail) for field, shown in _HOST_NAMESPACES.items() if new.get(field)]


def _check_resize_policies(new: Any, old: Any) -> Causes:
    """Check how containers are resized; Kubernetes reports causes at the whole list."""
    found: list[Cause] = []
    for field, containers in _container_lists(new):
        for at, container in enumerate(containers):
            place = f"{field}[{at}].resizePolicy"
            policies = container.get("resizePolicy", ())
            again = find_duplicate_items(policies, "resourceName")
            found += [
                duplicate(f"{place}[{number}]", policies[number].get("resourceName"))
                for number in again
            ]
            for policy in policies:
                found += prefix_causes(place, _check_resize_policy(policy, new))
    return found


def _check_resize_policy(policy: Object, spec: Object) -> list[Cause]:
    found: list[Cause] = []
    for key, supported in _RESIZE_POLICY.items():
        if not policy.get(key):
            found.append(required(""))
        elif policy[key] not in supported:
            found.append(unsupported("", policy[key], supported))
    restart = policy.get("restartPolicy", "")
    if spec.get("restartPolicy") == "Never" and restart != "NotRequired":
        detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
        found.append(invalid("", restart, detail))
    return found


_RESIZE_POLICY = {
    "resourceName": ("cpu", "memory"),
    "restartPolicy": ("NotRequired", "RestartContainer"),
}


def _check_group_or_responders(new: Any, old: Any) -> Causes:
    if new.get("schedulingGroup") is None or not new.get("evictionResponders"):
        return ()
    return [forbidden("schedulingGroup", "may not be set when evictionResponders is set")]


def _check_sleep_hooks(new: Any, old: Any) -> Causes:
    """Refuse sleep hooks that are negative or longer than the termination grace period."""
    grace = new.get("terminationGracePeriodSeconds", 0)
    detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
    return [
        invalid(f"{field}[{at}].lifecycle.{hook}.sleep", seconds, detail)
        for field, containers in _container_lists(new)
        for at, container in enumerate(containers)
        for hook, handler in container.get("lifecycle", {}).items()
        if isinstance(handler, dict) and "sleep" in handler
        if not 0 <= (seconds := handler["sleep"].get("seconds", 0)) <= grace
    ]


def _check_claim_source(new: Any, old: Any) -> Causes:
    named = [name for name in _CLAIM_SOURCES if name in new]
    if len(named) == 1:
        return ()
    if named:
        detail = (
            "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        )
    else:
        detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
    return [invalid("", new, detail)]


def _check_sysctls(new: Any, old: Any) -> Causes:
    """Check the names of sysctls, each at most once."""
    detail = f"must have at most {_MAX_SYSCTL} characters and match regex ^{_SYSCTL}$"
    names = [sysctl.get("name", "") for sysctl in new]
    found: list[Cause] = []
    for at, name in enumerate(names):
        if not name:
            found.append(required(f"[{at}].name"))
        elif len(name) > _MAX_SYSCTL or not re.fullmatch(_SYSCTL, name):
            found.append(invalid(f"[{at}].name", name, detail))
        elif name in names[:at]:
            found.append(duplicate(f"[{at}].name", name))
    return found


#: Beginnings of the names of sysctls (with a dot behind) by the field that shares their namespace.
_NAMESPACED_SYSCTLS = {
    "hostNetwork": ("net.",),
    "hostIPC": ("kernel.shm", "kernel.msg", "kernel.sem.", "fs.mqueue."),
}


def _check_host_sysctls(new: Any, old: Any) -> Causes:
    """Refuse sysctls of namespaces that the pod shares with the host."""
    found: list[Cause] = []
    for at, sysctl in enumerate((new.get("securityContext") or {}).get("sysctls") or ()):
        name = sysctl.get("name") or ""
        # The first separator says which one separates the parts of the name.
        is_slashed = "/" in name.partition(".")[0]
        dotted = name.replace("/", ".") if is_slashed else name
        found += [
            invalid(
                f"securityContext.sysctls[{at}].name",
                name,
                f"may not be specified when '{field}' is true",
            )
            for field, beginnings in _NAMESPACED_SYSCTLS.items()
            if new.get(field) and f"{dotted}.".startswith(beginnings)
        ]
    return found


_POD_SECURITY_CONTEXT = struct(
    ("runAsUser", optional(USER_ID)),
    ("runAsGroup", optional(USER_ID)),
    ("fsGroup", optional(USER_ID)),
    ("supplementalGroups", optional(each(USER_ID))),
    ("fsGroupChangePolicy", if_present(one_of("Always", "OnRootMismatch"))),
    ("supplementalGroupsPolicy", if_present(one_of("Merge", "Strict"))),
    ("seLinuxChangePolicy", if_present(one_of("MountOption", "Recursive"))),
    ("sysctls", optional(_check_sysctls)),
    ("seccompProfile", if_present(SECCOMP_PROFILE)),
    ("windowsOptions", if_present(WINDOWS_OPTIONS)),
    ("appArmorProfile", if_present(APP_ARMOR_PROFILE)),
)
_HOST_ALIAS = struct(
    ("ip", string_format(validate_ip)),
    ("hostnames", optional(each(_SUBDOMAIN))),
)
_RESOURCE_CLAIM = all_of(
    struct(("name", mandatory(_LABEL))),
    _check_claim_source,
    struct(*((name, if_present(_SUBDOMAIN)) for name in _CLAIM_SOURCES)),
)

POD_SPEC: Check = all_of(
    struct(
        ("volumes", optional(VOLUMES)),
        ("containers", mandatory(cached(each(CONTAINER)))),
        ("initContainers", optional(each(check_init_container))),
        ("resourceClaims", optional(all_of(each(_RESOURCE_CLAIM), unique_field("name")))),
        ("restartPolicy", mandatory(one_of(*RESTART_POLICIES))),
        ("dnsPolicy", mandatory(one_of(*_DNS_POLICIES))),
        ("nodeSelector", check_labels),
        ("securityContext", optional(_POD_SECURITY_CONTEXT)),
        ("affinity", if_present(AFFINITY)),
        ("readinessGates", optional(each(struct(("conditionType", LABEL_KEY))))),
        ("schedulingGates", optional(check_scheduling_gates)),
        ("topologySpreadConstraints", optional(SPREAD_CONSTRAINTS)),
        ("serviceAccountName", optional(_SUBDOMAIN)),
        ("nodeName", optional(_SUBDOMAIN)),
        ("activeDeadlineSeconds", optional(in_range(1, _MAX_SECONDS))),
        ("hostname", optional(_LABEL)),
        ("subdomain", optional(_LABEL)),
        ("tolerations", optional(TOLERATIONS)),
        ("hostAliases", optional(each(_HOST_ALIAS))),
        ("priorityClassName", optional(_SUBDOMAIN)),
        ("runtimeClassName", optional(_SUBDOMAIN)),
        ("preemptionPolicy", if_present(one_of("PreemptLowerPriority", "Never"))),
        ("overhead", lambda new, old: check_resources({"limits": new or {}}, old)),
        ("resources", optional(check_pod_level_resources)),
        ("schedulingGroup", if_present(SCHEDULING_GROUP)),
    ),
    _check_container_names,
    _check_ports,
    _check_volume_references,
    _check_claim_references,
    _check_dns,
    _check_process_namespace,
    _check_host_users,
    _check_host_sysctls,
    check_os,
    check_proc_mounts,
    check_host_processes,
    _check_pod_level_requests,
    _check_resize_policies,
    _check_group_or_responders,
    _check_sleep_hooks,
    check_constraint_counts,
)
