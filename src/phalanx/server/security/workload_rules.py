"""Rules about workloads and Services: of their controllers, and of the roles `view` and `edit`."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.server.security.rbac import PolicyRule

_READ_VERBS = "get list watch"
_WRITE_VERBS = "create delete deletecollection patch update"
_CORE_GROUP, _APPS_GROUP = "", "apps"


def allow(verbs: str, groups: str, resources: str, *, names: str = "") -> PolicyRule:
    """Return a rule: `get list`, `batch` or several groups, `jobs jobs/status`."""
    parts = (verbs.split(), groups.split(" "), resources.split(), names.split())
    return PolicyRule(*map(tuple, parts))


_EVENT_RULE = allow("create patch update", " events.k8s.io", "events")

WORKLOAD_VIEW_RULES: tuple[PolicyRule, ...] = (
    allow(_READ_VERBS, _CORE_GROUP, "endpoints replicationcontrollers"),
    allow(
        _READ_VERBS,
        _CORE_GROUP,
        "replicationcontrollers/scale replicationcontrollers/status",
    ),
    allow(_READ_VERBS, _APPS_GROUP, "controllerrevisions daemonsets daemonsets/status"),
    *(
        allow(_READ_VERBS, _APPS_GROUP, f"{plural} {plural}/scale {plural}/status")
        for plural in ("deployments", "replicasets", "statefulsets")
    ),
    allow(
        _READ_VERBS,
        "autoscaling",
        "horizontalpodautoscalers horizontalpodautoscalers/status",
    ),
    allow(_READ_VERBS, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
)
WORKLOAD_EDIT_RULES: tuple[PolicyRule, ...] = (
    # Not endpoints: a user who writes them reaches pods of other namespaces (CVE-2021-25740).
    allow(_WRITE_VERBS, _CORE_GROUP, "replicationcontrollers replicationcontrollers/scale"),
    allow(_WRITE_VERBS, _APPS_GROUP, "daemonsets deployments deployments/scale"),
    allow(_WRITE_VERBS, _APPS_GROUP, "replicasets replicasets/scale statefulsets"),
    allow(_WRITE_VERBS, _APPS_GROUP, "statefulsets/scale"),
    allow(_WRITE_VERBS, "autoscaling", "horizontalpodautoscalers"),
    allow(_WRITE_VERBS, "networking.k8s.io", "ingresses networkpolicies"),
)
#: Rules of controllers by the name of their service account in kube-system.
WORKLOAD_CONTROLLER_RULES: Mapping[str, tuple[PolicyRule, ...]] = {
    "daemonset-controller": (
        allow("get list patch update watch", _APPS_GROUP, "daemonsets"),
        allow("patch update", _APPS_GROUP, "daemonsets/status daemonsets/finalizers"),
        allow("create delete get list patch update watch", _APPS_GROUP, "controllerrevisions"),
        allow("create delete get list patch watch", _CORE_GROUP, "pods"),
        allow(_READ_VERBS, _CORE_GROUP, "nodes"),
        _EVENT_RULE,
    ),
    "deployment-controller": (
        allow("get list patch update watch", _APPS_GROUP, "deployments"),
        allow("patch update", _APPS_GROUP, "deployments/status deployments/finalizers"),
        allow("create delete get list patch update watch", _APPS_GROUP, "replicasets"),
        allow("get list patch update watch", _CORE_GROUP, "pods"),
        _EVENT_RULE,
    ),
    "endpointslice-controller": (
        allow(_READ_VERBS, _CORE_GROUP, "nodes pods services"),
        allow("patch update", _CORE_GROUP, "services/finalizers endpoints/finalizers"),
        allow("create delete get list patch update watch", _CORE_GROUP, "endpoints"),
        allow("create delete get list patch update watch", "discovery.k8s.io", "endpointslices"),
    ),
    "horizontal-pod-autoscaler": (
        allow(_READ_VERBS, "autoscaling", "horizontalpodautoscalers"),
        allow("patch update", "autoscaling", "horizontalpodautoscalers/status"),
        allow("get patch update", "*", "*/scale"),
        _EVENT_RULE,
    ),
    "replicaset-controller": (
        allow("get list patch update watch", _APPS_GROUP, "replicasets"),
        allow("patch update", _APPS_GROUP, "replicasets/status replicasets/finalizers"),
        allow("create delete get list patch watch", _CORE_GROUP, "pods"),
        _EVENT_RULE,
    ),
    "replication-controller": (
        allow("get list patch update watch", _CORE_GROUP, "replicationcontrollers"),
        allow(
            "patch update",
            _CORE_GROUP,
            "replicationcontrollers/status replicationcontrollers/finalizers",
        ),
        allow("create delete get list patch watch", _CORE_GROUP, "pods"),
        _EVENT_RULE,
    ),
    "statefulset-controller": (
        allow(_READ_VERBS, _APPS_GROUP, "statefulsets"),
        allow("patch update", _APPS_GROUP, "statefulsets/status statefulsets/finalizers"),
        allow("create delete get list patch update watch", _APPS_GROUP, "controllerrevisions"),
        allow("create delete get list patch update watch", _CORE_GROUP, "pods"),
        allow("patch update", _CORE_GROUP, "pods/finalizers"),
        allow("create get list patch update watch", _CORE_GROUP, "persistentvolumeclaims"),
        _EVENT_RULE,
    ),
}
