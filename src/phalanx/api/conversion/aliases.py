"""Aliases: older names of fields that a request may use in place of the stored names.

A row names a struct and applies wherever that struct is embedded: the job template of a CronJob
accepts what a Job accepts. `alias_resolution.py` rewrites requests by these rows before merging.
OpenAPI lists aliases too, because clients that compute patches refuse unknown fields.

    struct                              alias             stored field
    batch.v1.JobSchedulingConfiguration policy            schedulingPolicy
    core.v1.PodSpec                     workloadRef       schedulingGroup, converted
    …WorkloadPodGroupSchedulingConstraints  topology[].level  key, in the same item
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

#: Directives of a strategic merge patch: prefixes of list names, and the key of fields to keep.
LIST_DIRECTIVES = ("$setElementOrder/", "$deleteFromPrimitiveList/")
RETAIN_KEYS = "$retainKeys"


@dataclass(frozen=True)
class FieldAlias:
    """One alias of a field of a struct; `path` leads to it if it is not in the struct itself.

    With `convert` the value has another form: a string, or an object with `text_fields` (each with
    its description). A partial alias states only a part of the field; other aliases state the rest.
    """

    struct: str
    path: str
    stored_name: str
    convert: AliasConverter | None = None
    text_fields: Mapping[str, str] = field(default_factory=dict)
    is_partial: bool = False

    @cached_property
    def name(self) -> str:
        """The name in requests."""
        return self.path.rpartition(".")[2]

    @cached_property
    def trigger_keys(self) -> tuple[str, ...]:
        """The keys in a request that may concern this alias."""
        return (self.name, *(prefix + self.name for prefix in LIST_DIRECTIVES), RETAIN_KEYS)

    @cached_property
    def parent_path(self) -> tuple[str, ...]:
        """The path from the struct to the parent of the alias: fields, and `[]` for items."""
        return tuple(self.path.replace("[]", ".[]").split(".")[:-1])


#: The structs that configure the scheduling of pods or of groups.
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
#: The KEPs show several forms of this version.
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
        convert=convert_workload_ref,
        text_fields=WORKLOAD_REF_FIELDS,
    ),
    FieldAlias(f"{_V1ALPHA1}.WorkloadSpec", "podGroupTemplates", "podGroups"),
    FieldAlias(f"{_V1ALPHA1}.WorkloadSpec", "podGroupTemplate", "podGroups"),
    FieldAlias(f"{_V1ALPHA1}.PodGroupTemplate", "schedulingPolicy", "policy"),
    FieldAlias(
        f"{_V1ALPHA1}.TypedLocalObjectReference",
        "apiVersion",
        "apiGroup",
        convert=convert_api_version,
    ),
    FieldAlias(f"{_V1ALPHA1}.PodGroupSpec", "podGroupTemplateReference", "podGroupTemplateRef"),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupSpec",
        "workloadRef",
        "podGroupTemplateRef",
        convert=convert_workload_reference,
        text_fields=REFERENCE_FIELDS,
        is_partial=True,
    ),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupSpec",
        "podGroupTemplateName",
        "podGroupTemplateRef",
        convert=convert_spec_template_name,
        is_partial=True,
    ),
    FieldAlias(
        f"{_V1ALPHA1}.PodGroupTemplateReference",
        "name",
        "workload",
        convert=convert_template_name,
        is_partial=True,
    ),
)

#: The aliases of each struct.
ALIASES_BY_STRUCT: Mapping[str, tuple[FieldAlias, ...]] = {
    struct: tuple(alias for alias in ALIASES if alias.struct == struct)
    for struct in dict.fromkeys(alias.struct for alias in ALIASES)
}
