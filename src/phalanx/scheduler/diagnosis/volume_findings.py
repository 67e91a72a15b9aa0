"""What the PersistentVolumeClaims of pending pods contribute to their wait, in sentences.

    claim data-0 is bound to volume v-0 in zone b
    claim data-1 is bound to volume v-1, which only nodes with kubernetes.io/hostname=n2 can use
    claim data-3 is not bound: storage class fast does not exist
    waiting for claim data-2 to be provisioned on node-3 (12 s)

Bound claims stay bound when an attempt to provision others fails, and restrict the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phalanx.api.core import NodeSelector, Pod
from phalanx.api.meta import parse_timestamp
from phalanx.api.storage import SELECTED_AT_ANNOTATION, PersistentVolumeClaim, volume_keys_of
from phalanx.scheduler.volumes.state import VolumeInfo, VolumeState


def describe_volume_claims(pods: Iterable[Pod], state: VolumeState, now: float) -> tuple[str, ...]:
    """Say for each claim of pending pods which nodes it allows, or what it waits for."""
    found: dict[str, None] = {}
    for pod in pods:
        for key in volume_keys_of(pod):
            claim = state.claims.get(key)
            if claim is None:
                continue
            info = state.volumes.get(claim.spec.volume_name) if claim.is_bound else None
            if info is not None and (text := _describe_bound(claim, info)):
                found[text] = None
            elif not claim.is_bound and claim.selected_node:
                text = f"waiting for claim {claim.metadata.name} to be provisioned"
                text += f" on {claim.selected_node}"
                since = claim.metadata.annotations.get(SELECTED_AT_ANNOTATION)
                if since and now:
                    text += f" ({max(now - parse_timestamp(since), 0):.0f} s)"
                found[text] = None
            elif not claim.is_bound and (text := _describe_unbound(claim, state)):
                found[text] = None
    return tuple(found)


def is_being_provisioned(pods: Iterable[Pod], state: VolumeState) -> bool:
    """Whether pods wait for volumes that are provisioned for their nominated nodes."""
    return any(
        claim is not None and not claim.is_bound and claim.selected_node == node
        for pod in pods
        if (node := pod.status.nominated_node_name)
        for claim in map(state.claims.get, volume_keys_of(pod))
    )


def _describe_bound(claim: PersistentVolumeClaim, info: VolumeInfo) -> str:
    text = f"claim {claim.metadata.name} is bound to volume {info.name}"
    for key, values in info.zones:
        return f"{text} in {key.rpartition('/')[2]} {' or '.join(sorted(values))}"
    if info.affinity is None:
        return ""
    return f"{text}, which only nodes with {' or '.join(_format_terms(info.affinity))} can use"


def _format_terms(selector: NodeSelector) -> Iterator[str]:
    for term in selector.node_selector_terms:
        needs = [
            f"{need.key}={'|'.join(need.values)}"
            if need.operator == "In"
            else f"{need.key} {need.operator} {'|'.join(need.values)}".rstrip()
            for need in (*term.match_expressions, *term.match_fields)
        ]
        yield ", ".join(needs)


def _describe_unbound(claim: PersistentVolumeClaim, state: VolumeState) -> str:
    """Say what a claim lacks that is bound without regard to pods; "" if it is bound with one."""
    text, name = f"claim {claim.metadata.name} is not bound", claim.storage_class
    if volume := claim.spec.volume_name:
        lacks = "" if volume in state.volumes else ", which does not exist"
        return f"{text}: it names volume {volume}{lacks}"
    if name and name not in state.classes:
        return f"{text}: storage class {name} does not exist"
    if name and state.classes[name].waits_for_consumer:
        return ""
    kind = f"storage class {name}" if name else "no storage class"
    return f"{text}: it waits for a volume of {kind}"
