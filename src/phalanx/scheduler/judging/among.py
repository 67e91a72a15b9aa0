"""Among: one pod's view of the others, prepared once per shape and standing in a trial.

The headcounts that the filters and comparisons about other pods read, live as the trial goes on.
Judges nothing itself.
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.census import Crowd
from phalanx.scheduler.cluster.peers import HOSTNAME, Spread
from phalanx.scheduler.cluster.snapshot import BoolArray, Snapshot
from phalanx.scheduler.cluster.wishes import Wishes
from phalanx.scheduler.judging.company import Company, Standing, every_node
from phalanx.scheduler.judging.evenness import Evenness, Leaning


class Among:
    """Whom a pod wants near, apart or evenly spread, and who wants it near or apart."""

    __slots__ = ("apart", "even", "likes", "near", "near_itself", "rather", "shunned")

    def __init__(
        self, snapshot: Snapshot, company: Company, standing: Standing, wishes: Wishes,
        *, explicit: bool, near_weight: int, heeds_likes: bool = True,
    ) -> None:  # fmt: skip
        peers, domains = standing.peers, snapshot.domains
        near = tuple(term.selection for term in peers.near)
        #: Whom it must be near, by every key; with those who were promised a place, and without.
        self.near = list(
            zip(*(company.crowds(Crowd(near), domains(t.key)) for t in peers.near), strict=True)
        )
        self.near_itself = company.holds(standing, near)
        self.apart = [
            (term, company.crowd(Crowd((term.selection,)), domains(term.key)))
            for term in peers.apart
        ]
        self.shunned = list(company.holding(standing, "apart"))
        self.likes = [
            (weight, company.crowd(Crowd((term.selection,)), domains(term.key)))
            for weight, term in peers.likes
        ]
        if heeds_likes or peers.likes:
            self.likes += [(one.weight, heads) for one, heads in company.holding(standing, "like")]
            nearby = company.holding(standing, "near") if near_weight else ()
            self.likes += [(near_weight, heads) for _, heads in nearby]
        hard = [one for one in peers.spreads if one.is_hard]
        soft = [one for one in peers.spreads if not one.is_hard]
        self.even = [
            Evenness(one, heads, company.holds(standing, (one.selection,)))
            for one in hard
            for heads in company.crowds(
                _spread_crowd(one), domains(one.key), _eligible(snapshot, wishes, one, hard)
            )
        ]
        keyed = soft if explicit else []
        rather = [
            _rather(snapshot, company, standing, one, _eligible(snapshot, wishes, one, keyed))
            for one in soft
        ]
        #: What it had rather have even, if anything.
        self.rather = Leaning(snapshot, rather, explicit=explicit) if rather else None


def _spread_crowd(spread: Spread) -> Crowd:
    return Crowd((spread.selection,), staying=True)


def _rather(
    snapshot: Snapshot, company: Company, standing: Standing, spread: Spread, eligible: BoolArray
) -> Evenness:
    per_node = spread.key == HOSTNAME
    domains = every_node(snapshot) if per_node else snapshot.domains(spread.key)
    heads = company.crowd(_spread_crowd(spread), domains, None if per_node else eligible)
    return Evenness(spread, heads, company.holds(standing, (spread.selection,)))


def _eligible(snapshot: Snapshot, wishes: Wishes, spread: Spread, keyed: list[Spread]) -> BoolArray:
    """The nodes whose pods count: in a domain of every key, and allowed if that is honoured."""
    mask = np.ones(len(snapshot), bool)
    for other in keyed:
        mask &= snapshot.domains(other.key).labelled
    if spread.honours_affinity:
        mask &= wishes.selected(snapshot)
    if spread.honours_taints:
        mask &= wishes.tolerated(snapshot)
    return mask
