"""What became of a cluster, in the shape of the recorded outcomes, and where the two differ.

Looks at objects as the API shows them and at nothing else. Generated parts of names read HASH.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from phalanx.api.wire import Object

#: All objects of a cluster by the name of their kind.
ObjectsByKind = Mapping[str, list[Object]]

GROUP_KINDS = ("PodGroup", "CompositePodGroup")
#: What a recorded outcome may hold and a comparison looks at.
COMPARED = (
    "groups", "gone", "conditions", "jobs", "workloads", "podgroups", "facts", "job_events",
    "preempted", "then",
)  # fmt: skip
#: The part of it that is noted on the way, each time the cluster has come to rest.
INTERMEDIATE_PARTS = ("groups", "conditions", "gone", "jobs")
DOMAINS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "rack", "block", "zone")
_TIME = re.compile(r"-[23]\d{7}(?=-|$)")
_HASH = re.compile(r"-(?:[bcdfghjklmnpqrstvwxz2456789]{6,10}|[0-9a-f]{8,10})(?=-|$)")


def outcome(world: ObjectsByKind, created: Collection[str]) -> Object:
    """What there is to be said of a cluster in which pods of these names were made."""
    pods, events = world["Pod"], world["Event"]
    return {
        "groups": _groups(pods, world["Node"]),
        "gone": _gone(created, pods),
        "conditions": {
            f"{kind}/{_plain(_name(group))}": _conditions(group, ("PodGroupInitiallyScheduled",))
            for kind in GROUP_KINDS
            for group in world[kind]
        },
        "jobs": {_plain(_name(job)): _job(job) for job in world["Job"]},
        "workloads": {_plain(_name(one)): one["spec"] for one in world["Workload"]},
        "podgroups": {_plain(_name(one)): _plain_spec(one, world) for one in world["PodGroup"]},
        "facts": {**_facts(world), **_facts_of_pods(pods)},
        "job_events": sorted(_reasons(events, "Job")),
        "preempted": "Preempted" in _reasons(events, "Pod"),
    }


def group_of(pod: Object) -> str:
    """The group that a pod is in, `-` if it is in none."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "-")


def unplaced_reason(pod: Object) -> str | None:
    """Why a pod has no node, if it says so."""
    conditions = pod["status"].get("conditions") or ()
    found = (c.get("reason", "") for c in conditions if c["type"] == "PodScheduled")
    return None if pod["spec"].get("nodeName") else next(found, None)


def deviations(case: Object, got: Object) -> list[str]:
    """Where an outcome is not the recorded one, or the better one that the case wants."""
    want, also = wanted_of(case), case.get("also", {})
    return [
        f"{part} {key}: wanted {json.dumps(wanted)}, got {json.dumps(given)}"
        for part in COMPARED
        if part in want
        for key, wanted, given in _pairs(want[part], got[part])
        if not _holds(wanted, given) and also.get(part, {}).get(key, wanted) != given
    ]


def wanted_of(case: Object) -> Object:
    """The outcome that a case asks for."""
    found: Object = case["better"] if "better" in case else case["outcome"]
    return found


def _holds(want: Any, got: Any) -> bool:
    """Whether a value says what is wanted; an object may say more."""
    if isinstance(want, dict) and isinstance(got, dict):
        return all(_holds(item, got.get(key)) for key, item in want.items())
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return all(map(_holds, want, got))
    return bool(want == got)


def _pairs(want: Any, got: Any) -> Iterable[tuple[str, Any, Any]]:
    if not isinstance(want, dict):
        return [("", want, got)]
    return [(key, want.get(key), got.get(key)) for key in sorted({*want, *got})]


def _groups(pods: list[Object], nodes: list[Object]) -> Object:
    labels = {_name(node): node["metadata"].get("labels") or {} for node in nodes}
    members: dict[str, list[Object]] = {}
    for pod in pods:
        members.setdefault(group_of(pod), []).append(pod)
    return {_plain(name): _group(members[name], labels) for name in sorted(members)}


def _group(pods: list[Object], labels: Mapping[str, Mapping[str, str]]) -> Object:
    homes = [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]
    homeless = [pod for pod in pods if not pod["spec"].get("nodeName")]
    reasons = {unplaced_reason(pod) for pod in homeless}
    domains = {key: {labels[n][key] for n in homes if key in labels.get(n, {})} for key in DOMAINS}
    return {
        "bound": len(homes),
        "unbound": len(homeless),
        "nominated": sum(bool(pod["status"].get("nominatedNodeName")) for pod in homeless),
        "domains": {key: len(values) for key, values in sorted(domains.items()) if values},
        # The recorded scheduler says nothing of pods that it does not try.
        "unbound_reasons": sorted(r for r in reasons if r not in (None, "NotReadyForScheduling")),
    }


def _gone(created: Collection[str], pods: list[Object]) -> dict[str, int]:
    gone = {*created} - {_name(pod) for pod in pods}
    return dict(sorted(Counter(re.sub(r"-\d+$", "", name) for name in gone).items()))


def _conditions(obj: Object, kinds: Collection[str] = ()) -> list[list[str]]:
    """All conditions of an object, or those of these kinds: others may be there."""
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
        "conditions": _conditions(job),
    }


def _facts(world: ObjectsByKind) -> Object:
    """Who owns and who holds what is not a pod."""
    facts = {}
    for kind in ("Workload", *GROUP_KINDS, "Job"):
        for obj in world[kind]:
            meta = obj["metadata"]
            fact: Object = {
                "owners": _owners(obj),
                "finalizers": sorted(meta.get("finalizers", ())),
            }
            if meta.get("deletionTimestamp"):
                fact["deleting"] = True
            if kind != "Job" or fact != {"owners": [], "finalizers": []}:
                facts[f"{kind}/{_plain(meta['name'])}"] = fact
    return facts


def _facts_of_pods(pods: list[Object]) -> Object:
    """The same of pods, counted by owners; those of which there is nothing to say are left out."""
    families: dict[str, list[Object]] = {}
    for pod in pods:
        meta, owners = pod["metadata"], _owners(pod)
        if owners or meta.get("finalizers") or meta.get("deletionTimestamp"):
            families.setdefault(f"pods of {', '.join(owners) or 'nobody'}", []).append(pod)
    return {owners: _family(family) for owners, family in sorted(families.items())}


def _family(pods: list[Object]) -> Object:
    metas = [pod["metadata"] for pod in pods]
    return {
        "count": len(pods),
        "deleting": sum(bool(meta.get("deletionTimestamp")) for meta in metas),
        "finalizers": dict(Counter(name for meta in metas for name in meta.get("finalizers", ()))),
        "phases": dict(Counter(pod["status"].get("phase", "") for pod in pods)),
        "groups": dict(Counter(_plain(group_of(pod)) for pod in pods)),
    }


def _owners(obj: Object) -> list[str]:
    return sorted(
        f"{owner['kind']} {_plain(owner['name'])}"
        + (", controller" if owner.get("controller") else "")
        + (", blocking" if owner.get("blockOwnerDeletion") else "")
        for owner in obj["metadata"].get("ownerReferences", ())
    )


def _plain_spec(group: Object, world: ObjectsByKind) -> Any:
    generated = {_name(one) for kind in ("Workload", "PodGroup") for one in world[kind]}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return _plain(value) if value in generated else value

    return plain(group["spec"])


def _reasons(events: list[Object], kind: str) -> set[str]:
    return {event["reason"] for event in events if event["involvedObject"]["kind"] == kind}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _plain(name: str) -> str:
    return _HASH.sub("-HASH", _TIME.sub("-TIME", name))
