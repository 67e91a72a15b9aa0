"""Validation of volumes, volume mounts, PersistentVolumes and PersistentVolumeClaims."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from phalanx.api.errors import (
    MAX_CAUSES,
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_found,
    prefix_causes,
    required,
    too_long,
    unsupported,
)
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.api.resources import exact_value
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_values,
    if_present,
    mandatory,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.containers import (
    RESOURCE_REFERENCE,
    VOLUME_FIELD_REFERENCE,
    check_unreserved_path,
)
from phalanx.api.validation.metadata import check_selector
from phalanx.api.validation.pod_scheduling import NODE_SELECTOR
from phalanx.api.wire import Object


def _check_mode(new: Any, old: Any) -> Causes:
    detail = "must be a number between 0 and 0777 (octal), both inclusive"
    return () if 0 <= new <= 0o777 else [invalid("", new, detail)]


def _check_size_limit(new: Any, old: Any) -> Causes:
    detail = "SizeLimit field must be a valid resource quantity"
    return () if exact_value(new) >= 0 else [forbidden("", detail)]


def _check_no_parent_segments(new: Any, old: Any) -> Causes:
    return [invalid("", new, "must not contain '..'")] if ".." in new.split("/") else ()


_HOST_PATH_TYPES = (
    "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_KEY_ITEM = struct(
    ("key", non_empty), ("path", mandatory(check_unreserved_path)), ("mode", optional(_check_mode))
)
_FIELD_ITEM = struct(
    ("path", mandatory(check_unreserved_path)),
    ("mode", optional(_check_mode)),
    ("fieldRef", if_present(VOLUME_FIELD_REFERENCE)),
    ("resourceFieldRef", if_present(RESOURCE_REFERENCE)),
)
_DEFAULT_MODE = ("defaultMode", optional(_check_mode))


def _check_field_items(new: Any, old: Any) -> Causes:
    """Check the files of a downward API; Kubernetes reports causes without the index of a file."""
    found: list[Cause] = []
    for item in new:
        causes = _FIELD_ITEM(item, CREATED)
        if "resourceFieldRef" in item and "fieldRef" in item:
            detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
            found.append(invalid("", "resource", detail))
        elif "resourceFieldRef" in item and not item["resourceFieldRef"].get("containerName"):
            causes = [c for c in causes if c.field != "resourceFieldRef.resource"]
            found.append(required("resourceFieldRef.containerName"))
        elif "resourceFieldRef" not in item and "fieldRef" not in item:
            found.append(required("", "one of fieldRef and resourceFieldRef is required"))
        found += causes
    return found


_DOWNWARD_API_FILES: Check = optional(_check_field_items)


def _check_downward_api(new: Any, old: Any) -> Causes:
    return _DOWNWARD_API_FILES(new.get("items"), CREATED)


_NAMED_KEYS = struct(("name", non_empty), ("items", optional(each(_KEY_ITEM))))
_MIN_TOKEN_SECONDS, _MAX_TOKEN_SECONDS = 600, 2**32


def _check_token_lifetime(new: Any, old: Any) -> Causes:
    if new < _MIN_TOKEN_SECONDS:
        return [invalid("", new, "may not specify a duration less than 10 minutes")]
    if new > _MAX_TOKEN_SECONDS:
        return [invalid("", new, "may not specify a duration larger than 2^32 seconds")]
    return ()


_PROJECTIONS: Mapping[str, Check] = {
    "secret": _NAMED_KEYS,
    "configMap": _NAMED_KEYS,
    "downwardAPI": _check_downward_api,
    "serviceAccountToken": struct(("expirationSeconds", optional(_check_token_lifetime))),
}


def _check_projections(new: Any, old: Any) -> Causes:
    """Check the sources of a projected volume; Kubernetes accepts a source without any type."""
    found: list[Cause] = []
    paths: list[str] = []
    for at, source in enumerate(new.get("sources", ())):
        for name, check in _PROJECTIONS.items():
            if name in source:
                found += prefix_causes(f"sources[{at}].{name}", check(source[name], CREATED))
        if len(source) > 1:
            detail = "may not specify more than 1 volume type per source"
            found.append(forbidden(f"sources[{at}]", detail))
        if "serviceAccountToken" in source:
            # Kubernetes reports the path of a token at the volume.
            path = source["serviceAccountToken"].get("path", "")
            found += prefix_causes("path", mandatory(check_unreserved_path)(path, CREATED))
        paths += _projected_paths(source)
    again = find_duplicate_values(paths)
    return [*found, *(invalid("", paths[at], "conflicting duplicate paths") for at in again)]


def _projected_paths(source: Object) -> list[str]:
    """Return the files of a source that must not conflict; the files of tokens may."""
    parts = [part for name, part in source.items() if name != "serviceAccountToken"]
    files = [*parts, *(item for part in parts for item in part.get("items", ()))]
    return [file[key] for file in files for key in _FILE_FIELDS if file.get(key)]


_FILE_FIELDS = ("path", "credentialBundlePath", "keyPath", "certificateChainPath")


def _check_export_path(new: Any, old: Any) -> Causes:
    missing = [] if new else [required("")]
    is_absolute = (new or "").startswith("/")
    return missing if is_absolute else [*missing, invalid("", new, "must be an absolute path")]


#: A path on the node.
HOST_PATH: Check = struct(
    ("path", mandatory(_check_no_parent_segments)), ("type", optional(one_of(*_HOST_PATH_TYPES)))
)
#: An NFS share.
NFS_VOLUME: Check = struct(("server", non_empty), ("path", _check_export_path))


_MAX_DRIVER_NAME = 63


def check_csi_driver_name(new: Any, old: Any) -> Causes:
    """Require the name of a CSI driver: a DNS subdomain of any case, at most 63 characters."""
    if not new:
        return [required("")]
    found = [too_long("", _MAX_DRIVER_NAME)] if len(new) > _MAX_DRIVER_NAME else []
    return [*found, *(invalid("", new, fault) for fault in validate_dns_subdomain(new.lower()))]


def _check_claim_template(new: Any, old: Any) -> Causes:
    """Check the template of an ephemeral volume's claim."""
    if new is None:
        return [required("")]
    return prefix_causes("spec", CLAIM_SPEC(new.get("spec") or {}, CREATED))


