"""Validation of what a pod may state for its operating system: Linux or Windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from phalanx.api.errors import Cause, Causes, forbidden, invalid, required, unsupported
from phalanx.api.formats import validate_dns_subdomain
from phalanx.api.validation.checks import Check, if_present, string_format, struct
from phalanx.api.wire import Object

_OPERATING_SYSTEMS = ("linux", "windows")
_ALL_CONTAINER_FIELDS = ("initContainers", "containers", "ephemeralContainers")
#: Fields that are not for Windows: of the pod, and of the security contexts.
_LINUX_POD_FIELDS = ("hostUsers", "hostPID", "hostIPC", "shareProcessNamespace")
_LINUX_POD_CONTEXT = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy",
    "sysctls", "runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
)  # fmt: skip
_LINUX_CONTAINER_CONTEXT = (
    "appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities",
    "readOnlyRootFilesystem", "privileged", "allowPrivilegeEscalation", "procMount", "runAsUser",
    "runAsGroup",
)  # fmt: skip
#: Fields whose empty value counts as absent.
_EMPTY_IS_ABSENT = ("hostPID", "hostIPC", "sysctls")


def _security_contexts(spec: Object) -> Iterator[tuple[str, Object]]:
    """Yield the path and the security context of each container."""
    for field in _ALL_CONTAINER_FIELDS:
        for at, container in enumerate(spec.get(field) or ()):
            yield f"{field}[{at}].securityContext", container.get("securityContext") or {}


def check_os(new: Any, old: Any) -> Causes:
    """Require a known operating system, and no fields of the other one."""
    if (system := new.get("os")) is None:
        return ()
    if not (name := system.get("name")):
        return [required("os.name", "cannot be empty")]
    if name not in _OPERATING_SYSTEMS:
        return [unsupported("os", name, _OPERATING_SYSTEMS)]
    pod_context: Object = new.get("securityContext") or {}
    if name == "linux":
        contexts = (("securityContext", pod_context), *_security_contexts(new))
        detail = "windows options cannot be set for a linux pod"
        return [
            forbidden(f"{place}.windowsOptions", detail)
            for place, context in contexts
            if context.get("windowsOptions") is not None
        ]
    rows = [
        ("", new, _LINUX_POD_FIELDS),
        ("securityContext.", pod_context, _LINUX_POD_CONTEXT),
        *((f"{place}.", one, _LINUX_CONTAINER_CONTEXT) for place, one in _security_contexts(new)),
    ]
    return [
        forbidden(f"{place}{field}", "cannot be set for a windows pod")
        for place, values, fields in rows
        for field in fields
        if values.get(field) is not None and (values[field] or field not in _EMPTY_IS_ABSENT)
    ]


def check_proc_mounts(new: Any, old: Any) -> Causes:
    """Refuse an unmasked /proc unless the pod has a user namespace of its own."""
    if new.get("hostUsers") is False:
        return ()
    return [
        invalid(f"{place}.procMount", "Unmasked", "`hostUsers` must be false to use `Unmasked`")
        for place, context in _security_contexts(new)
        if context.get("procMount") == "Unmasked" and not place.startswith("ephemeral")
    ]


# ------------------------------------------------------------------------------ Windows options

_MAX_CREDENTIAL_KIB = 64
_MAX_DOMAIN, _MAX_USER = 256, 104
_DNS_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DOMAIN = re.compile(rf'[^\\/:*?"<>|.][^\\/:*?"<>|]{{0,14}}|{_DNS_LABEL}(?:\.{_DNS_LABEL})*')
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")
_USER_CHARACTER = re.compile(r'["/\\:;|=,+*?<>@\[\]]')


def _check_credential_spec(new: Any, old: Any) -> Causes:
    if not new:
        return [invalid("", new, "gmsaCredentialSpec cannot be an empty string")]
    if len(new.encode()) <= _MAX_CREDENTIAL_KIB * 1024:
        return ()
    detail = f"gmsaCredentialSpec size must be under {_MAX_CREDENTIAL_KIB} KiB"
    return [invalid("", new, detail)]


def _validate_user_name(text: str) -> list[str]:
    """Validate a user of Windows: `USER` or `DOMAIN\\USER`."""
    if not text:
        return ["runAsUserName cannot be an empty string"]
    if _CONTROL_CHARACTER.search(text):
        return ["runAsUserName cannot contain control characters"]
    if text.count("\\") > 1:
        return ["runAsUserName cannot contain more than one backslash"]
    domain, backslash, user = text.rpartition("\\")
    characters = '"/\\:;|=,+*?<>@[]'
    rules = (
        (len(domain) >= _MAX_DOMAIN, f"Domain length must be under {_MAX_DOMAIN} characters"),
        (
            bool(backslash) and not _DOMAIN.fullmatch(domain),
            "Domain doesn't match the NetBios nor the DNS format",
        ),
        (not user, "User cannot be empty"),
        (len(user) > _MAX_USER, f"User length must not be longer than {_MAX_USER} characters"),
        (bool(user) and not user.strip(". "), "User cannot contain only periods or spaces"),
        (
            bool(_USER_CHARACTER.search(user)),
            f"User cannot contain the following characters: {characters}",
        ),
    )
    return [f"runAsUserName's {fault}" for is_wrong, fault in rules if is_wrong]


WINDOWS_OPTIONS: Check = struct(
    ("gmsaCredentialSpecName", if_present(string_format(validate_dns_subdomain))),
    ("gmsaCredentialSpec", if_present(_check_credential_spec)),
    ("runAsUserName", if_present(string_format(_validate_user_name))),
)


def check_host_processes(new: Any, old: Any) -> Causes:
    """Require that all containers are processes of the host, on its network, or none is."""
    pod_context: Object = new.get("securityContext") or {}
    of_pod = (pod_context.get("windowsOptions") or {}).get("hostProcess")
    found: list[Cause] = []
    states: list[bool] = []
    for place, context in _security_contexts(new):
        own = (context.get("windowsOptions") or {}).get("hostProcess")
        if None not in (own, of_pod) and own != of_pod:
            shown = str(of_pod).lower()
            detail = f"pod hostProcess value must be identical if both are specified, was {shown}"
            found.append(invalid(f"{place}.windowsOptions.hostProcess", own, detail))
        states.append(bool(of_pod if own is None else own))
    if not any(states):
        return found
    if not all(states):
        detail = (
            "If pod contains any hostProcess containers then all containers must be HostProcess "
            "containers"
        )
        found.append(invalid("", "", detail))
    if not new.get("hostNetwork"):
        detail = "hostNetwork must be true if pod contains any hostProcess containers"
        found.append(invalid("hostNetwork", False, detail))
    return found
