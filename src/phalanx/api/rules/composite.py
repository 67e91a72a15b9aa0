"""Rules of CompositePodGroups: groups of groups. Nothing of their spec may change.

The pieces are those of PodGroups. Whether a parent or a Workload is there, and what the groups of a
Workload form together, is for the scheduler to find out.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, required
from phalanx.api.rules.checks import Check, every, frozen, present, struct
from phalanx.api.rules.group import COUNT, POD_COUNTS, SUBDOMAIN, WORKLOAD_REFERENCE, policy, terms
from phalanx.api.rules.meta import check_conditions


def _is_said(new: Any, old: Any) -> Causes:
    return () if new is not None else [required("")]


_SPEC = struct(
    ("parentCompositePodGroupName", frozen(present(SUBDOMAIN))),
    ("workloadRef", every(_is_said, frozen(present(WORKLOAD_REFERENCE)))),
    *terms(frozen(policy("minGroupCount"))),
)

COMPOSITE_POD_GROUP: Check = struct(("spec", present(_SPEC)))
_STATUS = struct(
    ("conditions", check_conditions),
    *((field, COUNT) for field in (*POD_COUNTS, "pendingGroups", "scheduledGroups")),
)
COMPOSITE_POD_GROUP_STATUS: Check = struct(("status", _STATUS))
