"""Reads the operation lists of Kubernetes' scheduler_perf: a test case with the numbers of one run.

    - name: GangScheduling
      workloadTemplate:
      - {opcode: createNodes, countParam: $initNodes}
      - {opcode: createPodGroups, countParam: $groups, templatePath: templates/podgroup.yaml}
      - {opcode: createPods, countParam: $groups, countMultiplierParam: $size, …}
      workloads:
      - {name: 10Nodes_3Gangs, params: {initNodes: 10, groups: 3, size: 3}}

A gang is a job, and so is a pod without a gang. Its namespace is the owner. scheduler_perf waits
until all pods of an operation are scheduled, which takes no simulated time: only `sleep` does.
Operations that wait or measure have no effect. Pods never end there; here they run until they are
deleted, or until an hour after the last operation.

What a simulation cannot do (other operations, pods with volumes, claims or pod affinity) is
rejected with the line of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from phalanx.api.core import Node, NodeSpec, Pod
from phalanx.api.resources import BadQuantity, pod_requests
from phalanx.api.wire import Object
from phalanx.sim.workloads.field_errors import FieldError, convert_value
from phalanx.sim.workloads.object_template import ObjectTemplate
from phalanx.sim.workloads.workload import (
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_node,
    build_workload,
    parse_go_duration,
)
from phalanx.yaml_files import InvalidYaml, load_document

#: How long pods run after the last operation.
_SECONDS_AFTER = 3600.0
_MAX_COUNT = 1_000_000
#: The interval of a churn without one, in milliseconds.
_CHURN_INTERVAL = 500
#: How long a pod runs that is deleted the moment it is scheduled.
_SHORTEST_RUN = 0.001
NOT_SUPPORTED = "operation not supported"
#: The node of an operation without a template.
_DEFAULT_NODE = {"cpu": "4", "memory": "32Gi", "pods": "110"}
#: The fields of a pod that are read, or that change nothing in a simulation.
_POD_FIELDS = frozenset(
    {
        "containers",
        "initContainers",
        "nodeSelector",
        "priority",
        "priorityClassName",
        "schedulerName",
        "schedulingGroup",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
    }
)
_CONTAINER_FIELDS = frozenset(
    {"args", "command", "image", "imagePullPolicy", "name", "ports", "resources"}
)


class PerfOperation(NamedTuple):
    """One operation of a test case, and the line on which it begins."""

    line: int
    fields: Mapping[str, Any]


class PerfCase(NamedTuple):
    """A test case with the numbers of one run: `GangScheduling/10Nodes_3Gangs`."""

    name: str
    operations: tuple[PerfOperation, ...]
    params: Mapping[str, Any]
    default_pod_template: str = ""


@dataclass(slots=True)
class _CreatedPod:
    """A pod that an operation has created; `ended` when it is deleted."""

    created: float
    namespace: str
    labels: Mapping[str, str]
    requests: Mapping[str, str]
    #: The gang; "" for none.
    group: str = ""
    priority: int = 0
    node_labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ended: float | None = None


class _CreatedGroup(NamedTuple):
    """A PodGroup that an operation has created; `size` 0 is one that is no gang."""

    size: int
    topology: str


def read_scheduler_perf(trace: TraceFile) -> TraceWorkload:
    """Read a test case. Raises InvalidTrace."""
    case = _select_case(trace, list(_read_cases(trace)))
    runner = _OperationRunner(trace, case)
    for operation in case.operations:
        try:
            runner.run(operation)
        except ValueError as error:
            trace.reject(operation.line, str(error), counted_as=NOT_SUPPORTED)
    jobs = list(runner.build_jobs())
    notes = [
        f"scheduler_perf case {case.name}: pods run until they are deleted, at most until "
        f"{_SECONDS_AFTER / 3600:g} h after the last operation",
        *runner.notes,
    ]
    return build_workload(trace, jobs, nodes=runner.nodes, notes=notes)


def _read_cases(trace: TraceFile) -> Iterator[PerfCase]:
    """Yield every combination of a test case and the numbers of a run."""
    try:
        document = load_document("\n".join(trace.lines))
    except InvalidYaml as error:
        raise InvalidTrace(f"{trace.name}, {error}") from None
    found, root = document.value, document.root
    if root is None or not isinstance(found, list):
        raise InvalidTrace(f"{trace.name}: must be a list of test cases")
    for case, node in zip(found, root.value, strict=True):
        line = node.start_mark.line + 1
        if not isinstance(case, dict) or not isinstance(case.get("name"), str):
            raise InvalidTrace(f"{trace.name}, line {line}: a test case must have a name")
        operations = _read_operations(trace, case, node)
        for run in case.get("workloads") or [{"name": "", "params": {}}]:
            if not isinstance(run, dict) or not isinstance(run.get("params") or {}, dict):
                name = case["name"]
                raise InvalidTrace(f"{trace.name}, line {line}: {name}: workloads have params")
            yield PerfCase(
                f"{case['name']}/{run.get('name', '')}".rstrip("/"),
                operations,
                run.get("params") or {},
                str(case.get("defaultPodTemplatePath") or ""),
            )


def _read_operations(trace: TraceFile, case: Object, node: Any) -> tuple[PerfOperation, ...]:
    """Return the operations of a test case with their lines."""
    listed = next((value for key, value in node.value if key.value == "workloadTemplate"), None)
    operations = case.get("workloadTemplate")
    if not isinstance(operations, list) or listed is None:
        line = node.start_mark.line + 1
        raise InvalidTrace(
            f"{trace.name}, line {line}: {case['name']}: workloadTemplate must be a list"
        )
    found = []
    for fields, one in zip(operations, listed.value, strict=True):
        line = one.start_mark.line + 1
        if not isinstance(fields, dict) or not isinstance(fields.get("opcode"), str):
            raise InvalidTrace(f"{trace.name}, line {line}: an operation must have an opcode")
        found.append(PerfOperation(line, fields))
    return tuple(found)


def _select_case(trace: TraceFile, cases: list[PerfCase]) -> PerfCase:
    wanted = trace.case
    found = [one for one in cases if one.name == wanted or one.name.endswith(f"/{wanted}")]
    if not wanted:
        found = cases
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.name for one in found or cases)
    if wanted and not found:
        raise InvalidTrace(f'{trace.name}: unknown case "{wanted}"; available: {names}')
    raise InvalidTrace(f"{trace.name}: has {len(found)} cases; select one with --case: {names}")


class _OperationRunner:
    """Runs the operations of a case, and keeps what they have created."""

    def __init__(self, trace: TraceFile, case: PerfCase) -> None:
        self._trace, self._case = trace, case
        self._templates: dict[str, ObjectTemplate] = {}
        self._groups: dict[tuple[str, str], _CreatedGroup] = {}
        self._priorities: dict[str, int] = {}
        self._pods: list[_CreatedPod] = []
        self._churns: list[tuple[float, Mapping[str, Any]]] = []
        self._now, self._namespaces = 0.0, 0
        self.nodes: list[Node] = []
        self.notes: dict[str, None] = {}

    def run(self, operation: PerfOperation) -> None:
        """Run one operation. Raises ValueError if it is not supported."""
        fields, opcode = operation.fields, operation.fields["opcode"]
        if opcode not in _OPERATIONS:
            known = ", ".join(_OPERATIONS)
            raise ValueError(f'operation "{opcode}" is not supported; available: {known}')
        known_fields, action = _OPERATIONS[opcode]
        for name in fields:
            if name != "opcode" and name not in known_fields:
                raise ValueError(f"field {name} of {opcode} is not supported")
        action(self, fields)

    # ---- parameters and templates --------------------------------------------------------------

    def _resolve(self, value: Any) -> Any:
        """Return the parameter that a text such as `$initNodes` names, or the value itself."""
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if value[1:] not in self._case.params:
            raise ValueError(f'{self._case.name} has no parameter "{value[1:]}"')
        return self._case.params[value[1:]]

    def _count(self, fields: Mapping[str, Any], default: int = 0) -> int:
        count = self._resolve(fields.get("countParam", fields.get("count", default)))
        factor = self._resolve(fields.get("countMultiplierParam", 1))
        for one in (count, factor):
            if not isinstance(one, int) or isinstance(one, bool) or one < 0:
                raise ValueError(f"count must be a whole number that is not negative, not {one}")
        if count * factor > _MAX_COUNT:
            raise ValueError(f"{count * factor} objects are more than {_MAX_COUNT}")
        return int(count * factor)

    def _render(self, path: Any, fields: Mapping[str, Any], count: int) -> Iterator[Object]:
        """Yield the objects of a template, one per index."""
        if not isinstance(path, str) or not path:
            raise ValueError("the path of a template is missing")
        template = self._templates.get(path)
        if template is None:
            template = ObjectTemplate(*self._trace.read_beside(path))
            self._templates[path] = template
        params = {
            name: self._resolve(value)
            for name, value in (fields.get("templateParams") or {}).items()
        }
        for index in range(count):
            yield template.render({**params, "Index": index, "Count": count})

    def _namespace(self, fields: Mapping[str, Any]) -> str:
        if found := fields.get("namespace"):
            return str(found)
        self._namespaces += 1
        return f"namespace-{self._namespaces - 1}"

    # ---- operations ----------------------------------------------------------------------------

    def _wait(self, fields: Mapping[str, Any]) -> None:
        """Waiting for the scheduler takes no simulated time."""

    def _sleep(self, fields: Mapping[str, Any]) -> None:
        text = self._resolve(fields.get("durationParam", fields.get("duration", "0")))
        self._now += parse_go_duration(str(text))

    def _create_nodes(self, fields: Mapping[str, Any]) -> None:
        if self._pods:
            raise ValueError("nodes that are created after pods are not supported")
        count, path = self._count(fields), fields.get("nodeTemplatePath")
        first, width = len(self.nodes), len(str(max(self._count(fields) - 1, 0)))
        names = [f"node-{first + i:0{width}}" for i in range(count)]
        if path is None:
            made = [build_node(name, _DEFAULT_NODE) for name in names]
        else:
            made = [
                _read_node(one, name)
                for one, name in zip(self._render(path, fields, count), names, strict=True)
            ]
        self.nodes += _label_nodes(made, fields)

    def _create_pod_groups(self, fields: Mapping[str, Any]) -> None:
        namespace, count = self._namespace(fields), self._count(fields, 1)
        for one in self._render(fields.get("templatePath"), fields, count):
            self._add_group(namespace, one)

    def _add_group(self, namespace: str, found: Object) -> None:
        spec = found.get("spec") or {}
        for name in spec:
            if name not in ("schedulingPolicy", "schedulingConstraints", "disruptionMode"):
                raise ValueError(f"field {name} of a PodGroup is not supported")
        gang = (spec.get("schedulingPolicy") or {}).get("gang")
        size = gang.get("minCount", 0) if isinstance(gang, dict) else 0
        topology = (spec.get("schedulingConstraints") or {}).get("topology") or []
        if not isinstance(size, int) or len(topology) > 1 or (topology and not size):
            raise ValueError("a PodGroup must have a minCount and at most one topology")
        key = str(topology[0].get("key", "")) if topology else ""
        self._groups[namespace, str(found["metadata"]["name"])] = _CreatedGroup(size, key)

    def _create_any(self, fields: Mapping[str, Any]) -> None:
        namespace, count = self._namespace(fields), self._count(fields, 1)
        for one in self._render(fields.get("templatePath"), fields, count):
            kind = one.get("kind")
            if kind == "PriorityClass":
                self._priorities[str(one["metadata"]["name"])] = int(one.get("value", 0))
            elif kind == "PodGroup":
                self._add_group(namespace, one)
            else:
                raise ValueError(f"objects of kind {kind} are not supported")

    def _create_pods(self, fields: Mapping[str, Any]) -> None:
        if self._resolve(fields.get("steadyStateParam", fields.get("steadyState", False))):
            raise ValueError("steadyState is not supported: it replaces pods by the real time")
        path = fields.get("podTemplatePath") or self._case.default_pod_template
        namespace, count = self._namespace(fields), self._count(fields)
        # All or none: an operation that is skipped leaves no pods behind.
        self._pods += [
            self._read_pod(one, namespace, self._now) for one in self._render(path, fields, count)
        ]

    def _create_pod_sets(self, fields: Mapping[str, Any]) -> None:
        operation, prefix = fields.get("createPodsOp"), fields.get("namespacePrefix")
        if not isinstance(operation, dict):
            raise ValueError("createPodsOp must be an operation")
        for number in range(self._count(fields)):
            one = {**operation, "opcode": "createPods", "namespace": f"{prefix}-{number}"}
            self.run(PerfOperation(0, one))

    def _delete_pods(self, fields: Mapping[str, Any]) -> None:
        rate = fields.get("deletePodsPerSecond", 0)
        labels = fields.get("labelSelector") or {}
        if not isinstance(rate, int) or rate < 0:
            raise ValueError(f"deletePodsPerSecond must not be negative: {rate}")
        number = 0
        for pod in self._pods:
            is_selected = labels.items() <= pod.labels.items() and pod.ended is None
            if is_selected and pod.namespace == fields.get("namespace"):
                number += 1
                pod.ended = self._now + (number / rate if rate else 0.0)
        if rate and not fields.get("skipWaitToCompletion"):
            self._now += number / rate

    def _churn(self, fields: Mapping[str, Any]) -> None:
        """Note a churn: its pods are known when the last operation has ended."""
        mode, number = fields.get("mode"), fields.get("number", 0)
        if mode not in ("create", "recreate"):
            raise ValueError(f'unknown mode "{mode}" of churn; available: create, recreate')
        if not isinstance(number, int) or number < (mode == "recreate"):
            raise ValueError(f"number of churn is not valid: {number}")
        for path in fields.get("templatePaths") or ():
            for one in self._render(path, fields, 1):
                if one.get("kind") != "Pod":
                    raise ValueError(f"churn of kind {one.get('kind')} is not supported")
        self._churns.append((self._now, {**fields, "namespace": self._namespace(fields)}))

    # ---- pods and jobs -------------------------------------------------------------------------

    def _read_pod(self, found: Object, namespace: str, created: float) -> _CreatedPod:
        spec = found.get("spec") or {}
        for name in spec:
            if name not in _POD_FIELDS:
                raise ValueError(f"pods with spec.{name} are not supported")
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
            for name in container:
                if name not in _CONTAINER_FIELDS:
                    raise ValueError(f"containers with {name} are not supported")
        try:
            pod = convert_value({"metadata": {}, "spec": spec}, Pod)
            amounts = pod_requests(pod)
        except (FieldError, BadQuantity) as error:
            raise ValueError(f"cannot read a pod: {error}") from None
        group = str((spec.get("schedulingGroup") or {}).get("podGroupName") or "")
        if group and (namespace, group) not in self._groups:
            raise ValueError(f'there is no PodGroup "{group}" in namespace "{namespace}"')
        is_gang = bool(group) and self._groups[namespace, group].size > 0
        name = spec.get("priorityClassName") or ""
        if name and name not in self._priorities:
            raise ValueError(f'there is no PriorityClass "{name}"')
        return _CreatedPod(
            created,
            namespace,
            (found.get("metadata") or {}).get("labels") or {},
            {
                resource: f"{amount}m" if resource == "cpu" else str(amount)
                for resource, amount in sorted(amounts.items())
                if resource != "pods"
            },
            group=group if is_gang else "",
            priority=self._priorities[name] if name else pod.spec.priority,
            node_labels={key: (str(one),) for key, one in (spec.get("nodeSelector") or {}).items()},
        )

    def build_jobs(self) -> Iterator[TraceJob]:
        """Yield the jobs in the order in which their first pods were created."""
        for begin, fields in self._churns:
            self._pods += self._churn_pods(begin, fields)
        until = self._now + _SECONDS_AFTER
        gangs: dict[tuple[str, str], list[_CreatedPod]] = {}
        for number, pod in enumerate(self._pods):
            key = (pod.namespace, pod.group) if pod.group else ("", str(number))
            gangs.setdefault(key, []).append(pod)
        for key, pods in gangs.items():
            first, group = pods[0], self._groups.get(key)
            if group is not None and group.size != len(pods):
                raise InvalidTrace(
                    f"{self._trace.name}: {key[1]} has {len(pods)} pods and minCount {group.size}: "
                    "gangs whose pods are not all required are not supported"
                )
            if any(
                (one.requests, one.priority) != (first.requests, first.priority) for one in pods
            ):
                raise InvalidTrace(f"{self._trace.name}: the pods of {key[1]} differ")
            ended = min((one.ended for one in pods if one.ended is not None), default=until)
            created = max(one.created for one in pods)
            yield TraceJob(
                created,
                max(ended - created, _SHORTEST_RUN),
                dict(first.requests),
                len(pods),
                priority=first.priority,
                owner=first.namespace,
                node_labels=dict(first.node_labels),
                topology=group.topology if group else "",
            )

    def _churn_pods(self, begin: float, fields: Mapping[str, Any]) -> Iterator[_CreatedPod]:
        """Yield the pods that a churn creates up to the end of the last operation.

        `create` makes pods up to a number; `recreate` makes so many, then deletes them, and so on.
        """
        interval = fields.get("intervalMilliseconds", _CHURN_INTERVAL) / 1000
        number, is_endless = fields.get("number", 0), fields["mode"] == "recreate"
        if not interval > 0:
            raise InvalidTrace(f"{self._trace.name}: intervalMilliseconds must be more than 0")
        if begin + interval > self._now:
            self.notes["a churn without a sleep behind it creates no pods"] = None
        cycle, made = 1, 0
        while (at := begin + cycle * interval) <= self._now and len(self._pods) < _MAX_COUNT:
            phase = (cycle - 1) % (2 * number) if is_endless else 0
            if phase < number or not number:
                if not is_endless and number and made >= number:
                    break
                made += 1
                for path in fields["templatePaths"]:
                    for one in self._render(path, fields, 1):
                        pod = self._read_pod(one, fields["namespace"], at)
                        pod.ended = at + number * interval if is_endless else None
                        yield pod
            cycle += 1


def _read_node(found: Object, name: str) -> Node:
    meta = found.get("metadata") or {}
    spec, status = found.get("spec") or {}, found.get("status") or {}
    for one in spec:
        if one != "taints":
            raise ValueError(f"nodes with spec.{one} are not supported")
    allocatable = status.get("allocatable") or status.get("capacity")
    if not allocatable:
        raise ValueError("a node must have status.allocatable")
    name, labels = str(meta.get("name") or name), dict(meta.get("labels") or {})
    node = build_node(name, {key: str(amount) for key, amount in allocatable.items()}, labels)
    try:
        return msgspec.structs.replace(node, spec=convert_value(spec, NodeSpec, "spec"))
    except FieldError as error:
        raise ValueError(f"cannot read a node: {error}") from None


def _label_nodes(nodes: list[Node], fields: Mapping[str, Any]) -> Iterator[Node]:
    """Add the labels of a strategy: one of several values in turn, or a different one for each."""
    by_value, unique = fields.get("labelNodePrepareStrategy"), fields.get("uniqueNodeLabelStrategy")
    for number, node in enumerate(nodes):
        labels = dict(node.metadata.labels)
        if isinstance(by_value, dict) and by_value.get("labelValues"):
            values = by_value["labelValues"]
            labels[str(by_value.get("labelKey"))] = str(values[number % len(values)])
        if isinstance(unique, dict):
            labels[str(unique.get("labelKey"))] = node.metadata.name
        meta = msgspec.structs.replace(node.metadata, labels=labels)
        yield msgspec.structs.replace(node, metadata=meta)


class _SupportedOperation(NamedTuple):
    """The fields of an operation that are read or change nothing, and what it does."""

    fields: frozenset[str]
    action: Callable[[_OperationRunner, Mapping[str, Any]], None]


def _supported(
    fields: str, action: Callable[[_OperationRunner, Mapping[str, Any]], None]
) -> _SupportedOperation:
    return _SupportedOperation(frozenset(fields.split()), action)


_OPERATIONS: Mapping[str, _SupportedOperation] = {
    "createNodes": _supported(
        "count countParam nodeTemplatePath templateParams labelNodePrepareStrategy"
        " uniqueNodeLabelStrategy",
        _OperationRunner._create_nodes,
    ),
    "createNamespaces": _supported(
        "prefix count countParam namespaceTemplatePath", _OperationRunner._wait
    ),
    "createPodGroups": _supported(
        "count countParam namespace templatePath templateParams",
        _OperationRunner._create_pod_groups,
    ),
    "createPods": _supported(
        "count countParam countMultiplierParam namespace podTemplatePath templateParams"
        " collectMetrics skipWaitToCompletion steadyState steadyStateParam duration durationParam"
        " signatureBatchSize signatureBatchSizeParam",
        _OperationRunner._create_pods,
    ),
    "createPodSets": _supported(
        "count countParam namespacePrefix createPodsOp", _OperationRunner._create_pod_sets
    ),
    "createAny": _supported(
        "count countParam namespace templatePath templateParams", _OperationRunner._create_any
    ),
    "deletePods": _supported(
        "namespace labelSelector deletePodsPerSecond skipWaitToCompletion",
        _OperationRunner._delete_pods,
    ),
    "churn": _supported(
        "mode number intervalMilliseconds namespace templatePaths templateParams",
        _OperationRunner._churn,
    ),
    "sleep": _supported("duration durationParam", _OperationRunner._sleep),
    "barrier": _supported("namespaces labelSelector stageRequirement", _OperationRunner._wait),
    "waitForPodGroups": _supported("namespace count countParam", _OperationRunner._wait),
    "startCollectingMetrics": _supported("name namespaces labelSelector", _OperationRunner._wait),
    "stopCollectingMetrics": _supported("", _OperationRunner._wait),
}
