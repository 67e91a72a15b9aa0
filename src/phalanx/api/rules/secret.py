"""Rules of Secrets: their keys, their size, and what each known type must hold."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from phalanx.api.causes import Causes, forbidden, invalid, required, too_long
from phalanx.api.errors import Cause
from phalanx.api.fields import config_key_faults
from phalanx.api.rules.checks import CREATED, IMMUTABLE, Check, every
from phalanx.api.wire import Object

#: What a Secret may hold, in bytes.
SECRET_LIMIT = 1024 * 1024
ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
_KEPT = "field is immutable when `immutable` is set"


def _stays(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    found: list[Cause] = []
    if new.get("type") != old.get("type"):
        found.append(invalid("type", new.get("type"), IMMUTABLE))
    if old.get("immutable"):
        changed = (field for field in ("immutable", "data") if new.get(field) != old.get(field))
        found += [forbidden(field, _KEPT) for field in changed]
    return found


def _keys(new: Any, old: Any) -> Causes:
    return [
        invalid(f"data[{key}]", key, fault)
        for key in new.get("data", {})
        for fault in config_key_faults(key)
    ]


def _size(new: Any, old: Any) -> Causes:
    size = sum(len(value) * 3 // 4 for value in new.get("data", {}).values())
    return [too_long("data", SECRET_LIMIT)] if size > SECRET_LIMIT else ()


def _has(*keys: str) -> Check:
    """All of these keys."""

    def check(new: Any, old: Any) -> Causes:
        return [required(f"data[{key}]") for key in keys if key not in new.get("data", {})]

    return check


def _has_any(*keys: str) -> Check:
    """At least one of these keys."""

    def check(new: Any, old: Any) -> Causes:
        missing = _has(*keys)(new, old)
        return missing if len(missing) == len(keys) else ()

    return check


def _has_object(key: str) -> Check:
    """A key that holds a JSON object; what it holds instead is not repeated."""

    def check(new: Any, old: Any) -> Causes:
        content = new.get("data", {}).get(key)
        if content is None:
            return [required(f"data[{key}]")]
        try:
            is_object = isinstance(orjson.loads(binascii.a2b_base64(content)), dict)
        except orjson.JSONDecodeError:
            is_object = False
        detail = "must be a JSON object"
        return () if is_object else [invalid(f"data[{key}]", "<secret contents redacted>", detail)]

    return check


def _has_private_key(new: Any, old: Any) -> Causes:
    key = "ssh-privatekey"
    return () if new.get("data", {}).get(key) else [required(f"data[{key}]")]


def _has_account(new: Any, old: Any) -> Causes:
    annotations: Object = new["metadata"].get("annotations") or {}
    place = f"metadata.annotations[{ACCOUNT_ANNOTATION}]"
    return () if annotations.get(ACCOUNT_ANNOTATION) else [required(place)]


_TYPES: Mapping[str, Check] = {
    "kubernetes.io/service-account-token": _has_account,
    "kubernetes.io/dockercfg": _has_object(".dockercfg"),
    "kubernetes.io/dockerconfigjson": _has_object(".dockerconfigjson"),
    "kubernetes.io/basic-auth": _has_any("username", "password"),
    "kubernetes.io/ssh-auth": _has_private_key,
    "kubernetes.io/tls": _has("tls.crt", "tls.key"),
}


def _content(new: Any, old: Any) -> Causes:
    check = _TYPES.get(new.get("type", ""))
    return check(new, old) if check else ()


SECRET: Check = every(_stays, _keys, _size, _content)
