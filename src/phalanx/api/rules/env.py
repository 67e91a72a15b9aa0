"""Rules of a container's environment: names, and where values come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phalanx.api.causes import Causes, invalid, required, unsupported
from phalanx.api.errors import Cause
from phalanx.api.fields import (
    Faults,
    annotation_key_faults,
    config_key_faults,
    dns_subdomain_faults,
    env_name_faults,
    label_key_faults,
    prefix_faults,
)
from phalanx.api.rules.checks import (
    Check,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
)

_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
    "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
#: Fields that exist, but only for volumes.
_VOLUME_FIELDS = (
    "metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName",
    "status.phase",
)  # fmt: skip
_RESOURCES = tuple(
    f"{part}.{name}"
    for part in ("limits", "requests")
    for name in ("cpu", "ephemeral-storage", "memory")
)
_SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['(.*)'\]")
_KEY_FAULTS: Mapping[str, Faults] = {
    "metadata.labels": label_key_faults,
    "metadata.annotations": annotation_key_faults,
}
_ONE_SOURCE = "may not have more than one field specified at a time"


def _source(new: Any, old: Any) -> Causes:
    source = new.get("valueFrom")
    if source is None:
        return ()
    named = [name for name in _SOURCES if name in source]
    if not named:
        listed = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        return [invalid("valueFrom", "", f"must specify one of: {listed}")]
    if new.get("value"):
        return [invalid("valueFrom", "", "may not be specified when `value` is not empty")]
    return [invalid("valueFrom", "", _ONE_SOURCE)] if len(named) > 1 else ()


def _field(new: Any, old: Any) -> Causes:
    path = new.get("fieldPath", "")
    if not path:
        return [required("fieldPath")]
    if match := _SUBSCRIPT.fullmatch(path):
        return [invalid("", match[2], fault) for fault in _KEY_FAULTS[match[1]](match[2])]
    if path in _FIELDS:
        return ()
    if path in _VOLUME_FIELDS:
        return [unsupported("fieldPath", path, _FIELDS)]
    detail = f"error converting fieldPath: field label not supported: {path}"
    return [invalid("fieldPath", path, detail)]


def _resource(new: Any, old: Any) -> Causes:
    huge = new.startswith(("limits.hugepages-", "requests.hugepages-"))
    return () if huge else one_of(*_RESOURCES)(new, old)


#: A key of a ConfigMap or Secret.
KEY: Check = needed(text(config_key_faults))
_KEY_REFERENCE = struct(("name", text(dns_subdomain_faults)), ("key", KEY))

_VALUE_FROM = struct(
    ("fieldRef", present(_field)),
    ("resourceFieldRef", present(struct(("resource", needed(_resource))))),
    ("configMapKeyRef", present(_KEY_REFERENCE)),
    ("secretKeyRef", present(_KEY_REFERENCE)),
)

_VARIABLE = every(
    struct(("name", needed(text(env_name_faults))), ("valueFrom", present(_VALUE_FROM))),
    _source,
)


def _variable(new: Any, old: Any) -> Causes:
    """Most variables are a name and a value, and pods have many: those are seen at a glance."""
    name = new.get("name")
    plain = name and "valueFrom" not in new and not env_name_faults(name)
    return () if plain else _VARIABLE(new, old)


ENV: Check = each(_variable)


def _all_of(name: str) -> list[str]:
    return list(prefix_faults(dns_subdomain_faults, name))


_WHOLE = struct(("name", needed(text(_all_of))))
_FROM = struct(
    ("prefix", given(text(env_name_faults))),
    ("configMapRef", present(_WHOLE)),
    ("secretRef", present(_WHOLE)),
)


def _one_source_each(new: Any, old: Any) -> Causes:
    """Told at the whole list, where clients of the API expect it."""
    found: list[Cause] = []
    for source in new:
        named = [name for name in ("configMapRef", "secretRef") if name in source]
        if not named:
            found.append(invalid("", "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(named) > 1:
            found.append(invalid("", "", _ONE_SOURCE))
    return found


ENV_FROM: Check = every(each(_FROM), _one_source_each)
