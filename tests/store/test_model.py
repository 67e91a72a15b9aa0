"""Random operations on a store and on the most obvious model of one: they never differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.sim.virtual_time import VirtualLoop
from phalanx.store.kv import KeyValue, RevisionCompacted, RevisionConflict, StoreChange, StoreWrite
from tests.store.conftest import STORES, Make
from tests.store.writes import delete, put

KEYS = ("/a", "/a/x", "/a/y", "/b/x", "/b/y")
PREFIXES = ("/", "/a", "/a/", "/b/")

#: A key, whether it is deleted, and how far its expectation is off.
requests = st.lists(
    st.tuples(st.sampled_from(KEYS), st.booleans(), st.sampled_from((0,) * 8 + (1,))),
    min_size=1,
    max_size=4,
    unique_by=lambda request: request[0],
)


class Model:
    """Every state that ever was, whole, and how many of them are committed."""

    def __init__(self) -> None:
        self.states: list[dict[str, KeyValue]] = [{}]
        self.changes: list[StoreChange] = []
        self.committed = self.compacted_revision = 0

    @property
    def head(self) -> dict[str, KeyValue]:
        return self.states[-1]

    def apply(self, write: StoreWrite) -> None:
        revision, before = len(self.states), self.head.get(write.key)
        after = None
        state = {key: record for key, record in self.head.items() if key != write.key}
        if write.encode:
            created = before.created if before else revision
            after = KeyValue(write.key, write.encode(revision), revision, created)
            state[write.key] = after
        self.states.append(state)
        self.changes.append(StoreChange(revision, write.key, before, after))

    def range(self, prefix: str, at: int, after: str, limit: int) -> list[KeyValue]:
        keys = [key for key in sorted(self.states[at]) if key.startswith(prefix) and key > after]
        return [self.states[at][key] for key in keys[: limit or None]]


class StoreAgainstModel(RuleBasedStateMachine):
    """Commits take a second of virtual time, so that much can be on its way at once."""

    make: Make

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.store, self.model = self.make(lambda: 1.0), Model()
        self.heard: list[StoreChange] = []
        self.store.subscribe(self.heard.extend)
        self.under_way: list[asyncio.Task[Sequence[StoreChange]]] = []

    @rule(requests=requests)
    def write(self, requests: list[tuple[str, bool, int]]) -> None:
        writes = [self.make_write(*request) for request in requests]
        task = self.runner.run(self.begin(writes))
        if any(off for _, _, off in requests):
            assert isinstance(task.exception(), RevisionConflict)
            return
        assert not task.done()
        self.under_way.append(task)
        for write in writes:
            self.model.apply(write)

    def make_write(self, key: str, is_deletion: bool, off: int) -> StoreWrite:
        there = self.model.head.get(key)
        expect = (there.revision if there else 0) + off
        return delete(key, expect) if is_deletion and there else put(key, "v", expect)

    async def begin(self, writes: Sequence[StoreWrite]) -> asyncio.Task[Sequence[StoreChange]]:
        task = asyncio.ensure_future(self.store.commit(writes))
        await asyncio.sleep(0)
        return task

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A writer is cancelled: that changes nothing."""
        task = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(task)
        task.cancel()

    @rule()
    def settle(self) -> None:
        self.runner.run(self.store.commit(()))
        assert all(task.done() for task in self.under_way)
        self.under_way.clear()
        self.model.committed = len(self.model.changes)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        revision = data.draw(st.integers(0, self.model.committed))
        self.store.compact(revision)
        self.model.compacted_revision = max(self.model.compacted_revision, revision)

    @rule(prefix=st.sampled_from(PREFIXES), after=st.sampled_from(("", *KEYS)), data=st.data())
    def look_back(self, prefix: str, after: str, data: st.DataObject) -> None:
        at = data.draw(st.integers(1, max(self.model.committed, 1)))
        limit = data.draw(st.integers(0, 3))
        if at < self.model.compacted_revision:
            with pytest.raises(RevisionCompacted):
                self.store.range(prefix, at=at)
            with pytest.raises(RevisionCompacted):
                self.store.changes(at)
            return
        at = min(at, self.model.committed)
        found = self.store.range(prefix, at=at, after=after, limit=limit)
        assert list(found) == self.model.range(prefix, at, after, limit)
        count = self.store.count(prefix, at=at, after=after)
        assert count == len(self.model.range(prefix, at, after, 0))
        later = self.model.changes[at : self.model.committed]
        changes = list(self.store.changes(at, prefix))
        assert changes == [change for change in later if change.key.startswith(prefix)]

    @invariant()
    def the_present_is_the_same(self) -> None:
        now = self.model.states[self.model.committed]
        assert self.store.revision == self.model.committed
        assert {key: self.store.get(key) for key in KEYS} == {key: now.get(key) for key in KEYS}
        assert list(self.store.range("/")) == [now[key] for key in sorted(now)]

    @invariant()
    def what_is_on_its_way_is_the_same(self) -> None:
        head = self.model.head
        assert {key: self.store.pending(key) for key in KEYS} == {k: head.get(k) for k in KEYS}

    @invariant()
    def everything_was_heard_once_and_in_order(self) -> None:
        assert self.heard == self.model.changes[: self.model.committed]

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.mark.parametrize("name", STORES)
def test_store_behaves_like_the_model(name: str) -> None:
    machine = type("Machine", (StoreAgainstModel,), {"make": staticmethod(STORES[name])})
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))
