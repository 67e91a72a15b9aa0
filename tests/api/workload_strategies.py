"""Hypothesis strategies of stored Workloads and PodGroups: valid, with all defaults."""

from __future__ import annotations

from hypothesis import strategies as st

from phalanx.api.defaults.registry import apply_defaults
from phalanx.api.kinds import POD_GROUP, WORKLOAD
from phalanx.api.wire import Object

ObjectStrategy = st.SearchStrategy[Object]

NAMES = st.sampled_from(("driver", "worker", "worker-2", "x"))
COUNTS = st.integers(1, 5)
PREEMPTION = st.sampled_from(("Never", "PreemptLowerPriority"))
MODES: ObjectStrategy = st.sampled_from(("single", "all")).map(lambda mode: {mode: {}})
CONSTRAINTS: ObjectStrategy = st.fixed_dictionaries(
    {"topology": st.sampled_from(("zone", "example.com/rack")).map(lambda key: [{"key": key}])}
)
CLAIMS = st.lists(
    st.tuples(NAMES, st.sampled_from(("resourceClaimName", "resourceClaimTemplateName"))).map(
        lambda drawn: {"name": drawn[0], drawn[1]: "gpus"}
    ),
    min_size=1, max_size=2, unique_by=lambda claim: claim["name"],
)  # fmt: skip


def policies(count: str) -> ObjectStrategy:
    gang = COUNTS.map(lambda number: {"gang": {count: number}})
    return st.one_of(st.just({"basic": {}}), gang)


#: Optional fields of pod group templates and PodGroups.
OPTIONAL_FIELDS: dict[str, st.SearchStrategy[object]] = {
    "schedulingConstraints": CONSTRAINTS,
    "disruptionMode": MODES,
    "preemptionPolicy": PREEMPTION,
}
OPTIONAL_LEAF_FIELDS = {**OPTIONAL_FIELDS, "resourceClaims": CLAIMS}


def _named(items: list[Object]) -> list[Object]:
    return [{"name": f"t{at}", **item} for at, item in enumerate(items)]


POD_GROUP_TEMPLATES = st.lists(
    st.fixed_dictionaries(
        {"schedulingPolicy": policies("minCount")}, optional=OPTIONAL_LEAF_FIELDS
    ),
    min_size=1,
    max_size=3,
).map(_named)
COMPOSITE_TEMPLATES = st.lists(
    st.fixed_dictionaries(
        {
            "schedulingPolicy": policies("minGroupCount"),
            "podGroupTemplates": POD_GROUP_TEMPLATES.map(lambda leaves: leaves[:1]),
        },
        optional=OPTIONAL_FIELDS,
    ),
    min_size=1, max_size=1,
).map(lambda items: [{"name": "tree", **item} for item in items])  # fmt: skip
METADATA: ObjectStrategy = st.fixed_dictionaries(
    {"name": st.just("w"), "namespace": st.just("default")},
    optional={
        "labels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), min_size=1),
        "annotations": st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), min_size=1),
    },
)
CONTROLLER: ObjectStrategy = st.just({"apiGroup": "batch", "kind": "Job", "name": "j"})
CONDITIONS = st.lists(
    st.sampled_from(("PodGroupInitiallyScheduled", "PodGroupScheduled", "DisruptionTarget")).map(
        lambda kind: {
            "type": kind, "status": "True", "reason": "Because", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ),
    min_size=1, max_size=3, unique_by=lambda condition: condition["type"],
)  # fmt: skip


def default_workload(obj: Object) -> Object:
    """Add the defaults of a Workload."""
    apply_defaults(WORKLOAD, obj)
    return obj


def default_group(obj: Object) -> Object:
    """Add the defaults of a PodGroup."""
    apply_defaults(POD_GROUP, obj)
    return obj


def workloads() -> ObjectStrategy:
    """Draw a Workload with pod group templates or composite templates."""
    controller = {"controllerRef": CONTROLLER}
    flat = st.fixed_dictionaries({"podGroupTemplates": POD_GROUP_TEMPLATES}, optional=controller)
    tree = st.fixed_dictionaries(
        {"compositePodGroupTemplates": COMPOSITE_TEMPLATES}, optional=controller
    )
    return st.builds(
        lambda meta, spec: default_workload({"metadata": meta, "spec": spec}),
        METADATA, st.one_of(flat, tree),
    )  # fmt: skip


def pod_groups() -> ObjectStrategy:
    """Draw a PodGroup, with or without template and parent."""
    reference = st.just({"workloadName": "w", "templateName": "worker"})
    spec = st.fixed_dictionaries(
        {"schedulingPolicy": policies("minCount")},
        optional={
            **OPTIONAL_LEAF_FIELDS, "workloadRef": reference, "priorityClassName": st.just("high"),
            "priority": st.integers(-5, 5),
        },
    )  # fmt: skip
    status = st.fixed_dictionaries(
        {}, optional={"conditions": CONDITIONS, "scheduledPods": st.integers(0, 3)}
    )
    return st.builds(_pod_group, METADATA, spec, status, st.booleans())


def _pod_group(meta: Object, spec: Object, status: Object, is_child: bool) -> Object:
    if is_child and "workloadRef" in spec:
        spec = {**spec, "parentCompositePodGroupName": "tree"}
    return default_group({"metadata": meta, "spec": spec, "status": status})
