"""Names of what is made for a workload: legal for every legal owner, the same each time.

    template     <job>-pgt-0
    Workload     <owner>-<hash of its uid>
    group        <workload>-<template>-<hash of both>, with an instance after the template
    claim        <owner>-<claim>-<hash of the owner's uid and the claim>

What is too long is shortened before the hash, never after it; the hash is of the whole, so that
what was told apart stays apart. Nothing is ever found by its name: objects refer to each other.
"""

from __future__ import annotations

from collections.abc import Collection

_OBJECT_LIMIT, _LABEL_LIMIT = 253, 63
#: What comes before the hash in the name of a claim.
_CLAIM_LIMIT = 57
_TEMPLATE_SUFFIX = "-pgt-0"
#: No vowels, and nothing that looks like one: no hash is a word.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def workload_name(owner: str, uid: str) -> str:
    """The name of the Workload of an object.

    >>> workload_name("train", "uid-123")
    'train-795ddf89fd'
    """
    mark = _hash(f"(types.UID){uid}")
    return f"{_truncate(owner, _OBJECT_LIMIT - len(mark) - 1)}-{mark}"


def template_name(job: str) -> str:
    """The name of the template of a Job's group: a DNS label, whatever the Job is called.

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
    """The name of a group that is made of a template: the only one, or one instance of several.

    Whoever does not want the instance shown has it in the hash alone.

    >>> pod_group_name("my-workload", "my-template")
    'my-workload-my-template-67bd6bbcc4'
    """
    parts = (workload, template, instance)
    mark = _hash("\0".join(parts)) if instance else _hash(workload + template)
    template = f"{template}-{instance}" if instance and shown else template
    room = _OBJECT_LIMIT - len(mark) - 2
    first, second = _split_room(len(workload), len(template), room)
    return f"{_truncate(workload, first)}-{_truncate(template, second)}-{mark}"


def claim_prefix(owner: str, claim: str) -> str:
    """What the names of the resource claims of an owner begin with: both in proportion if need be.

    >>> claim_prefix("worker-0", "gpu")
    'worker-0-gpu-'
    """
    full = len(owner) + len(claim) + 2
    if full <= _CLAIM_LIMIT:
        return f"{owner}-{claim}-"
    first, second = (_truncate(part, len(part) * _CLAIM_LIMIT // full) for part in (owner, claim))
    return f"{first}-{second}-"


def claim_name(owner: str, claim: str, uid: str) -> str:
    """The name of the resource claim that is made for one of the claims of an owner.

    >>> claim_name("worker-0", "gpu", "uid-123")
    'worker-0-gpu-575d9b86db'
    """
    return claim_prefix(owner, claim) + _hash(f"{uid}\0{claim}")


def free_name(wanted: str, taken: Collection[str]) -> str:
    """A name that none of the others has: the one wanted, or that with a number."""
    numbered = (f"{wanted}-{number}" for number in range(len(taken)))
    return next(name for name in (wanted, *numbered) if name not in taken)


def _split_room(first: int, second: int, room: int) -> tuple[int, int]:
    """How many characters two parts get: half each, and what the other one does not need."""
    half, small = room - room // 2, room // 2
    return max(half, room - second), max(small, room - first)


def _truncate(text: str, limit: int) -> str:
    """The beginning of a name; a dot at the end of it would begin a label with a dash."""
    return text if len(text) <= limit else text[:limit].rstrip(".")


def _hash(text: str) -> str:
    """FNV-1a of 32 bits, its decimal digits as letters."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(value))
