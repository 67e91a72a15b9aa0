"""Judges whom a decision evicts, and what it keeps for whom while others leave.

Who goes must be less important, and go with all that go with him; whoever is preferred must fit
once they are gone, and not before; nobody goes who could stay. Everything is asked of the oracle,
pod by pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Victim, Waiting
from phalanx.scheduler.entity import Entity
from tests.scheduler.kinship import Kin
from tests.scheduler.machine import World
from tests.scheduler.seating import scattered, seated, too_few

#: A new world without some pods, by uid.
Worlds = Callable[[Collection[str]], World]
#: Whether an entity would be placed without some pods; None if that is too much to ask.
Fits = Callable[[Collection[str]], bool | None]
UNDER_WAY = "waiting for pods that are leaving"


def wrongs(
    kin: Kin, nodes: list[Node], entity: Entity, decision: Decision, worlds: Worlds
) -> Iterator[str]:
    """What is wrong about whom a decision evicts, and what it promises."""
    gone = kin.leaving()
    if isinstance(decision, Preempting):
        yield from _victims(kin, entity, decision)
        victims = {victim.uid for victim in decision.victims}
        promised = decision.waiting.promised
        yield from _promises(kin, nodes, entity, promised, worlds(gone | victims))
        yield from _needless(kin, entity, promised, victims, worlds)
    elif isinstance(decision, Waiting) and decision.promised:
        if decision.preemption != UNDER_WAY:
            yield "it is promised nodes, but waits for nobody to leave"
        yield from _promises(kin, nodes, entity, decision.promised, worlds(gone))


def misjudged(kin: Kin, entity: Entity, decision: Decision, fits: Fits) -> Iterator[str]:
    """Somebody is evicted only if that is needed, and also if that helps."""
    leaving = kin.leaving()
    if isinstance(decision, Placed) or not may_preempt(entity):
        return
    if leaving and fits(leaving):
        if isinstance(decision, Preempting):
            yield "others are evicted, although those who are leaving make room enough"
        elif isinstance(decision, Waiting) and decision.preemption != UNDER_WAY:
            yield f"those who are leaving make room enough, but it says: {decision.preemption}"
    elif isinstance(decision, Waiting) and decision.preemption != UNDER_WAY:
        lower = {p.metadata.uid for p in kin.pods if _may_go(kin, entity, p)}
        if lower and fits(leaving | lower):
            yield f"it would fit if others went, but it says: {decision.preemption}"


def may_preempt(entity: Entity) -> bool:
    """Whether anybody may be evicted for it: what its group says, or else its pods."""
    own = entity.group.spec.preemption_policy if entity.group else ""
    return (own or entity.members[0].pod.spec.preemption_policy) != "Never"


def _may_go(kin: Kin, entity: Entity, pod: Pod) -> bool:
    return kin.stays(pod) and kin.priority(pod) < entity.priority


def _victims(kin: Kin, entity: Entity, decision: Preempting) -> Iterator[str]:
    """They may go, and nobody goes without those who must go with him."""
    if not may_preempt(entity):
        yield "nobody may be evicted for it"
    if not decision.victims:
        yield "it evicts, but nobody"
    pods = {pod.metadata.uid: pod for pod in kin.pods}
    chosen = {victim.uid for victim in decision.victims}
    for victim in decision.victims:
        pod = pods.get(victim.uid)
        if pod is None or not kin.stays(pod) or pod.node != victim.node:
            yield f"{victim.pod} is not there to be evicted"
            continue
        if kin.priority(pod) >= entity.priority:
            yield f"{victim.pod} is no less important"
        if any(one.metadata.uid not in chosen for one in kin.unit(pod)):
            yield f"{victim.pod} would go without others of its group, which goes as a whole"
        if _named(victim) != _whole(kin, pod):
            yield f"{victim.pod} is said to go with {_named(victim)}, not {_whole(kin, pod)}"


def _named(victim: Victim) -> tuple[Key, bool] | None:
    return (victim.group, victim.is_composite) if victim.group else None


def _whole(kin: Kin, pod: Pod) -> tuple[Key, bool] | None:
    whole = kin.whole(pod)
    return (whole.metadata.key, isinstance(whole, CompositePodGroup)) if whole else None


def _promises(
    kin: Kin, nodes: list[Node], entity: Entity, promised: tuple[Binding, ...], world: World
) -> Iterator[str]:
    """Whoever is promised a node may be there once others have left, and they are enough."""
    yield from seated(entity, world, promised)
    yield from too_few(kin, entity, promised)
    yield from scattered(kin, nodes, entity, promised)


def _needless(
    kin: Kin, entity: Entity, promised: tuple[Binding, ...], victims: set[str], worlds: Worlds
) -> Iterator[str]:
    """Nobody goes who could stay where he is, everybody being where he was promised to be."""
    if any(_minds_others(member.pod) for member in entity.members):
        return
    gone, asked = kin.leaving() | victims, set[str]()
    for pod in kin.pods:
        if pod.metadata.uid in victims - asked:
            unit = {one.metadata.uid for one in kin.unit(pod)}
            asked |= unit
            if not [*seated(entity, worlds(gone - unit), promised)]:
                yield f"{pod.metadata.key} is evicted, but could stay"


def _minds_others(pod: Pod) -> bool:
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)
