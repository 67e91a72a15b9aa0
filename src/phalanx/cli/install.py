"""`phalanx install`: the manifests that run scheduler and controllers on a Kubernetes cluster.

Prints; `kubectl apply` installs. Both components get a Deployment of two replicas with leader
election and probes, and a service account with the rights that they use and no others. `--diff`
compares the manifests with what a cluster has; `--uninstall` prints what `kubectl delete` removes.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import orjson
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.errors import NotFound
from phalanx.api.formats import validate_dns_label, validate_dns_subdomain
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COMPAT_NAMES,
    CUSTOM_GROUP,
    CUSTOM_POD_GROUP,
    STATUS_SUBRESOURCES,
    WORKLOAD_SOURCES,
)
from phalanx.cli.connection import query_cluster, server_options
from phalanx.cli.manifests import find_kind
from phalanx.cli.output import echo
from phalanx.client.client import Client, served_kinds
from phalanx.controllers.controller_manager import LEASE_NAME
from phalanx.controllers.scheduler_runner import FOREIGN_SCHEDULER
from phalanx.version import __version__

SCHEDULER, CONTROLLERS = "phalanx-scheduler", "phalanx-controllers"
DEFAULT_NAMESPACE = "phalanx-system"
_PORT = 10259
_CONFIG_FOLDER, _CONFIG_FILE = "/etc/phalanx", "scheduler.yaml"
_CONFIG_MAP = "phalanx-scheduler"
#: Leases are in the namespace in which `phalanx queue` and `phalanx why` look for them.
_LEASE_NAMESPACE = "kube-system"
_PRIORITY_CLASS = "system-cluster-critical"
_READ = ("get", "list", "watch")
#: On pods of the scheduler: changes with the configuration, so that a new one restarts them.
_CONFIG_ANNOTATION = "phalanx.dev/config-sha256"


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What is installed, where, and with which image."""

    namespace: str = DEFAULT_NAMESPACE
    image: str = f"phalanx:{__version__}"
    scheduler_names: Sequence[str] = (FOREIGN_SCHEDULER,)
    compat: Sequence[str] = ()
    replicas: int = 2
    verbosity: int = 0
    custom_definitions: bool = True


# ---- manifests -----------------------------------------------------------------------------------


def install_manifests(options: InstallOptions) -> list[Object]:
    """Return the objects to apply, each after those that it needs."""
    definitions = workload_definitions() if options.custom_definitions else []
    compat = [word for name in options.compat for word in ("--compat", name)]
    configuration = _scheduler_configuration(options)
    budgets = [
        _object(
            "policy/v1",
            "PodDisruptionBudget",
            name,
            namespace=options.namespace,
            spec={"maxUnavailable": 1, "selector": {"matchLabels": _selector(name)}},
        )
        for name in (SCHEDULER, CONTROLLERS)
    ]
    manifests = [
        _object("v1", "Namespace", options.namespace),
        *definitions,
        *scheduler_rights(options),
        *controller_rights(options),
        configuration,
        _critical_pods_quota(options),
        _deployment(
            options,
            SCHEDULER,
            ["scheduler", "--config", f"{_CONFIG_FOLDER}/{_CONFIG_FILE}", *compat],
            configuration=configuration,
        ),
        _deployment(options, CONTROLLERS, ["controllers"]),
        *budgets,
        _metrics_service(options),
    ]
    # Copied: YAML writes parts that objects share as anchors.
    copied: list[Object] = orjson.loads(orjson.dumps(manifests))
    return copied


