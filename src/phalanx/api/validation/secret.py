"""Validation of Secrets: keys, size and the keys that each known type requires."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, forbidden, invalid, required, too_long
from phalanx.api.formats import validate_config_key
from phalanx.api.validation.checks import CREATED, IMMUTABLE, Check, all_of
from phalanx.api.wire import Object

#: Maximum size of a Secret's data, in bytes.
MAX_SECRET_SIZE = 1024 * 1024
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
_IMMUTABLE_MESSAGE = "field is immutable when `immutable` is set"


def _check_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED:
        return ()
    found: list[Cause] = []
    if new.get("type") != old.get("type"):
        found.append(invalid("type", new.get("type"), IMMUTABLE))
    if old.get("immutable"):
        changed = (field for field in ("immutable", "data") if new.get(field) != old.get(field))
        found += [forbidden(field, _IMMUTABLE_MESSAGE) for field in changed]
    return found


def _check_keys(new: Any, old: Any) -> Causes:
    return [
        invalid(f"data[{key}]", key, fault)
        for key in new.get("data", {})
        for fault in validate_config_key(key)
    ]


def _check_size(new: Any, old: Any) -> Causes:
    size = sum(len(value) * 3 // 4 for value in new.get("data", {}).values())
    return [too_long("data", MAX_SECRET_SIZE)] if size > MAX_SECRET_SIZE else ()


def _mandatory_keys(*keys: str) -> Check:
    """Require all these keys."""

    def check(new: Any, old: Any) -> Causes:
        return [required(f"data[{key}]") for key in keys if key not in new.get("data", {})]

    return check


def _any_mandatory_key(*keys: str) -> Check:
    """Require at least one of these keys."""

    def check(new: Any, old: Any) -> Causes:
        missing = _mandatory_keys(*keys)(new, old)
        return missing if len(missing) == len(keys) else ()

    return check


def _json_object_key(key: str) -> Check:
    """Require that a key holds a JSON object; the cause does not quote the content."""

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


def _check_private_key(new: Any, old: Any) -> Causes:
    key = "ssh-privatekey"
    return () if new.get("data", {}).get(key) else [required(f"data[{key}]")]


def _check_service_account(new: Any, old: Any) -> Causes:
    annotations: Object = new["metadata"].get("annotations") or {}
    place = f"metadata.annotations[{SERVICE_ACCOUNT_ANNOTATION}]"
    return () if annotations.get(SERVICE_ACCOUNT_ANNOTATION) else [required(place)]


_TYPE_CHECKS: Mapping[str, Check] = {
    "kubernetes.io/service-account-token": _check_service_account,
    "kubernetes.io/dockercfg": _json_object_key(".dockercfg"),
    "kubernetes.io/dockerconfigjson": _json_object_key(".dockerconfigjson"),
    "kubernetes.io/basic-auth": _any_mandatory_key("username", "password"),
    "kubernetes.io/ssh-auth": _check_private_key,
    "kubernetes.io/tls": _mandatory_keys("tls.crt", "tls.key"),
}


def _check_content(new: Any, old: Any) -> Causes:
    check = _TYPE_CHECKS.get(new.get("type", ""))
    return check(new, old) if check else ()


check_secret: Check = all_of(_check_immutable, _check_keys, _check_size, _check_content)
