"""The room that refused gangs lack, as data for autoscalers, and what would help degraded gangs.

Derived from the decision alone. `controllers/scheduling/status_writer.py` writes it to the status
of PodGroups; on foreign servers, whose schema drops it, to an annotation.

    gang of 4 members with 8 GPUs each, bound to one rack, 1 member finds a node:

    {"missingMembers": 3, "topologyKey": "rack", "requests":
        [{"members": 3, "resources": {"cpu": "4", "nvidia.com/gpu": "8"}}]}

There is no shortfall while nothing is known to lack: while victims leave, and while it is undecided
whether a placement exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from phalanx.api.meta import POD_GROUP_KIND, Ref
from phalanx.api.resources import canonical_quantity
from phalanx.api.wire import Object
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.decision import Decision, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import describe_refusal, suggest_cures

#: How many hints a message about a degraded gang has.
_MAX_CURES = 3
_KIBI = 1024
#: Returns the value of a label of a node; "" if the node or the label does not exist.
NodeLabel = Callable[[str, str], str]


class GroupShortfall(NamedTuple):
    """What a PodGroup lacks: as data, and as a sentence about the members that it has lost.

    Both are empty if nothing is known to lack.
    """

    group: Entity
    #: `status.shortfall` of the PodGroup.
    data: Object
    #: Why lost members cannot be replaced, and what would help.
    message: str


def find_shortfalls(
    entity: Entity, decision: Decision, node_label: NodeLabel
) -> Iterator[GroupShortfall]:
    """Yield what each PodGroup of an entity lacks after a decision."""
    waiting = decision.waiting if isinstance(decision, Preempting) else decision
    outcomes: dict[Ref, Waiting | None] = {}
    if isinstance(waiting, Waiting):
        outcomes = dict(waiting.parts) or {entity.ref: waiting}
    is_lacking = isinstance(decision, Waiting) and not (decision.nominated or decision.undecided)
    for group in entity.groups:
        if group.ref.kind != POD_GROUP_KIND:
            continue
        outcome = outcomes.get(group.ref)
        if outcome is None or not is_lacking or not outcome.lacks_quorum or outcome.undecided:
            yield GroupShortfall(group, {}, "")
        else:
            yield _describe_shortfall(group, outcome, node_label)


def _describe_shortfall(group: Entity, waiting: Waiting, node_label: NodeLabel) -> GroupShortfall:
    shapes = {member.pod.metadata.uid: member.shape for member in group.members}
    # Members that were refused come first: those that were not tried may have found a node.
    unplaced = sorted(waiting.pods, key=lambda pod: pod.refusal is None)
    missing = waiting.quorum - waiting.scheduled
    lacking = [shapes[pod.uid] for pod in unplaced if pod.uid in shapes][:missing]
    data: Object = {
        "missingMembers": missing,
        "requests": [
            {"members": count, "resources": _format_requests(shape)}
            for shape, count in Counter(lacking).items()
        ],
    }
    key = group.topology_key
    nodes = [pod.occupied_node for pod in group.other_members if pod.occupied_node]
    domain = node_label(nodes[0], key) if key and nodes else ""
    if key:
        data["topologyKey"] = key
    if domain:
        data["domain"] = domain
    refusals = dict.fromkeys(describe_refusal(pod.refusal) for pod in waiting.pods if pod.refusal)
    place = f" in {key.rpartition('/')[2]} {domain}" if domain else ""
    message = f"no node{place} takes another member"
    if refusals:
        message += f": {next(iter(refusals)).removesuffix('.')}"
    cures = suggest_cures(waiting)[:_MAX_CURES]
    if domain:
        cures.append("restart the gang in another domain")
    return GroupShortfall(group, data, f"{message}. Would help: {'; '.join(cures)}")


def _format_requests(shape: PodShape) -> dict[str, str]:
    return {
        name: _format_quantity(name, amount)
        for name, amount in shape.requests
        if amount and name != "pods"
    }


def _format_quantity(name: str, amount: int) -> str:
    if name == "cpu":
        return canonical_quantity(f"{amount}m")
    if amount % _KIBI:
        return str(amount)
    return canonical_quantity(f"{amount // _KIBI}Ki")
