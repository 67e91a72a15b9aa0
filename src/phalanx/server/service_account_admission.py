"""Service accounts of new pods: every pod has one, and its token is mounted in the containers.

The volume is that of Kubernetes: a token that is bound to the pod, the certificate of the server
and the name of the namespace, at `/var/run/secrets/kubernetes.io/serviceaccount`. A pod whose
service account does not exist is refused: the controllers that create pods try again.
"""

from __future__ import annotations

from copy import deepcopy

from phalanx.api.kinds import POD, SERVICE_ACCOUNT
from phalanx.api.wire import Object
from phalanx.randomness import Random
from phalanx.server.objects import decode_record, forbidden_error
from phalanx.store.kv import StoreReader

_DEFAULT_ACCOUNT = "default"
_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_VOLUME_PREFIX = "kube-api-access-"
#: A little more than an hour: the token is renewed hourly, as in Kubernetes.
_TOKEN_SECONDS = 3607
_SOURCES = [
    {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
    {
        "configMap": {
            "name": "kube-root-ca.crt",
            "items": [{"key": "ca.crt", "path": "ca.crt"}],
        }
    },
    {
        "downwardAPI": {
            "items": [
                {
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }
            ]
        }
    },
]


def add_service_account(store: StoreReader, random: Random, namespace: str, pod: Object) -> None:
    """Complete a new pod in place; raise 403 if its service account does not exist."""
    meta, spec = pod["metadata"], pod["spec"]
    if _MIRROR_ANNOTATION in (meta.get("annotations") or {}):
        return
    name = spec.get("serviceAccountName") or _DEFAULT_ACCOUNT
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    record = store.get(SERVICE_ACCOUNT.store_key(namespace, name))
    if record is None:
        detail = (
            f"error looking up service account {namespace}/{name}: serviceaccount "
            f'"{name}" not found'
        )
        raise forbidden_error(POD, meta.get("name", ""), detail)
    account = decode_record(record)
    if not spec.get("imagePullSecrets") and account.get("imagePullSecrets"):
        spec["imagePullSecrets"] = account["imagePullSecrets"]
    own = spec.get("automountServiceAccountToken")
    if account.get("automountServiceAccountToken", True) if own is None else own:
        _mount_token(random, spec)


def _mount_token(random: Random, spec: Object) -> None:
    """Mount the token where the containers have nothing; reuse a volume that is ours already."""
    volumes: list[Object] = spec.setdefault("volumes", [])
    volume = next((one["name"] for one in volumes if _is_token_volume(one)), "")
    name = volume or _VOLUME_PREFIX + random.suffix()
    is_mounted = False
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        mounts = container.setdefault("volumeMounts", [])
        if all(mount.get("mountPath") != _MOUNT_PATH for mount in mounts):
            mounts.append({"name": name, "readOnly": True, "mountPath": _MOUNT_PATH})
            is_mounted = True
    if is_mounted and not volume:
        projected = {"sources": deepcopy(_SOURCES), "defaultMode": 0o644}
        volumes.append({"name": name, "projected": projected})
    if not volumes:
        del spec["volumes"]


def _is_token_volume(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    is_ours = str(volume.get("name", "")).startswith(_VOLUME_PREFIX)
    return is_ours and any("serviceAccountToken" in source for source in sources)
