"""Warnings about valid objects: deprecated fields and values that are rounded.

Kubernetes sends them with the answer to a write; clients print them.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.api.formats import validate_dns_label, validate_label_value
from phalanx.api.kinds import (
    CRON_JOB,
    JOB,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_TEMPLATE,
    SECRET,
    SERVICE,
    STORAGE_CLASS,
    Kind,
)
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


def _pod_hostname(pod: Object) -> Iterator[str]:
    if faults := validate_dns_label(pod["metadata"].get("name", "")):
        yield (
            "metadata.name: this is used in the Pod's hostname, which can result in surprising "
            f"behavior; a DNS label is recommended: {list(faults)}"
        )


def _pod_template_at(*path: str) -> Callable[[Object], Iterator[str]]:
    """Return the warnings about the pod spec at a path."""

    def find(obj: Object) -> Iterator[str]:
        spec: Object = obj
        for key in path:
            spec = spec.get(key) or {}
        yield from _volume_paths(spec)
        yield from _affinity_values(spec, ".".join(path))

    return find


def _affinity_values(spec: Object, place: str) -> Iterator[str]:
    """Warn of label values that no node can have; a preference with one is never met."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for at, term in enumerate(affinity.get(preferred) or ()):
        expressions = (term.get("preference") or {}).get("matchExpressions") or ()
        for number, expression in enumerate(expressions):
            for index, value in enumerate(expression.get("values") or ()):
                for fault in validate_label_value(value):
                    yield (
                        f"{place}.affinity.nodeAffinity.{preferred}[{at}].preference."
                        f"matchExpressions[{number}].values[{index}]: {value} is invalid, {fault}"
                    )


def _volume_paths(spec: Object) -> Iterator[str]:
    """Warn of files of a volume that hide each other, and of projections without a source."""
    for volume in spec.get("volumes") or ():
        name = volume.get("name", "")
        for source, label, field in _FILE_SOURCES:
            if source in volume:
                part = volume[source]
                shown = f'{label} "{part.get(field, "")}"' if field else label
                paths = [(item.get("path", ""), "") for item in part.get("items") or ()]
                yield from _overlaps(f'volume "{name}" ({shown})', paths)
        if "projected" in volume:
            sources = volume["projected"].get("sources") or ()
            if not all(sources):
                yield f'volume "{name}" (Projected) has no sources provided'
            paths = [path for source in sources for path in _projected_paths(source)]
            yield from _overlaps(f'volume "{name}" (Projected)', paths)


_FILE_SOURCES = (
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("downwardAPI", "DownwardAPI", ""),
)


def _projected_paths(source: Object) -> Iterator[tuple[str, str]]:
    for part, label in (
        ("secret", "Secret"),
        ("configMap", "ConfigMap"),
        ("downwardAPI", "DownwardAPI"),
    ):
        for item in (source.get(part) or {}).get("items") or ():
            yield item.get("path", ""), f" ({label})"
    if path := (source.get("serviceAccountToken") or {}).get("path"):
        yield path, " (ServiceAccountToken)"


def _overlaps(place: str, paths: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Warn once if a path is another one, or below another one."""
    for at, (path, label) in enumerate(paths):
        for other, other_label in paths[:at]:
            if path == other or f"{path}/".startswith(f"{other}/"):
                yield (f'{place}: overlapping paths: "{path}"{label} with "{other}"{other_label}')
                return


def _tls_content(secret: Object) -> Iterator[str]:
    """Warn of a certificate or key that is not PEM."""
    if secret.get("type") != "kubernetes.io/tls":
        return
    for key, noun in (("tls.crt", "certificate"), ("tls.key", "key")):
        content = binascii.a2b_base64((secret.get("data") or {}).get(key, ""))
        if b"-----BEGIN " not in content:
            yield f"tls: failed to find any PEM data in {noun} input"
            return


def _service_fields(service: Object) -> Iterator[str]:
    spec = service["spec"]
    if spec.get("externalIPs"):
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("clusterIP") == "None" and spec.get("sessionAffinity", "None") != "None":
        yield "spec.SessionAffinity is ignored for headless services"
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


_WARNINGS: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    PERSISTENT_VOLUME.qualified_name: (_class_annotation, _recycle_policy, _volume_node_labels),
    PERSISTENT_VOLUME_CLAIM.qualified_name: (_class_annotation, _fractional_request),
    STORAGE_CLASS.qualified_name: (_class_node_labels,),
    POD.qualified_name: (_pod_hostname, _pod_template_at("spec")),
    POD_TEMPLATE.qualified_name: (_pod_template_at("template", "spec"),),
    JOB.qualified_name: (_pod_template_at("spec", "template", "spec"),),
    CRON_JOB.qualified_name: (_pod_template_at("spec", "jobTemplate", "spec", "template", "spec"),),
    SECRET.qualified_name: (_tls_content,),
    SERVICE.qualified_name: (_service_fields,),
}
