"""Rules of PodGroups: one table. What may change is `gang.minCount` and nothing else.

The pieces (policy, constraints, claims, disruption mode, priority) are those of CompositePodGroups
(`composite.py`) and of the templates of Workloads (`workload.py`) too.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, required
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.priorityclasses import HIGHEST_PRIORITY
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_creation,
    at_least,
    at_most,
    at_most_number,
    changed,
    each,
    every,
    frozen,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
    union,
    unique,
)
from phalanx.api.rules.meta import LABEL_KEY, check_conditions

MAX_CLAIMS = 4
MAX_TOPOLOGY = 1

LABEL = text(dns_label_faults)
SUBDOMAIN = text(dns_subdomain_faults)

#: How many members of a group there are: without a node, on one, and ended in either way.
POD_COUNTS = ("pendingPods", "scheduledPods", "succeededPods", "failedPods")

#: A field and its check, as `struct` takes them.
Row = tuple[str, Check]


def _stays(new: Any, old: Any) -> Causes:
    """There or not there, but as it was: told of one policy when another takes its place."""
    return () if old is CREATED or new == old else [invalid("", None, IMMUTABLE)]


def _neither_comes_nor_goes(new: Any, old: Any) -> Causes:
    if old is CREATED or (new is None) == (old is None):
        return ()
    detail = (
        "field cannot be cleared once set" if new is None else "field cannot be set once created"
    )
    return [invalid("", None, detail)]


def policy(count: str) -> Check:
    """Basic, or a gang of at least so many; a gang may change its count."""
    size = present(struct((count, changed(needed(at_least(1))))))
    return every(
        union("basic", "gang"),
        struct(("basic", _stays), ("gang", every(_neither_comes_nor_goes, size))),
    )


#: The one topology level that the group must stay within.
CONSTRAINTS: Check = struct(
    ("topology", given(at_most(MAX_TOPOLOGY, each(struct(("key", needed(LABEL_KEY))))))),
)

_CLAIM = every(
    union("resourceClaimName", "resourceClaimTemplateName"),
    struct(
        ("name", needed(LABEL)),
        ("resourceClaimName", present(SUBDOMAIN)),
        ("resourceClaimTemplateName", present(SUBDOMAIN)),
    ),
)
CLAIMS: Check = at_most(MAX_CLAIMS, every(unique("name"), each(_CLAIM)))

DISRUPTION_MODE: Check = union("single", "all")
PREEMPTION_POLICY: Check = one_of("Never", "PreemptLowerPriority")


def terms(policy: Check, *more: Row) -> tuple[Row, ...]:
    """What a group of any sort asks for; only what its policy allows may change."""
    return (
        ("schedulingPolicy", policy),
        ("schedulingConstraints", frozen(given(CONSTRAINTS))),
        *more,
        ("disruptionMode", frozen(present(DISRUPTION_MODE))),
        ("priorityClassName", frozen(given(SUBDOMAIN))),
        ("priority", frozen(given(at_most_number(HIGHEST_PRIORITY)))),
        ("preemptionPolicy", frozen(given(PREEMPTION_POLICY))),
    )


#: What a group of pods asks for, itself or by its template.
POD_GROUP_TERMS = terms(policy("minCount"), ("resourceClaims", frozen(given(CLAIMS))))

#: The Workload and the template in it that a group is made of.
WORKLOAD_REFERENCE: Check = struct(
    ("workloadName", needed(SUBDOMAIN)),
    ("templateName", needed(LABEL)),
)


def _parent_needs_workload(new: Any, old: Any) -> Causes:
    if not new.get("parentCompositePodGroupName") or new.get("workloadRef") is not None:
        return ()
    return [required("workloadRef", "must be set when parentCompositePodGroupName is set")]


_SPEC = every(
    struct(
        ("parentCompositePodGroupName", frozen(present(SUBDOMAIN))),
        ("workloadRef", frozen(present(WORKLOAD_REFERENCE))),
        *POD_GROUP_TERMS,
    ),
    at_creation(_parent_needs_workload),
)

POD_GROUP: Check = struct(("spec", present(_SPEC)))

_CLAIM_STATUS = struct(("name", needed(LABEL)), ("resourceClaimName", given(SUBDOMAIN)))


def _claims_are_known(new: Any, old: Any) -> Causes:
    known = {claim.get("name") for claim in new.get("spec", {}).get("resourceClaims", ())}
    statuses = new.get("status", {}).get("resourceClaimStatuses", ())
    detail = "must match the name of an entry in `spec.resourceClaims`"
    return [
        invalid(f"status.resourceClaimStatuses[{at}].name", status.get("name"), detail)
        for at, status in enumerate(statuses)
        if status.get("name") not in known
    ]


COUNT = given(at_least(0))
_STATUS = struct(
    ("conditions", check_conditions),
    (
        "resourceClaimStatuses",
        given(at_most(MAX_CLAIMS, every(unique("name"), each(_CLAIM_STATUS)))),
    ),
    *((field, COUNT) for field in POD_COUNTS),
)

POD_GROUP_STATUS: Check = every(struct(("status", _STATUS)), _claims_are_known)
