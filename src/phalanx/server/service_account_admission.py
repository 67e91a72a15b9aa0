"""Service accounts of new pods: every pod has one, and its token is mounted in the containers.

The volume is that of Kubernetes: a token that is bound to the pod, the certificate of the server
and the name of the namespace, at `/var/run/secrets/kubernetes.io/serviceaccount`. A pod whose
service account does not exist is refused: the controllers that create pods try again. The account
`default` of a new namespace is created by a controller, so the request waits for it for a second.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import orjson

from phalanx.api.core import TOKEN_MOUNT_PATH
from phalanx.api.kinds import NAMESPACE, POD, SERVICE_ACCOUNT
from phalanx.api.wire import Object
from phalanx.randomness import NAME_ALPHABET
from phalanx.server.objects import forbidden_error
from phalanx.store.kv import StoreReader

_DEFAULT_ACCOUNT = "default"
_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
_VOLUME_PREFIX, _SUFFIX_LENGTH = "kube-api-access-", 5
#: A little more than an hour: the token is renewed hourly, as in Kubernetes.
_TOKEN_SECONDS = 3607
#: How often, and after how many seconds each, the default account is read, as in Kubernetes.
_DEFAULT_ACCOUNT_READS, _DEFAULT_ACCOUNT_INTERVAL = 10, 0.15
_SOURCES = orjson.dumps(
    [
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
)
#: The pods of many accounts are created at the same time, hardly of more.
_MAX_READ_ACCOUNTS = 1024


class AccountSettings(NamedTuple):
    """What pods take from their service account; `volume` is the name of the token's volume.

    Kubernetes generates another name for every pod. Here the pods of an account share it: it only
    has to be unique within the pod, and pods of the same template stay equal, so that validation
    and admission recognize them.
    """

    mounts_token: bool
    pull_secrets: tuple[Object, ...]
    volume: str


@lru_cache(maxsize=_MAX_READ_ACCOUNTS)
def _read_settings(account_bytes: bytes) -> AccountSettings:
    account: Object = orjson.loads(account_bytes)
    uid = str(account["metadata"].get("uid", ""))
    digest, letters = int.from_bytes(sha256(uid.encode()).digest()), []
    for _ in range(_SUFFIX_LENGTH):
        digest, letter = divmod(digest, len(NAME_ALPHABET))
        letters.append(NAME_ALPHABET[letter])
    return AccountSettings(
        account.get("automountServiceAccountToken", True),
        tuple(account.get("imagePullSecrets") or ()),
        _VOLUME_PREFIX + "".join(letters),
    )


async def wait_for_default_account(store: StoreReader, namespace: str, pod: Object) -> None:
    """Wait a while for the default account of a namespace, if a new pod will need it."""
    spec = pod.get("spec")
    name = spec.get("serviceAccountName") if isinstance(spec, dict) else None
    if name not in (None, "", _DEFAULT_ACCOUNT):
        return
    account_key = SERVICE_ACCOUNT.store_key(namespace, _DEFAULT_ACCOUNT)
    namespace_key = NAMESPACE.store_key("", namespace)
    for _ in range(_DEFAULT_ACCOUNT_READS - 1):
        if store.get(account_key) is not None or store.get(namespace_key) is None:
            return
        await asyncio.sleep(_DEFAULT_ACCOUNT_INTERVAL)


def add_service_account(store: StoreReader, namespace: str, pod: Object) -> None:
    """Complete a new pod in place; raise 403 if its service account does not exist."""
    meta, spec = pod["metadata"], pod["spec"]
    if _MIRROR_ANNOTATION in (meta.get("annotations") or {}):
        _check_mirror_pod(meta.get("name", ""), spec)
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
    settings = _read_settings(record.value)
    if settings.pull_secrets and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [dict(secret) for secret in settings.pull_secrets]
    own = spec.get("automountServiceAccountToken")
    if settings.mounts_token if own is None else own:
        _mount_token(settings.volume, spec)


def _check_mirror_pod(name: str, spec: Object) -> None:
    """Refuse a mirror pod with an account or a token: the kubelet that runs it can give none."""
    if spec.get("serviceAccountName"):
        raise forbidden_error(POD, name, "a mirror pod may not reference service accounts")
    for volume in spec.get("volumes") or ():
        sources = (volume.get("projected") or {}).get("sources") or ()
        if any("serviceAccountToken" in source for source in sources):
            detail = "a mirror pod may not use ServiceAccountToken volume projections"
            raise forbidden_error(POD, name, detail)


def _mount_token(new_name: str, spec: Object) -> None:
    """Mount the token where the containers have nothing; reuse a volume that is ours already."""
    volumes: list[Object] = spec.setdefault("volumes", [])
    own = next((one["name"] for one in volumes if _is_token_volume(one)), "")
    is_mounted = False
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        mounts = container.setdefault("volumeMounts", [])
        if all(mount.get("mountPath") != TOKEN_MOUNT_PATH for mount in mounts):
            mounts.append(
                {"name": own or new_name, "readOnly": True, "mountPath": TOKEN_MOUNT_PATH}
            )
            is_mounted = True
    if is_mounted and not own:
        projected = {"sources": orjson.loads(_SOURCES), "defaultMode": 0o644}
        volumes.append({"name": new_name, "projected": projected})
    if not volumes:
        del spec["volumes"]


def _is_token_volume(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    is_ours = str(volume.get("name", "")).startswith(_VOLUME_PREFIX)
    return is_ours and any("serviceAccountToken" in source for source in sources)
