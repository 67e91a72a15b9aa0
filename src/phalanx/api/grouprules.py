"""Rules of PodGroups: one table. What may change is `gang.minCount` and nothing else.

The pieces (policy, constraints, claims, disruption mode) are those of Workload templates too.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, invalid, required
from phalanx.api.checks import (
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
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.metarules import LABEL_KEY, check_conditions

#: The highest priority of a group.
HIGHEST_PRIORITY = 1_000_000_000
MAX_CLAIMS = 4
MAX_TOPOLOGY = 1

LABEL = text(dns_label_faults)
SUBDOMAIN = text(dns_subdomain_faults)


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


#: Basic or gang; a gang may change its count.
POLICY: Check = every(
    union("basic", "gang"),
    struct(
        ("basic", _stays),
        (
            "gang",
            every(
                _neither_comes_nor_goes,
                present(struct(("minCount", changed(needed(at_least(1)))))),
            ),
        ),
    ),
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

_WORKLOAD_REFERENCE = struct(
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
        ("workloadRef", frozen(present(_WORKLOAD_REFERENCE))),
        ("schedulingPolicy", POLICY),
        ("schedulingConstraints", frozen(given(CONSTRAINTS))),
        ("resourceClaims", frozen(given(CLAIMS))),
        ("disruptionMode", frozen(present(DISRUPTION_MODE))),
        ("priorityClassName", frozen(given(SUBDOMAIN))),
        ("priority", frozen(given(at_most_number(HIGHEST_PRIORITY)))),
        ("preemptionPolicy", frozen(given(PREEMPTION_POLICY))),
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


_STATUS = struct(
    ("conditions", check_conditions),
    (
        "resourceClaimStatuses",
        given(at_most(MAX_CLAIMS, every(unique("name"), each(_CLAIM_STATUS)))),
    ),
)

POD_GROUP_STATUS: Check = every(struct(("status", _STATUS)), _claims_are_known)
