from __future__ import annotations

import msgspec
import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import Listing, WatchEvent

from .structs import pods, short_form


class CacheObserver:
    """A cache, and the changes that its handler received."""

    def __init__(self, *listed: str, at: int = 10) -> None:
        self.cache: ObjectCache[Pod] = ObjectCache()
        self.changes: list[str] = []
        self.cache.subscribe(self._record_change)
        if listed:
            assert self.replace(*listed, at=at)

    def _record_change(self, old: Pod | None, new: Pod | None) -> None:
        self.changes.append(f"{short_form(old)} {short_form(new)}")

    def replace(self, *texts: str, at: int) -> bool:
        return self.cache.replace(Listing(pods(*texts), at))

    def apply(self, *events: str) -> list[bool]:
        return [self.cache.apply(event) for event in map(_parse_event, events)]

    def take_changes(self) -> list[str]:
        changes, self.changes = self.changes, []
        return changes

    @property
    def objects(self) -> list[str]:
        return [short_form(found) for found in self.cache.values()]


def _parse_event(text: str) -> WatchEvent[Pod]:
    symbol, (found,) = text[0], pods(text[1:])
    kind = {"+": "ADDED", "~": "MODIFIED", "-": "DELETED"}[symbol]
    return WatchEvent(kind, found, int(found.metadata.resource_version))


def test_versions_of_an_object_share_namespace_and_name() -> None:
    cache: ObjectCache[Pod] = ObjectCache()
    for revision in (1, 2):
        for name in ("first", "other"):
            meta = {"name": name, "namespace": "training", "uid": name}
            encoded = msgspec.json.encode({"metadata": meta | {"resourceVersion": str(revision)}})
            found = msgspec.json.decode(encoded, type=Pod)
            assert cache.apply(WatchEvent("MODIFIED", found, revision))
    first, other = cache.items()
    assert first[1].metadata.resource_version == "2"
    assert first[1].metadata.name is first[0].name
    assert first[1].metadata.namespace is first[0].namespace is other[0].namespace


def test_handlers_receive_the_old_and_the_new_object_of_every_change() -> None:
    observer = CacheObserver("a@2", "b@4", at=4)
    assert observer.apply("+c@5", "~a@6", "-b@7") == [True, True, True]
    assert observer.take_changes() == ["- a@2", "- b@4", "- c@5", "a@2 a@6", "b@4 -"]
    assert observer.objects == ["a@6", "c@5"]
    assert observer.cache.revision == 7


def test_cache_is_a_mapping_by_namespace_and_name() -> None:
    cache = CacheObserver("a@2", "b@4").cache
    assert cache[Key("default", "a")].metadata.name == "a"
    assert cache.get(Key("default", "x")) is None
    assert list(cache) == [Key("default", "a"), Key("default", "b")]
    assert len(cache) == 2


@pytest.mark.parametrize("repeated", ["+a@6", "~a@5", "-a@3", "+b@4", "-b@9", "-never@9"])
def test_repeated_and_older_events_are_ignored(repeated: str) -> None:
    observer = CacheObserver("a@2", "b@4", at=4)
    observer.apply("~a@6", "-b@9")
    observer.take_changes()
    assert observer.apply(repeated) == [False]
    assert observer.take_changes() == []
    assert observer.objects == ["a@6"]
    assert observer.cache.revision == 9


def test_deletion_with_the_last_version_of_the_object_is_applied() -> None:
    observer = CacheObserver("a@2", at=4)
    assert observer.apply("-a@2") == [True]
    assert observer.objects == []


def test_objects_of_one_transaction_share_a_revision() -> None:
    observer = CacheObserver(at=4)
    assert observer.apply("+a@5", "+b@5") == [True, True]


def test_second_list_reports_only_the_differences() -> None:
    observer = CacheObserver("a@2", "b@4", "c@5", at=6)
    observer.take_changes()
    assert observer.replace("a@2", "c@8", "d@9", at=9)
    assert observer.take_changes() == ["b@4 -", "c@5 c@8", "- d@9"]
    assert observer.cache.revision == 9


def test_list_older_than_the_cache_is_rejected() -> None:
    observer = CacheObserver("a@2", at=4)
    observer.apply("-a@7")
    observer.take_changes()
    assert not observer.replace("a@2", "b@3", at=6)
    assert observer.take_changes() == []
    assert (observer.objects, observer.cache.revision) == ([], 7)


def test_object_recreated_under_the_same_name_is_reported_as_deleted_and_added() -> None:
    observer = CacheObserver("a@2#1", at=4)
    observer.take_changes()
    observer.replace("a@8#2", at=9)
    assert observer.take_changes() == ["a@2 -", "- a@8"]


def test_bookmark_only_moves_the_revision_forward() -> None:
    cache = CacheObserver("a@2", at=4).cache
    cache.advance(9)
    cache.advance(5)
    assert cache.revision == 9


def test_late_subscriber_first_receives_the_present_objects() -> None:
    observer, received = CacheObserver("a@2", "b@4"), list[str]()
    observer.cache.subscribe(
        lambda old, new: received.append(f"{short_form(old)} {short_form(new)}")
    )
    observer.apply("~a@11")
    assert received == ["- a@2", "- b@4", "a@2 a@11"]


def test_indexes_are_updated_before_handlers_run() -> None:
    cache: ObjectCache[Pod] = ObjectCache()
    by_node = cache.index(lambda pod: [pod.occupied_node] if pod.occupied_node else [])
    seen: list[tuple[str, ...]] = []
    cache.subscribe(lambda old, new: seen.append(tuple(map(short_form, by_node["x"]))))
    cache.replace(Listing(pods("a@2:x", "b@3"), 4))
    cache.apply(_parse_event("~b@5:x"))
    cache.apply(_parse_event("-a@6:x"))
    assert seen == [("a@2",), ("a@2",), ("a@2", "b@5"), ("b@5",)]


def test_index_added_later_contains_the_present_objects() -> None:
    observer = CacheObserver("a@2:x", "b@4")
    by_node = observer.cache.index(lambda pod: [pod.occupied_node] if pod.occupied_node else [])
    assert list(map(short_form, by_node["x"])) == ["a@2"]


def test_index_of_the_same_function_is_shared() -> None:
    def nodes(pod: Pod) -> list[str]:
        return [pod.occupied_node]

    cache: ObjectCache[Pod] = ObjectCache()
    assert cache.index(nodes) is cache.index(nodes)
    assert cache.index(nodes) is not cache.index(lambda pod: [pod.occupied_node])


def test_object_with_one_key_twice_leaves_the_index_when_it_is_deleted() -> None:
    cache: ObjectCache[Pod] = ObjectCache()
    by_node = cache.index(lambda pod: [pod.occupied_node, pod.occupied_node])
    cache.replace(Listing(pods("a@2:x", "b@3:x"), 4))
    cache.apply(_parse_event("-a@6:x"))
    assert list(map(short_form, by_node["x"])) == ["b@3"]
    cache.apply(_parse_event("-b@7:x"))
    assert len(by_node) == 0
