"""The scheduler as a library: decisions, diagnoses and forecasts about objects in memory.

    kubectl get -o json ─▶ Cluster.from_objects ─▶ decide, diagnose, forecast

    cluster = Cluster.from_objects(json.load(file))
    print(cluster.diagnose("podgroup/train").message)
    print(cluster.with_nodes(2).forecast("podgroup/train")[0].verdict.name)

`phalanx why` and `phalanx what-if` are built on it. A Cluster is immutable: each `with…` method
returns another one. There is no server, no I/O, no clock and no randomness: the same objects give
the same answers. `docs/library.md` is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from phalanx.api.apps import POD_TEMPLATE_HASH
from phalanx.api.conversion.hub import hub_kind, to_hub
from phalanx.api.core import Node, Pod, Service
from phalanx.api.defaults.registry import apply_defaults
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    JOB_SET,
    KINDS,
    LEADER_WORKER_SET,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    PRIORITY_CLASS,
    REPLICA_SET,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import (
    Key,
    PartialObjectMetadata,
    Ref,
    parse_timestamp,
    pod_group_ref,
    pod_ref,
    timestamp,
)
from phalanx.api.normalization import Malformed
from phalanx.api.other_kinds import PodDisruptionBudget, PriorityClass
from phalanx.api.scheduling import (
    SYSTEM_PRIORITY_CLASSES,
    CompositePodGroup,
    PodGroup,
    Workload,
)
from phalanx.api.schema import schema
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, struct_of
from phalanx.api.wire import Object
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.decision import Binding, Decision, Impossible, Placed, Preempting, Waiting
from phalanx.scheduler.diagnosis.diagnosis import (
    Diagnosis,
    NotAttempted,
    diagnose,
    prepare_attempt,
)
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart, expected_starts
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, list_workloads
from phalanx.scheduler.diagnosis.start_forecast import add_ranges
from phalanx.scheduler.diagnosis.what_if import (
    Forecast,
    ForecastVerdict,
    NewNodeTemplate,
    UnknownObject,
    forecast,
    node_template,
    with_min_count,
    with_nodes,
    without_node,
)
from phalanx.scheduler.explain import Explanation, explain
from phalanx.scheduler.plugins.plugin import Plugin
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.scheduler.search.solver import SolverFunction, no_solver

__all__ = [
    "Binding",
    "Cluster",
    "ClusterObjects",
    "Decision",
    "Diagnosis",
    "ExpectedStart",
    "Explanation",
    "Forecast",
    "ForecastVerdict",
    "Impossible",
    "InvalidObject",
    "NotAttempted",
    "ObjectNotFound",
    "Placed",
    "Preempting",
    "PriorityClass",
    "Ref",
    "Waiting",
    "WorkloadRow",
    "explain",
]

T = TypeVar("T")

#: The kinds that a question can name, with more words for each than Kubernetes has.
QUERYABLE_KINDS: Mapping[Kind, tuple[str, ...]] = {
    POD_GROUP: ("pg", "gang"),
    COMPOSITE_POD_GROUP: ("cpg", "tree"),
    POD: (),
    JOB: (),
    WORKLOAD: ("wl",),
    JOB_SET: (),
    LEADER_WORKER_SET: (),
    DEPLOYMENT: (),
    REPLICA_SET: (),
    STATEFUL_SET: (),
    DAEMON_SET: (),
}
_KINDS_BY_WORD = {
    word: kind
    for kind, words in QUERYABLE_KINDS.items()
    for word in (
        kind.name.lower(), kind.plural, *kind.short_names, *words,
        *(f"{name}.{kind.group}" for name in (kind.name.lower(), kind.plural) if kind.group),
    )
}  # fmt: skip
_SCHEDULED_KINDS = (POD, POD_GROUP, COMPOSITE_POD_GROUP)
_KINDS_BY_API_VERSION = {(kind.api_version, kind.name): kind for kind in KINDS}


class ObjectNotFound(LookupError):
    """A question names an object that the cluster does not have."""


class InvalidObject(ValueError):
    """An object cannot be decoded, or a scheduler configuration is invalid."""


def parse_subject(text: str) -> tuple[Kind, str]:
    """Split a text such as `podgroup/train` into kind and name. Raises ValueError."""
    kind_name, _, name = text.partition("/")
    kind = _KINDS_BY_WORD.get(kind_name.lower())
    if not name or kind is None:
        words = ", ".join(f"{kind.name.lower()}/NAME" for kind in QUERYABLE_KINDS)
        raise ValueError(f"{text!r} is none of {words}")
    return kind, name


def find_owned_pods(pods: Iterable[Pod], owner: Ref) -> list[Pod]:
    """Return the pods of an object; those of a Deployment belong to its ReplicaSets."""
    found = []
    for pod in pods:
        kind, name = owner.kind, owner.name
        if kind == DEPLOYMENT.name:
            template = pod.metadata.labels.get(POD_TEMPLATE_HASH, "")
            kind, name = REPLICA_SET.name, f"{name}-{template}"
        owners = [(one.kind, one.name) for one in pod.metadata.owner_references]
        if pod.metadata.namespace == owner.namespace and (kind, name) in owners:
            found.append(pod)
    return found


@dataclass(frozen=True, slots=True)
class Cluster:
    """The objects of a cluster, and the scheduler that decides about them.

    A subject is a text such as `podgroup/train`, `pod/web-0` or `job/train`, looked up in
    `namespace`, or a Ref as `find`, `queue` and the answers contain it.
    """

    objects: ClusterObjects
    workloads: Collection[Workload] = ()
    #: Other objects that exist, such as Jobs: they may be subjects.
    others: frozenset[Ref] = frozenset()
    priority_classes: Collection[PriorityClass] = ()
    profiles: Profiles = DEFAULT_PROFILES
    solver: SolverFunction = no_solver
    #: The moment of all decisions, in seconds since the epoch.
    now: float = 0.0

    @classmethod
    def from_objects(
        cls,
        objects: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        configuration: Mapping[str, Any] | None = None,
        plugins: Iterable[Plugin] = (),
        solver: SolverFunction = no_solver,
        now: float | None = None,
    ) -> Cluster:
        """Decode a List, or several objects and Lists, as `kubectl get -o json` prints them.

        Kinds that the scheduler does not read are ignored. An object without a uid is a manifest:
        it gets the defaults of the API server, the priority of its PriorityClass and the creation
        time `now`. `configuration` is a KubeSchedulerConfiguration; `plugins` are out-of-tree
        plugins that it may name. Without `now`, the newest creationTimestamp of the objects is
        taken. Raises InvalidObject.
        """
        items = list(_flatten(objects))
        if now is None:
            now = max(map(_creation_time, items), default=0.0)
        profiles = _parse_profiles(configuration, plugins) if configuration else DEFAULT_PROFILES
        empty = cls(ClusterObjects((), (), ()), profiles=profiles, solver=solver, now=now)
        return empty.with_objects(items)

    def with_objects(
        self, objects: Mapping[str, Any] | Iterable[Mapping[str, Any]], *, now: float | None = None
    ) -> Cluster:
        """Add objects; an object replaces the one of the same kind, namespace and name."""
        now = self.now if now is None else now
        return _Decoder(self, now).decode(list(_flatten(objects)))

    def find(self, subject: str | Ref, namespace: str = "default") -> list[Ref]:
        """Return the groups and pods behind a subject, each of which is scheduled as a unit.

        A pod of a group stands for its group. A Workload, Job, JobSet or LeaderWorkerSet stands for
        the groups that were created for it. A group may also be named by the object that owns it
        alone. Raises ObjectNotFound.
        """
        if isinstance(subject, Ref):
            kind, key = _KINDS_BY_WORD.get(subject.kind.lower()), subject.key
            if kind is None:
                raise ObjectNotFound(f"{subject} is not scheduled: {subject.kind} has no pods")
            if kind in (POD_GROUP, COMPOSITE_POD_GROUP):
                return [subject]
        else:
            kind, name = parse_subject(subject)
            key = Key(namespace, name)
        ref = Ref(kind.name, *key)
        if kind is POD:
            pod = next((pod for pod in self.objects.pods if pod.metadata.key == key), None)
            if pod is not None:
                return [pod_group_ref(pod.group) if pod.group else pod_ref(key)]
        elif kind in _SCHEDULED_KINDS:
            if ref in map(group_ref, self.objects.groups):
                return [ref]
            # Users call a gang by the name of its Job; of several groups the owner must be named.
            if len(owned := self._find_groups_of_owner(kind, key)) == 1:
                return owned
        else:
            exists = ref in self.others or (
                kind is WORKLOAD and key in (one.metadata.key for one in self.workloads)
            )
            if (found := self._find_owned(kind, key)) or exists:
                return found
        noun = {POD_GROUP: "pod group", POD: "pod"}.get(kind, kind.name)
        raise ObjectNotFound(f'there is no {noun} "{key.name}" in namespace "{key.namespace}"')

    def _find_groups_of_owner(self, kind: Kind, key: Key) -> list[Ref]:
        """The groups of a kind whose controller has this name, whatever kind that is of."""
        owned = [
            group_ref(group)
            for group in self.objects.groups
            if group.metadata.namespace == key.namespace
            and group.metadata.controller
            and group.metadata.controller.name == key.name
        ]
        return [ref for ref in owned if ref.kind == kind.name]

    def _find_owned(self, kind: Kind, key: Key) -> list[Ref]:
        """The groups of an object: of its Workloads (a tree as its root), and of its pods."""
        owner = (kind.group, kind.name, key.name)
        workloads = [
            one.metadata.name
            for one in self.workloads
            if one.metadata.namespace == key.namespace and one.controller_identity == owner
        ]
        names = [key.name] if kind is WORKLOAD else workloads
        found = [
            group_ref(group)
            for group in self.objects.groups
            if group.metadata.namespace == key.namespace
            and group.spec.workload_ref
            and group.spec.workload_ref.workload_name in names
            and not group.spec.parent_composite_pod_group_name
        ]
        pods = find_owned_pods(self.objects.pods, Ref(kind.name, *key))
        found += [pod_group_ref(pod.group) for pod in pods if pod.group]
        if not found:
            # Pods without a group have the same template: the answer for one holds for all.
            pending = [pod for pod in pods if not pod.occupied_node and not pod.is_terminal]
            found = [pod_ref(pod.metadata.key) for pod in (pending or pods)[:1]]
        return list(dict.fromkeys(found))

    def _find_one(self, subject: str | Ref, namespace: str) -> Ref:
        found = self.find(subject, namespace)
        if not found:
            raise ObjectNotFound(f"{subject} has no pods and no pod groups yet")
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise ValueError(f"{subject} has {len(found)} groups; ask about one of them: {names}")
        return found[0]

    def decide(self, subject: str | Ref, namespace: str = "default") -> Decision | NotAttempted:
        """Run the next scheduling cycle of a subject, whatever is ahead of it in the queue.

        Returns Placed, Preempting, Waiting or Impossible; NotAttempted if no cycle would run.
        Raises ObjectNotFound, and ValueError for a subject of several groups.
        """
        attempt = prepare_attempt(
            self._find_one(subject, namespace),
            self.objects,
            self.profiles,
            solver=self.solver,
            now=self.now,
        )
        return attempt if isinstance(attempt, NotAttempted) else attempt.decide()

    def diagnose(self, subject: str | Ref, namespace: str = "default") -> Diagnosis:
        """Explain why a subject is pending, with the smallest changes that would let it be placed.

        This is `phalanx why`. Raises the same errors as `decide`.
        """
        return diagnose(
            self._find_one(subject, namespace),
            self.objects,
            self.profiles,
            solver=self.solver,
            now=self.now,
        )

    def forecast(
        self,
        *subjects: str | Ref,
        namespace: str = "default",
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Forecast]:
        """Let the scheduler work through its queue, and report what becomes of the subjects.

        This is `phalanx what-if`. A subject of several groups gives several forecasts. Without
        subjects, everything that is pending is forecast, in queue order. `on_progress` is called
        with the numbers of forecasts so far and in all. Raises ObjectNotFound.
        """
        refs = [ref for subject in subjects for ref in self.find(subject, namespace)]
        if not subjects:
            refs = [row.ref for row in self.queue() if row.pending]
        return forecast(
            refs, self.objects, self.profiles,
            solver=self.solver, now=self.now, on_progress=on_progress,
        )  # fmt: skip

    def queue(self) -> list[WorkloadRow]:
        """List the workloads that run and those that wait, in queue order: `phalanx queue`."""
        return list_workloads(self.objects)

    def expected_starts(self) -> dict[Ref, ExpectedStart]:
        """Foresee when the first workloads that wait start, each with a range.

        The expected start is planned by declared and observed run times; the range comes from
        simulations of the queue ahead. Nothing is foreseen for what can never run.
        """
        starts = expected_starts(self.objects, self.profiles, self.now)
        return add_ranges(starts, self.objects, self.profiles, now=self.now)

    def with_nodes(
        self,
        count: int,
        *,
        like: str = "",
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Add empty, ready nodes: like the named node, with these resources, or the usual ones.

        The usual nodes are those of the most frequent shape. Raises ObjectNotFound.
        """
        if allocatable is not None:
            template = NewNodeTemplate(allocatable, labels or {})
        else:
            template = _require(node_template(self.objects, like))
            template = template._replace(labels={**template.labels, **(labels or {})})
        return replace(self, objects=with_nodes(self.objects, count, template))

    def without_node(self, name: str) -> Cluster:
        """Drain and remove a node. Its pods wait again if a controller would create them again.

        Raises ObjectNotFound.
        """
        return replace(self, objects=_require(without_node(self.objects, name)))

    def with_min_count(self, group: str, count: int, namespace: str = "default") -> Cluster:
        """Change minCount (minGroupCount) of a gang, named by itself, its Workload or its owner.

        Raises ObjectNotFound.
        """
        changed = _require(with_min_count(self.objects, namespace, group, count=count))
        return replace(self, objects=changed)