def scheduler_rights(options: InstallOptions) -> list[Object]:
    """Return the service account of the scheduler and all its rights."""
    custom = [
        (row.kind.group, row.kind.plural, (*_READ, "patch") if row.target is POD_GROUP else _READ)
        for row in WORKLOAD_SOURCES
        if row.target in (POD_GROUP, COMPOSITE_POD_GROUP)
        and (not row.compat or row.compat in options.compat)
    ]
    status = [
        (row.kind.group, f"{row.kind.plural}/status", ("patch",))
        for row in WORKLOAD_SOURCES
        if row.target in (POD_GROUP, COMPOSITE_POD_GROUP)
        and ("status" in row.kind.subresources or row.kind in STATUS_SUBRESOURCES)
        and (not row.compat or row.compat in options.compat)
    ]
    rules = [
        ("", "nodes,namespaces,services", _READ),
        ("", "persistentvolumes,persistentvolumeclaims", (*_READ, "patch")),
        (
            "storage.k8s.io",
            "storageclasses,csidrivers,csinodes,csistoragecapacities,volumeattachments",
            _READ,
        ),
        ("", "pods", (*_READ, "delete")),
        ("", "pods/binding", ("create",)),
        ("", "pods/status", ("patch",)),
        ("", "events", ("create", "patch")),
        ("policy", "poddisruptionbudgets", _READ),
        ("batch", "jobs", _READ),
        ("scheduling.k8s.io", "priorityclasses", _READ),
        *custom,
        *status,
        ("resource.k8s.io", "resourceslices,deviceclasses,devicetaintrules", _READ),
        ("resource.k8s.io", "resourceclaims", (*_READ, "create", "patch")),
        ("resource.k8s.io", "resourceclaims/status", ("patch",)),
        # On our server only: gangs are bound and victims evicted in one transaction.
        ("phalanx.dev", "groupbindings,groupevictions", ("create",)),
    ]
    # The Lease is named after the first scheduler name.
    return _account(options, SCHEDULER, rules, lease=options.scheduler_names[0])


def controller_rights(options: InstallOptions) -> list[Object]:
    """Return the service account of the controllers and all its rights: those of the defaults."""
    rules = [
        ("batch", "jobs", _READ),
        ("batch", "jobs/status", ("patch",)),
        ("batch", "jobs/finalizers", ("update",)),
        ("", "pods", (*_READ, "create", "patch", "delete")),
        ("", "pods/status", ("patch",)),
        ("", "resourcequotas", _READ),
        ("", "events", ("create", "patch")),
        ("scheduling.k8s.io", "priorityclasses", ("get", "list")),
        *(
            (group, resources, verbs)
            for group in (POD_GROUP.group, CUSTOM_GROUP)
            for resources, verbs in (
                ("workloads,podgroups", (*_READ, "create", "patch", "delete")),
                ("workloads/finalizers", ("update",)),
            )
        ),
        # Protection of groups and the status of trees, which custom resources get from us. After an
        # upgrade of the server a tree may have groups of both kinds.
        *(
            (group, resources, verbs)
            for group in (POD_GROUP.group, CUSTOM_GROUP)
            for resources, verbs in (
                ("compositepodgroups", (*_READ, "patch")),
                ("compositepodgroups/status", ("patch",)),
            )
        ),
    ]
    return _account(options, CONTROLLERS, rules, lease=LEASE_NAME)