#: Checks of the common volume sources; other sources are only counted.
_VOLUME_SOURCES: Mapping[str, Check] = {
    "configMap": struct(("name", non_empty), ("items", optional(each(_KEY_ITEM))), _DEFAULT_MODE),
    "csi": struct(("driver", check_csi_driver_name)),
    "downwardAPI": all_of(_check_downward_api, struct(_DEFAULT_MODE)),
    "emptyDir": struct(("sizeLimit", optional(_check_size_limit))),
    "ephemeral": struct(("volumeClaimTemplate", _check_claim_template)),
    "hostPath": HOST_PATH,
    "image": struct(
        ("reference", non_empty),
        ("pullPolicy", optional(one_of("Always", "IfNotPresent", "Never"))),
    ),
    "nfs": NFS_VOLUME,
    "persistentVolumeClaim": struct(("claimName", non_empty)),
    "projected": all_of(_check_projections, struct(_DEFAULT_MODE)),
    "secret": struct(
        ("secretName", non_empty), ("items", optional(each(_KEY_ITEM))), _DEFAULT_MODE
    ),
}


#: All volume sources in the order in which Kubernetes looks for them: the first one counts.
_SOURCE_ORDER = (
    "emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs",
    "iscsi", "glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte",
    "downwardAPI", "fc", "flexVolume", "configMap", "azureFile", "vsphereVolume",
    "photonPersistentDisk", "portworxVolume", "azureDisk", "local", "storageos", "projected",
    "scaleIO", "csi", "ephemeral", "image",
)  # fmt: skip