def _require(found: T | UnknownObject) -> T:
    if isinstance(found, UnknownObject):
        raise ObjectNotFound(found.message)
    return found


def _parse_profiles(configuration: Mapping[str, Any], plugins: Iterable[Plugin]) -> Profiles:
    parsed = parse_configuration(dict(configuration), plugins)
    if not isinstance(parsed, SchedulerConfiguration):
        raise InvalidObject(f"KubeSchedulerConfiguration: {'; '.join(map(str, parsed))}")
    return parsed.profiles


def _flatten(objects: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> Iterator[Object]:
    """Yield single objects. Items of a typed list such as PodList without a kind get its kind."""
    if isinstance(objects, str | bytes):
        raise InvalidObject("expected decoded objects, not a text; use json.loads")
    if not isinstance(objects, Mapping):
        for one in objects:
            yield from _flatten(one)
    elif "items" in objects and str(objects.get("kind", "List")).endswith("List"):
        inherited = {
            "apiVersion": objects.get("apiVersion"),
            "kind": str(objects.get("kind", "")).removesuffix("List"),
        }
        for item in objects["items"] or ():
            yield from _flatten(item if "kind" in item else {**inherited, **item})
    else:
        yield dict(objects)


def _creation_time(item: Object) -> float:
    text = (item.get("metadata") or {}).get("creationTimestamp")
    try:
        return parse_timestamp(text) if text else 0.0
    except (TypeError, ValueError):
        raise InvalidObject(f"metadata.creationTimestamp: invalid time {text!r}") from None


class _Decoder:
    """Decodes objects and adds them to those of a cluster."""

    def __init__(self, cluster: Cluster, now: float) -> None:
        self._cluster, self._now = cluster, now
        objects = cluster.objects
        self._priority_classes = {one.metadata.name: one for one in cluster.priority_classes}
        self._namespaces = dict(objects.namespaces)
        self._others = set(cluster.others)
        self._by_kind: dict[Kind, dict[Key, Any]] = {
            NODE: _by_key(objects.nodes),
            POD_GROUP: _by_key(one for one in objects.groups if isinstance(one, PodGroup)),
            COMPOSITE_POD_GROUP: _by_key(
                one for one in objects.groups if isinstance(one, CompositePodGroup)
            ),
            POD: _by_key(objects.pods),
            SERVICE: _by_key(objects.services),
            POD_DISRUPTION_BUDGET: _by_key(objects.budgets),
            **{
                kind: _by_key(one for one in objects.devices if isinstance(one, _STRUCTS[kind]))
                for kind in DEVICE_KINDS
            },
            **{
                kind: _by_key(one for one in objects.volumes if isinstance(one, _STRUCTS[kind]))
                for kind in VOLUME_KINDS
            },
            WORKLOAD: _by_key(cluster.workloads),
        }

    def decode(self, items: Iterable[Object]) -> Cluster:
        """Add these objects; PriorityClasses first, since manifests refer to them."""
        known = [(kind, item) for item in items if (kind := _kind_of(item)) is not None]
        for kind, item in sorted(known, key=lambda pair: pair[0] is not PRIORITY_CLASS):
            self._add(kind, item)
        objects = ClusterObjects(
            nodes=tuple(self._by_kind[NODE].values()),
            groups=(
                *self._by_kind[POD_GROUP].values(),
                *self._by_kind[COMPOSITE_POD_GROUP].values(),
            ),
            pods=tuple(self._by_kind[POD].values()),
            services=tuple(self._by_kind[SERVICE].values()),
            namespaces=self._namespaces,
            budgets=tuple(self._by_kind[POD_DISRUPTION_BUDGET].values()),
            devices=tuple(one for kind in DEVICE_KINDS for one in self._by_kind[kind].values()),
            volumes=tuple(one for kind in VOLUME_KINDS for one in self._by_kind[kind].values()),
            evicting=self._cluster.objects.evicting,
        )
        return replace(
            self._cluster,
            objects=objects,
            workloads=tuple(self._by_kind[WORKLOAD].values()),
            others=frozenset(self._others),
            priority_classes=tuple(self._priority_classes.values()),
            now=self._now,
        )

    def _add(self, kind: Kind, item: Object) -> None:
        stored = hub_kind(kind)
        try:
            if not (item.get("metadata") or {}).get("uid"):
                item = self._complete_manifest(kind, item)
            decoded = msgspec.convert(
                to_hub(kind, item), _STRUCTS.get(stored, PartialObjectMetadata)
            )
        except (Malformed, msgspec.ValidationError) as error:
            meta = item.get("metadata") or {}
            key = Key(str(meta.get("namespace", "")), str(meta.get("name", "")))
            raise InvalidObject(f"{kind.name} {key}: {error}") from None
        meta = decoded.metadata
        if stored in self._by_kind:
            self._by_kind[stored][meta.key] = decoded
        elif isinstance(decoded, PriorityClass):
            self._priority_classes[meta.name] = decoded
        elif stored is NAMESPACE:
            self._namespaces[meta.name] = meta.labels
        else:
            self._others.add(Ref(stored.name, *meta.key))

    def _complete_manifest(self, kind: Kind, item: Object) -> Object:
        """Do what the API server does when it creates an object, as far as scheduling reads it."""
        manifest = deepcopy(item)
        schema(kind.schema).normalize(manifest)
        stored, manifest = hub_kind(kind), to_hub(kind, manifest)
        meta = manifest.setdefault("metadata", {})
        if not meta.get("name"):
            raise Malformed("metadata.name: Required value")
        if kind.namespaced:
            meta.setdefault("namespace", "default")
        manifest.setdefault("spec", {})
        apply_defaults(stored, manifest)
        meta = manifest["metadata"]
        meta["uid"] = "/".join((stored.name, meta.get("namespace", ""), meta["name"]))
        meta.setdefault("creationTimestamp", timestamp(self._now))
        if stored in _SCHEDULED_KINDS:
            self._set_priority(manifest["spec"])
        return {**manifest, "apiVersion": stored.api_version}

    def _set_priority(self, spec: Object) -> None:
        if "priority" in spec:
            return
        name = spec.get("priorityClassName", "")
        chosen = self._priority_classes.get(name)
        if not name:
            defaults = [one for one in self._priority_classes.values() if one.global_default]
            chosen = min(defaults, key=lambda one: one.value, default=None)
        if chosen is not None:
            spec["priority"], spec["preemptionPolicy"] = chosen.value, chosen.preemption_policy
        elif name in SYSTEM_PRIORITY_CLASSES:
            spec["priority"] = SYSTEM_PRIORITY_CLASSES[name]
        elif name:
            raise Malformed(f"spec.priorityClassName: there is no PriorityClass {name!r}")


_STRUCTS: Mapping[Kind, Any] = {
    NODE: Node,
    POD: Pod,
    POD_GROUP: PodGroup,
    COMPOSITE_POD_GROUP: CompositePodGroup,
    WORKLOAD: Workload,
    SERVICE: Service,
    POD_DISRUPTION_BUDGET: PodDisruptionBudget,
    **{kind: struct_of(kind) for kind in (*DEVICE_KINDS, *VOLUME_KINDS)},
    PRIORITY_CLASS: PriorityClass,
}


def _kind_of(item: Object) -> Kind | None:
    """The kind of an object; None if Phalanx does not know it."""
    api_version, name = item.get("apiVersion"), item.get("kind")
    if not api_version or not name:
        raise InvalidObject("not a Kubernetes object: apiVersion and kind are missing")
    return _KINDS_BY_API_VERSION.get((str(api_version), str(name)))


def _by_key(objects: Iterable[Any]) -> dict[Key, Any]:
    return {one.metadata.key: one for one in objects}