def _account(
    options: InstallOptions,
    name: str,
    rules: Sequence[tuple[str, str, Sequence[str]]],
    *,
    lease: str,
) -> list[Object]:
    """Return a service account with cluster-wide rights and the right to hold one Lease."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    lease_rules: list[Object] = [
        _rule("coordination.k8s.io", "leases", ("create",)),
        {
            **_rule("coordination.k8s.io", "leases", ("get", "update")),
            "resourceNames": [lease],
        },
    ]
    api = "rbac.authorization.k8s.io"
    return [
        _object("v1", "ServiceAccount", name, namespace=options.namespace),
        _object(f"{api}/v1", "ClusterRole", name, rules=[_rule(*rule) for rule in rules]),
        _object(
            f"{api}/v1",
            "ClusterRoleBinding",
            name,
            roleRef={"apiGroup": api, "kind": "ClusterRole", "name": name},
            subjects=[subject],
        ),
        _object(f"{api}/v1", "Role", name, namespace=_LEASE_NAMESPACE, rules=lease_rules),
        _object(
            f"{api}/v1",
            "RoleBinding",
            name,
            namespace=_LEASE_NAMESPACE,
            roleRef={"apiGroup": api, "kind": "Role", "name": name},
            subjects=[subject],
        ),
    ]


def _rule(group: str, resources: str, verbs: Sequence[str]) -> Object:
    return {"apiGroups": [group], "resources": resources.split(","), "verbs": list(verbs)}


def _scheduler_configuration(options: InstallOptions) -> Object:
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True},
        "profiles": [{"schedulerName": name} for name in options.scheduler_names],
    }
    text = yaml.safe_dump(configuration, sort_keys=False)
    return _object(
        "v1", "ConfigMap", _CONFIG_MAP, namespace=options.namespace, data={_CONFIG_FILE: text}
    )


def _critical_pods_quota(options: InstallOptions) -> Object:
    """Allow critical pods: some clusters forbid them in namespaces without such a quota."""
    selected = {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": [_PRIORITY_CLASS],
    }
    # Twice as many as run: an update starts new pods first.
    spec = {
        "hard": {"pods": str(4 * options.replicas)},
        "scopeSelector": {"matchExpressions": [selected]},
    }
    return _object(
        "v1", "ResourceQuota", "phalanx-critical-pods", namespace=options.namespace, spec=spec
    )


def _deployment(
    options: InstallOptions,
    name: str,
    command: Sequence[str],
    *,
    configuration: Object | None = None,
) -> Object:
    labels = _selector(name)
    flags = ["--listen", f"0.0.0.0:{_PORT}", "--log-format", "json", *["-v"] * options.verbosity]
    container: Object = {
        "name": command[0],
        "image": options.image,
        "command": ["phalanx"],
        "args": [*command, *flags],
        "ports": [{"name": "metrics", "containerPort": _PORT, "protocol": "TCP"}],
        "livenessProbe": _probe("/livez", initialDelaySeconds=15),
        "readinessProbe": _probe("/readyz"),
        "resources": {
            "requests": {"cpu": "200m", "memory": "256Mi"},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    template: dict[str, Object] = {
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": name,
            "priorityClassName": _PRIORITY_CLASS,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [spread],
            "containers": [container],
        },
    }
    if configuration:
        digest = hashlib.sha256(configuration["data"][_CONFIG_FILE].encode()).hexdigest()
        template["metadata"]["annotations"] = {_CONFIG_ANNOTATION: digest}
        mount = {"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}
        container["volumeMounts"] = [mount]
        template["spec"]["volumes"] = [{"name": "config", "configMap": {"name": _CONFIG_MAP}}]
    spec = {
        "replicas": options.replicas,
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": template,
    }
    return _object("apps/v1", "Deployment", name, namespace=options.namespace, spec=spec)


def _probe(path: str, **more: int) -> Object:
    return {"httpGet": {"path": path, "port": _PORT}, "periodSeconds": 10, **more}


def _metrics_service(options: InstallOptions) -> Object:
    spec = {
        "clusterIP": "None",
        "selector": {"app.kubernetes.io/part-of": "phalanx"},
        "ports": [{"name": "metrics", "port": _PORT, "targetPort": "metrics", "protocol": "TCP"}],
    }
    return _object("v1", "Service", "phalanx-metrics", namespace=options.namespace, spec=spec)


def _selector(name: str) -> Object:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "phalanx"}


def _object(
    api_version: str, kind: str, name: str, *, namespace: str = "", **fields: object
) -> Object:
    meta: Object = {"name": name, "labels": {"app.kubernetes.io/part-of": "phalanx"}}
    if namespace:
        meta["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **fields}


# ---- the command ---------------------------------------------------------------------------------


def _parse_namespace(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if problems := validate_dns_label(value):
        raise click.BadParameter(f'"{value}" is not a namespace: {problems[0]}')
    return value


def _parse_scheduler_names(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    for name in value:
        # The Lease is named after the scheduler.
        if problems := validate_dns_subdomain(name):
            raise click.BadParameter(f'"{name}" is not a scheduler name: {problems[0]}')
    return tuple(dict.fromkeys(value))


def _parse_image(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not value or value != "".join(value.split()):
        raise click.BadParameter(f'"{value}" is not an image')
    return value


@click.command()
@server_options
@click.option(
    "-n", "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAME",
    callback=_parse_namespace, help="The namespace of the components.",
)  # fmt: skip
@click.option(
    "--image", default=f"phalanx:{__version__}", show_default=True, metavar="IMAGE",
    callback=_parse_image,
)  # fmt: skip
@click.option(
    "--scheduler-name",
    "names",
    multiple=True,
    default=(FOREIGN_SCHEDULER,),
    show_default=True,
    metavar="NAME",
    callback=_parse_scheduler_names,
    help="The schedulerName of the pods to place; repeatable.",
)
@click.option(
    "--compat",
    type=click.Choice(COMPAT_NAMES),
    multiple=True,
    help="Read the PodGroups of this project as gangs; repeatable.",
)
@click.option("--replicas", type=click.IntRange(1, 5), default=2, show_default=True)
@click.option("-v", "--verbose", "verbosity", count=True, help="The components log more.")
@click.option(
    "--crds/--no-crds",
    "definitions",
    default=None,
    help="Whether the CustomResourceDefinitions are included. Deleting them deletes all groups. "
    "[default: yes, but not with --uninstall, nor if the server of --kubeconfig or --context has "
    "the workload APIs]",
)
@click.option("--uninstall", is_flag=True, help="Print what kubectl delete -f - removes.")
@click.option(
    "--diff", is_flag=True, help="Compare with the cluster; the exit code is 1 if it differs."
)
def install_command(
    *,
    config: Path | None,
    context: str,
    namespace: str,
    image: str,
    names: tuple[str, ...],
    compat: tuple[str, ...],
    replicas: int,
    verbosity: int,
    definitions: bool | None,
    uninstall: bool,
    diff: bool,
) -> None:
    """Print the manifests that run Phalanx on a Kubernetes cluster.

    \b
    Example:
      phalanx install --image registry.example/phalanx:1 | kubectl apply --server-side -f -
      phalanx install --uninstall | kubectl delete -f -
    """
    if uninstall and diff:
        raise click.UsageError("--uninstall and --diff exclude each other; leave out one")
    options = InstallOptions(
        namespace=namespace,
        image=image,
        scheduler_names=names,
        compat=tuple(dict.fromkeys(compat)),
        replicas=replicas,
        verbosity=verbosity,
        custom_definitions=not uninstall if definitions is None else definitions,
    )
    if definitions is None and not uninstall and (config or context or diff):
        needed = query_cluster(config, context, lambda client, _: _needs_definitions(client))
        options = replace(options, custom_definitions=needed)
    manifests = install_manifests(options)
    if diff:
        text = query_cluster(config, context, lambda client, _: _diff(client, manifests))
        echo(text, nl=False)
        sys.exit(1 if text else 0)
    if uninstall and namespace != DEFAULT_NAMESPACE:
        # Deleting a namespace deletes all that is in it, and this one may be shared.
        manifests = [one for one in manifests if one["kind"] != "Namespace"]
    ordered = manifests[::-1] if uninstall else manifests
    echo(yaml.safe_dump_all(ordered, sort_keys=False), nl=False)


async def _needs_definitions(client: Client) -> bool:
    """Whether a server lacks the workload APIs, or has our definitions, which may be outdated."""
    served = await served_kinds(client, (POD_GROUP, CUSTOM_POD_GROUP))
    return POD_GROUP not in served or CUSTOM_POD_GROUP in served


async def _diff(client: Client, manifests: Sequence[Object]) -> str:
    """Return how the objects of a cluster differ from manifests, in the fields of the manifests."""
    found: list[str] = []
    for manifest in manifests:
        kind, meta = find_kind(manifest["apiVersion"], manifest["kind"]), manifest["metadata"]
        name = f"{kind.resource}/{meta['name']}"
        try:
            existing = await client.get(kind, Key(meta.get("namespace", ""), meta["name"]))
        except NotFound:
            existing = {}
        sides = (_select_fields(manifest, existing) if existing else {}, manifest)
        old, new = (yaml.safe_dump(one).splitlines(keepends=True) if one else [] for one in sides)
        found += difflib.unified_diff(old, new, f"cluster/{name}", f"install/{name}")
    return "".join(found)


def _select_fields(manifest: object, existing: object) -> object:
    """Return the existing object without the fields that the manifest leaves to the server."""
    if isinstance(manifest, dict) and isinstance(existing, dict):
        return {
            key: _select_fields(value, existing[key])
            for key, value in manifest.items()
            if key in existing
        }
    if isinstance(manifest, list) and isinstance(existing, list):
        pairs = zip(manifest, existing, strict=False)
        return [*(_select_fields(*pair) for pair in pairs), *existing[len(manifest) :]]
    return existing
