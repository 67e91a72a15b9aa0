"""Writes in one line each, and what a store says about a key in short."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.store.kv import KeyValue, Store, StoreChange, StoreReader, StoreWrite, ValueEncoder


def encode_text(text: str) -> ValueEncoder:
    """A value that carries its own revision, as stored objects do."""
    return lambda revision: f"{text}@{revision}".encode()


def put(key: str, text: str, expect: int = 0) -> StoreWrite:
    return StoreWrite(key, encode_text(text), expect)


def delete(key: str, expect: int) -> StoreWrite:
    return StoreWrite(key, None, expect)


def describe_record(record: KeyValue | None) -> str:
    """A record as `/key text@revision`."""
    return f"{record.key} {record.value.decode()}" if record else "-"


def describe_records(records: Iterable[KeyValue]) -> list[str]:
    return [describe_record(record) for record in records]


def describe_changes(changes: Iterable[StoreChange]) -> list[str]:
    """Changes as `revision: before -> after`."""
    return [
        f"{c.revision}: {describe_record(c.before)} -> {describe_record(c.after)}" for c in changes
    ]


def everything(store: StoreReader, at: int = 0) -> list[str]:
    return describe_records(store.range("/", at=at))


async def written(store: Store, *transactions: Sequence[StoreWrite]) -> None:
    """Commit one transaction after the other."""
    for writes in transactions:
        await store.commit(writes)
