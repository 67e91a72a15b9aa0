"""Pods in a short notation: `a@5:x` is pod a at revision 5 on node x; `#2` sets its second uid."""

from __future__ import annotations

import re

import msgspec

from phalanx.api.core import Pod

from .fake_api import pod


def pods(*texts: str) -> list[Pod]:
    """Parse pods from the short notation."""
    return [_pod(text) for text in texts]


def _pod(text: str) -> Pod:
    match = re.fullmatch(r"([\w-]+)@(\d+)(?::(\w+))?(?:#(\d+))?", text)
    assert match
    name, version, node, uid = match.groups()
    return msgspec.convert(pod(name, int(version), node=node or "", uid=f"{name}-{uid or 1}"), Pod)


def short_form(found: Pod | None) -> str:
    """Format a pod in the short notation, without its node and uid."""
    return f"{found.metadata.name}@{found.metadata.resource_version}" if found else "-"
