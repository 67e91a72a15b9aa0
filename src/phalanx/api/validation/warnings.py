"""Warnings about valid objects: deprecated fields and values that are rounded.

Kubernetes sends them with the answer to a write; clients print them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, Kind
from phalanx.api.resources import exact_value
from phalanx.api.storage import BETA_STORAGE_CLASS
from phalanx.api.wire import Object

#: Deprecated labels of nodes and the labels that replace them.
_DEPRECATED_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}


def find_warnings(kind: Kind, obj: Object) -> Sequence[str]:
    """Return the warnings about an object."""
    functions = _WARNINGS.get(kind.qualified_name)
    return [text for find in functions for text in find(obj)] if functions else ()


def _class_annotation(obj: Object) -> Iterator[str]:
    if BETA_STORAGE_CLASS in (obj["metadata"].get("annotations") or {}):
        yield (
            f"metadata.annotations[{BETA_STORAGE_CLASS}]: deprecated since v1.8; use "
            '"storageClassName" attribute instead'
        )


def _recycle_policy(volume: Object) -> Iterator[str]:
    if volume["spec"].get("persistentVolumeReclaimPolicy") == "Recycle":
        yield (
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. "
            "Instead, the recommended approach is to use dynamic provisioning."
        )


def _volume_node_labels(volume: Object) -> Iterator[str]:
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    for at, term in enumerate(required.get("nodeSelectorTerms") or ()):
        place = f"spec.nodeAffinity.required.nodeSelectorTerms[{at}].matchExpressions"
        yield from _label_warnings(place, term.get("matchExpressions") or ())


def _class_node_labels(storage_class: Object) -> Iterator[str]:
    for at, term in enumerate(storage_class.get("allowedTopologies") or ()):
        place = f"allowedTopologies[{at}].matchLabelExpressions"
        yield from _label_warnings(place, term.get("matchLabelExpressions") or ())


def _label_warnings(place: str, requirements: Sequence[Object]) -> Iterator[str]:
    for at, requirement in enumerate(requirements):
        key = requirement.get("key", "")
        if instead := _DEPRECATED_LABELS.get(key):
            yield f'{place}[{at}].key: {key} is deprecated since v1.17; use "{instead}" instead'


def _fractional_request(claim: Object) -> Iterator[str]:
    size = (claim["spec"].get("resources") or {}).get("requests", {}).get("storage", "0")
    if exact_value(size).denominator != 1:
        yield (
            f'spec.resources.requests[storage]: fractional byte value "{size}" is invalid, must '
            "be an integer"
        )


_WARNINGS: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    PERSISTENT_VOLUME.qualified_name: (_class_annotation, _recycle_policy, _volume_node_labels),
    PERSISTENT_VOLUME_CLAIM.qualified_name: (_class_annotation, _fractional_request),
    STORAGE_CLASS.qualified_name: (_class_node_labels,),
}
