"""What an object counts for: amounts in thousandths, by the names that quotas use.

Pure functions of one object. `quotas.py` adds them up over a namespace, `limitranges.py` holds
those of a pod against its bounds. Nothing here knows a quota or reads the store.

    pod that asks for 500m      count/pods 1000, pods 1000, cpu 500, requests.cpu 500
    the same when it has ended  count/pods 1000
    config map                  count/configmaps 1000, configmaps 1000
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from phalanx.api.core import ENDED, Container, Pod, Requirements
from phalanx.api.kinds import Kind
from phalanx.api.quantity import canonical, whole
from phalanx.api.resources import Amounts, amounts, pod_requests
from phalanx.api.wire import Object

#: Thousandths per name.
Usage = dict[str, int]

ONE = 1000
_BY_CLASS = "storageclass.storage.k8s.io"


class _Measure(NamedTuple):
    """What objects of a kind count for besides their number, by what is in them."""

    names: re.Pattern[str]
    of: Callable[[Object], Usage]


def usage(kind: Kind, obj: Object) -> Usage:
    """What one object counts for."""
    measure = _MEASURES.get(kind.resource)
    own = measure.of(obj) if measure else {kind.resource: ONE}
    return {f"count/{kind.resource}": ONE, **own}


def is_measured(kind: Kind) -> bool:
    """Whether it depends on the content of an object of this kind what it counts for."""
    return kind.resource in _MEASURES


def counts_for(kind: Kind, name: str) -> bool:
    """Whether objects of a kind can count for a name."""
    if name in (kind.resource, f"count/{kind.resource}"):
        return True
    measure = _MEASURES.get(kind.resource)
    return bool(measure and measure.names.fullmatch(name))


def pod_totals(pod: Object) -> tuple[Usage, Usage]:
    """What the containers of a pod ask for and may use in all; what is 0 is left out."""
    known = msgspec.convert(pod, Pod)
    bare = replace(known, spec=replace(known.spec, overhead={}))
    return _usage(pod_requests(bare)), _usage(pod_requests(_asking_for_limits(bare)))


def written(amount: int, like: str) -> str:
    """Thousandths as a quantity in the style of another: `1536Mi` beside `4Gi`, `2k` beside `4`."""
    whole, rest = divmod(amount, ONE)
    if rest or not like.endswith("i"):
        return canonical(f"{amount}m")
    return str(whole) if whole % 1024 else canonical(f"{whole // 1024}Ki")


def _usage(units: Amounts) -> Usage:
    """Amounts without the pod itself, all in thousandths as CPU already is."""
    return {
        name: count if name == "cpu" else count * ONE
        for name, count in units.items()
        if name != "pods"
    }


def _asking_for_limits(pod: Pod) -> Pod:
    """The same pod with its limits as requests: both add up in the same way."""
    spec = pod.spec
    changed = replace(
        spec,
        containers=tuple(map(_limits_asked, spec.containers)),
        init_containers=tuple(map(_limits_asked, spec.init_containers)),
        resources=Requirements(requests=spec.resources.limits) if spec.resources else None,
    )
    return replace(pod, spec=changed)


def _limits_asked(container: Container) -> Container:
    return replace(container, resources=Requirements(requests=container.resources.limits))


def _pod(pod: Object) -> Usage:
    """Only a pod that has not ended counts for more than its being there."""
    if pod.get("status", {}).get("phase") in ENDED:
        return {}
    requests, limits = pod_totals(pod)
    overhead = _usage(amounts(pod["spec"].get("overhead") or {}))
    used = {"pods": ONE}
    for name in {**requests, **overhead}:
        asked = requests.get(name, 0) + overhead.get(name, 0)
        used[name] = used[f"requests.{name}"] = asked
    for name, limit in limits.items():
        used[f"limits.{name}"] = limit + overhead.get(name, 0)
    return used


def _claim(claim: Object) -> Usage:
    """A claim counts in all and once more for its storage class."""
    spec = claim["spec"]
    asked = spec.get("resources", {}).get("requests", {}).get("storage", "0")
    used = {"persistentvolumeclaims": ONE, "requests.storage": whole(asked) * ONE}
    if storage_class := spec.get("storageClassName"):
        used |= {f"{storage_class}.{_BY_CLASS}/{name}": n for name, n in used.items()}
    return used


def _service(service: Object) -> Usage:
    """A service takes a port of every node for each of its own, unless it wants none."""
    spec = service["spec"]
    ports, sort = spec.get("ports") or [], spec.get("type")
    if sort == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = [port for port in ports if port.get("nodePort")]
    is_open, is_balanced = sort in ("NodePort", "LoadBalancer"), sort == "LoadBalancer"
    return {
        "services": ONE,
        "services.nodeports": len(ports) * ONE if is_open else 0,
        "services.loadbalancers": ONE if is_balanced else 0,
    }


_MEASURES: Mapping[str, _Measure] = {
    "pods": _Measure(
        re.compile(
            r"cpu|memory|ephemeral-storage|hugepages-.+|limits\..+|requests\.(?!storage$).+"
            r"|(?!count/).+/.+"
        ),
        _pod,
    ),
    "persistentvolumeclaims": _Measure(
        re.compile(rf"requests\.storage|.*\.{re.escape(_BY_CLASS)}/.*"), _claim
    ),
    "services": _Measure(re.compile(r"services\..*"), _service),
}
