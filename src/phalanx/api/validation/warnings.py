"""Warnings about valid objects: deprecated fields and values that are rounded.

Kubernetes sends them with the answer to a write; clients print them.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.api.formats import validate_dns_label
from phalanx.api.kinds import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_TEMPLATE,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    STORAGE_CLASS,
    Kind,
)
from phalanx.api.storage import BETA_STORAGE_CLASS
from phalanx.api.validation.pod_warnings import warn_of_fraction, warn_of_labels, warn_of_pod
from phalanx.api.wire import Object


def find_warnings(kind: Kind, obj: Object, old: Object | None) -> Sequence[str]:
    """Return the warnings about a new object, or about a change of one."""
    name = kind.qualified_name
    if old is None:
        functions = _ALL_WARNINGS.get(name, ())
    else:
        functions = _WARNINGS.get(name, ())
        if name in _WARNINGS_ON_CHANGE and _generation(obj) != _generation(old):
            functions += _WARNINGS_ON_CHANGE[name]
    return [text for find in functions for text in find(obj)] if functions else ()


def _generation(obj: Object) -> int:
    return int(obj["metadata"].get("generation", 0))


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
        yield from warn_of_labels(term.get("matchExpressions") or (), place)


def _class_node_labels(storage_class: Object) -> Iterator[str]:
    for at, term in enumerate(storage_class.get("allowedTopologies") or ()):
        place = f"allowedTopologies[{at}].matchLabelExpressions"
        yield from warn_of_labels(term.get("matchLabelExpressions") or (), place)


def _fractional_request(claim: Object) -> Iterator[str]:
    size = (claim["spec"].get("resources") or {}).get("requests", {}).get("storage", "0")
    yield from warn_of_fraction(size, "spec.resources.requests[storage]")


def _warn_of_name(use: str) -> Callable[[Object], Iterator[str]]:
    """Warn of a name that is no DNS label although pods are named after the object."""

    def find(obj: Object) -> Iterator[str]:
        if faults := validate_dns_label(obj["metadata"].get("name", "")):
            yield (
                f"metadata.name: this is used in {use}, which can result in surprising "
                f"behavior; a DNS label is recommended: [{' '.join(faults)}]"
            )

    return find


def _pod_template_at(*path: str) -> Callable[[Object], Iterator[str]]:
    """Return the warnings about the template of pods at a path."""

    def find(obj: Object) -> Iterator[str]:
        template: Object = obj
        for key in path:
            template = template.get(key) or {}
        yield from warn_of_pod(template, ".".join(path))

    return find


def _index_counts_at(*path: str) -> Callable[[Object], Iterator[str]]:
    """Warn of a Job with more indexes than its status can list."""

    def find(obj: Object) -> Iterator[str]:
        spec: Object = obj
        for key in path:
            spec = spec.get(key) or {}
        many = spec.get("completions", 0) > 10**5 and spec.get("parallelism", 0) > 10**4
        if many and spec.get("completionMode") == "Indexed":
            yield (
                f"{'.'.join(path)}: In Indexed Jobs with a number of completions higher than 10^5 "
                "and a parallelism higher than 10^4, Kubernetes might not be able to track "
                "completedIndexes when a big number of indexes fail"
            )

    return find


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


_NAMES_PODS = _warn_of_name("Pod names and hostnames")
_JOB_TEMPLATE = ("spec", "jobTemplate", "spec")

#: Warnings about every write of an object.
_WARNINGS: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    PERSISTENT_VOLUME.qualified_name: (_class_annotation, _recycle_policy, _volume_node_labels),
    PERSISTENT_VOLUME_CLAIM.qualified_name: (_class_annotation, _fractional_request),
    STORAGE_CLASS.qualified_name: (_class_node_labels,),
    SECRET.qualified_name: (_tls_content,),
    SERVICE.qualified_name: (_service_fields,),
}
#: Warnings about new objects. Pods are changed too often to be looked at again.
_WARNINGS_ON_CREATE: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    POD.qualified_name: (_warn_of_name("the Pod's hostname"), _pod_template_at()),
    **{
        kind.qualified_name: (_NAMES_PODS,)
        for kind in (CRON_JOB, DEPLOYMENT, JOB, REPLICA_SET, REPLICATION_CONTROLLER)
    },
}
#: Warnings about new objects and changes that raise the generation: templates of pods.
_WARNINGS_ON_CHANGE: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    POD_TEMPLATE.qualified_name: (_pod_template_at("template"),),
    JOB.qualified_name: (_index_counts_at("spec"), _pod_template_at("spec", "template")),
    CRON_JOB.qualified_name: (
        _index_counts_at(*_JOB_TEMPLATE),
        _pod_template_at(*_JOB_TEMPLATE, "template"),
    ),
    **{
        kind.qualified_name: (_pod_template_at("spec", "template"),)
        for kind in (
            DAEMON_SET,
            DEPLOYMENT,
            REPLICA_SET,
            REPLICATION_CONTROLLER,
            STATEFUL_SET,
        )
    },
}
#: All warnings about new objects.
_ALL_WARNINGS: Mapping[str, tuple[Callable[[Object], Iterator[str]], ...]] = {
    name: (
        *_WARNINGS.get(name, ()),
        *_WARNINGS_ON_CREATE.get(name, ()),
        *_WARNINGS_ON_CHANGE.get(name, ()),
    )
    for name in (*_WARNINGS, *_WARNINGS_ON_CREATE, *_WARNINGS_ON_CHANGE)
}
