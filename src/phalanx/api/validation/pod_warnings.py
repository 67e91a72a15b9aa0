"""Warnings about valid pods and templates of pods, as a Kubernetes API server sends them.

They name what is deprecated, what is silently replaced, and what hides something else: a second
variable of the same name, a port that two containers claim, a file of a volume below another one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import orjson

from phalanx.api.formats import validate_label_value
from phalanx.api.resources import exact_value
from phalanx.api.wire import CACHE_SIZE, MAX_CACHED_BYTES, Object, compact_json

#: Deprecated labels of nodes: since which version, and the label that replaces them.
_DEPRECATED_LABELS = {
    "beta.kubernetes.io/arch": ("v1.14", "kubernetes.io/arch"),
    "beta.kubernetes.io/os": ("v1.14", "kubernetes.io/os"),
    "beta.kubernetes.io/instance-type": ("v1.17", "node.kubernetes.io/instance-type"),
    "failure-domain.beta.kubernetes.io/zone": ("v1.17", "topology.kubernetes.io/zone"),
    "failure-domain.beta.kubernetes.io/region": ("v1.17", "topology.kubernetes.io/region"),
}
_DEPRECATED_ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": ("v1.16", "priorityClassName"),
    "security.alpha.kubernetes.io/sysctls": ("v1.11", "sysctls"),
    "security.alpha.kubernetes.io/unsafe-sysctls": ("v1.11", "sysctls"),
}
_POD_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_CONTAINER_SECCOMP = "container.seccomp.security.alpha.kubernetes.io/"
_CONTAINER_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_DEPRECATED_VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_BYTE_RESOURCES = ("memory", "ephemeral-storage")


def warn_of_pod(pod: Object, place: str) -> Iterable[str]:
    """Warn of a pod, for which `place` is empty, or of a template at a place.

    Pods of one template are created with the same spec: their warnings are cached by its JSON.
    """
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    text = compact_json(spec)
    if annotations or len(text) > MAX_CACHED_BYTES:
        return _warn_of_spec(spec, annotations, place)
    return _cached_warnings(text, place)


@lru_cache(maxsize=CACHE_SIZE)
def _cached_warnings(spec: bytes, place: str) -> tuple[str, ...]:
    return tuple(_warn_of_spec(orjson.loads(spec), {}, place))


def _warn_of_spec(spec: Object, annotations: Mapping[str, str], place: str) -> Iterator[str]:
    at = f"{place}.spec" if place else "spec"
    yield from _node_labels(spec, at)
    if annotations:
        yield from _annotations(spec, annotations, place)
    if spec.get("volumes"):
        yield from _volumes(spec["volumes"], at)
    yield from _repeated(spec, at)
    yield from _fractions(spec.get("overhead"), f"{at}.overhead")
    for container, where in _containers(spec, at):
        resources = container.get("resources") or {}
        for part in ("limits", "requests"):
            yield from _fractions(resources.get(part), f"{where}.resources.{part}")
        yield from _hidden_variables(container.get("env") or (), where)
    yield from _ports(spec, at)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        detail = "must be >= 0; negative values are invalid and will be treated as 1"
        yield f"{at}.terminationGracePeriodSeconds: {detail}"
    yield from _pod_terms(spec.get("affinity") or {}, f"{at}.affinity")
    yield from _addresses(spec, at)


def warn_of_labels(requirements: Sequence[Object], place: str) -> Iterator[str]:
    """Warn of requirements with the deprecated label of a node as key."""
    for at, requirement in enumerate(requirements):
        key = requirement.get("key", "")
        if detail := _label_detail(key):
            yield f"{place}[{at}].key: {key} is {detail}"


def warn_of_fraction(quantity: str, place: str) -> Iterator[str]:
    """Warn of an amount of bytes that is not whole."""
    if exact_value(quantity).denominator != 1:
        yield f'{place}: fractional byte value "{quantity}" is invalid, must be an integer'


def _label_detail(key: str) -> str:
    if key not in _DEPRECATED_LABELS:
        return ""
    since, instead = _DEPRECATED_LABELS[key]
    return f'deprecated since {since}; use "{instead}" instead'


def _containers(spec: Object, at: str) -> Iterator[tuple[Object, str]]:
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for number, container in enumerate(spec.get(field) or ()):
            yield container, f"{at}.{field}[{number}]"


# ---------------------------------------------------------------------------------- scheduling


def _node_labels(spec: Object, at: str) -> Iterator[str]:
    """Warn of deprecated labels, of label values that no node has, and of missing selectors."""
    for key in spec.get("nodeSelector") or ():
        if detail := _label_detail(key):
            yield f"{at}.nodeSelector[{key}]: {detail}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    where = f"{at}.affinity.nodeAffinity"
    terms = (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ()
    for number, term in enumerate(terms):
        place = f"{where}.{_REQUIRED}.nodeSelectorTerms[{number}].matchExpressions"
        yield from warn_of_labels(term.get("matchExpressions") or (), place)
    for number, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        expressions = (preferred.get("preference") or {}).get("matchExpressions") or ()
        place = f"{where}.{_PREFERRED}[{number}].preference.matchExpressions"
        yield from warn_of_labels(expressions, place)
        for index, expression in enumerate(expressions):
            for item, value in enumerate(expression.get("values") or ()):
                for fault in validate_label_value(value):
                    yield f"{place}[{index}].values[{item}]: {value} is invalid, {fault}"
    for number, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        place = f"{at}.topologySpreadConstraints[{number}]"
        key = constraint.get("topologyKey", "")
        if detail := _label_detail(key):
            yield f"{place}.topologyKey: {key} is {detail}"
        if constraint.get("labelSelector") is None:
            yield f"{place}.labelSelector: a null labelSelector results in matching no pod"


def _pod_terms(affinity: Object, at: str) -> Iterator[str]:
    """Warn of terms of pod affinity without a label selector."""
    for kind in ("podAffinity", "podAntiAffinity"):
        part = affinity.get(kind) or {}
        terms = [(f"{_REQUIRED}[{n}]", term) for n, term in enumerate(part.get(_REQUIRED) or ())]
        terms += [
            (f"{_PREFERRED}[{n}].podAffinityTerm", weighted.get("podAffinityTerm") or {})
            for n, weighted in enumerate(part.get(_PREFERRED) or ())
        ]
        for place, term in terms:
            if term.get("labelSelector") is None:
                detail = "a null labelSelector results in matching no pod"
                yield f"{at}.{kind}.{place}.labelSelector: {detail}"


# ---------------------------------------------------------------------- metadata and containers


def _annotations(spec: Object, annotations: Mapping[str, str], place: str) -> Iterator[str]:
    where = f"{place}.metadata.annotations" if place else "metadata.annotations"
    for key, (since, field) in _DEPRECATED_ANNOTATIONS.items():
        if key in annotations:
            yield f'{where}[{key}]: non-functional in {since}+; use the "{field}" field instead'
    security = spec.get("securityContext") or {}
    seccomp = 'non-functional in v1.27+; use the "seccompProfile" field instead'
    if _POD_SECCOMP in annotations and not security.get("seccompProfile"):
        yield f"{where}[{_POD_SECCOMP}]: {seccomp}"
    for container, _ in _containers(spec, ""):
        own, name = container.get("securityContext") or {}, container.get("name", "")
        if _CONTAINER_SECCOMP + name in annotations and not own.get("seccompProfile"):
            yield f"{where}[{_CONTAINER_SECCOMP}{name}]: {seccomp}"
        has_profile = security.get("appArmorProfile") or own.get("appArmorProfile")
        if place and _CONTAINER_APP_ARMOR + name in annotations and not has_profile:
            detail = 'deprecated since v1.30; use the "appArmorProfile" field instead'
            yield f"{where}[{_CONTAINER_APP_ARMOR}{name}]: {detail}"


def _repeated(spec: Object, at: str) -> Iterator[str]:
    """Warn of host aliases and pull secrets that exist twice, and of secrets without a name."""
    for field, key in (("hostAliases", "ip"), ("imagePullSecrets", "name")):
        seen: set[str] = set()
        for number, item in enumerate(spec.get(field) or ()):
            value = item.get(key, "")
            if value in seen:
                yield f'{at}.{field}[{number}].{key}: duplicate {key} "{value}"'
            seen.add(value)
    for number, item in enumerate(spec.get("imagePullSecrets") or ()):
        if not item.get("name"):
            yield f'{at}.imagePullSecrets[{number}].name: invalid empty name ""'


def _fractions(quantities: Mapping[str, str] | None, place: str) -> Iterator[str]:
    for name in _BYTE_RESOURCES if quantities else ():
        if quantities and name in quantities:
            yield from warn_of_fraction(quantities[name], f"{place}[{name}]")


def _hidden_variables(variables: Sequence[Object], where: str) -> Iterator[str]:
    """Warn of a variable that replaces an earlier one, unless its value refers to that one."""
    seen: set[str] = set()
    for number, variable in enumerate(variables):
        name, value = variable.get("name", ""), variable.get("value", "")
        reference = f"$({name})"
        replaces = "valueFrom" in variable or value == reference or reference not in value
        if name in seen and replaces:
            detail = f'hides previous definition of "{name}", which may be dropped when using apply'
            yield f"{where}.env[{number}]: {detail}"
        seen.add(name)


def _ports(spec: Object, at: str) -> Iterator[str]:
    """Warn of ports that several containers claim, by number or by name."""
    ports = [
        (port, f"{where}.ports[{number}]")
        for container, where in _containers(spec, at)
        for number, port in enumerate(container.get("ports") or ())
    ]
    claims: dict[tuple[int, str], list[tuple[Object, str]]] = {}
    names: dict[str, str] = {}
    for port, where in ports:
        if port.get("hostIP") and not port.get("hostPort"):
            yield f"{where}: hostIP set without hostPort"
        others = claims.setdefault((port.get("containerPort", 0), port.get("protocol", "")), [])
        for other, other_place in others:
            if problem := _port_overlap(port, other):
                yield f"{where}: {problem} port definition with {other_place}"
        others.append((port, where))
    for port, where in ports:
        if (name := port.get("name")) and (first := names.setdefault(name, where)) != where:
            detail = f"services and probes that select ports by name will use {first}"
            yield f'{where}: duplicate port name "{name}" with {first}, {detail}'


def _port_overlap(port: Object, other: Object) -> str:
    """Return how two definitions of the same port overlap, or nothing."""
    address, number = port.get("hostIP", ""), port.get("hostPort", 0)
    other_address, other_number = other.get("hostIP", ""), other.get("hostPort", 0)
    if (address, number) == (other_address, other_number):
        return "duplicate"
    if not number or not other_number:
        return "overlapping"
    is_ambiguous = number == other_number and bool(address) != bool(other_address)
    return "dangerously ambiguous" if is_ambiguous else ""


def _addresses(spec: Object, at: str) -> Iterator[str]:
    """Warn of IPv6 addresses that are not in the canonical form."""
    servers = (spec.get("dnsConfig") or {}).get("nameservers") or ()
    places = [(f"{at}.dnsConfig.nameservers[{n}]", text) for n, text in enumerate(servers)]
    places += [
        (f"{at}.hostAliases[{n}].ip", alias.get("ip", ""))
        for n, alias in enumerate(spec.get("hostAliases") or ())
    ]
    for place, text in places:
        if ":" in text and (canonical := str(ipaddress.ip_address(text))) != text:
            detail = f'IPv6 address "{text}" should be in RFC 5952 canonical format ("{canonical}")'
            yield f"{place}: {detail}"


# -------------------------------------------------------------------------------------- volumes

#: Volume sources with files, their name in a warning, and the field with the name of the object.
_FILE_SOURCES = (
    ("configMap", "ConfigMap", "name"),
    ("secret", "Secret", "secretName"),
    ("downwardAPI", "DownwardAPI", ""),
)


def _volumes(volumes: Sequence[Object], at: str) -> Iterator[str]:
    """Warn of removed kinds of volumes and of files that hide each other."""
    for number, volume in enumerate(volumes):
        place, name = f"{at}.volumes[{number}]", volume.get("name", "")
        for source, detail in _DEPRECATED_VOLUMES.items():
            if source in volume:
                yield f"{place}.{source}: {detail}"
        claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
        requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
        if "storage" in requests:
            where = f"{place}.ephemeral.volumeClaimTemplate.spec.resources.requests[storage]"
            yield from warn_of_fraction(requests["storage"], where)
        for source, label, field in _FILE_SOURCES:
            if source in volume:
                part = volume[source]
                shown = f'{label} "{part.get(field, "")}"' if field else label
                paths = [(item.get("path", ""), "") for item in part.get("items") or ()]
                yield from _overlaps(f'volume "{name}" ({shown})', paths)
        if "projected" in volume:
            sources = volume["projected"].get("sources") or ()
            for _ in (source for source in sources if not source):
                yield f'volume "{name}" (Projected) has no sources provided'
            paths = [path for source in sources for path in _projected_paths(source)]
            yield from _overlaps(f'volume "{name}" (Projected)', paths)


def _projected_paths(source: Object) -> Iterator[tuple[str, str]]:
    """Yield the paths of the files of a projection, and what each comes from."""
    for part, label, _ in _FILE_SOURCES:
        if part in source:
            name = source[part].get("name", "")
            shown = f' ({label} "{name}")' if part != "downwardAPI" else f" ({label})"
            for item in source[part].get("items") or ():
                yield item.get("path", ""), shown
    if path := (source.get("serviceAccountToken") or {}).get("path"):
        yield path, " (ServiceAccountToken)"
    if bundle := source.get("clusterTrustBundle"):
        name = bundle.get("name") or bundle.get("signerName", "")
        yield bundle.get("path", ""), f' (ClusterTrustBundle "{name}")'


def _overlaps(place: str, paths: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Warn of every pair of paths of which one is the other, or is below it."""
    for at, (path, label) in enumerate(paths):
        for other, other_label in paths[:at]:
            one, two = f"{path.rstrip('/')}/", f"{other.rstrip('/')}/"
            if path and other and (one.startswith(two) or two.startswith(one)):
                yield f'{place}: overlapping paths: "{path}"{label} with "{other}"{other_label}'