def _one_source(checks: Mapping[str, Check]) -> Check:
    """Require one volume source; sources after the first are refused unchecked."""

    def check_source(new: Any, old: Any) -> Causes:
        named = [name for name in _SOURCE_ORDER if name in new]
        if not named:
            return [required("", "must specify a volume type")]
        found: list[Cause] = []
        if check := checks.get(named[0]):
            found += prefix_causes(named[0], check(new[named[0]], CREATED))
        many = (forbidden(name, "may not specify more than 1 volume type") for name in named[1:])
        return [*found, *many]

    return check_source


_VOLUME = all_of(
    struct(("name", mandatory(string_format(validate_dns_label)))), _one_source(_VOLUME_SOURCES)
)


def _check_volumes(new: Any, old: Any) -> Causes:
    """Check volumes; only the names of valid volumes must be unique."""
    names: set[str] = set()
    found: list[Cause] = []
    for at, volume in enumerate(new):
        name = volume.get("name", "")
        causes = [*_VOLUME(volume, CREATED)]
        if name in names:
            causes.append(duplicate("name", name))
        if not causes:
            names.add(name)
        found += prefix_causes(f"[{at}]", causes)
        if len(found) >= MAX_CAUSES:
            break
    return found


VOLUMES: Check = _check_volumes


def valid_volume_names(volumes: Sequence[Object]) -> set[str]:
    """Return the names of the valid volumes: Kubernetes does not find the others for a mount."""
    return {volume.get("name", "") for volume in volumes if not _VOLUME(volume, CREATED)}


def check_mounts(containers: Sequence[Object], volumes: Collection[str]) -> list[Cause]:
    """Refuse mounts and devices of volumes that the pod does not define."""
    return [
        not_found(f"[{at}].{sort}[{number}].name", mount.get("name", ""))
        for at, container in enumerate(containers)
        for sort in ("volumeMounts", "volumeDevices")
        for number, mount in enumerate(container.get(sort, ()))
        if mount.get("name", "") not in volumes
    ]


_STORAGE = "storage"
_SINGLE_POD_MODE = "ReadWriteOncePod"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", _SINGLE_POD_MODE)
_STORAGE_CLASS_NAME = string_format(validate_dns_subdomain)
_VOLUME_MODE = one_of("Block", "Filesystem")


def _check_access_modes(new: Any, old: Any) -> Causes:
    found = [unsupported("", mode, _ACCESS_MODES) for mode in new if mode not in _ACCESS_MODES]
    if _SINGLE_POD_MODE in new and len(set(new)) > 1:
        detail = f"may not use {_SINGLE_POD_MODE} with other access modes"
        found.append(forbidden("", detail))
    return found


def _check_positive_quantity(place: str, amount: str) -> list[Cause]:
    if exact_value(amount) > 0:
        return []
    return [invalid(place, amount, "must be greater than zero")]


def _check_capacity_quantity(place: str, amount: str) -> list[Cause]:
    found = _check_positive_quantity(place, amount)
    if exact_value(amount) < 0:
        found.insert(0, invalid(place, amount, "must be greater than or equal to 0"))
    return found


# --------------------------------------------------------------------------------------- volume

#: Fields of a PersistentVolume's spec that are no volume source.
_NON_SOURCE_FIELDS = (
    "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity",
    "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName", "volumeMode",
)  # fmt: skip
_SECRET_REFERENCE = struct(
    ("name", mandatory(string_format(validate_dns_subdomain))),
    ("namespace", mandatory(string_format(validate_dns_label))),
)
_CSI_SECRETS = (
    "controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef",
    "nodeExpandSecretRef",
)  # fmt: skip
#: Checks of the common volume sources; other sources are only counted.
_PERSISTENT_SOURCES: Mapping[str, Check] = {
    "csi": struct(
        ("driver", check_csi_driver_name),
        ("volumeHandle", non_empty),
        *((name, if_present(_SECRET_REFERENCE)) for name in _CSI_SECRETS),
    ),
    "hostPath": HOST_PATH,
    "local": struct(("path", non_empty)),
    "nfs": NFS_VOLUME,
}


def _source_fields(spec: Object) -> list[str]:
    return [field for field in spec if field not in _NON_SOURCE_FIELDS]


