"""Pods as short texts: `a@5:x` is pod a at revision 5 on node x, `a@5#2` its second life."""

from __future__ import annotations

import re

import msgspec

from phalanx.api.core import Pod

from .fake_api import pod


def pods(*texts: str) -> list[Pod]:
    """The pods that the texts describe."""
    return [_pod(text) for text in texts]


def _pod(text: str) -> Pod:
    match = re.fullmatch(r"([\w-]+)@(\d+)(?::(\w+))?(?:#(\d+))?", text)
    assert match
    name, version, node, life = match.groups()
    return msgspec.convert(pod(name, int(version), node=node or "", uid=f"{name}-{life or 1}"), Pod)


def short(found: Pod | None) -> str:
    """A pod as such a text, without its node and life."""
    return f"{found.metadata.name}@{found.metadata.resource_version}" if found else "-"
