"""Writes in one line each, and what a store says about a key in short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.store.kv import Change, Encode, Reader, Record, Store, Write


def says(text: str) -> Encode:
    """A value that carries its own revision, as stored objects do."""
    return lambda revision: f"{text}@{revision}".encode()


def put(key: str, text: str, expect: int = 0) -> Write:
    return Write(key, says(text), expect)


def delete(key: str, expect: int) -> Write:
    return Write(key, None, expect)


def short(record: Record | None) -> str:
    """A record as `/key text@revision`."""
    return f"{record.key} {record.value.decode()}" if record else "-"


def shorts(records: Iterable[Record]) -> list[str]:
    return [short(record) for record in records]


def told(changes: Iterable[Change]) -> list[str]:
    """Changes as `revision: before -> after`."""
    return [f"{c.revision}: {short(c.before)} -> {short(c.after)}" for c in changes]


def everything(store: Reader, at: int = 0) -> list[str]:
    return shorts(store.range("/", at=at))


async def written(store: Store, *transactions: Sequence[Write]) -> None:
    """Commit one transaction after the other."""
    for writes in transactions:
        await store.commit(writes)
