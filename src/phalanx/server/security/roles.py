"""The roles that every cluster has, and who has them: a table.

Names, rules and subjects are those of Kubernetes for what we serve, so that manifests which bind
`view` or `edit` mean here what they mean there. Beside them stand roles of our own loops. What a
role of ours holds is what its holder does, and no more. `bootstrap` writes the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.api.wire import Object
from phalanx.server.security.nodes import LEASES
from phalanx.server.security.rules import Rule
from phalanx.server.security.users import (
    AUTHENTICATED,
    MASTERS,
    SERVICE_ACCOUNTS,
    UNAUTHENTICATED,
)

_READ = "get list watch"
_WRITE = "create delete deletecollection patch update"
_BOTH = f"{_READ} {_WRITE}"
_TELL = "create patch update"
_CORE, _BATCH, _POLICY, _RBAC = "", "batch", "policy", "rbac.authorization.k8s.io"
_SCHEDULING, _RESOURCE, _LEASES = "scheduling.k8s.io", "resource.k8s.io", "coordination.k8s.io"
_OURS, _JOB_SETS, _LEADERS = "phalanx.dev", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io"
_TOKENS, _ACCESS = "authentication.k8s.io", "authorization.k8s.io"
_METRICS = "metrics.k8s.io"
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
#: The groups that events are written in.
_EVENTS = " events.k8s.io"


@dataclass(frozen=True, slots=True)
class BootRole:
    """A cluster role: its rules, its labels, and the label by which it takes others' rules."""

    rules: tuple[Rule, ...] = ()
    labels: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def aggregation(self) -> Object | None:
        """Its aggregation rule, if it has one."""
        selectors = [{"matchLabels": {f"{_AGGREGATE}{label}": "true"}} for label in self.takes]
        return {"clusterRoleSelectors": selectors} if selectors else None

    def all_labels(self) -> dict[str, str]:
        """The labels by which others take its rules."""
        return {f"{_AGGREGATE}{label}": "true" for label in self.labels}


def _may(verbs: str, groups: str, resources: str, names: str = "") -> Rule:
    """`get list`, `batch` or several groups (the first may be the core's), `jobs jobs/status`."""
    parts = (verbs.split(), groups.split(" "), resources.split(), names.split())
    return Rule(*map(tuple, parts))


def _paths(verbs: str, paths: str) -> Rule:
    return Rule(tuple(verbs.split()), paths=tuple(paths.split()))


_TELLS = _may(_TELL, _CORE + _EVENTS, "events")
_HEALTH = "/healthz /livez /readyz /version /version/"

# ------------------------------------------------------------------------------------------ people

_PEOPLE: Mapping[str, BootRole] = {
    "cluster-admin": BootRole((_may("*", "*", "*"), _paths("*", "*"))),
    "admin": BootRole(takes=("admin",)),
    "edit": BootRole(labels=("admin",), takes=("edit",)),
    "view": BootRole(labels=("edit",), takes=("view",)),
    "system:aggregate-to-admin": BootRole(
        (
            _may("create", _ACCESS, "localsubjectaccessreviews"),
            _may(_BOTH, _RBAC, "roles rolebindings"),
        ),
        labels=("admin",),
    ),
    "system:aggregate-to-edit": BootRole(
        (
            _may(_READ, _CORE, "secrets"),
            _may("impersonate", _CORE, "serviceaccounts"),
            _may(_WRITE, _CORE, "configmaps events persistentvolumeclaims pods secrets"),
            _may(_WRITE, _CORE, "serviceaccounts services"),
            _may("create", _CORE, "pods/eviction serviceaccounts/token"),
            _may(_WRITE, _BATCH, "cronjobs jobs"),
            _may(_BOTH, _LEASES, "leases"),
            _may(_WRITE, _POLICY, "poddisruptionbudgets"),
            _may(_WRITE, _SCHEDULING, "compositepodgroups podgroups workloads"),
            _may(_WRITE, _RESOURCE, "resourceclaims resourceclaimtemplates"),
            _may(_WRITE, _JOB_SETS, "jobsets"),
            _may(_WRITE, _LEADERS, "leaderworkersets leaderworkersets/scale"),
        ),
        labels=("edit",),
    ),
    "system:aggregate-to-view": BootRole(
        (
            _may(_READ, _CORE, "configmaps events limitranges namespaces namespaces/status"),
            _may(_READ, _CORE, "persistentvolumeclaims persistentvolumeclaims/status"),
            _may(_READ, _CORE, "pods pods/log pods/status podtemplates serviceaccounts"),
            _may(_READ, _CORE, "resourcequotas resourcequotas/status services services/status"),
            _may(_READ, "events.k8s.io", "events"),
            _may(_READ, _BATCH, "cronjobs cronjobs/status jobs jobs/status"),
            _may(_READ, _POLICY, "poddisruptionbudgets poddisruptionbudgets/status"),
            _may(_READ, _SCHEDULING, "compositepodgroups compositepodgroups/status"),
            _may(_READ, _SCHEDULING, "podgroups podgroups/status workloads"),
            _may(_READ, _RESOURCE, "resourceclaims resourceclaims/status resourceclaimtemplates"),
            _may(_READ, _JOB_SETS, "jobsets jobsets/status"),
            _may(_READ, _LEADERS, "leaderworkersets leaderworkersets/scale"),
            _may(_READ, _LEADERS, "leaderworkersets/status"),
        ),
        labels=("view",),
    ),
    "system:aggregated-metrics-reader": BootRole(
        (_may(_READ, _METRICS, "nodes pods"),), labels=("view", "edit", "admin")
    ),
    "system:basic-user": BootRole(
        (
            _may("create", _ACCESS, "selfsubjectaccessreviews selfsubjectrulesreviews"),
            _may("create", _TOKENS, "selfsubjectreviews"),
        )
    ),
    "system:discovery": BootRole(
        (_paths("get", f"/api /api/* /apis /apis/* /openapi /openapi/* {_HEALTH}"),)
    ),
    "system:public-info-viewer": BootRole((_paths("get", _HEALTH),)),
    "system:monitoring": BootRole(
        (_paths("get", "/healthz /healthz/* /livez /livez/* /metrics /readyz /readyz/*"),)
    ),
    "system:service-account-issuer-discovery": BootRole(
        (_paths("get", "/.well-known/openid-configuration /openid/v1/jwks"),)
    ),
    "system:auth-delegator": BootRole(
        (
            _may("create", _TOKENS, "tokenreviews"),
            _may("create", _ACCESS, "subjectaccessreviews"),
        )
    ),
}