def _check_capacity(new: Any, old: Any) -> Causes:
    if not new:
        return [required(""), unsupported("", {}, (_STORAGE,))]
    found = [] if list(new) == [_STORAGE] else [unsupported("", new, (_STORAGE,))]
    for name, amount in new.items():
        found += _check_capacity_quantity(f"[{name}]", amount)
    return found


def _check_volume_immutable(new: Any, old: Any) -> Causes:
    """Refuse changes of the source."""
    if old is CREATED or not old:
        return ()
    found: list[Cause] = []
    if any(new.get(name) != old.get(name) for name in (*_source_fields(new), *_source_fields(old))):
        what = "persistentvolumesource"
        found.append(forbidden(what, f"spec.{what} is immutable after creation"))
    return found


def _check_affinity_immutable(new: Any, old: Any) -> Causes:
    """Refuse changes of node affinity once it is set; Kubernetes reports the cause at the top."""
    before = None if old is CREATED else (old.get("spec") or {}).get("nodeAffinity")
    after = (new.get("spec") or {}).get("nodeAffinity")
    return [invalid("nodeAffinity", after, IMMUTABLE)] if before and after != before else ()


def _check_mode_immutable(new: Any, old: Any) -> Causes:
    """Refuse another volume mode of a volume or claim; Kubernetes reports the cause at the top."""
    if old is CREATED:
        return ()
    after, before = (one.get("spec", {}).get("volumeMode") for one in (new, old))
    return [invalid("volumeMode", after, IMMUTABLE)] if after != before else ()


def _check_node_affinity(new: Any, old: Any) -> Causes:
    return _NODE_SELECTOR(new, old) if "required" in new else [required("required")]


_NODE_SELECTOR = struct(("required", if_present(NODE_SELECTOR)))


def _check_local_affinity(new: Any, old: Any) -> Causes:
    if "local" not in new or new.get("nodeAffinity"):
        return ()
    return [required("nodeAffinity", "Local volume requires node affinity")]


