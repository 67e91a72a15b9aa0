"""The outcome of a scenario in the format of the recorded outcomes, and the comparison of both.

An outcome is computed from the objects in the API only. Generated parts of names are replaced by
HASH.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from phalanx.api.wire import Object

#: All objects of a cluster by kind.
ObjectsByKind = Mapping[str, list[Object]]

#: The recorded key of pods without owners.
UNOWNED_PODS = "pods of nobody"
GROUP_KINDS = ("PodGroup", "CompositePodGroup")
#: The parts of a recorded outcome that are compared.
COMPARED = (
    "groups", "gone", "conditions", "jobs", "workloads", "podgroups", "facts", "job_events",
    "preempted", "then",
)  # fmt: skip
#: The parts that are also recorded each time that the cluster settles before the last step.
INTERMEDIATE_PARTS = ("groups", "conditions", "gone", "jobs")
DOMAINS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "rack", "block", "zone")
_TIME = re.compile(r"-[23]\d{7}(?=-|$)")
_HASH = re.compile(r"-(?:[bcdfghjklmnpqrstvwxz2456789]{6,10}|[0-9a-f]{8,10})(?=-|$)")


def outcome(objects: ObjectsByKind, created: Collection[str]) -> Object:
    """Return the outcome of a cluster in which pods of these names were created."""
    pods, events = objects["Pod"], objects["Event"]
    return {
        "groups": _groups(pods, objects["Node"]),
        "gone": _deleted_pods(created, pods),
        "conditions": {
            f"{kind}/{without_hash(_name(group))}": find_conditions(
                group, ("PodGroupInitiallyScheduled",)
            )
            for kind in GROUP_KINDS
            for group in objects[kind]
        },
        "jobs": {without_hash(_name(job)): _job(job) for job in objects["Job"]},
        "workloads": {without_hash(_name(obj)): obj["spec"] for obj in objects["Workload"]},
        "podgroups": {
            without_hash(_name(obj)): _spec_without_hashes(obj, objects)
            for obj in objects["PodGroup"]
        },
        "facts": {**_facts(objects), **_pod_facts(pods)},
        "job_events": sorted(_reasons(events, "Job")),
        "preempted": "Preempted" in _reasons(events, "Pod"),
    }


def group_name(pod: Object) -> str:
    """Return the name of a pod's group, `-` without a group."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "-")


def unplaced_reason(pod: Object) -> str | None:
    """Return the reason of an unbound pod's PodScheduled condition."""
    conditions = pod["status"].get("conditions") or ()
    found = (c.get("reason", "") for c in conditions if c["type"] == "PodScheduled")
    return None if pod["spec"].get("nodeName") else next(found, None)


def outcome_differences(case: Object, got: Object) -> list[str]:
    """Return the differences to the recorded outcome, or to the better one that the case wants."""
    want, alternatives = expected_outcome(case), case.get("also", {})
    exact = look_parts(case)
    return [
        f"{part} {key}: wanted {json.dumps(expected)}, got {json.dumps(actual)}"
        for part in (*COMPARED, *exact)
        if part in want
        for key, expected, actual in _pairs(want[part], got[part])
        if not (expected == actual if part in exact else _matches(expected, actual))
        and alternatives.get(part, {}).get(key, expected) != actual
    ]


def look_parts(case: Object) -> list[str]:
    """Return the names of the further parts that a case looks at; they are compared exactly."""
    look = case.get("look", ())
    named = [part for part in look if isinstance(part, str)]
    return [*named, "objects"] if len(named) < len(look) else named


def expected_outcome(case: Object) -> Object:
    """Return the outcome that a case expects."""
    found: Object = case["better"] if "better" in case else case["outcome"]
    return found


def _matches(want: Any, got: Any) -> bool:
    """Whether a value equals the expected one; an object may have more fields."""
    if isinstance(want, dict) and isinstance(got, dict):
        return all(_matches(item, got.get(key)) for key, item in want.items())
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return all(map(_matches, want, got))
    return bool(want == got)


def _pairs(want: Any, got: Any) -> Iterable[tuple[str, Any, Any]]:
    if not isinstance(want, dict):
        return [("", want, got)]
    return [(key, want.get(key), got.get(key)) for key in sorted({*want, *got})]


def _groups(pods: list[Object], nodes: list[Object]) -> Object:
    labels = {_name(node): node["metadata"].get("labels") or {} for node in nodes}
    members: dict[str, list[Object]] = {}
    for pod in pods:
        members.setdefault(group_name(pod), []).append(pod)
    return {without_hash(name): _group(members[name], labels) for name in sorted(members)}