# -------------------------------------------------------------------------------------- components

#: Renews leases of nodes, many at once.
_RENEWER = "system:phalanx:lease-renewer"
#: Whoever registers nodes of our own; from then on each of them is somebody (`nodes`).
_REGISTERS = _may("create get patch", _CORE, "nodes")

_COMPONENTS: Mapping[str, BootRole] = {
    "system:kube-controller-manager": BootRole((_may("get list watch", "*", "*"),)),
    "system:kube-scheduler": BootRole(
        (
            _TELLS,
            _may("create", _LEASES, "leases"),
            _may(
                "get update patch",
                _LEASES,
                "leases",
                "default-scheduler kube-scheduler phalanx-scheduler",
            ),
            _may(
                _READ, _CORE, "namespaces nodes persistentvolumeclaims persistentvolumes services"
            ),
            _may("delete get list watch", _CORE, "pods"),
            _may("create", _CORE, "bindings pods/binding"),
            _may("patch update", _CORE, "pods/status"),
            _may("create", _OURS, "groupbindings groupevictions"),
            _may(_READ, _POLICY, "poddisruptionbudgets"),
            _may(_READ, _SCHEDULING, "compositepodgroups podgroups priorityclasses workloads"),
            _may("patch update", _SCHEDULING, "compositepodgroups/status podgroups/status"),
            _may("patch", _SCHEDULING, "podgroups"),
            _may(_READ, _RESOURCE, "deviceclasses resourceclaims resourceslices"),
            _may("patch update", _RESOURCE, "resourceclaims resourceclaims/status"),
            _may("create", _TOKENS, "tokenreviews"),
            _may("create", _ACCESS, "subjectaccessreviews"),
        )
    ),
    # What one node may is narrowed down by `nodes`; nobody has this role by a binding.
    "system:node": BootRole(
        (
            _may("create", _TOKENS, "tokenreviews"),
            _may("create", _ACCESS, "localsubjectaccessreviews subjectaccessreviews"),
            _TELLS,
            _may("create get list patch update watch", _CORE, "nodes"),
            _may("patch update", _CORE, "nodes/status"),
            _may("delete get list watch", _CORE, "pods"),
            _may("patch update", _CORE, "pods/status"),
            _may("create", _CORE, "pods/eviction serviceaccounts/token"),
            _may("get", _CORE, "configmaps persistentvolumeclaims secrets serviceaccounts"),
            _may(_READ, _CORE, "services"),
            _may("get", _RESOURCE, "resourceclaims"),
            _may("create delete get patch update", _LEASES, "leases"),
        )
    ),
    "system:phalanx:simulated-nodes": BootRole((_REGISTERS,)),
    "system:phalanx:process-nodes": BootRole((_REGISTERS, _may("create", _METRICS, "pods"))),
    _RENEWER: BootRole((_may("create", _OURS, "leaserenewals"),)),
}