def _check_persistent_combinations(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    if "volumeAttributesClassName" in new and "csi" not in new:
        detail = "has to be specified when using volumeAttributesClassName"
        found.append(required("csi", detail))
    path = (new.get("hostPath") or {}).get("path", "")
    if new.get("persistentVolumeReclaimPolicy") == "Recycle" and path and not path.strip("/."):
        detail = "may not be 'recycle' for a hostPath mount of '/'"
        found.append(forbidden("persistentVolumeReclaimPolicy", detail))
    return found


_VOLUME_SPEC = all_of(
    struct(
        ("accessModes", all_of(non_empty, optional(_check_access_modes))),
        ("capacity", _check_capacity),
        ("persistentVolumeReclaimPolicy", optional(one_of("Delete", "Recycle", "Retain"))),
    ),
    _one_source(_PERSISTENT_SOURCES),
    struct(
        ("storageClassName", optional(_STORAGE_CLASS_NAME)),
        ("volumeMode", if_present(_VOLUME_MODE)),
        ("nodeAffinity", if_present(_check_node_affinity)),
        ("volumeAttributesClassName", if_present(mandatory(_STORAGE_CLASS_NAME))),
    ),
    _check_local_affinity,
    _check_persistent_combinations,
    _check_volume_immutable,
)

#: The spec of a volume in a VolumeAttachment: a persistent volume of CSI.
INLINE_VOLUME_SPEC: Check = all_of(
    struct(("accessModes", all_of(non_empty, optional(_check_access_modes)))),
    struct(("csi", mandatory(_PERSISTENT_SOURCES["csi"]))),
)

check_persistent_volume: Check = all_of(
    struct(("spec", if_present(_VOLUME_SPEC))), _check_affinity_immutable, _check_mode_immutable
)

# ---------------------------------------------------------------------------------------- claim


def _check_has_access_mode(new: Any, old: Any) -> Causes:
    return () if new else [required("", "at least 1 access mode is required")]


def _check_requested_size(new: Any, old: Any) -> Causes:
    """Check the requested size; Kubernetes reports the cause at the resources."""
    requested = (new or {}).get("requests", {}).get(_STORAGE)
    place = f"[{_STORAGE}]"
    return [required(place)] if requested is None else _check_positive_quantity(place, requested)


def _check_claim_immutable(new: Any, old: Any) -> Causes:
    """Refuse changes of a claim's spec.

    An absent volume name or storage class may be set. A bound claim may also change its attributes
    class and request more storage, or less than it requested, but more than it has got.
    """
    if old is CREATED:
        return ()
    after, before = new.get("spec", {}), old.get("spec", {})
    bound = old.get("status", {}).get("phase") == "Bound"
    found: list[Cause] = []
    if _immutable_part(after, before, bound=bound) != _immutable_part(before, before, bound=bound):
        detail = (
            "spec is immutable after creation except resources.requests and "
            "volumeAttributesClassName for bound claims"
        )
        found.append(forbidden("spec", detail))
    size, requested = _requested_storage(after), _requested_storage(before)
    capacity = old.get("status", {}).get("capacity", {}).get(_STORAGE)
    got = exact_value(capacity) if capacity else requested if bound else 0
    if size < requested and size <= got:
        place = "spec.resources.requests.storage"
        found.append(forbidden(place, "field can not be less than status.capacity"))
    return found


def _immutable_part(spec: Object, before: Object, *, bound: bool) -> Object:
    """Return a spec without the fields that may change."""
    settable = [name for name in ("volumeName", "storageClassName") if not before.get(name)]
    free = ("resources", "volumeAttributesClassName") if bound else ()
    return {key: inner for key, inner in spec.items() if key not in (*settable, *free)}


def _requested_storage(spec: Object) -> Any:
    return exact_value(spec.get("resources", {}).get("requests", {}).get(_STORAGE, "0"))


_CLAIM_KIND = "PersistentVolumeClaim"


def _check_source_kind(new: Any, old: Any) -> Causes:
    """Require a claim, unless the reference names an API group; Kubernetes omits the field."""
    group = new.get("apiGroup") or ""
    if group:
        return [invalid("apiGroup", group, fault) for fault in validate_dns_subdomain(group)]
    if new.get("kind") == _CLAIM_KIND:
        return ()
    detail = f"must be '{_CLAIM_KIND}' when referencing the default apiGroup"
    return [invalid("", new.get("kind", ""), detail)]


_SOURCE_REFERENCE = all_of(struct(("name", non_empty), ("kind", non_empty)), _check_source_kind)


def _check_sources_agree(new: Any, old: Any) -> Causes:
    source, reference = new.get("dataSource"), new.get("dataSourceRef")
    if source is None or reference is None:
        return ()
    if reference.get("namespace"):
        detail = "may not be specified when dataSourceRef.namespace is specified"
        return [invalid("", "dataSource", detail)]
    agree = all(source.get(key) == reference.get(key) for key in ("apiGroup", "kind", "name"))
    return () if agree else [invalid("", "dataSource", "must match dataSourceRef")]


#: The spec of a PersistentVolumeClaim.
CLAIM_SPEC: Check = all_of(
    struct(
        ("accessModes", all_of(_check_has_access_mode, optional(_check_access_modes))),
        ("selector", if_present(check_selector)),
        ("resources", _check_requested_size),
        ("storageClassName", optional(_STORAGE_CLASS_NAME)),
        ("volumeMode", if_present(_VOLUME_MODE)),
        ("dataSource", if_present(_SOURCE_REFERENCE)),
        (
            "dataSourceRef",
            if_present(
                all_of(
                    _SOURCE_REFERENCE,
                    struct(("namespace", optional(string_format(validate_dns_label)))),
                )
            ),
        ),
        ("volumeAttributesClassName", optional(_STORAGE_CLASS_NAME)),
    ),
    _check_sources_agree,
)

check_persistent_volume_claim: Check = all_of(
    struct(("spec", if_present(CLAIM_SPEC))), _check_claim_immutable, _check_mode_immutable
)
