"""Pods as components read them: decoding shares what many pods have in common."""

from __future__ import annotations

import msgspec
import orjson

from phalanx.api.core import Pod, PodSpec
from phalanx.api.meta import ObjectMeta
from tests.builders import pod


def decode(name: str, node: str, cpu: str = "1") -> Pod:
    made = pod(name, on=node, cpu=cpu)
    return msgspec.json.decode(orjson.dumps(made), type=Pod)


def test_pods_with_equal_specs_share_one() -> None:
    one, other = decode("a", "n0"), decode("b", "n0")
    assert one.spec is other.spec
    assert (one.metadata.name, other.metadata.name) == ("a", "b")


def test_pods_with_different_specs_keep_their_own() -> None:
    first = decode("a", "n0")
    for other in (decode("b", "n1"), decode("c", "n0", cpu="2")):
        assert other.spec is not first.spec
        assert other.spec != first.spec


def test_a_spec_with_an_affinity_can_be_shared() -> None:
    terms = [{"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "zone"}]
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    made = pod("a", on="n0")
    made["spec"] |= {"affinity": affinity, "nodeSelector": {"x": "y"}}
    texts = [orjson.dumps(made), orjson.dumps(made)]
    one, other = (msgspec.json.decode(text, type=Pod) for text in texts)
    assert one.spec is other.spec
    assert one.spec.node_selector == {"x": "y"}


class CountedHostname(str):
    """A hostname that counts how often any hostname is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedHostname.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_pods_that_differ_in_their_hostname_only_are_not_compared_with_all_others() -> None:
    # The pending pods of an Indexed Job.
    CountedHostname.comparisons, number = 0, 200
    for index in range(number):
        spec = PodSpec(hostname=CountedHostname(f"job-{index}"))
        assert Pod(ObjectMeta(name=f"job-{index}"), spec).spec.hostname == f"job-{index}"
    assert CountedHostname.comparisons <= 2 * number
