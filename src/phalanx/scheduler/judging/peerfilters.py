"""The two filters that are about other pods: even spreading, and who must be near or apart.

Rows of `filters.py`. Each names a node under the first reason only, as Kubernetes does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.judging.evenness import Evenness
from phalanx.scheduler.judging.headcount import Headcount
from phalanx.scheduler.judging.scene import Scene

UNEVEN = "node(s) didn't match pod topology spread constraints"
NO_DOMAIN = f"{UNEVEN} (missing required label)"
NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_APART = "node(s) didn't match pod anti-affinity rules"
SHUNNED = "node(s) didn't satisfy existing pods anti-affinity rules"

_Found = Iterator[tuple[str, BoolArray]]


def uneven(scene: Scene) -> _Found:
    """Nodes where one more would make the spread too uneven, or that are in no domain."""
    if scene.among is None or not scene.among.even:
        return iter(())
    return _first(_uneven(scene.among.even), len(scene.snapshot))


def even_out(scene: Scene, nodes: BoolArray) -> str:
    """What would let the pod in on one of these nodes."""
    assert scene.among is not None
    node = nodes.argmax()
    for one in scene.among.even:
        spread, domains = one.spread, one.headcount.domains
        if domains.ids[node] < 0:
            return f"label node {scene.snapshot.names[node]} with {spread.key}"
        skew = max(int(_skews(like)[node]) for like in scene.among.even if like.spread == spread)
        if skew > spread.max_skew:
            return f"allow a maxSkew of {skew} over {spread.key}, or make room in other domains"
    raise AssertionError("no constraint is in the way")


def unwelcome(scene: Scene) -> _Found:
    """Nodes far from whom the pod must be near, or near whom it must be apart from."""
    if scene.among is None:
        return iter(())
    return _first(_unwelcome(scene), len(scene.snapshot))


def reconcile(scene: Scene, nodes: BoolArray) -> str:
    """What would let the pod in on one of these nodes."""
    assert scene.among is not None
    node, among = nodes.argmax(), scene.among
    name = scene.snapshot.names[node]
    for term, heads in among.apart:
        if _crowded(heads)[node]:
            return f"move the pods with {term.selection} away from the {term.key} of node {name}"
    if keys := [one.term.key for one, heads in among.shunned if _crowded(heads)[node]]:
        return f"move the pods that keep others away from the {min(keys)} of node {name}"
    wanted = ", ".join(f"{term.selection} in its {term.key}" for term in scene.shape.peers.near)
    return f"run a pod with {wanted} near node {name}"


def _uneven(constraints: list[Evenness]) -> _Found:
    for one in constraints:
        yield NO_DOMAIN, ~one.headcount.domains.labelled
        yield UNEVEN, _skews(one) > one.spread.max_skew


def _skews(one: Evenness) -> IntArray:
    """How far above the emptiest domain each node's would be with the pod in it."""
    heads, present = one.headcount, one.headcount.present
    enough = len(present) >= one.spread.min_domains
    least = heads.counts[present].min() if enough and len(present) else 0
    return heads.here() + (one.itself - least)


def _unwelcome(scene: Scene) -> _Found:
    among = scene.among
    assert among is not None
    for near in among.near:
        # The first of a crowd that wants to be together has nobody to be near.
        first = among.near_itself and not any(heads.total for heads in near)
        for heads in near:
            yield NOT_NEAR, ~heads.domains.labelled if first else heads.here() == 0
    for _, heads in among.apart:
        yield NOT_APART, _crowded(heads)
    for _, heads in among.shunned:
        yield SHUNNED, _crowded(heads)


def _crowded(heads: Headcount) -> BoolArray:
    return heads.here() > 0


def _first(found: _Found, size: int) -> _Found:
    """The same without the nodes that were named before, one mask per reason."""
    named: dict[str, BoolArray] = {}
    left = np.ones(size, bool)
    for reason, mask in found:
        fresh = mask & left
        left &= ~mask
        named[reason] = named[reason] | fresh if reason in named else fresh
    yield from named.items()
