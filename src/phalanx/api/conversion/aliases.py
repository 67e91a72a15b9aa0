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

from phalanx.api.conversion.workload_references import (
    REFERENCE_FIELDS,
    WORKLOAD_REF_FIELDS,
    AliasConverter,
    convert_api_version,
    convert_spec_template_name,
    convert_template_name,
    convert_workload_ref,
    convert_workload_reference,
)

#: What a strategic merge patch puts before the name of a list, and how it names fields to keep.
LIST_DIRECTIVES = ("$setElementOrder/", "$deleteFromPrimitiveList/")
RETAIN_KEYS = "$retainKeys"


@dataclass(frozen=True)
class FieldAlias:
    """One other name of a field of a struct, given with the way to it if it stands further down.

    With `turn` the value has another form too, a text or one of these text fields (`texts`, told
    what each is). One that `is_part` says only some of the field: others may say the rest.
    """

    struct: str
    path: str
    stored_name: str
    convert: AliasConverter | None = None
    text_fields: Mapping[str, str] = field(default_factory=dict)
    is_partial: bool = False

    @cached_property
    def name(self) -> str:
        """What a request may call the field."""
        return self.path.rpartition(".")[2]

    @cached_property
    def trigger_keys(self) -> tuple[str, ...]:
        """The keys that may be about it: by any of them a request is known to need renaming."""
        return (self.name, *(prefix + self.name for prefix in LIST_DIRECTIVES), RETAIN_KEYS)

    @cached_property
    def parent_path(self) -> tuple[str, ...]:
        """What leads from the struct to where it stands: fields, and `[]` into a list."""
        return tuple(self.path.replace("[]", ".[]").split(".")[:-1])


#: What says how pods, or groups of them, are scheduled together.
_SCHEDULING_STRUCTS = (
    "batch.v1.JobSchedulingConfiguration",
    "jobset.v1alpha2.JobSetSchedulingConfiguration",
    "jobset.v1alpha2.ReplicatedJobPolicy",
    "leaderworkerset.v1.LeaderWorkerSetSchedulingConfiguration",
)
_CONSTRAINT_STRUCTS = (
    "scheduling.v1alpha3.WorkloadPodGroupSchedulingConstraints",
    "jobset.v1alpha2.WorkloadCompositePodGroupSchedulingConstraints",
)
_SCHEDULING_FIELDS = {
    "policy": "schedulingPolicy",
    "constraints": "schedulingConstraints",
    "disruption": "disruptionMode",
}
#: The version under which the proposals print more forms than one.
_V1ALPHA1 = "scheduling.v1alpha1"

ALIASES = (
    *(
        FieldAlias(struct, name, stored)
        for struct in _SCHEDULING_STRUCTS
        for name, stored in _SCHEDULING_FIELDS.items()
    ),
    *(FieldAlias(struct, "topology[].level", "key") for struct in _CONSTRAINT_STRUCTS),
    FieldAlias(
        "core.v1.PodSpec",
        "workloadRef",
        "schedulingGroup",
        convert_workload_ref,
        WORKLOAD_REF_FIELDS,
    ),
    FieldAlias(f"{_V1ALPHA1}.WorkloadSpec", "podGroupTemplates", "podGroups"),
    FieldAlias(f"{_V1ALPHA1}.WorkloadSpec", "podGroupTemplate", "podGroups"),
    FieldAlias(f"{_V1ALPHA1}.PodGroupTemplate", "schedulingPolicy", "policy"),
    FieldAlias(
        f"{_V1ALPHA1}.TypedLocalObjectReference", "apiVersion", "apiGroup", convert_api_version
    ),
    FieldAlias(f"{_V1ALPHA1}.PodGroupSpec", "podGroupTemplateReference", "podGroupTemplateRef"),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupSpec",
        "workloadRef",
        "podGroupTemplateRef",
        convert_workload_reference,
        REFERENCE_FIELDS,
        is_partial=True,
    ),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupSpec",
        "podGroupTemplateName",
        "podGroupTemplateRef",
        convert_spec_template_name,
        is_partial=True,
    ),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupTemplateReference",
        "name",
        "workload",
        convert_template_name,
        is_partial=True,
    ),
)

#: The same, by struct.
ALIASES_BY_STRUCT: Mapping[str, tuple[FieldAlias, ...]] = {
    struct: tuple(alias for alias in ALIASES if alias.struct == struct)
    for struct in dict.fromkeys(alias.struct for alias in ALIASES)
}
