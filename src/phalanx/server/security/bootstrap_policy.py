"""The roles and bindings that every cluster has.

Names, rules and subjects are those of Kubernetes as far as we serve the resources, so that
manifests which bind `view` or `edit` mean the same here. Roles of our own components are added;
each allows what its component does, and no more.

They are written by `bootstrap_writer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.api.wire import Object
from phalanx.server.security.authorization import NODE_LEASE_NAMESPACE
from phalanx.server.security.rbac import PolicyRule
from phalanx.server.security.users import (
    AUTHENTICATED,
    MASTERS,
    SERVICE_ACCOUNTS,
    UNAUTHENTICATED,
)
from phalanx.server.security.workload_rules import (
    WORKLOAD_CONTROLLER_RULES,
    WORKLOAD_EDIT_RULES,
    WORKLOAD_VIEW_RULES,
)
from phalanx.server.security.workload_rules import allow as _allow

_READ_VERBS = "get list watch"
_WRITE_VERBS = "create delete deletecollection patch update"
_ALL_VERBS = f"{_READ_VERBS} {_WRITE_VERBS}"
_EVENT_VERBS = "create patch update"
_CORE_GROUP, _BATCH_GROUP, _POLICY_GROUP, _RBAC_GROUP = (
    "",
    "batch",
    "policy",
    "rbac.authorization.k8s.io",
)
_SCHEDULING_GROUP, _RESOURCE_GROUP, _COORDINATION_GROUP = (
    "scheduling.k8s.io",
    "resource.k8s.io",
    "coordination.k8s.io",
)
_PHALANX_GROUP, _JOB_SET_GROUP, _LEADER_WORKER_SET_GROUP = (
    "phalanx.dev",
    "jobset.x-k8s.io",
    "leaderworkerset.x-k8s.io",
)
_AUTHENTICATION_GROUP, _AUTHORIZATION_GROUP = "authentication.k8s.io", "authorization.k8s.io"
_METRICS_GROUP, _ADMISSION_GROUP = "metrics.k8s.io", "admissionregistration.k8s.io"
_APPS_GROUP, _STORAGE_GROUP = "apps", "storage.k8s.io"
_AGGREGATION_LABEL_PREFIX = "rbac.authorization.k8s.io/aggregate-to-"
#: Appended to the core group where events are written: they exist in both groups.
_AND_EVENTS_GROUP = " events.k8s.io"


@dataclass(frozen=True, slots=True)
class BootstrapRole:
    """A cluster role: its rules, its labels, and the label whose roles it aggregates."""

    rules: tuple[PolicyRule, ...] = ()
    aggregates_to: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()

    def aggregation_rule(self) -> Object | None:
        """Return the aggregation rule, if there is one."""
        selectors = [
            {"matchLabels": {f"{_AGGREGATION_LABEL_PREFIX}{label}": "true"}}
            for label in self.aggregates
        ]
        return {"clusterRoleSelectors": selectors} if selectors else None

    def aggregation_labels(self) -> dict[str, str]:
        """Return the labels by which other roles aggregate this one."""
        return {f"{_AGGREGATION_LABEL_PREFIX}{label}": "true" for label in self.aggregates_to}


def _allow_paths(verbs: str, paths: str) -> PolicyRule:
    return PolicyRule(tuple(verbs.split()), paths=tuple(paths.split()))


_EVENT_RULE = _allow(_EVENT_VERBS, _CORE_GROUP + _AND_EVENTS_GROUP, "events")
_HEALTH_PATHS = "/healthz /livez /readyz /version /version/"

# ----------------------------------------------------------------------------- user-facing roles

_USER_ROLES: Mapping[str, BootstrapRole] = {
    "cluster-admin": BootstrapRole((_allow("*", "*", "*"), _allow_paths("*", "*"))),
    "admin": BootstrapRole(aggregates=("admin",)),
    "edit": BootstrapRole(aggregates_to=("admin",), aggregates=("edit",)),
    "view": BootstrapRole(aggregates_to=("edit",), aggregates=("view",)),
    "system:aggregate-to-admin": BootstrapRole(
        (
            _allow("create", _AUTHORIZATION_GROUP, "localsubjectaccessreviews"),
            _allow(_ALL_VERBS, _RBAC_GROUP, "roles rolebindings"),
        ),
        aggregates_to=("admin",),
    ),
    "system:aggregate-to-edit": BootstrapRole(
        (
            _allow(_READ_VERBS, _CORE_GROUP, "secrets"),
            _allow("impersonate", _CORE_GROUP, "serviceaccounts"),
            _allow(
                _WRITE_VERBS, _CORE_GROUP, "configmaps events persistentvolumeclaims pods secrets"
            ),
            _allow(_WRITE_VERBS, _CORE_GROUP, "serviceaccounts services"),
            _allow("create", _CORE_GROUP, "pods/eviction serviceaccounts/token"),
            *WORKLOAD_EDIT_RULES,
            _allow(_WRITE_VERBS, _BATCH_GROUP, "cronjobs jobs"),
            _allow(_ALL_VERBS, _COORDINATION_GROUP, "leases"),
            _allow(_WRITE_VERBS, _POLICY_GROUP, "poddisruptionbudgets"),
            _allow(_WRITE_VERBS, _SCHEDULING_GROUP, "compositepodgroups podgroups workloads"),
            _allow(_WRITE_VERBS, _RESOURCE_GROUP, "resourceclaims resourceclaimtemplates"),
            _allow(_WRITE_VERBS, _JOB_SET_GROUP, "jobsets"),
            _allow(
                _WRITE_VERBS, _LEADER_WORKER_SET_GROUP, "leaderworkersets leaderworkersets/scale"
            ),
        ),
        aggregates_to=("edit",),
    ),
    "system:aggregate-to-view": BootstrapRole(
        (
            _allow(
                _READ_VERBS,
                _CORE_GROUP,
                "configmaps events limitranges namespaces namespaces/status",
            ),
            _allow(
                _READ_VERBS, _CORE_GROUP, "persistentvolumeclaims persistentvolumeclaims/status"
            ),
            _allow(
                _READ_VERBS, _CORE_GROUP, "pods pods/log pods/status podtemplates serviceaccounts"
            ),
            _allow(
                _READ_VERBS,
                _CORE_GROUP,
                "resourcequotas resourcequotas/status services services/status",
            ),
            _allow(_READ_VERBS, "events.k8s.io", "events"),
            _allow(_READ_VERBS, "discovery.k8s.io", "endpointslices"),
            *WORKLOAD_VIEW_RULES,
            _allow(_READ_VERBS, _BATCH_GROUP, "cronjobs cronjobs/status jobs jobs/status"),
            _allow(_READ_VERBS, _POLICY_GROUP, "poddisruptionbudgets poddisruptionbudgets/status"),
            _allow(_READ_VERBS, _SCHEDULING_GROUP, "compositepodgroups compositepodgroups/status"),
            _allow(_READ_VERBS, _SCHEDULING_GROUP, "podgroups podgroups/status workloads"),
            _allow(
                _READ_VERBS,
                _RESOURCE_GROUP,
                "resourceclaims resourceclaims/status resourceclaimtemplates",
            ),
            _allow(_READ_VERBS, _JOB_SET_GROUP, "jobsets jobsets/status"),
            _allow(
                _READ_VERBS, _LEADER_WORKER_SET_GROUP, "leaderworkersets leaderworkersets/scale"
            ),
            _allow(_READ_VERBS, _LEADER_WORKER_SET_GROUP, "leaderworkersets/status"),
        ),
        aggregates_to=("view",),
    ),
    "system:aggregated-metrics-reader": BootstrapRole(
        (_allow(_READ_VERBS, _METRICS_GROUP, "nodes pods"),),
        aggregates_to=("view", "edit", "admin"),
    ),
    "system:basic-user": BootstrapRole(
        (
            _allow(
                "create", _AUTHORIZATION_GROUP, "selfsubjectaccessreviews selfsubjectrulesreviews"
            ),
            _allow("create", _AUTHENTICATION_GROUP, "selfsubjectreviews"),
        )
    ),
    "system:discovery": BootstrapRole(
        (_allow_paths("get", f"/api /api/* /apis /apis/* /openapi /openapi/* {_HEALTH_PATHS}"),)
    ),
    "system:public-info-viewer": BootstrapRole((_allow_paths("get", _HEALTH_PATHS),)),
    "system:monitoring": BootstrapRole(
        (_allow_paths("get", "/healthz /healthz/* /livez /livez/* /metrics /readyz /readyz/*"),)
    ),
    "system:service-account-issuer-discovery": BootstrapRole(
        (_allow_paths("get", "/.well-known/openid-configuration /openid/v1/jwks"),)
    ),
    "system:auth-delegator": BootstrapRole(
        (
            _allow("create", _AUTHENTICATION_GROUP, "tokenreviews"),
            _allow("create", _AUTHORIZATION_GROUP, "subjectaccessreviews"),
        )
    ),
}

# -------------------------------------------------------------------------------------- components

#: Renews leases of many nodes in one request.
_LEASE_RENEWER_ROLE = "system:phalanx:lease-renewer"
#: Registers nodes; each node then has an identity of its own.
#: Nodes publish their devices when they register.
_SLICE_RULE = _allow("create", _RESOURCE_GROUP, "resourceslices")
_NODE_REGISTRATION_RULE = _allow("create get patch", _CORE_GROUP, "nodes")

_COMPONENT_ROLES: Mapping[str, BootstrapRole] = {
    "system:kube-controller-manager": BootstrapRole((_allow("get list watch", "*", "*"),)),
    "system:kube-scheduler": BootstrapRole(
        (
            _EVENT_RULE,
            _allow("create", _COORDINATION_GROUP, "leases"),
            _allow(
                "get update patch",
                _COORDINATION_GROUP,
                "leases",
                names="default-scheduler kube-scheduler phalanx-scheduler",
            ),
            _allow(
                _READ_VERBS,
                _CORE_GROUP,
                "namespaces nodes persistentvolumeclaims persistentvolumes services",
            ),
            _allow("patch update", _CORE_GROUP, "persistentvolumeclaims persistentvolumes"),
            _allow("delete get list watch", _CORE_GROUP, "pods"),
            _allow("create", _CORE_GROUP, "bindings pods/binding"),
            _allow("patch update", _CORE_GROUP, "pods/status"),
            _allow("create", _PHALANX_GROUP, "groupbindings groupevictions"),
            _allow(_READ_VERBS, _POLICY_GROUP, "poddisruptionbudgets"),
            _allow(_READ_VERBS, _BATCH_GROUP, "jobs"),
            _allow(
                _READ_VERBS,
                _SCHEDULING_GROUP,
                "compositepodgroups podgroups priorityclasses workloads",
            ),
            _allow("patch update", _SCHEDULING_GROUP, "compositepodgroups/status podgroups/status"),
            _allow("patch", _SCHEDULING_GROUP, "podgroups"),
            _allow(
                _READ_VERBS,
                _RESOURCE_GROUP,
                "deviceclasses devicetaintrules resourceclaims resourceslices",
            ),
            _allow("patch update", _RESOURCE_GROUP, "resourceclaims resourceclaims/status"),
            _allow(
                _READ_VERBS,
                _STORAGE_GROUP,
                "csidrivers csinodes csistoragecapacities storageclasses volumeattachments",
            ),
            _allow("create", _AUTHENTICATION_GROUP, "tokenreviews"),
            _allow("create", _AUTHORIZATION_GROUP, "subjectaccessreviews"),
        )
    ),
    # `authorization.py` restricts nodes to their own objects; no binding grants this role.
    "system:node": BootstrapRole(
        (
            _allow("create", _AUTHENTICATION_GROUP, "tokenreviews"),
            _allow(
                "create", _AUTHORIZATION_GROUP, "localsubjectaccessreviews subjectaccessreviews"
            ),
            _EVENT_RULE,
            _allow("create get list patch update watch", _CORE_GROUP, "nodes"),
            _allow("patch update", _CORE_GROUP, "nodes/status"),
            _allow("delete get list watch", _CORE_GROUP, "pods"),
            _allow("patch update", _CORE_GROUP, "pods/status"),
            _allow("create", _CORE_GROUP, "pods/eviction serviceaccounts/token"),
            _allow("get", _CORE_GROUP, "configmaps persistentvolumeclaims secrets serviceaccounts"),
            _allow(_READ_VERBS, _CORE_GROUP, "services"),
            _allow("get", _RESOURCE_GROUP, "resourceclaims"),
            _allow("create delete get patch update", _COORDINATION_GROUP, "leases"),
        )
    ),
    "system:phalanx:simulated-nodes": BootstrapRole((_NODE_REGISTRATION_RULE, _SLICE_RULE)),
    "system:phalanx:process-nodes": BootstrapRole(
        (_NODE_REGISTRATION_RULE, _SLICE_RULE, _allow("create", _METRICS_GROUP, "pods"))
    ),
    _LEASE_RENEWER_ROLE: BootstrapRole((_allow("create", _PHALANX_GROUP, "leaserenewals"),)),
}

#: Rules of controllers by the name of their service account in kube-system.
CONTROLLER_RULES: Mapping[str, tuple[PolicyRule, ...]] = {
    **WORKLOAD_CONTROLLER_RULES,
    "clusterrole-aggregation-controller": (
        _allow("escalate get list patch update watch", _RBAC_GROUP, "clusterroles"),
    ),
    "composite-group-controller": (
        _allow("get list patch watch", _SCHEDULING_GROUP, "compositepodgroups podgroups"),
        _allow("patch update", _SCHEDULING_GROUP, "compositepodgroups/status"),
        _EVENT_RULE,
    ),
    "cronjob-controller": (
        _allow("get list update watch patch", _BATCH_GROUP, "cronjobs"),
        _allow("create delete get list patch update watch", _BATCH_GROUP, "jobs"),
        _allow("patch update", _BATCH_GROUP, "cronjobs/status cronjobs/finalizers"),
        _EVENT_RULE,
    ),
    "device-taint-eviction-controller": (
        _allow("delete get list watch", _CORE_GROUP, "pods"),
        _allow("patch", _CORE_GROUP, "pods/status"),
        _allow(_READ_VERBS, _RESOURCE_GROUP, "devicetaintrules resourceclaims resourceslices"),
        _allow("patch", _RESOURCE_GROUP, "devicetaintrules/status"),
        _EVENT_RULE,
    ),
    "disruption-controller": (
        _allow("get list watch patch", _CORE_GROUP, "pods"),
        _allow("patch update", _CORE_GROUP, "pods/status"),
        _allow(_READ_VERBS, _POLICY_GROUP, "poddisruptionbudgets"),
        _allow("patch update", _POLICY_GROUP, "poddisruptionbudgets/status"),
        _EVENT_RULE,
    ),
    "generic-garbage-collector": (
        _allow("delete get list patch update watch", "*", "*"),
        _EVENT_RULE,
    ),
    "job-controller": (
        _allow("get list patch update watch", _BATCH_GROUP, "jobs"),
        _allow("patch update", _BATCH_GROUP, "jobs/status jobs/finalizers"),
        _allow("create delete get list patch watch", _CORE_GROUP, "pods"),
        _allow("patch", _CORE_GROUP, "pods/status"),
        _allow(_READ_VERBS, _CORE_GROUP, "resourcequotas"),
        _allow(
            "create get list patch update watch delete", _SCHEDULING_GROUP, "podgroups workloads"
        ),
        _allow("patch update", _SCHEDULING_GROUP, "podgroups/finalizers workloads/finalizers"),
        _allow("get list", _SCHEDULING_GROUP, "priorityclasses"),
        # Jobs below a JobSet may be linked to the Workload of its controller.
        _allow("create delete get list", _SCHEDULING_GROUP, "compositepodgroups"),
        _allow("get", _JOB_SET_GROUP, "jobsets"),
        _EVENT_RULE,
    ),
    "leaderworkerset-controller": (
        _allow(_READ_VERBS, _LEADER_WORKER_SET_GROUP, "leaderworkersets"),
        _allow("patch update", _LEADER_WORKER_SET_GROUP, "leaderworkersets/status"),
        _allow("update", _LEADER_WORKER_SET_GROUP, "leaderworkersets/finalizers"),
        _allow(_ALL_VERBS, _APPS_GROUP, "controllerrevisions statefulsets"),
        _allow("delete get list watch", _CORE_GROUP, "pods"),
        _allow("update", _CORE_GROUP, "pods/finalizers"),
        _allow("create get list patch watch", _CORE_GROUP, "services"),
        _allow(_READ_VERBS, _CORE_GROUP, "nodes"),
        _allow(_ALL_VERBS, _SCHEDULING_GROUP, "compositepodgroups podgroups workloads"),
        _allow(_READ_VERBS, _SCHEDULING_GROUP, "priorityclasses"),
        _EVENT_RULE,
    ),
    "namespace-controller": (
        _allow("delete get list watch", _CORE_GROUP, "namespaces"),
        _allow("patch update", _CORE_GROUP, "namespaces/finalize namespaces/status"),
        _allow("delete deletecollection get list", "*", "*"),
    ),
    "node-controller": (
        _allow("delete get list patch update watch", _CORE_GROUP, "nodes"),
        _allow("patch update", _CORE_GROUP, "nodes/status pods/status"),
        _allow("delete get list", _CORE_GROUP, "pods"),
        _allow(_READ_VERBS, _COORDINATION_GROUP, "leases"),
        _EVENT_RULE,
    ),
    "ephemeral-volume-controller": (
        _allow(_READ_VERBS, _CORE_GROUP, "pods"),
        _allow("patch update", _CORE_GROUP, "pods/finalizers"),
        _allow("create get list watch", _CORE_GROUP, "persistentvolumeclaims"),
        _EVENT_RULE,
    ),
    "persistent-volume-binder": (
        _allow(
            "get list patch update watch", _CORE_GROUP, "persistentvolumeclaims persistentvolumes"
        ),
        _allow(
            "patch update",
            _CORE_GROUP,
            "persistentvolumeclaims/status persistentvolumes/status",
        ),
        _allow(_READ_VERBS, _CORE_GROUP, "nodes pods"),
        _allow(_READ_VERBS, _STORAGE_GROUP, "storageclasses"),
        _EVENT_RULE,
    ),
    "pod-garbage-collector": (
        _allow("delete get list watch", _CORE_GROUP, "pods"),
        _allow("get list", _CORE_GROUP, "nodes"),
        _allow("patch", _CORE_GROUP, "pods/status"),
    ),
    "podgroup-protection-controller": (
        _allow("get list patch update watch", _SCHEDULING_GROUP, "podgroups"),
        _allow(_READ_VERBS, _CORE_GROUP, "pods"),
    ),
    "pv-protection-controller": (
        _allow("get list patch update watch", _CORE_GROUP, "persistentvolumes"),
        _EVENT_RULE,
    ),
    "pvc-protection-controller": (
        _allow("get list patch update watch", _CORE_GROUP, "persistentvolumeclaims"),
        _allow("patch update", _CORE_GROUP, "persistentvolumeclaims/status"),
        _allow(_READ_VERBS, _CORE_GROUP, "pods"),
        _EVENT_RULE,
    ),
    "replica-group-controller": (
        _allow(_READ_VERBS, _CORE_GROUP, "pods"),
        _allow("create get list watch", _SCHEDULING_GROUP, "podgroups"),
        _allow(_READ_VERBS, _SCHEDULING_GROUP, "workloads"),
        _allow("patch update", _SCHEDULING_GROUP, "workloads/finalizers"),
        _allow("get list", _SCHEDULING_GROUP, "priorityclasses"),
    ),
    "resource-claim-controller": (
        _allow("get list watch", _CORE_GROUP, "pods"),
        _allow("patch update", _CORE_GROUP, "pods/status pods/finalizers"),
        _allow(_READ_VERBS, _SCHEDULING_GROUP, "podgroups"),
        _allow("patch update", _SCHEDULING_GROUP, "podgroups/status podgroups/finalizers"),
        _allow("create delete get list patch update watch", _RESOURCE_GROUP, "resourceclaims"),
        _allow("patch update", _RESOURCE_GROUP, "resourceclaims/status"),
        _allow(_READ_VERBS, _RESOURCE_GROUP, "resourceclaimtemplates"),
        _EVENT_RULE,
    ),
    "root-ca-cert-publisher": (_allow("create patch update", _CORE_GROUP, "configmaps"),),
    "service-account-controller": (
        _allow("create get list watch", _CORE_GROUP, "serviceaccounts"),
    ),
    "jobset-controller": (
        _allow("delete get list watch", _JOB_SET_GROUP, "jobsets"),
        _allow("patch update", _JOB_SET_GROUP, "jobsets/status jobsets/finalizers"),
        _allow("create delete get list patch update watch", _BATCH_GROUP, "jobs"),
        _allow(
            "create delete get list patch update watch",
            _SCHEDULING_GROUP,
            "workloads podgroups compositepodgroups",
        ),
        _allow("get list", _SCHEDULING_GROUP, "priorityclasses"),
        _allow("create get list watch", _CORE_GROUP, "services persistentvolumeclaims"),
        _EVENT_RULE,
    ),
    "validatingadmissionpolicy-status-controller": (
        _allow(_READ_VERBS, _ADMISSION_GROUP, "validatingadmissionpolicies"),
        _allow("get patch update", _ADMISSION_GROUP, "validatingadmissionpolicies/status"),
        _allow("get list", "apiextensions.k8s.io", "customresourcedefinitions"),
    ),
    "simulated-provisioner": (
        _allow("get list patch update watch", _CORE_GROUP, "persistentvolumeclaims"),
        _allow("create delete get list watch", _CORE_GROUP, "persistentvolumes"),
        _allow(_READ_VERBS, _CORE_GROUP, "nodes"),
        _allow("create get list watch", _STORAGE_GROUP, "storageclasses"),
        _EVENT_RULE,
    ),
    "taint-eviction-controller": (
        _allow("delete get list watch", _CORE_GROUP, "pods"),
        _allow("get list watch", _CORE_GROUP, "nodes"),
        _allow("patch", _CORE_GROUP, "pods/status"),
        _EVENT_RULE,
    ),
    "ttl-after-finished-controller": (
        _allow("delete get list watch", _BATCH_GROUP, "jobs"),
        _EVENT_RULE,
    ),
}

CLUSTER_ROLES: Mapping[str, BootstrapRole] = {
    **_USER_ROLES,
    **_COMPONENT_ROLES,
    **{
        f"system:controller:{name}": BootstrapRole(rules)
        for name, rules in CONTROLLER_RULES.items()
    },
}


def _group_subject(name: str) -> Object:
    return {"kind": "Group", "apiGroup": _RBAC_GROUP, "name": name}


def _user_subject(name: str) -> Object:
    return {"kind": "User", "apiGroup": _RBAC_GROUP, "name": name}


def _controller_subject(name: str) -> Object:
    return {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}


#: Cluster role -> its subjects; the binding has the name of the role.
CLUSTER_BINDINGS: Mapping[str, tuple[Object, ...]] = {
    "cluster-admin": (_group_subject(MASTERS),),
    "system:basic-user": (_group_subject(AUTHENTICATED),),
    "system:discovery": (_group_subject(AUTHENTICATED),),
    "system:public-info-viewer": (_group_subject(AUTHENTICATED), _group_subject(UNAUTHENTICATED)),
    "system:monitoring": (_group_subject("system:monitoring"),),
    "system:service-account-issuer-discovery": (_group_subject(SERVICE_ACCOUNTS),),
    "system:kube-controller-manager": (_user_subject("system:kube-controller-manager"),),
    "system:kube-scheduler": (_user_subject("system:kube-scheduler"),),
    "system:phalanx:simulated-nodes": (_user_subject("system:phalanx:simulated-nodes"),),
    "system:phalanx:process-nodes": (_user_subject("system:phalanx:process-nodes"),),
    "system:node": (),
    **{f"system:controller:{name}": (_controller_subject(name),) for name in CONTROLLER_RULES},
}

#: (namespace, cluster role) -> its subjects; the binding has the name of the role.
NAMESPACED_BINDINGS: Mapping[tuple[str, str], tuple[Object, ...]] = {
    (NODE_LEASE_NAMESPACE, _LEASE_RENEWER_ROLE): (
        _user_subject("system:phalanx:simulated-nodes"),
        _user_subject("system:phalanx:process-nodes"),
    ),
}
