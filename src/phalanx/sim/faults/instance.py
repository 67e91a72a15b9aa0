"""One scheduler in an ordeal: the shell as it is, behind a channel, with a witness at its side.

Started and killed by `stage`. A killed one leaves behind what it has sent; the next one starts from
what the API shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from phalanx.api.meta import Key
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.shell.scheduling import Scheduling
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting, promised
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queueing.entry import Id, State
from phalanx.scheduler.queueing.place import Place
from phalanx.sim.faults.channel import Channel
from phalanx.sim.faults.register import Register
from phalanx.sim.faults.rest import unrest
from phalanx.sim.faults.shadow import Shadow
from phalanx.sim.faults.words import untrue
from phalanx.sim.tail import Tail


class Witness(Protocol):
    """Somebody who knows by other means what a scheduler should decide."""

    def objections(self, seen: Cluster, entity: Entity, decision: Decision) -> list[str]:
        """What is wrong about a decision, given what the scheduler had seen."""
        ...

    def fits(self, seen: Cluster, entity: Entity) -> bool:
        """Whether an entity could be placed, given what the scheduler has seen."""
        ...


class Instance:
    """One life of one scheduler. `broken` is called with every sentence about what went wrong."""

    def __init__(
        self, channel: Channel, clock: Clock, chance: Chance, tail: Tail, register: Register,
        witness: Witness, broken: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.channel = channel
        client = Client(channel)
        self._informers = Informers(client, chance)
        self.shell = Scheduling(client, self._informers, clock, chance)
        self.shell.taken.append(self._taken)
        self.shell.decided.append(self._decided)
        self._tail, self._shadow = tail, Shadow(tail, self._informers)
        self._register, self._witness, self._broken = register, witness, broken
        #: The last attempt at each entity.
        self._last: dict[Id, tuple[Entity, Decision]] = {}
        #: Where this scheduler has decided to put pods, all that it has ever promised them, and
        #: whom it has decided to evict.
        self._homes: dict[str, str] = {}
        self._promised: dict[tuple[str, str], None] = {}
        self._victims: dict[str, None] = {}
        #: What it must have believed when it last took an entity.
        self._then = self.seen()

    async def run(self) -> None:
        """Schedule until killed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            group.create_task(self.shell.run())

    def is_at_rest(self) -> bool:
        """Whether it has nothing to do but wait."""
        active = (State.ACTIVE, State.IN_FLIGHT)
        return not self.shell.is_busy and all(
            place.state not in active for place in self.shell.queue.listing()
        )

    def seen(self) -> Cluster:
        """What it must believe, with what it has decided itself."""
        self._shadow.catch_up()
        return self._shadow.cluster(self._assumed(), self._untold(), self._doomed())

    def _assumed(self) -> dict[Key, str]:
        """Who has a node that the API does not show yet."""
        assumed: dict[Key, str] = {}
        for key in self.shell.cache.assumed():
            pod = self._shadow.pods.get(key)
            if pod is None or pod.spec.node_name or pod.metadata.uid not in self._homes:
                self._broken(f"pod {key} is assumed to have a node, but is {_state(pod)}")
            else:
                assumed[key] = self._homes[pod.metadata.uid]
        return assumed

    def _untold(self) -> dict[Key, str]:
        """Who was promised something else than the API shows yet."""
        found: dict[Key, str] = {}
        for key, uid, node in self.shell.cache.promises():
            if node and (uid, node) not in self._promised:
                self._broken(f"pod {key} is kept node {node}, which nobody decided")
            found[key] = node
        return found

    def _doomed(self) -> frozenset[str]:
        """Who is to be evicted, which the API does not show yet."""
        doomed = self.shell.cache.doomed()
        for key, uid in doomed:
            pod = self._shadow.pods.get(key)
            if pod is None or pod.metadata.deletion_timestamp or uid not in self._victims:
                self._broken(f"pod {key} is taken for a victim, but is {_state(pod)}")
        return frozenset(uid for _, uid in doomed)

    def overlooked(self) -> None:
        """Whoever waits at rest after a refusal cannot be placed: no cure went unnoticed."""
        seen = self.seen()
        if seen.doomed:
            # What becomes possible once they leave is noticed when they are seen to.
            return
        for place in self.shell.queue.listing():
            entity = self._refused(place)
            if entity is not None and self._witness.fits(seen, entity):
                self._broken(f"{place.key} waits, although it can be placed")

    def unrest(self) -> list[str]:
        """What must not be the case when all is quiet, and is."""
        cache, queue, tail = self.shell.cache, self.shell.queue, self._tail
        return [*unrest(cache, queue, tail), *untrue(queue, self._last_of, tail)]

    def _last_of(self, id_: Id) -> Decision | None:
        return self._last.get(id_, (None, None))[1]

    def _refused(self, place: Place) -> Entity | None:
        """The last attempt at an entity, if what waits is exactly what was refused then."""
        entity, decision = self._last.get(place.id, (None, None))
        if (
            entity is None
            or not isinstance(decision, Waiting | Preempting)
            or place.state is not State.BACKING_OFF
        ):
            return None
        tried = {member.pod.metadata.key for member in entity.members}
        return entity if tried == set(place.pods) else None

    def _taken(self, entity: Entity) -> None:
        self._then = self.seen()

    def _decided(self, entity: Entity, decision: Decision) -> None:
        for sentence in self._witness.objections(self._then, entity, decision):
            self._broken(sentence)
        id_ = Id(entity.group is not None, entity.key, entity.is_composite)
        self._last[id_] = entity, decision
        self._promised.update({(uid, node): None for _, uid, node in promised(decision)})
        if isinstance(decision, Placed):
            self._register.decide(decision)
            self._homes.update({uid: node for _, uid, node in decision.bindings})
        elif isinstance(decision, Preempting):
            self._register.choose(decision)
            self._victims.update({victim.uid: None for victim in decision.victims})


def _state(pod: object | None) -> str:
    return "gone" if pod is None else "bound or leaving already"
