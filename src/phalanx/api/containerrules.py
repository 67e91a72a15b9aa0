"""Rules of containers: names, ports, environment, mounts, probes, resources, security."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, under
from phalanx.api.checks import (
    Check,
    at_least,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
    there,
    unique_field,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import (
    config_key_faults,
    dns_label_faults,
    env_name_faults,
    ip_faults,
    label_key_faults,
    port_name_faults,
)
from phalanx.api.resourcerules import check_resources
from phalanx.api.wire import Object

RESTART_POLICIES = ("Always", "OnFailure", "Never")
MAX_ID = 2**31 - 1
USER_ID: Check = between(0, MAX_ID)

# --------------------------------------------------------------------------------- ports and env

PORT_NUMBER: Check = between(1, 65535)

_PORT = struct(
    ("name", given(text(port_name_faults))),
    ("containerPort", needed(PORT_NUMBER)),
    ("hostPort", present(PORT_NUMBER)),
    ("hostIP", given(text(ip_faults))),
    ("protocol", needed(one_of("SCTP", "TCP", "UDP"))),
)

_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_ENV_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
    "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_ENV_RESOURCES = tuple(
    f"{part}.{name}"
    for part in ("limits", "requests")
    for name in ("cpu", "ephemeral-storage", "memory")
)
_ONE_SOURCE = "may not have more than one field specified at a time"


def _env_source(new: Any, old: Any) -> Causes:
    source = new.get("valueFrom")
    if source is None:
        return ()
    named = [name for name in _ENV_SOURCES if name in source]
    found: list[Cause] = []
    if not named:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        found.append(invalid("valueFrom", "", f"must specify one of: {listed}"))
    elif new.get("value"):
        found.append(invalid("valueFrom", "", "may not be specified when `value` is not empty"))
    elif len(named) > 1:
        found.append(invalid("valueFrom", "", _ONE_SOURCE))
    return found


def _field_path(new: Any, old: Any) -> Causes:
    subscripted = new.startswith(("metadata.labels['", "metadata.annotations['"))
    if new in _ENV_FIELDS or (subscripted and new.endswith("']")):
        return ()
    return [invalid("", new, f"error converting fieldPath: field label not supported: {new}")]


def _resource_field(new: Any, old: Any) -> Causes:
    huge = new.startswith(("limits.hugepages-", "requests.hugepages-"))
    return () if huge else one_of(*_ENV_RESOURCES)(new, old)


KEY: Check = needed(text(config_key_faults))
_KEY_REFERENCE = struct(("name", there), ("key", KEY))
_ENV = every(
    struct(("name", needed(text(env_name_faults)))),
    _env_source,
    struct(
        (
            "valueFrom",
            present(
                struct(
                    ("fieldRef", present(struct(("fieldPath", needed(_field_path))))),
                    ("resourceFieldRef", present(struct(("resource", needed(_resource_field))))),
                    ("configMapKeyRef", present(_KEY_REFERENCE)),
                    ("secretKeyRef", present(_KEY_REFERENCE)),
                )
            ),
        )
    ),
)


def _env_from(new: Any, old: Any) -> Causes:
    named = [name for name in ("configMapRef", "secretRef") if name in new]
    if not named:
        return [invalid("", "", "must specify one of: `configMapRef` or `secretRef`")]
    if len(named) > 1:
        return [invalid("", "", _ONE_SOURCE)]
    return () if new[named[0]].get("name") else [required(f"{named[0]}.name")]


_ENV_FROM = every(struct(("prefix", given(text(env_name_faults)))), _env_from)

# ---------------------------------------------------------------------------------------- mounts


def relative_path(new: Any, old: Any) -> Causes:
    """A path that stays below where it starts."""
    found: list[Cause] = []
    if new.startswith("/"):
        found.append(invalid("", new, "must be a relative path"))
    if ".." in new.split("/"):
        found.append(invalid("", new, "must not contain '..'"))
    return found


def _mount_paths(new: Any, old: Any) -> Causes:
    paths = [mount.get("mountPath", "") for mount in new]
    return [
        invalid(f"[{at}].mountPath", path, "must be unique")
        for at, path in enumerate(paths)
        if path and path in paths[:at]
    ]


def _one_sub_path(new: Any, old: Any) -> Causes:
    if not (new.get("subPath") and new.get("subPathExpr")):
        return ()
    return [
        invalid("subPathExpr", new["subPathExpr"], "subPathExpr and subPath are mutually exclusive")
    ]


_MOUNT = every(
    struct(
        ("name", there),
        ("mountPath", there),
        ("subPath", given(relative_path)),
        ("subPathExpr", given(relative_path)),
        ("mountPropagation", given(one_of("Bidirectional", "HostToContainer", "None"))),
    ),
    _one_sub_path,
)

# ---------------------------------------------------------------------------------------- probes


def _port_reference(new: Any, old: Any) -> Causes:
    if isinstance(new, str):
        return [invalid("", new, fault) for fault in port_name_faults(new)]
    return PORT_NUMBER(new if new is not None else 0, old)


_HANDLERS: dict[str, Check] = {
    "exec": struct(("command", there)),
    "httpGet": struct(
        ("path", there),
        ("port", _port_reference),
        ("scheme", needed(one_of("HTTP", "HTTPS"))),
    ),
    "tcpSocket": struct(("port", _port_reference)),
    "grpc": struct(("port", _port_reference)),
    "sleep": struct(("seconds", needed(at_least(1)))),
}


def _handler(new: Any, old: Any) -> Causes:
    named = [name for name in _HANDLERS if name in new]
    if not named:
        return [required("", "must specify a handler type")]
    many = [forbidden(name, "may not specify more than 1 handler type") for name in named[1:]]
    first = struct((named[0], _HANDLERS[named[0]]))
    return [*first(new, old), *many]


def _exactly_one(new: Any, old: Any) -> Causes:
    return () if new == 1 else [invalid("", new, "must be 1")]


def _positive(new: Any, old: Any) -> Causes:
    return () if new > 0 else [invalid("", new, "must be greater than 0")]


def _no_grace(new: Any, old: Any) -> Causes:
    return [invalid("", new, "must not be set for readinessProbes")]


def _probe(success: Check, grace: Check) -> Check:
    natural = given(at_least(0))
    return every(
        _handler,
        struct(
            ("initialDelaySeconds", natural),
            ("timeoutSeconds", natural),
            ("periodSeconds", natural),
            ("successThreshold", success),
            ("failureThreshold", natural),
            ("terminationGracePeriodSeconds", given(grace)),
        ),
    )


_PROBES = struct(
    ("livenessProbe", present(_probe(given(_exactly_one), _positive))),
    ("readinessProbe", present(_probe(given(at_least(0)), _no_grace))),
    ("startupProbe", present(_probe(given(_exactly_one), _positive))),
)
_LIFECYCLE = struct(("postStart", present(_handler)), ("preStop", present(_handler)))

# -------------------------------------------------------------------------------------- security


def _privileges(new: Any, old: Any) -> Causes:
    if new.get("allowPrivilegeEscalation") is not False:
        return ()
    found: list[Cause] = []
    if new.get("privileged"):
        detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        found.append(invalid("", new, detail))
    if "SYS_ADMIN" in new.get("capabilities", {}).get("add", ()):
        detail = (
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
        )
        found.append(invalid("", new, detail))
    return found


def check_seccomp(new: Any, old: Any) -> Causes:
    """A seccomp profile: a file of its own only where the type says so."""
    kind, file = new.get("type"), new.get("localhostProfile")
    if not kind:
        return [required("type", "type is required when seccompProfile is set")]
    if kind == "Localhost" and not file:
        return [required("localhostProfile", "must be set when seccomp type is Localhost")]
    if kind != "Localhost" and file:
        detail = "can only be set when seccomp type is Localhost"
        return [invalid("localhostProfile", file, detail)]
    return under("type", _SECCOMP_TYPES(kind, old))


_SECCOMP_TYPES = one_of("Localhost", "RuntimeDefault", "Unconfined")


_SECURITY = every(
    struct(
        ("runAsUser", given(USER_ID)),
        ("runAsGroup", given(USER_ID)),
        ("procMount", given(one_of("Default", "Unmasked"))),
        ("seccompProfile", present(check_seccomp)),
    ),
    _privileges,
)

# ------------------------------------------------------------------------------------ containers


def _image(new: Any, old: Any) -> Causes:
    if new == new.strip():
        return ()
    return [invalid("", new, "must not have leading or trailing whitespace")]


_COMMON = every(
    struct(
        ("name", needed(text(dns_label_faults))),
        ("image", needed(_image)),
        ("terminationMessagePolicy", needed(one_of("FallbackToLogsOnError", "File"))),
        ("ports", given(every(each(_PORT), unique_field("name")))),
        ("env", given(each(_ENV))),
        ("envFrom", given(each(_ENV_FROM))),
        ("volumeMounts", given(every(each(_MOUNT), _mount_paths))),
        ("imagePullPolicy", needed(one_of("Always", "IfNotPresent", "Never"))),
        ("resources", check_resources),
        ("securityContext", present(_SECURITY)),
        ("restartPolicy", given(one_of(*RESTART_POLICIES))),
    ),
)

CONTAINER: Check = every(_COMMON, _PROBES, struct(("lifecycle", present(_LIFECYCLE))))

_SIDECAR_ONLY = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def _before_the_others(new: Any, old: Any) -> Causes:
    """What an init container lacks unless it stays on as a sidecar."""
    if new.get("restartPolicy") == "Always":
        return CONTAINER(new, old)
    detail = "may not be set for init containers without restartPolicy=Always"
    extra = [forbidden(name, detail) for name in _SIDECAR_ONLY if name in new]
    return [*_COMMON(new, old), *extra]


INIT_CONTAINER: Check = _before_the_others


def host_port_causes(field: str, containers: list[Object]) -> list[Cause]:
    """Ports of the node that two containers, or one of them twice, want."""
    seen: set[str] = set()
    found: list[Cause] = []
    for at, container in enumerate(containers):
        for number, port in enumerate(container.get("ports", ())):
            if not port.get("hostPort"):
                continue
            wanted = f"{port.get('protocol')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if wanted in seen:
                found.append(duplicate(f"{field}[{at}].ports[{number}].hostPort", wanted))
            seen.add(wanted)
    return found


def host_network_causes(field: str, containers: list[Object]) -> list[Cause]:
    """On the node's network a container's port is the node's."""
    detail = "must match `hostPort` when `hostNetwork` is true"
    return [
        invalid(f"{field}[{at}].ports[{number}].containerPort", port["containerPort"], detail)
        for at, container in enumerate(containers)
        for number, port in enumerate(container.get("ports", ()))
        if port.get("hostPort") != port.get("containerPort")
    ]


READINESS_GATES: Check = each(struct(("conditionType", text(label_key_faults))))