def _group(pods: list[Object], labels: Mapping[str, Mapping[str, str]]) -> Object:
    nodes_used = [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]
    unbound = [pod for pod in pods if not pod["spec"].get("nodeName")]
    reasons = {unplaced_reason(pod) for pod in unbound}
    domains = {
        key: {labels[n][key] for n in nodes_used if key in labels.get(n, {})} for key in DOMAINS
    }
    return {
        "bound": len(nodes_used),
        "unbound": len(unbound),
        "nominated": sum(bool(pod["status"].get("nominatedNodeName")) for pod in unbound),
        "domains": {key: len(values) for key, values in sorted(domains.items()) if values},
        # The recorded scheduler writes no condition for pods that it does not try.
        "unbound_reasons": sorted(r for r in reasons if r not in (None, "NotReadyForScheduling")),
    }


def _deleted_pods(created: Collection[str], pods: list[Object]) -> dict[str, int]:
    gone = {*created} - {_name(pod) for pod in pods}
    return dict(sorted(Counter(re.sub(r"-\d+$", "", name) for name in gone).items()))


def find_conditions(obj: Object, kinds: Collection[str] = ()) -> list[list[str]]:
    """Return the conditions of an object, filtered by type if types are given."""
    return sorted(
        [found["type"], found["status"], found.get("reason", "")]
        for found in (obj.get("status") or {}).get("conditions") or ()
        if not kinds or found["type"] in kinds
    )


def _job(job: Object) -> Object:
    status = job.get("status") or {}
    return {
        **{name: status.get(name, 0) for name in ("active", "succeeded", "failed")},
        **{name: status[name] for name in ("completedIndexes", "failedIndexes") if name in status},
        "conditions": find_conditions(job),
    }


def _facts(objects: ObjectsByKind) -> Object:
    """Return owners and finalizers of all objects that are not pods."""
    facts = {}
    for kind in ("Workload", *GROUP_KINDS, "Job"):
        for obj in objects[kind]:
            meta = obj["metadata"]
            fact: Object = {
                "owners": find_owners(obj),
                "finalizers": sorted(meta.get("finalizers", ())),
            }
            if meta.get("deletionTimestamp"):
                fact["deleting"] = True
            if kind != "Job" or fact != {"owners": [], "finalizers": []}:
                facts[f"{kind}/{without_hash(meta['name'])}"] = fact
    return facts


def _pod_facts(pods: list[Object]) -> Object:
    """Return owners, finalizers and phases of pods, counted by owner."""
    by_owners: dict[str, list[Object]] = {}
    for pod in pods:
        meta, owners = pod["metadata"], find_owners(pod)
        if owners or meta.get("finalizers") or meta.get("deletionTimestamp"):
            key = f"pods of {', '.join(owners)}" if owners else UNOWNED_PODS
            by_owners.setdefault(key, []).append(pod)
    return {owners: _count_pods(owned) for owners, owned in sorted(by_owners.items())}


def _count_pods(pods: list[Object]) -> Object:
    metadata = [pod["metadata"] for pod in pods]
    return {
        "count": len(pods),
        "deleting": sum(bool(meta.get("deletionTimestamp")) for meta in metadata),
        "finalizers": dict(
            Counter(name for meta in metadata for name in meta.get("finalizers", ()))
        ),
        "phases": dict(Counter(pod["status"].get("phase", "") for pod in pods)),
        "groups": dict(Counter(without_hash(group_name(pod)) for pod in pods)),
    }


def find_owners(obj: Object) -> list[str]:
    """Return the owners of an object as text."""
    return sorted(
        f"{owner['kind']} {without_hash(owner['name'])}"
        + (", controller" if owner.get("controller") else "")
        + (", blocking" if owner.get("blockOwnerDeletion") else "")
        for owner in obj["metadata"].get("ownerReferences", ())
    )


def _spec_without_hashes(group: Object, objects: ObjectsByKind) -> Any:
    generated = {_name(obj) for kind in ("Workload", "PodGroup") for obj in objects[kind]}

    def replace_names(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replace_names(item) for key, item in value.items()}
        if isinstance(value, list):
            return [replace_names(item) for item in value]
        return without_hash(value) if value in generated else value

    return replace_names(group["spec"])


def _reasons(events: list[Object], kind: str) -> set[str]:
    return {event["reason"] for event in events if event["involvedObject"]["kind"] == kind}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def without_hash(name: str) -> str:
    """Return a name with its generated parts replaced."""
    return _HASH.sub("-HASH", _TIME.sub("-TIME", name))
