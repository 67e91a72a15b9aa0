from __future__ import annotations

import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.protocol import Listing, WatchEvent

from .structs import pods, short


class CacheObserver:
    """A cache and what its handler heard."""

    def __init__(self, *listed: str, at: int = 10) -> None:
        self.cache: ObjectCache[Pod] = ObjectCache()
        self.heard: list[str] = []
        self.cache.subscribe(self._hear)
        if listed:
            assert self.listed(*listed, at=at)

    def _hear(self, old: Pod | None, new: Pod | None) -> None:
        self.heard.append(f"{short(old)} {short(new)}")

    def listed(self, *texts: str, at: int) -> bool:
        return self.cache.replace(Listing(pods(*texts), at))

    def told(self, *events: str) -> list[bool]:
        return [self.cache.apply(event) for event in map(_event, events)]

    def news(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard

    @property
    def holds(self) -> list[str]:
        return [short(found) for found in self.cache.values()]


def _event(text: str) -> WatchEvent[Pod]:
    sign, (found,) = text[0], pods(text[1:])
    kind = {"+": "ADDED", "~": "MODIFIED", "-": "DELETED"}[sign]
    return WatchEvent(kind, found, int(found.metadata.resource_version))


def test_a_list_and_the_events_after_it_are_told_as_old_and_new() -> None:
    reader = CacheObserver("a@2", "b@4", at=4)
    assert reader.told("+c@5", "~a@6", "-b@7") == [True, True, True]
    assert reader.news() == ["- a@2", "- b@4", "- c@5", "a@2 a@6", "b@4 -"]
    assert reader.holds == ["a@6", "c@5"]
    assert reader.cache.revision == 7


def test_the_cache_is_a_mapping_by_namespace_and_name() -> None:
    cache = CacheObserver("a@2", "b@4").cache
    assert cache[Key("default", "a")].metadata.name == "a"
    assert cache.get(Key("default", "x")) is None
    assert list(cache) == [Key("default", "a"), Key("default", "b")]
    assert len(cache) == 2


@pytest.mark.parametrize("repeated", ["+a@6", "~a@5", "-a@3", "+b@4", "-b@9", "-never@9"])
def test_what_is_repeated_or_older_tells_nothing(repeated: str) -> None:
    reader = CacheObserver("a@2", "b@4", at=4)
    reader.told("~a@6", "-b@9")
    reader.news()
    assert reader.told(repeated) == [False]
    assert reader.news() == []
    assert reader.holds == ["a@6"]
    assert reader.cache.revision == 9


def test_a_deletion_that_names_the_last_version_instead_of_its_own_counts() -> None:
    reader = CacheObserver("a@2", at=4)
    assert reader.told("-a@2") == [True]
    assert reader.holds == []


def test_objects_of_one_transaction_may_share_a_revision() -> None:
    reader = CacheObserver(at=4)
    assert reader.told("+a@5", "+b@5") == [True, True]


def test_another_list_tells_only_what_differs() -> None:
    reader = CacheObserver("a@2", "b@4", "c@5", at=6)
    reader.news()
    assert reader.listed("a@2", "c@8", "d@9", at=9)
    assert reader.news() == ["b@4 -", "c@5 c@8", "- d@9"]
    assert reader.cache.revision == 9


def test_a_list_from_before_is_refused_whole() -> None:
    reader = CacheObserver("a@2", at=4)
    reader.told("-a@7")
    reader.news()
    assert not reader.listed("a@2", "b@3", at=6)
    assert reader.news() == []
    assert (reader.holds, reader.cache.revision) == ([], 7)


def test_another_object_of_the_same_name_is_an_end_and_a_beginning() -> None:
    reader = CacheObserver("a@2#1", at=4)
    reader.news()
    reader.listed("a@8#2", at=9)
    assert reader.news() == ["a@2 -", "- a@8"]


def test_a_bookmark_moves_the_revision_forward_only() -> None:
    cache = CacheObserver("a@2", at=4).cache
    cache.advance(9)
    cache.advance(5)
    assert cache.revision == 9


def test_who_comes_late_hears_first_what_is_there() -> None:
    reader, late = CacheObserver("a@2", "b@4"), list[str]()
    reader.cache.subscribe(lambda old, new: late.append(f"{short(old)} {short(new)}"))
    reader.told("~a@11")
    assert late == ["- a@2", "- b@4", "a@2 a@11"]


def test_indexes_are_right_when_a_handler_hears_of_a_change() -> None:
    cache: ObjectCache[Pod] = ObjectCache()
    by_node = cache.index(lambda pod: [pod.occupied_node] if pod.occupied_node else [])
    seen: list[tuple[str, ...]] = []
    cache.subscribe(lambda old, new: seen.append(tuple(map(short, by_node["x"]))))
    cache.replace(Listing(pods("a@2:x", "b@3"), 4))
    cache.apply(_event("~b@5:x"))
    cache.apply(_event("-a@6:x"))
    assert seen == [("a@2",), ("a@2",), ("a@2", "b@5"), ("b@5",)]


def test_an_index_that_comes_late_knows_what_is_there() -> None:
    reader = CacheObserver("a@2:x", "b@4")
    by_node = reader.cache.index(lambda pod: [pod.occupied_node] if pod.occupied_node else [])
    assert list(map(short, by_node["x"])) == ["a@2"]


def test_whoever_asks_for_the_same_index_gets_the_same_one() -> None:
    def nodes(pod: Pod) -> list[str]:
        return [pod.occupied_node]

    cache: ObjectCache[Pod] = ObjectCache()
    assert cache.index(nodes) is cache.index(nodes)
    assert cache.index(nodes) is not cache.index(lambda pod: [pod.occupied_node])
