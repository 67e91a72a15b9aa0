"""Rules of a pod's volumes, and of the mounts that refer to them.

Sources that a PersistentVolume may have too are public.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, not_found, required
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults
from phalanx.api.quantity import value
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
    there,
    unique_field,
)
from phalanx.api.rules.container import relative_path
from phalanx.api.rules.env import KEY
from phalanx.api.wire import Object


def _mode(new: Any, old: Any) -> Causes:
    detail = "must be a number between 0 and 0777 (octal), both inclusive"
    return () if 0 <= new <= 0o777 else [invalid("", new, detail)]


def _size(new: Any, old: Any) -> Causes:
    detail = "SizeLimit field must be a valid resource quantity"
    return () if value(new) >= 0 else [forbidden("", detail)]


def _no_parents(new: Any, old: Any) -> Causes:
    return [invalid("", new, "must not contain '..'")] if ".." in new.split("/") else ()


_HOST_PATHS = (
    "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_ITEM = struct(("key", KEY), ("path", needed(relative_path)), ("mode", given(_mode)))
_FIELD_ITEM = struct(("path", needed(relative_path)), ("mode", given(_mode)))
_MODE = ("defaultMode", given(_mode))


def _projection(new: Any, old: Any) -> Causes:
    if len(new) == 1:
        return ()
    if not new:
        return [required("", "must specify a volume type")]
    named = sorted(new)
    return [forbidden(name, "may not specify more than 1 volume type") for name in named[1:]]


#: A path on the node.
HOST_PATH: Check = struct(("path", needed(_no_parents)), ("type", given(one_of(*_HOST_PATHS))))
#: A share on a server.
NFS: Check = struct(("server", there), ("path", there))

#: What is checked of the commonest volume sources; the others are only counted.
_SOURCES: Mapping[str, Check] = {
    "configMap": struct(("name", there), ("items", given(each(_ITEM))), _MODE),
    "csi": struct(("driver", there)),
    "downwardAPI": struct(("items", given(each(_FIELD_ITEM))), _MODE),
    "emptyDir": struct(("sizeLimit", given(_size))),
    "ephemeral": struct(("volumeClaimTemplate", there)),
    "hostPath": HOST_PATH,
    "nfs": NFS,
    "persistentVolumeClaim": struct(("claimName", there)),
    "projected": struct(("sources", given(each(_projection))), _MODE),
    "secret": struct(("secretName", there), ("items", given(each(_ITEM))), _MODE),
}


def _one_source(new: Any, old: Any) -> Causes:
    named = [name for name in new if name != "name"]
    if not named:
        return [required("", "must specify a volume type")]
    return [forbidden(name, "may not specify more than 1 volume type") for name in named[1:]]


VOLUMES: Check = every(
    each(
        every(
            struct(("name", needed(text(dns_label_faults)))),
            _one_source,
            struct(*((name, present(check)) for name, check in _SOURCES.items())),
        )
    ),
    unique_field("name"),
)


def mount_causes(containers: Sequence[Object], volumes: Collection[str]) -> list[Cause]:
    """Mounts and devices of volumes that the pod does not have."""
    return [
        not_found(f"[{at}].{sort}[{number}].name", mount.get("name", ""))
        for at, container in enumerate(containers)
        for sort in ("volumeMounts", "volumeDevices")
        for number, mount in enumerate(container.get(sort, ()))
        if mount.get("name", "") not in volumes
    ]
