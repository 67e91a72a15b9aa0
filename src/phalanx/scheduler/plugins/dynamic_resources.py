"""DynamicResources: rejects nodes whose devices cannot serve the claims of a pod.

`claim_assignments.py` chooses the devices; `devices/` knows them. The score prefers nodes that
serve the first alternatives of requests with `firstAvailable`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phalanx.api.cel.timestamps import parse_duration
from phalanx.api.cel.values import EvaluationError
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.decision import NODE_EVENTS, ClusterEvent
from phalanx.scheduler.devices.requests import describe_claim
from phalanx.scheduler.plugins.arguments import PluginArgs
from phalanx.scheduler.plugins.claim_assignments import ClaimAssignments
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    NormalizedScore,
    Plugin,
    Rejections,
    percent_of_max,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext

CANNOT_ALLOCATE = "cannot allocate all claims"
NOT_AVAILABLE = "resourceclaim not available on the node"
#: The score of the first alternative of a request; each further one scores one less.
_FIRST_ALTERNATIVE_SCORE = 8


def _reject(context: PluginContext) -> Rejections:
    demand, size = context.shape.claims, len(context.snapshot)
    if not demand:
        return
    if demand.problem:
        yield demand.problem, np.ones(size, bool)
        return
    claims = context.claims or ClaimAssignments(context.snapshot)
    rejected: dict[str, BoolArray] = {}
    for i in np.flatnonzero(context.candidates).tolist():
        if claims.choose(demand, i) is None:
            reason = claims.selector_error(demand, i) or CANNOT_ALLOCATE
            if not claims.is_reachable(demand, i):
                reason = NOT_AVAILABLE
            rejected.setdefault(reason, np.zeros(size, bool))[i] = True
    yield from rejected.items()


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    demand, state = context.shape.claims, context.snapshot.devices
    name = context.snapshot.names[nodes.argmax()]
    if demand.problem:
        return f"create what is missing: {demand.problem}"
    claims = [state.requests.get(claim.spec) for claim in demand.unallocated]
    wanted = dict.fromkeys(describe_claim(claim, state.inventory) for claim in claims)
    if not wanted:
        return "delete the claims that are allocated elsewhere, or the pods that use them"
    return f"add to node {name} or free there: {', '.join(wanted)}"


def _has_alternatives(context: PluginContext) -> bool:
    requests = context.snapshot.devices.requests
    return any(
        len(alternatives) > 1
        for claim in (context.shape.claims.unallocated if context.shape.claims else ())
        for alternatives in requests.get(claim.spec).requests
    )


def _score_alternatives(context: PluginContext, passed: BoolArray) -> IntArray:
    demand, requests = context.shape.claims, context.snapshot.devices.requests
    claims = context.claims or ClaimAssignments(context.snapshot)
    scores = np.zeros(len(passed), np.int64)
    for i in np.flatnonzero(passed).tolist():
        for claim, choices in claims.choose(demand, i) or ():
            chosen = {choice.alternative.name for choice in choices}
            for alternatives in requests.get(claim.spec).requests:
                for rank, one in enumerate(alternatives if len(alternatives) > 1 else ()):
                    scores[i] += (_FIRST_ALTERNATIVE_SCORE - rank) * (one.name in chosen)
    return percent_of_max(scores, passed)


class DynamicResourcesArgs(PluginArgs, frozen=True):
    """The arguments of DynamicResources.

    `filter_timeout` has no effect, since the search is bounded by counts.
    """

    filter_timeout: str = "10s"
    binding_timeout: str = "600s"


def _configure(args: DynamicResourcesArgs) -> Plugin:
    try:
        seconds = parse_duration(args.binding_timeout).nanos / 1e9
    except EvaluationError as error:
        raise ValueError(f"bindingTimeout: {error}") from error
    if seconds < 1:
        raise ValueError("bindingTimeout: must be at least 1s")
    return replace(DYNAMIC_RESOURCES, policy_fields={"device_timeout_seconds": seconds})


DYNAMIC_RESOURCES: Plugin = Plugin(
    "DynamicResources",
    filter=Filter(
        reject=_reject,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=NODE_EVENTS | {ClusterEvent.DEVICES_CHANGED},
        is_modelled=True,
    ),
    score=NormalizedScore(_has_alternatives, _score_alternatives),
    weight=2,
    policy_fields={"device_timeout_seconds": 600.0},
    arguments=Arguments(DynamicResourcesArgs, _configure),
)