#: Controllers by the name of their service account in kube-system.
CONTROLLERS: Mapping[str, tuple[Rule, ...]] = {
    "clusterrole-aggregation-controller": (
        _may("escalate get list patch update watch", _RBAC, "clusterroles"),
    ),
    "composite-group-controller": (
        _may("get list patch watch", _SCHEDULING, "compositepodgroups podgroups"),
        _may("patch update", _SCHEDULING, "compositepodgroups/status"),
        _TELLS,
    ),
    "cronjob-controller": (
        _may("get list update watch patch", _BATCH, "cronjobs"),
        _may("create delete get list patch update watch", _BATCH, "jobs"),
        _may("patch update", _BATCH, "cronjobs/status cronjobs/finalizers"),
        _TELLS,
    ),
    "disruption-controller": (
        _may("get list watch patch", _CORE, "pods"),
        _may("patch update", _CORE, "pods/status"),
        _may(_READ, _POLICY, "poddisruptionbudgets"),
        _may("patch update", _POLICY, "poddisruptionbudgets/status"),
        _TELLS,
    ),
    "generic-garbage-collector": (
        _may("delete get list patch update watch", "*", "*"),
        _TELLS,
    ),
    "job-controller": (
        _may("get list patch update watch", _BATCH, "jobs"),
        _may("patch update", _BATCH, "jobs/status jobs/finalizers"),
        _may("create delete get list patch watch", _CORE, "pods"),
        _may("create get list patch update watch delete", _SCHEDULING, "podgroups workloads"),
        _may("patch update", _SCHEDULING, "podgroups/finalizers workloads/finalizers"),
        _may("get list", _SCHEDULING, "priorityclasses"),
        _TELLS,
    ),
    "namespace-controller": (
        _may("delete get list watch", _CORE, "namespaces"),
        _may("patch update", _CORE, "namespaces/finalize namespaces/status"),
        _may("delete deletecollection get list", "*", "*"),
    ),
    "node-controller": (
        _may("delete get list patch update watch", _CORE, "nodes"),
        _may("patch update", _CORE, "nodes/status pods/status"),
        _may("delete get list", _CORE, "pods"),
        _may(_READ, _LEASES, "leases"),
        _TELLS,
    ),
    "pod-garbage-collector": (
        _may("delete get list watch", _CORE, "pods"),
        _may("get list", _CORE, "nodes"),
        _may("patch", _CORE, "pods/status"),
    ),
    "podgroup-protection-controller": (
        _may("get list patch update watch", _SCHEDULING, "podgroups"),
        _may(_READ, _CORE, "pods"),
    ),
    "replica-group-controller": (
        _may(_READ, _CORE, "pods"),
        _may("create get list watch", _SCHEDULING, "podgroups"),
        _may(_READ, _SCHEDULING, "workloads"),
        _may("patch update", _SCHEDULING, "workloads/finalizers"),
        _may("get list", _SCHEDULING, "priorityclasses"),
    ),
    "resource-claim-controller": (
        _may("get list watch", _CORE, "pods"),
        _may("patch update", _CORE, "pods/status pods/finalizers"),
        _may(_READ, _SCHEDULING, "podgroups"),
        _may("patch update", _SCHEDULING, "podgroups/status podgroups/finalizers"),
        _may("create delete get list patch update watch", _RESOURCE, "resourceclaims"),
        _may("patch update", _RESOURCE, "resourceclaims/status"),
        _may(_READ, _RESOURCE, "resourceclaimtemplates"),
        _TELLS,
    ),
    "service-account-controller": (_may("create get list watch", _CORE, "serviceaccounts"),),
    "taint-eviction-controller": (
        _may("delete get list watch", _CORE, "pods"),
        _may("get list watch", _CORE, "nodes"),
        _may("patch", _CORE, "pods/status"),
        _TELLS,
    ),
    "ttl-after-finished-controller": (
        _may("delete get list watch", _BATCH, "jobs"),
        _TELLS,
    ),
}

CLUSTER_ROLES: Mapping[str, BootRole] = {
    **_PEOPLE,
    **_COMPONENTS,
    **{f"system:controller:{name}": BootRole(rules) for name, rules in CONTROLLERS.items()},
}


def _group(name: str) -> Object:
    return {"kind": "Group", "apiGroup": _RBAC, "name": name}


def _user(name: str) -> Object:
    return {"kind": "User", "apiGroup": _RBAC, "name": name}


def _account(name: str) -> Object:
    return {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}


#: Cluster role -> who has it everywhere; the binding has the role's name.
CLUSTER_BINDINGS: Mapping[str, tuple[Object, ...]] = {
    "cluster-admin": (_group(MASTERS),),
    "system:basic-user": (_group(AUTHENTICATED),),
    "system:discovery": (_group(AUTHENTICATED),),
    "system:public-info-viewer": (_group(AUTHENTICATED), _group(UNAUTHENTICATED)),
    "system:monitoring": (_group("system:monitoring"),),
    "system:service-account-issuer-discovery": (_group(SERVICE_ACCOUNTS),),
    "system:kube-controller-manager": (_user("system:kube-controller-manager"),),
    "system:kube-scheduler": (_user("system:kube-scheduler"),),
    "system:phalanx:simulated-nodes": (_user("system:phalanx:simulated-nodes"),),
    "system:phalanx:process-nodes": (_user("system:phalanx:process-nodes"),),
    "system:node": (),
    **{f"system:controller:{name}": (_account(name),) for name in CONTROLLERS},
}

#: (namespace, cluster role) -> who has it there alone; the binding has the role's name.
BINDINGS: Mapping[tuple[str, str], tuple[Object, ...]] = {
    (LEASES, _RENEWER): (
        _user("system:phalanx:simulated-nodes"),
        _user("system:phalanx:process-nodes"),
    ),
}
