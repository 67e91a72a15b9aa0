"""Validation of containers: environment, probes, lifecycle hooks, ports, mounts, security."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    prefix_causes,
    required,
    too_long,
    unsupported,
)
from phalanx.api.formats import (
    StringValidator,
    validate_annotation_key,
    validate_config_key,
    validate_dns_label,
    validate_dns_subdomain,
    validate_env_name,
    validate_label_key,
    validate_name_prefix,
    validate_port_name,
)
from phalanx.api.resources import canonical_quantity, exact_value
from phalanx.api.validation.checks import (
    Check,
    all_of,
    each,
    find_duplicate_items,
    if_present,
    in_range,
    mandatory,
    max_items,
    minimum,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.api.validation.pod_os import WINDOWS_OPTIONS
from phalanx.api.validation.resources import check_resources
from phalanx.api.wire import Object

_VALUE_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_ENV_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
    "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_VOLUME_FIELDS = (
    "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace",
    "metadata.uid",
)  # fmt: skip
#: Fields that the downward API knows, supported or not.
_KNOWN_FIELDS = (
    *_ENV_FIELDS, *_VOLUME_FIELDS, "spec.restartPolicy", "spec.schedulerName", "status.phase",
)  # fmt: skip
_RESOURCE_FIELDS = tuple(
    f"{part}.{name}"
    for part in ("limits", "requests")
    for name in ("cpu", "ephemeral-storage", "memory")
)
_CPU_DIVISORS = ("1m", "1")
_BYTE_DIVISORS = (
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
)  # fmt: skip
_MAP_KEY_PATH = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_KEY_FAULTS: Mapping[str, StringValidator] = {
    "metadata.labels": validate_label_key,
    "metadata.annotations": validate_annotation_key,
}
_ONE_SOURCE = "may not have more than one field specified at a time"


def _check_value_source(new: Any, old: Any) -> Causes:
    source = new.get("valueFrom")
    if source is None:
        return ()
    named = [name for name in _VALUE_SOURCES if name in source]
    if not named:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        return [invalid("valueFrom", "", f"must specify one of: {listed}")]
    if new.get("value"):
        return [invalid("valueFrom", "", "may not be specified when `value` is not empty")]
    return [invalid("valueFrom", "", _ONE_SOURCE)] if len(named) > 1 else ()


def _field_reference(supported: Sequence[str]) -> Check:
    """Check a reference to a field of the pod, one of the supported ones."""

    def check(new: Any, old: Any) -> Causes:
        path, version = new.get("fieldPath", ""), new.get("apiVersion", "v1")
        if not path:
            return [required("fieldPath")]
        if version != "v1":
            detail = f"error converting fieldPath: unsupported pod version: {version}"
            return [invalid("fieldPath", path, detail)]
        if match := _MAP_KEY_PATH.fullmatch(path):
            return [invalid("", match[2], fault) for fault in _KEY_FAULTS[match[1]](match[2])]
        if path in supported:
            return ()
        if path in _KNOWN_FIELDS:
            return [unsupported("fieldPath", path, supported)]
        detail = f"error converting fieldPath: field label not supported: {path}"
        return [invalid("fieldPath", path, detail)]

    return check


def _check_resource_reference(new: Any, old: Any) -> Causes:
    huge = new.startswith(("limits.hugepages-", "requests.hugepages-"))
    return () if huge else one_of(*_RESOURCE_FIELDS)(new, old)


def _check_divisor(new: Any, old: Any) -> Causes:
    """Require a unit as divisor; zero is the default."""
    divisor, resource = new.get("divisor", "0"), new.get("resource", "")
    units = _CPU_DIVISORS if resource.endswith(".cpu") else _BYTE_DIVISORS
    if (
        not resource
        or _check_resource_reference(resource, old)
        or exact_value(divisor) == 0
        or canonical_quantity(divisor) in units
    ):
        return ()
    noun = resource.partition(".")[2]
    detail = f"only divisor's values {', '.join(units)} are supported with the {noun} resource"
    return [invalid("divisor", resource, detail)]


#: A reference to a resource of a container; in a volume it names the container.
RESOURCE_REFERENCE: Check = all_of(
    struct(("resource", mandatory(_check_resource_reference))), _check_divisor
)
VOLUME_FIELD_REFERENCE: Check = _field_reference(_VOLUME_FIELDS)


#: A key of a ConfigMap or Secret.
CONFIG_KEY: Check = mandatory(string_format(validate_config_key))
_KEY_REFERENCE = struct(("name", string_format(validate_dns_subdomain)), ("key", CONFIG_KEY))

_VALUE_FROM = struct(
    ("fieldRef", if_present(_field_reference(_ENV_FIELDS))),
    ("resourceFieldRef", if_present(RESOURCE_REFERENCE)),
    ("configMapKeyRef", if_present(_KEY_REFERENCE)),
    ("secretKeyRef", if_present(_KEY_REFERENCE)),
)

_VARIABLE = all_of(
    struct(
        ("name", mandatory(string_format(validate_env_name))),
        ("valueFrom", if_present(_VALUE_FROM)),
    ),
    _check_value_source,
)


def _check_variable(new: Any, old: Any) -> Causes:
    """Check one environment variable; the common case of name and value takes a fast path."""
    name = new.get("name")
    plain = name and "valueFrom" not in new and not validate_env_name(name)
    return () if plain else _VARIABLE(new, old)


ENV: Check = each(_check_variable)


def _source_name_faults(name: str) -> list[str]:
    return list(validate_name_prefix(validate_dns_subdomain, name))


_SOURCE_REFERENCE = struct(("name", mandatory(string_format(_source_name_faults))))
_ENV_FROM_SOURCE = struct(
    ("prefix", optional(string_format(validate_env_name))),
    ("configMapRef", if_present(_SOURCE_REFERENCE)),
    ("secretRef", if_present(_SOURCE_REFERENCE)),
)


def _check_one_source_each(new: Any, old: Any) -> Causes:
    """Require one source per entry of `envFrom`; Kubernetes reports the cause at the whole list."""
    found: list[Cause] = []
    for source in new:
        named = [name for name in ("configMapRef", "secretRef") if name in source]
        if not named:
            found.append(invalid("", "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(named) > 1:
            found.append(invalid("", "", _ONE_SOURCE))
    return found


ENV_FROM: Check = all_of(each(_ENV_FROM_SOURCE), _check_one_source_each)


PORT_NUMBER: Check = in_range(1, 65535)
_HEADER = r"[-A-Za-z0-9]+"
_HEADER_FAULT = (
    "a valid HTTP header must consist of alphanumeric characters or '-' "
    f"(e.g. 'X-Header-Name', regex used for validation is '{_HEADER}')"
)
_PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOK_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")


def _check_port(new: Any, old: Any) -> Causes:
    if isinstance(new, str):
        return [invalid("", new, fault) for fault in validate_port_name(new)]
    return PORT_NUMBER(new or 0, old)


def _check_headers(new: Any, old: Any) -> Causes:
    names = [header.get("name", "") for header in new]
    return [invalid("", name, _HEADER_FAULT) for name in names if not re.fullmatch(_HEADER, name)]


_HANDLERS: dict[str, Check] = {
    "exec": struct(("command", non_empty)),
    "httpGet": struct(
        ("path", non_empty),
        ("port", _check_port),
        ("scheme", one_of("HTTP", "HTTPS")),
        ("httpHeaders", optional(_check_headers)),
    ),
    "tcpSocket": struct(("port", _check_port)),
    "grpc": struct(("port", _check_port)),
    "sleep": struct(),
}
_HANDLER_CHECKS = {name: struct((name, check)) for name, check in _HANDLERS.items()}


def _one_handler(*known: str) -> Check:
    """Require exactly one handler; handlers after the first are refused unchecked."""

    def check(new: Any, old: Any) -> Causes:
        named = [name for name in known if name in new]
        if not named:
            return [required("", "must specify a handler type")]
        many = [forbidden(name, "may not specify more than 1 handler type") for name in named[1:]]
        return [*_HANDLER_CHECKS[named[0]](new, old), *many]

    return check


def _check_is_one(new: Any, old: Any) -> Causes:
    return () if new == 1 else [invalid("", new, "must be 1")]


def _check_positive(new: Any, old: Any) -> Causes:
    return () if new > 0 else [invalid("", new, "must be greater than 0")]


def _check_no_grace_period(new: Any, old: Any) -> Causes:
    return [invalid("", new, "must not be set for readinessProbes")]


_NON_NEGATIVE = optional(minimum(0))
_PROBE = all_of(
    _one_handler(*_PROBE_HANDLERS),
    struct(
        ("initialDelaySeconds", _NON_NEGATIVE),
        ("timeoutSeconds", _NON_NEGATIVE),
        ("periodSeconds", _NON_NEGATIVE),
        ("successThreshold", _NON_NEGATIVE),
        ("failureThreshold", _NON_NEGATIVE),
        ("terminationGracePeriodSeconds", optional(_check_positive)),
    ),
)
_SUCCEEDS_ONCE = struct(("successThreshold", optional(_check_is_one)))

#: The three probes of a container.
PROBES: Check = struct(
    ("livenessProbe", if_present(all_of(_PROBE, _SUCCEEDS_ONCE))),
    (
        "readinessProbe",
        if_present(
            all_of(
                _PROBE, struct(("terminationGracePeriodSeconds", optional(_check_no_grace_period)))
            )
        ),
    ),
    ("startupProbe", if_present(all_of(_PROBE, _SUCCEEDS_ONCE))),
)

_HOOK = if_present(_one_handler(*_HOOK_HANDLERS))

#: Hooks after the start and before the stop of a container.
LIFECYCLE: Check = struct(("postStart", _HOOK), ("preStop", _HOOK))


RESTART_POLICIES = ("Always", "OnFailure", "Never")
USER_ID: Check = in_range(0, 2**31 - 1)

# ----------------------------------------------------------------------------- ports and mounts

_CONTAINER_PORT = struct(
    ("name", optional(string_format(validate_port_name))),
    ("containerPort", mandatory(PORT_NUMBER)),
    ("hostPort", if_present(PORT_NUMBER)),
    ("protocol", mandatory(one_of("SCTP", "TCP", "UDP"))),
)


def check_relative_path(new: Any, old: Any) -> Causes:
    """Require a path that stays below its base directory."""
    found: list[Cause] = []
    if new.startswith("/"):
        found.append(invalid("", new, "must be a relative path"))
    if ".." in new.split("/"):
        found.append(invalid("", new, "must not contain '..'"))
    return found


def check_unreserved_path(new: Any, old: Any) -> Causes:
    """Require a path below its base directory that does not begin with two dots."""
    found = check_relative_path(new, old)
    if new.startswith("..") and not new.startswith("../"):
        found = [*found, invalid("", new, "must not start with '..'")]
    return found


_MOUNT_ENUMS: Mapping[str, Check] = {
    "mountPropagation": one_of("Bidirectional", "HostToContainer", "None"),
    "recursiveReadOnly": one_of("Disabled", "Enabled", "IfPossible"),
}


def _check_mount_paths(new: Any, old: Any) -> Causes:
    """Check sub-paths, mount propagation, recursive read-only and unique mount paths.

    Kubernetes reports all but the last without the index of the mount.
    """
    found: list[Cause] = []
    for at, mount in enumerate(new):
        for field in ("subPath", "subPathExpr"):
            found += prefix_causes(field, check_relative_path(mount.get(field, ""), old))
        if mount.get("subPath") and mount.get("subPathExpr"):
            detail = "subPathExpr and subPath are mutually exclusive"
            found.append(invalid(f"[{at}].subPathExpr", mount["subPathExpr"], detail))
        for field, check in _MOUNT_ENUMS.items():
            if field in mount:
                found += prefix_causes(field, check(mount[field], old))
        if mount.get("recursiveReadOnly") in ("Enabled", "IfPossible"):
            found += _check_recursive_read_only(mount)
    again = find_duplicate_items(new, "mountPath")
    twice = [
        invalid(f"[{at}].mountPath", new[at].get("mountPath", ""), "must be unique") for at in again
    ]
    return [*found, *twice]


def _check_recursive_read_only(mount: Object) -> list[Cause]:
    found: list[Cause] = []
    if not mount.get("readOnly"):
        found.append(forbidden("recursiveReadOnly", "may only be specified when readOnly is true"))
    if mount.get("mountPropagation", "None") != "None":
        detail = "may only be specified when mountPropagation is None or not specified"
        found.append(forbidden("recursiveReadOnly", detail))
    return found


_VOLUME_MOUNTS = all_of(
    each(struct(("name", non_empty), ("mountPath", non_empty))), _check_mount_paths
)


def _check_unique_devices(new: Any, old: Any) -> Causes:
    return [
        invalid(f"[{at}].{field}", new[at].get(field), "must be unique")
        for field in ("name", "devicePath")
        for at in find_duplicate_items(new, field)
    ]


_VOLUME_DEVICES = all_of(
    each(struct(("name", non_empty), ("devicePath", non_empty))), _check_unique_devices
)


def _check_mounts_of_container(new: Any, old: Any) -> Causes:
    """Refuse bidirectional mounts without privileges, and volumes that are also block devices."""
    mounts, devices = new.get("volumeMounts", ()), new.get("volumeDevices", ())
    found: list[Cause] = []
    if not (new.get("securityContext") or {}).get("privileged"):
        detail = "Bidirectional mount propagation is available only to privileged containers"
        found += [
            forbidden("volumeMounts.mountPropagation", detail)
            for mount in mounts
            if mount.get("mountPropagation") == "Bidirectional"
        ]
    for field, path, listed, others in (
        ("volumeMounts", "mountPath", mounts, devices),
        ("volumeDevices", "devicePath", devices, mounts),
    ):
        other = "volumeDevices" if field == "volumeMounts" else "volumeMounts"
        names = {one["name"] for one in others if one.get("name")}
        paths = {one[key] for one in others for key in ("mountPath", "devicePath") if key in one}
        for at, one in enumerate(listed):
            if one.get("name") in names:
                detail = f"must not already exist in {other}"
                found.append(invalid(f"{field}[{at}].name", one.get("name"), detail))
            if one.get(path) in paths:
                detail = f"must not already exist as a path in {other}"
                found.append(invalid(f"{field}[{at}].{path}", one.get(path), detail))
    return found


def check_host_ports(containers: Sequence[Object]) -> list[Cause]:
    """Refuse a host port that two containers, or one container twice, ask for."""
    seen: set[str] = set()
    found: list[Cause] = []
    for at, container in enumerate(containers):
        for number, port in enumerate(container.get("ports", ())):
            if not port.get("hostPort"):
                continue
            wanted = f"{port.get('protocol')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if wanted in seen:
                found.append(duplicate(f"[{at}].ports[{number}].hostPort", wanted))
            seen.add(wanted)
    return found


def check_host_network_ports(containers: Sequence[Object]) -> list[Cause]:
    """Require that a container port on the host network equals its host port, if it has one."""
    detail = "must match `containerPort` when `hostNetwork` is true"
    return [
        invalid(f"[{at}].ports[{number}].hostPort", port["hostPort"], detail)
        for at, container in enumerate(containers)
        for number, port in enumerate(container.get("ports", ()))
        if port.get("hostPort") and port["hostPort"] != port.get("containerPort", 0)
    ]


# -------------------------------------------------------------------------------------- security


def _check_privileges(new: Any, old: Any) -> Causes:
    if new.get("allowPrivilegeEscalation") is not False:
        return ()
    what = "cannot set `allowPrivilegeEscalation` to false and"
    found: list[Cause] = []
    if new.get("privileged"):
        found.append(invalid("", new, f"{what} `privileged` to true"))
    if "CAP_SYS_ADMIN" in new.get("capabilities", {}).get("add", ()):
        found.append(invalid("", new, f"{what} `capabilities.Add` CAP_SYS_ADMIN"))
    return found


_MAX_PROFILE = 4095
_PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")


def _check_descending_path(path: str) -> list[Cause]:
    """Require a path below the directory of profiles."""
    if path.startswith("/"):
        return [invalid("localhostProfile", path, "must be a relative path")]
    if ".." in path.split("/"):
        return [invalid("localhostProfile", path, "must not contain '..'")]
    return []


def _check_padding(profile: str) -> list[Cause]:
    """Require the name of a profile without spaces around it, not longer than a path."""
    found: list[Cause] = []
    if profile != profile.strip():
        found.append(invalid("localhostProfile", profile, "must not be padded with whitespace"))
    if len(profile.encode()) > _MAX_PROFILE:
        found.append(too_long("localhostProfile", _MAX_PROFILE))
    return found


def _profile_check(field: str, noun: str) -> Check:
    """Check a seccomp or AppArmor profile: a local profile exactly where the type needs it."""

    def check(new: Any, old: Any) -> Causes:
        kind, file = new.get("type", ""), new.get("localhostProfile")
        if kind == "Localhost":
            # Kubernetes takes an empty seccomp profile for the directory of profiles.
            if file is None or (not file and noun != "seccomp"):
                detail = f"must be set when {noun} type is Localhost"
                return [required("localhostProfile", detail)]
            return _check_descending_path(file) if noun == "seccomp" else _check_padding(file)
        found: list[Cause] = []
        if not kind:
            found.append(required("type", f"type is required when {field} is set"))
        elif kind not in _PROFILE_TYPES:
            found.append(unsupported("type", kind, _PROFILE_TYPES))
        if file is not None and (kind in _PROFILE_TYPES or noun == "seccomp"):
            detail = f"can only be set when {noun} type is Localhost"
            found.append(invalid("localhostProfile", file, detail))
        return found

    return check


SECCOMP_PROFILE: Check = _profile_check("seccompProfile", "seccomp")
APP_ARMOR_PROFILE: Check = _profile_check("appArmorProfile", "AppArmor")

_CONTAINER_SECURITY_CONTEXT = all_of(
    struct(
        ("runAsUser", optional(USER_ID)),
        ("runAsGroup", optional(USER_ID)),
        ("procMount", if_present(one_of("Default", "Unmasked"))),
        ("seccompProfile", if_present(SECCOMP_PROFILE)),
        ("windowsOptions", if_present(WINDOWS_OPTIONS)),
        ("appArmorProfile", if_present(APP_ARMOR_PROFILE)),
    ),
    _check_privileges,
)

# ------------------------------------------------------------------------------------ containers


def _check_image(new: Any, old: Any) -> Causes:
    if new == new.strip():
        return ()
    return [invalid("", new, "must not have leading or trailing whitespace")]


_MAX_RESTART_RULES = 20


def _check_exit_codes(new: Any, old: Any) -> Causes:
    if new is None:
        return [required("", "must be specified")]
    return prefix_causes("operator", one_of("In", "NotIn")(new.get("operator", ""), old))


_RESTART_RULE = struct(
    ("action", one_of("Restart", "RestartAllContainers")), ("exitCodes", _check_exit_codes)
)


def _check_policy_of_rules(new: Any, old: Any) -> Causes:
    """Require a restart policy of a container that has rules for its exit codes."""
    if not new.get("restartPolicyRules") or new.get("restartPolicy") is not None:
        return ()
    return [required("restartPolicy", "must specify restartPolicy when restart rules are used")]


_CONTAINER_FIELDS = struct(
    ("name", mandatory(string_format(validate_dns_label))),
    ("image", mandatory(_check_image)),
    ("terminationMessagePolicy", mandatory(one_of("File", "FallbackToLogsOnError"))),
    ("ports", optional(all_of(each(_CONTAINER_PORT), unique_field("name")))),
    ("env", optional(ENV)),
    ("envFrom", optional(ENV_FROM)),
    ("volumeMounts", optional(_VOLUME_MOUNTS)),
    ("volumeDevices", optional(_VOLUME_DEVICES)),
    ("imagePullPolicy", mandatory(one_of("Always", "IfNotPresent", "Never"))),
    ("resources", check_resources),
    ("securityContext", if_present(_CONTAINER_SECURITY_CONTEXT)),
    ("restartPolicy", if_present(one_of(*RESTART_POLICIES))),
    ("restartPolicyRules", optional(max_items(_MAX_RESTART_RULES, each(_RESTART_RULE)))),
)
#: What every type of container has; probes and hooks are not for all.
COMMON_CONTAINER_FIELDS: Check = all_of(
    _CONTAINER_FIELDS, _check_policy_of_rules, _check_mounts_of_container
)

CONTAINER: Check = all_of(
    COMMON_CONTAINER_FIELDS, PROBES, struct(("lifecycle", if_present(LIFECYCLE)))
)

_SIDECAR_ONLY = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def check_init_container(new: Any, old: Any) -> Causes:
    """Check an init container: probes and hooks are for restartable ones (sidecars) only."""
    if new.get("restartPolicy") == "Always":
        return CONTAINER(new, old)
    detail = "may not be set for init containers without restartPolicy=Always"
    extra = [forbidden(name, detail) for name in _SIDECAR_ONLY if name in new]
    return [*COMMON_CONTAINER_FIELDS(new, old), *extra]
