"""Other names of fields: what a request may say, and what is stored and returned instead.

A row is about a struct and holds wherever that struct stands: what a Job may say, the template of a
CronJob may say too. `renaming.py` takes requests through these rows before anything is merged, and
OpenAPI shows them, because clients that compute patches refuse fields that are not there.

    struct                              may say           for
    batch.v1.JobSchedulingConfiguration policy            schedulingPolicy
    core.v1.PodSpec                     workloadRef       schedulingGroup, in another form (`turn`)
    …WorkloadPodGroupSchedulingConstraints  topology[].level  key, there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from phalanx.api.podlinks import WORKLOAD_REF_FIELDS, turn_workload_ref
from phalanx.api.versions.oldshapes import (
    REFERENCE_FIELDS,
    turn_api_version,
    turn_spec_template_name,
    turn_template_name,
    turn_workload_reference,
)
from phalanx.api.versions.turning import Turn

#: What a strategic merge patch puts before the name of a list, and how it names fields to keep.
LIST_DIRECTIVES = ("$setElementOrder/", "$deleteFromPrimitiveList/")
RETAIN_KEYS = "$retainKeys"


@dataclass(frozen=True)
class Alias:
    """One other name of a field of a struct, given with the way to it if it stands further down.

    With `turn` the value has another form too, a text or one of these text fields (`texts`, told
    what each is). One that `is_part` says only some of the field: others may say the rest.
    """

    struct: str
    path: str
    stands_for: str
    turn: Turn | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    is_part: bool = False

    @cached_property
    def name(self) -> str:
        """What a request may call the field."""
        return self.path.rpartition(".")[2]

    @cached_property
    def signs(self) -> tuple[str, ...]:
        """The keys that may be about it: by any of them a request is known to need renaming."""
        return (self.name, *(prefix + self.name for prefix in LIST_DIRECTIVES), RETAIN_KEYS)

    @cached_property
    def way(self) -> tuple[str, ...]:
        """What leads from the struct to where it stands: fields, and `[]` into a list."""
        return tuple(self.path.replace("[]", ".[]").split(".")[:-1])


#: What says how pods, or groups of them, are scheduled together.
_SCHEDULING = (
    "batch.v1.JobSchedulingConfiguration",
    "jobset.v1alpha2.JobSetSchedulingConfiguration",
    "jobset.v1alpha2.ReplicatedJobPolicy",
    "leaderworkerset.v1.LeaderWorkerSetSchedulingConfiguration",
)
_CONSTRAINTS = (
    "scheduling.v1alpha3.WorkloadPodGroupSchedulingConstraints",
    "jobset.v1alpha2.WorkloadCompositePodGroupSchedulingConstraints",
)
_BLOCKS = {
    "policy": "schedulingPolicy",
    "constraints": "schedulingConstraints",
    "disruption": "disruptionMode",
}
#: The version under which the proposals print more forms than one.
_OLD = "scheduling.v1alpha1"

ALIASES = (
    *(Alias(struct, name, stored) for struct in _SCHEDULING for name, stored in _BLOCKS.items()),
    *(Alias(struct, "topology[].level", "key") for struct in _CONSTRAINTS),
    Alias(
        "core.v1.PodSpec", "workloadRef", "schedulingGroup",
        turn_workload_ref, WORKLOAD_REF_FIELDS,
    ),
    Alias(f"{_OLD}.WorkloadSpec", "podGroupTemplates", "podGroups"),
    Alias(f"{_OLD}.WorkloadSpec", "podGroupTemplate", "podGroups"),
    Alias(f"{_OLD}.PodGroupTemplate", "schedulingPolicy", "policy"),
    Alias(f"{_OLD}.TypedLocalObjectReference", "apiVersion", "apiGroup", turn_api_version),
    Alias(f"{_OLD}.PodGroupSpec", "podGroupTemplateReference", "podGroupTemplateRef"),
    Alias(
        f"{_OLD}.PodGroupSpec", "workloadRef", "podGroupTemplateRef",
        turn_workload_reference, REFERENCE_FIELDS, is_part=True,
    ),
    Alias(
        f"{_OLD}.PodGroupSpec", "podGroupTemplateName", "podGroupTemplateRef",
        turn_spec_template_name, is_part=True,
    ),
    Alias(
        f"{_OLD}.PodGroupTemplateReference", "name", "workload", turn_template_name, is_part=True
    ),
)  # fmt: skip

#: The same, by struct.
BY_STRUCT: Mapping[str, tuple[Alias, ...]] = {
    struct: tuple(alias for alias in ALIASES if alias.struct == struct)
    for struct in dict.fromkeys(alias.struct for alias in ALIASES)
}
