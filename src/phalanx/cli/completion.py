"""Completion of names that only the cluster knows: objects, namespaces, nodes.

A shell asks while the user types, so every answer is bounded in time and size, and an error is no
answer: no message may appear in the middle of a command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from phalanx.api.kinds import NAMESPACE, NODE, Kind
from phalanx.api.meta import PartialObjectMetadata
from phalanx.client.client import Client

#: Seconds that the cluster has for its answer, and names that are offered.
TIMEOUT, MAX_NAMES = 2.0, 200
#: The word for a gang as a kind: `gang/train` of the Job `train`.
_GANG = "gang"


def complete_subject(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete `KIND/NAME`: first the kind, then the names of its objects.

    A gang has the name of its owner, as in `phalanx queue`.
    """
    # The library imports the scheduler, which `phalanx up` imports in one of its processes only.
    from phalanx.library import QUERYABLE_KINDS, parse_subject

    word, slash, _ = incomplete.partition("/")
    if not slash:
        kinds = [f"{_GANG}/", *(f"{kind.name.lower()}/" for kind in QUERYABLE_KINDS)]
        return [CompletionItem(kind) for kind in kinds if kind.startswith(incomplete.lower())]
    try:
        kind, _ = parse_subject(f"{word}/any")
    except ValueError:
        return []
    return [
        CompletionItem(text)
        for name in _list_names(ctx, kind, by_owner=word.lower() == _GANG)
        if (text := f"{word}/{name}").startswith(incomplete)
    ]


def complete_namespace(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a namespace."""
    return _match(_list_names(ctx, NAMESPACE), incomplete)


def complete_node(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a node."""
    return _match(_list_names(ctx, NODE), incomplete)


def _match(names: Sequence[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _list_names(ctx: click.Context, kind: Kind, *, by_owner: bool = False) -> list[str]:
    """List the names of the objects of a kind, or of their owners, in the command's namespace."""
    from phalanx.cli.connection import query_cluster

    config, namespace = ctx.params.get("config"), ctx.params.get("namespace") or ""

    async def query(client: Client, default_namespace: str) -> list[str]:
        scope = namespace or default_namespace if kind.namespaced else ""
        async with asyncio.timeout(TIMEOUT):
            found = await client.list(kind, PartialObjectMetadata, namespace=scope)
        owners = [one.metadata.controller if by_owner else None for one in found.items]
        names = [
            owner.name if owner else one.metadata.name
            for owner, one in zip(owners, found.items, strict=True)
        ]
        return list(dict.fromkeys(names))[:MAX_NAMES]

    try:
        with ctx.scope(cleanup=False):
            return query_cluster(Path(config) if config else None, _context(ctx), query)
    except Exception:
        return []


def _context(ctx: click.Context) -> str:
    return str(ctx.params.get("context") or "")
