"""Workload and PodGroup in the versions before v1alpha3: one form per version and kind.

    v1alpha2  as Kubernetes 1.36 had it. A PodGroup says `podGroupTemplateRef.workload`, what is
              disrupted together is a word.
    v1alpha1  the same facts. A Workload has `podGroups` with a `policy`, as Kubernetes 1.35 had
              it, which knew no more of them than that; a PodGroup is the one that the proposals
              print with the most in it. What else they print under this version is taken too
              (`oldshapes.py`), but never given back.

Neither knows composite groups or a preemption policy: these are left over. Conditions are the same
in all versions: the scheduler writes what each of them calls the one that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.api.kinds import (
    POD_GROUP,
    POD_GROUP_V1ALPHA1,
    POD_GROUP_V1ALPHA2,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    WORKLOAD_V1ALPHA2,
    Kind,
)
from phalanx.api.rules.checks import Check, each, given, one_of, struct
from phalanx.api.versions.forms import Form, Left, Told
from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class Version:
    """A kind in another form than the stored one: the form, and what only this form can get wrong.

    All other rules are those of the stored kind.
    """

    stored: Kind
    form: Form
    check: Check


_MODES: tuple[tuple[Object, str], ...] = (({"single": {}}, "Pod"), ({"all": {}}, "PodGroup"))
_MODE = Told("disruptionMode", values=_MODES)
_KNOWN_MODE = ("disruptionMode", given(one_of(*(word for _, word in _MODES))))
_PRIORITY = ("priorityClassName", "priority")


def _workload(templates: str, policy: str) -> Version:
    """A Workload whose version calls its templates and their policy like this."""
    template: Form = {
        "schedulingPolicy": Told(policy),
        "disruptionMode": _MODE,
        "preemptionPolicy": Left(beside=_PRIORITY),
    }
    spec: Form = {
        "podGroupTemplates": Told(templates, template),
        "compositePodGroupTemplates": Left(beside=("podGroupTemplates",)),
    }
    check = struct(("spec", struct((templates, given(each(struct(_KNOWN_MODE)))))))
    return Version(WORKLOAD, {"spec": Told("spec", spec)}, check)


_REFERENCE = Told("podGroupTemplateRef.workload", {"templateName": Told("podGroupTemplateName")})
_POD_GROUP = Version(
    POD_GROUP,
    {
        "spec": Told(
            "spec",
            {
                "workloadRef": _REFERENCE,
                "parentCompositePodGroupName": Left(beside=("workloadRef",)),
                "disruptionMode": _MODE,
                "preemptionPolicy": Left(beside=_PRIORITY, default="PreemptLowerPriority"),
            },
        )
    },
    struct(("spec", struct(_KNOWN_MODE))),
)

VERSIONS: Mapping[Kind, Version] = {
    WORKLOAD_V1ALPHA2: _workload("podGroupTemplates", "schedulingPolicy"),
    WORKLOAD_V1ALPHA1: _workload("podGroups", "policy"),
    POD_GROUP_V1ALPHA2: _POD_GROUP,
    POD_GROUP_V1ALPHA1: _POD_GROUP,
}
