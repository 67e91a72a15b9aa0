"""Rules of containers: names, images, ports, mounts, resources, security."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, under, unsupported
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, port_name_faults
from phalanx.api.rules.checks import (
    Check,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    repeated,
    struct,
    text,
    there,
    unique_field,
)
from phalanx.api.rules.env import ENV, ENV_FROM
from phalanx.api.rules.probe import LIFECYCLE, PORT_NUMBER, PROBES
from phalanx.api.rules.resource import check_resources
from phalanx.api.wire import Object

RESTART_POLICIES = ("Always", "OnFailure", "Never")
USER_ID: Check = between(0, 2**31 - 1)

# ----------------------------------------------------------------------------- ports and mounts

_PORT = struct(
    ("name", given(text(port_name_faults))),
    ("containerPort", needed(PORT_NUMBER)),
    ("hostPort", present(PORT_NUMBER)),
    ("protocol", needed(one_of("SCTP", "TCP", "UDP"))),
)


def relative_path(new: Any, old: Any) -> Causes:
    """A path that stays below where it starts."""
    found: list[Cause] = []
    if new.startswith("/"):
        found.append(invalid("", new, "must be a relative path"))
    if ".." in new.split("/"):
        found.append(invalid("", new, "must not contain '..'"))
    return found


_PROPAGATION = one_of("Bidirectional", "HostToContainer", "None")


def _mount_paths(new: Any, old: Any) -> Causes:
    """What the API tells at the list of mounts, not at the one of them, and their overlaps."""
    found: list[Cause] = []
    for at, mount in enumerate(new):
        for field in ("subPath", "subPathExpr"):
            found += under(field, relative_path(mount.get(field, ""), old))
        if mount.get("subPath") and mount.get("subPathExpr"):
            detail = "subPathExpr and subPath are mutually exclusive"
            found.append(invalid(f"[{at}].subPathExpr", mount["subPathExpr"], detail))
        if "mountPropagation" in mount:
            found += under("mountPropagation", _PROPAGATION(mount["mountPropagation"], old))
    again = repeated(new, "mountPath")
    twice = [invalid(f"[{at}].mountPath", new[at]["mountPath"], "must be unique") for at in again]
    return [*found, *twice]


_MOUNTS = every(each(struct(("name", there), ("mountPath", there))), _mount_paths)


def _each_once(new: Any, old: Any) -> Causes:
    return [
        invalid(f"[{at}].{field}", new[at].get(field), "must be unique")
        for field in ("name", "devicePath")
        for at in repeated(new, field)
    ]


_DEVICES = every(each(struct(("name", there), ("devicePath", there))), _each_once)


def host_port_causes(containers: Sequence[Object]) -> list[Cause]:
    """Ports of the node that two containers, or one of them twice, want."""
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


def host_network_causes(containers: Sequence[Object]) -> list[Cause]:
    """On the node's network a container's port is the node's, if it is said at all."""
    detail = "must match `containerPort` when `hostNetwork` is true"
    return [
        invalid(f"[{at}].ports[{number}].hostPort", port["hostPort"], detail)
        for at, container in enumerate(containers)
        for number, port in enumerate(container.get("ports", ()))
        if port.get("hostPort", port["containerPort"]) != port["containerPort"]
    ]


# -------------------------------------------------------------------------------------- security


def _privileges(new: Any, old: Any) -> Causes:
    if new.get("allowPrivilegeEscalation") is not False:
        return ()
    what = "cannot set `allowPrivilegeEscalation` to false and"
    found: list[Cause] = []
    if new.get("privileged"):
        found.append(invalid("", new, f"{what} `privileged` to true"))
    if "CAP_SYS_ADMIN" in new.get("capabilities", {}).get("add", ()):
        found.append(invalid("", new, f"{what} `capabilities.Add` CAP_SYS_ADMIN"))
    return found


_PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")


def _profile(field: str, noun: str) -> Check:
    """A profile of the kernel: a file of its own exactly where the type says so."""

    def check(new: Any, old: Any) -> Causes:
        kind, file = new.get("type", ""), new.get("localhostProfile")
        if not kind:
            return [required("type", f"type is required when {field} is set")]
        if kind not in _PROFILE_TYPES:
            return [unsupported("type", kind, _PROFILE_TYPES)]
        if kind == "Localhost":
            detail = f"must be set when {noun} type is Localhost"
            return () if file else [required("localhostProfile", detail)]
        detail = f"can only be set when {noun} type is Localhost"
        return [invalid("localhostProfile", file, detail)] if file else ()

    return check


SECCOMP: Check = _profile("seccompProfile", "seccomp")
APP_ARMOR: Check = _profile("appArmorProfile", "AppArmor")

_SECURITY = every(
    struct(
        ("runAsUser", given(USER_ID)),
        ("runAsGroup", given(USER_ID)),
        ("procMount", given(one_of("Default", "Unmasked"))),
        ("seccompProfile", present(SECCOMP)),
        ("appArmorProfile", present(APP_ARMOR)),
    ),
    _privileges,
)

# ------------------------------------------------------------------------------------ containers


def _image(new: Any, old: Any) -> Causes:
    if new == new.strip():
        return ()
    return [invalid("", new, "must not have leading or trailing whitespace")]


_COMMON = struct(
    ("name", needed(text(dns_label_faults))),
    ("image", needed(_image)),
    ("terminationMessagePolicy", needed(one_of("File", "FallbackToLogsOnError"))),
    ("ports", given(every(each(_PORT), unique_field("name")))),
    ("env", given(ENV)),
    ("envFrom", given(ENV_FROM)),
    ("volumeMounts", given(_MOUNTS)),
    ("volumeDevices", given(_DEVICES)),
    ("imagePullPolicy", needed(one_of("Always", "IfNotPresent", "Never"))),
    ("resources", check_resources),
    ("securityContext", present(_SECURITY)),
    ("restartPolicy", given(one_of(*RESTART_POLICIES))),
)

CONTAINER: Check = every(_COMMON, PROBES, struct(("lifecycle", present(LIFECYCLE))))

_SIDECAR_ONLY = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")


def check_init_container(new: Any, old: Any) -> Causes:
    """An init container has no probes and hooks unless it stays on as a sidecar."""
    if new.get("restartPolicy") == "Always":
        return CONTAINER(new, old)
    detail = "may not be set for init containers without restartPolicy=Always"
    extra = [forbidden(name, detail) for name in _SIDECAR_ONLY if name in new]
    return [*_COMMON(new, old), *extra]
