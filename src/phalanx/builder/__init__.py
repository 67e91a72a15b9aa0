"""The workload builder: from a user's scheduling fields to Workloads, PodGroups and composites.

A controller describes its workload as a tree of `WorkloadItem`s and gets plain objects of
`scheduling.k8s.io`. The package is pure and works with any controller: values in, new objects out,
no requests. `docs/builder.md` is its guide.

    config              how one group is scheduled; reads the API's building blocks
    intent_checks       what a user wrote wrongly
    schemas             the building blocks for a CustomResourceDefinition
    workload_item       the tree of groups, resolved from defaults, user and callbacks
    builder             builds and validates the Workload of a tree, and plans its objects
    groups              builds PodGroups and CompositePodGroups from the templates of a Workload
    discovery           finds the objects of an owner by reference
    ensure, ensure_plan    plans which objects to create, resize and delete
    template_changes    which changes of templates a Workload can take
    validation          validation errors, at the fields of the user's object
    ownership           owner references, links, and which controller creates which objects
    names               names of Workloads, templates, groups, claims, and other children
    jobs, jobsets, leaderworkersets    the trees of three kinds

>>> from phalanx.builder import WorkloadBuilder, WorkloadItem, Basic, Gang, SchedulingConfig
>>> root = WorkloadItem("pods", default=SchedulingConfig(policy=Basic()))
>>> WorkloadBuilder(root, allow=[Gang]).validate()[0].message
'Forbidden: basic scheduling policy is not supported by this controller'
"""

from phalanx.builder.builder import WorkloadBuilder
from phalanx.builder.config import (
    All,
    Basic,
    Gang,
    Intent,
    NoTopology,
    ResourceClaim,
    SchedulingConfig,
    Single,
    Unknown,
    map_composite_group_config,
    map_pod_group_config,
    read_intent,
)
from phalanx.builder.discovery import Fallback
from phalanx.builder.ensure import ensure_linked, plan_deletion
from phalanx.builder.ensure_plan import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    GroupInstance,
    ObjectOperation,
    ObservedObjects,
    PatchObject,
)
from phalanx.builder.groups import (
    Template,
    new_composite_pod_group,
    new_groups,
    new_pod_group,
    templates,
)
from phalanx.builder.names import pod_group_name, template_name, workload_name
from phalanx.builder.ownership import (
    GROUP_TEMPLATE,
    PARENT_COMPOSITE,
    Link,
    ManageBoth,
    ManageGroups,
    ManageNothing,
    controller_reference,
    owner_reference,
    parse_parents,
    read_link,
)
from phalanx.builder.schemas import scheduling_schema
from phalanx.builder.validation import validate_disruption_mode, validate_scheduling_policy
from phalanx.builder.workload_item import Callback, WorkloadItem, default_min_count

__all__ = [
    "GROUP_TEMPLATE",
    "PARENT_COMPOSITE",
    "All",
    "Basic",
    "Callback",
    "CreateObject",
    "DeleteObject",
    "EnsurePlan",
    "Fallback",
    "Gang",
    "GroupInstance",
    "Intent",
    "Link",
    "ManageBoth",
    "ManageGroups",
    "ManageNothing",
    "NoTopology",
    "ObjectOperation",
    "ObservedObjects",
    "PatchObject",
    "ResourceClaim",
    "SchedulingConfig",
    "Single",
    "Template",
    "Unknown",
    "WorkloadBuilder",
    "WorkloadItem",
    "controller_reference",
    "default_min_count",
    "ensure_linked",
    "map_composite_group_config",
    "map_pod_group_config",
    "new_composite_pod_group",
    "new_groups",
    "new_pod_group",
    "owner_reference",
    "parse_parents",
    "plan_deletion",
    "pod_group_name",
    "read_intent",
    "read_link",
    "scheduling_schema",
    "template_name",
    "templates",
    "validate_disruption_mode",
    "validate_scheduling_policy",
    "workload_name",
]
