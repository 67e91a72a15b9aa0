"""Names of the objects that controllers create: valid for every valid owner, and deterministic.

    template     <job>-pgt-0
    Workload     <owner>-<hash of its uid>
    group        <workload>-<template>-<hash of both>, with the instance after the template
    claim        <owner>-<claim>-<hash of the owner's uid and the claim>
    revision     <owner>-<hash of its data>
    ReplicaSet   <owner>-<hash of its template>

A long name is truncated before its hash. The hash is of the full text, so that different inputs
keep different names. No object is ever looked up by such a name: objects refer to each other.
"""

from __future__ import annotations

from collections.abc import Collection

_OBJECT_LIMIT, _LABEL_LIMIT = 253, 63
#: The longest part before the hash in the name of a claim.
_CLAIM_LIMIT = 57
_TEMPLATE_SUFFIX = "-pgt-0"
#: The alphabet of Kubernetes for generated names: no vowels, so that no hash is a word.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def workload_name(owner: str, uid: str) -> str:
    """Return the name of the Workload of an object.

    >>> workload_name("train", "uid-123")
    'train-795ddf89fd'
    """
    suffix = _hash(f"(types.UID){uid}")
    return f"{_truncate(owner, _OBJECT_LIMIT - len(suffix) - 1)}-{suffix}"


def template_name(job: str) -> str:
    """Return the name of the template of a Job: a DNS label for every Job name.

    >>> template_name("train")
    'train-pgt-0'
    >>> template_name("train.v2")
    'train-v2-865bfd7d85-pgt-0'
    """
    plain = f"{job}{_TEMPLATE_SUFFIX}"
    if "." not in job and len(plain) <= _LABEL_LIMIT:
        return plain
    suffix = f"-{_hash(job)}{_TEMPLATE_SUFFIX}"
    return job.replace(".", "-")[: _LABEL_LIMIT - len(suffix)] + suffix


def pod_group_name(workload: str, template: str, instance: str = "", *, shown: bool = True) -> str:
    """Return the name of the group of a template, or of one `instance` of several.

    Unless `shown`, the instance is only in the hash.

    >>> pod_group_name("my-workload", "my-template")
    'my-workload-my-template-67bd6bbcc4'
    """
    parts = (workload, template, instance)
    suffix = _hash("\0".join(parts)) if instance else _hash(workload + template)
    template = f"{template}-{instance}" if instance and shown else template
    # Each part gets half of the length, and what the other part does not need.
    length = _OBJECT_LIMIT - len(suffix) - 2
    workload_limit = max(length - length // 2, length - len(template))
    template_limit = max(length // 2, length - len(workload))
    return f"{_truncate(workload, workload_limit)}-{_truncate(template, template_limit)}-{suffix}"


def claim_prefix(owner: str, claim: str) -> str:
    """Return the prefix of the name of a resource claim; long parts are truncated in proportion.

    >>> claim_prefix("worker-0", "gpu")
    'worker-0-gpu-'
    """
    length = len(owner) + len(claim) + 2
    if length <= _CLAIM_LIMIT:
        return f"{owner}-{claim}-"
    parts = [_truncate(part, len(part) * _CLAIM_LIMIT // length) for part in (owner, claim)]
    return "{}-{}-".format(*parts)


def claim_name(owner: str, claim: str, uid: str) -> str:
    """Return the name of the resource claim for an entry in `resourceClaims` of an owner.

    >>> claim_name("worker-0", "gpu", "uid-123")
    'worker-0-gpu-lgbf7'
    """
    return claim_prefix(owner, claim) + _short_hash(f"{uid}\0{claim}")


def revision_name(owner: str, data: str) -> str:
    """Return the name of a ControllerRevision; pods carry it as a label value.

    >>> revision_name("web", "data")
    'web-7b7584ccd5'
    """
    suffix = _hash(data)
    return f"{_truncate(owner, _LABEL_LIMIT - len(suffix) - 1)}-{suffix}"


def replica_set_name(owner: str, template_hash: str) -> str:
    """Return the name of a ReplicaSet of a Deployment.

    >>> replica_set_name("web", "7b7584ccd5")
    'web-7b7584ccd5'
    """
    return f"{_truncate(owner, _OBJECT_LIMIT - len(template_hash) - 1)}-{template_hash}"


def endpoint_slice_name(owner: str, uid: str, number: int) -> str:
    """Return the name of a slice of endpoints, numbered per owner.

    >>> endpoint_slice_name("web", "uid-123", 0)
    'web-2l26f'
    """
    suffix = _short_hash(f"{uid}\0{number}")
    return f"{_truncate(owner, _OBJECT_LIMIT - len(suffix) - 1)}-{suffix}"


def hash_text(text: str) -> str:
    """Return the hash of a text as names and labels contain it.

    >>> hash_text("data")
    '7b7584ccd5'
    """
    return _hash(text)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or `name` with the lowest number that is not in `taken`."""
    numbered = (f"{name}-{number}" for number in range(len(taken)))
    return next(one for one in (name, *numbered) if one not in taken)


def _truncate(text: str, limit: int) -> str:
    """Truncate a name; a dot at its end is removed, since a label cannot start with the dash."""
    return text if len(text) <= limit else text[:limit].rstrip(".")


def _hash(text: str) -> str:
    """The 32-bit FNV-1a hash, each decimal digit encoded by the alphabet."""
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(_fnv(text)))


def _short_hash(text: str) -> str:
    """The last five digits of the hash in the base of the alphabet, as long as generated names."""
    value = _fnv(text)
    return "".join(_ALPHABET[value // len(_ALPHABET) ** n % len(_ALPHABET)] for n in range(5))


def _fnv(text: str) -> int:
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value
