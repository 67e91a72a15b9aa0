"""Recorded scenarios on a foreign API server: translated to the kinds in which it keeps gangs.

A recorded scenario creates PodGroups of `scheduling.k8s.io`, pods with `spec.schedulingGroup` and
Jobs with `spec.scheduling`. A server without the workload APIs has none of these. A `ForeignForm`
says what it has instead, and `ScenarioTranslator` stands between a scenario and the server:

    scenario ── POST PodGroup ──▶ translator ── POST the kind of the form ──▶ server
             ◀── spec.schedulingGroup ──        ◀── label or annotation ──

A scenario that cannot be said in a form is left out: `ForeignForm.translate` returns None. Used by
`tools/reference.py`, where components are processes, and by the tests in virtual time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.kinds import POD_GROUP, Kind
from phalanx.api.scheduling import POD_GROUP_PROTECTION_FINALIZER
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    MIN_COUNT_ANNOTATION,
    POD_GROUP_LABEL,
    POLICY_ANNOTATION,
    TOPOLOGY_KEY_ANNOTATION,
    VOLCANO_POD_GROUP,
)

#: Scenarios about gangs, Jobs, preemption and topology; others look at kinds of their own.
THEMES = (
    "basic-", "composite-", "gang-", "gangs-", "job-", "podgroup-", "preempt-", "topology-", "two-",
)  # fmt: skip
#: The controllers of a recorded cluster. On a foreign server only those for gangs are defaults.
CONTROLLERS = "*,job,cronjob,ttl,garbage,disruption,podgroup-protection,composite-groups"
#: Seconds after which watches of all kinds have delivered a change, also on a busy machine.
WATCH_LAG_SECONDS = 2.0
#: The scheduler name of pods that name none.
SCHEDULER_NAME = "default-scheduler"

_OWN_GROUPS = frozenset({"workload-apis", "custom-resources"})
_COSCHEDULING, _VOLCANO = frozenset({"scheduler-plugins"}), frozenset({"volcano"})
#: Scenarios by name that need what a form has not, and why.
_LEFT_OUT: Mapping[str, frozenset[str]] = {
    # The server's own Job controller releases the pods of deleted Jobs.
    "Deleting a Job in the background removes everything it made": _OWN_GROUPS,
    "A Job deleted with orphaning leaves its pods running": _OWN_GROUPS,
    # In these projects the members of a gang may have other priorities than their group.
    "Members whose priority differs from their group are a scheduler error": _VOLCANO,
    # Members that succeeded count for gangs of Volcano.
    "Members that have ended and the quorum of a late member": _VOLCANO,
    # Members that succeeded do not count for gangs of scheduler-plugins.
    "A failed member of a gang Job is replaced after the others have succeeded": _COSCHEDULING,
    "A gang Job with more completions than parallelism runs to its end": _COSCHEDULING,
}

_GROUP_PATH = re.compile(
    r"/apis/scheduling\.k8s\.io/v1\w+/namespaces/([^/]+)/(podgroups|compositepodgroups|workloads)"
)
_COUNT = "schedulingPolicy", "gang", "minCount"


class NotExpressible(Exception):
    """A scenario that cannot be said in a form."""


class ScenarioRequest(NamedTuple):
    """A request of a scenario, or the one that a server of another form gets instead."""

    method: str
    path: str
    body: Any = None


@dataclass(frozen=True, slots=True)
class ForeignForm:
    """As which kind a foreign server keeps gangs, and how pods name them there.

    Without a `link` pods have `spec.schedulingGroup`; else it is a field of their metadata and the
    key in it. `compat` is the project whose PodGroups are read; these have a minimum and, with
    `has_priority`, a priority class only.
    """

    name: str
    kind: Kind
    gates: str
    link: tuple[str, str] | None = None
    compat: str = ""
    has_priority: bool = True

    def translate(self, case: Object) -> Object | None:
        """Return the scenario as it is compared in this form; None if it cannot be said."""
        try:
            self._check(case)
        except NotExpressible:
            return None
        case = {**case, "steps": list(self._with_waits(case["steps"]))}
        if not self.compat:
            return case
        parts = ["gone", "preempted", "jobs"]
        # The group of a Job has another name here.
        if not any(obj["kind"] in ("Job", "CronJob") for obj in created_objects(case)):
            parts.append("groups")
        want = case["better"] if "better" in case else case["outcome"]
        kept: Object = {part: want[part] for part in parts if part in want}
        kept["then"] = [
            {part: value for part, value in moment.items() if part in parts}
            for moment in want.get("then", ())
        ]
        return {**case, "better": kept}

    def _with_waits(self, steps: Sequence[Object]) -> Iterator[Object]:
        """Yield steps that wait where a foreign server promises less than ours.

        Admission adds the finalizer of a group here; a custom resource gets it from a controller.
        Watches of two kinds are not ordered: a scheduler may see a pod before the older change of
        its group.
        """
        for step, following in zip(steps, [*steps[1:], {}], strict=True):
            if self.kind is CUSTOM_POD_GROUP and _GROUP_PATH.match(str(step.get("delete"))):
                finalizers = {"metadata.finalizers": [POD_GROUP_PROTECTION_FINALIZER]}
                yield {"until": {"at": step["delete"], "is": finalizers}}
            yield step
            path = step.get("patch", ("",))[0]
            if _GROUP_PATH.match(path) and "create" in following:
                yield {"until": {"missing": path, "limit": WATCH_LAG_SECONDS}}

    def _check(self, case: Object) -> None:
        """Raise if a scenario cannot be said in this form."""
        if self.name in _LEFT_OUT.get(case["name"], ()):
            raise NotExpressible("the form lacks what the scenario is about")
        if self.kind is POD_GROUP:
            return
        translator = ScenarioTranslator(self)
        groups: dict[str, str] = {}
        for obj in created_objects(case):
            if "at" in obj:
                raise NotExpressible("another version of the workload APIs")
            path = _path_of(obj)
            list(translator.requests(ScenarioRequest("POST", path, obj)))
            if obj["kind"] == "PodGroup":
                groups[obj["metadata"]["name"]] = obj["spec"].get("priorityClassName", "")
        if not self.compat:
            return
        for step in case["steps"]:
            text = json.dumps(step.get("patch") or step.get("delete") or "")
            if "/jobs/" in text or "/podgroups" in json.dumps(step.get("delete") or ""):
                raise NotExpressible("the group of a Job does not follow it")
        members = [obj for obj in created_objects(case) if obj["kind"] == "Pod"]
        for pod in members if not self.has_priority else ():
            name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName", "")
            if groups.get(name, "") != pod["spec"].get("priorityClassName", "") and name:
                raise NotExpressible("the priority of a group is that of its members")


def created_objects(case: Object) -> Iterator[Object]:
    """Yield the objects that the steps of a scenario create."""
    for step in case["steps"]:
        yield from step.get("create", ())


def _path_of(obj: Object) -> str:
    """Return the path of the collection of an object, as far as it matters here."""
    plural = f"{obj['kind'].lower()}s"
    group = "/apis/scheduling.k8s.io/v1beta1" if "Group" in obj["kind"] else "/api/v1"
    group = "/apis/scheduling.k8s.io/v1beta1" if obj["kind"] == "Workload" else group
    return f"{group}/namespaces/default/{plural}"


FORMS: Mapping[str, ForeignForm] = {
    form.name: form
    for form in (
        ForeignForm("workload-apis", POD_GROUP, "GroupBinding=false"),
        ForeignForm(
            "custom-resources",
            CUSTOM_POD_GROUP,
            "GenericWorkload=false,GroupBinding=false",
            ("labels", POD_GROUP_LABEL),
        ),
        ForeignForm(
            "scheduler-plugins",
            COSCHEDULING_POD_GROUP,
            "GenericWorkload=false,GroupBinding=false",
            ("labels", "scheduling.x-k8s.io/pod-group"),
            compat="scheduler-plugins",
            has_priority=False,
        ),
        ForeignForm(
            "volcano",
            VOLCANO_POD_GROUP,
            "GenericWorkload=false,GroupBinding=false",
            ("annotations", "scheduling.k8s.io/group-name"),
            compat="volcano",
        ),
    )
}


@dataclass(slots=True)
class ScenarioTranslator:
    """Translates the requests of one scenario and the replies to them."""

    form: ForeignForm
    #: Value and preemption policy of each PriorityClass, as admission would write them to groups.
    _classes: dict[str, Object] = field(default_factory=dict)

    def requests(self, request: ScenarioRequest) -> list[ScenarioRequest]:
        """Return the requests to send instead; the reply to the last one counts.

        None at all means that the server has no such kind: a list of it is empty.
        """
        method, path, body = request
        body = deepcopy(body)
        if method == "POST" and isinstance(body, dict):
            kind = body.get("kind", "")
            if kind == "PriorityClass":
                self._classes[body["metadata"]["name"]] = body
            if kind == "Pod":
                self._link(body, body["spec"].pop("schedulingGroup", None))
            if kind in ("Job", "CronJob"):
                return self._job_requests(request, body)
        found = _GROUP_PATH.match(path)
        if found is None or self.form.kind is POD_GROUP:
            return [ScenarioRequest(method, path, body)]
        namespace, plural = found.groups()
        rest = path[found.end() :]
        if self.form.compat and plural != "podgroups":
            if method == "POST":
                raise NotExpressible(f"{plural} do not exist")
            return []
        kind = self.form.kind
        path = f"/apis/{kind.api_version}/namespaces/{namespace}/{plural}{rest}"
        if isinstance(body, dict) and method in ("POST", "PATCH"):
            if "apiVersion" in body:
                body["apiVersion"] = kind.api_version
            if self.form.compat and "spec" in body:
                body["spec"] = self._encode_spec(body["spec"])
        return [ScenarioRequest(method, path, body)]

    def reply(self, path: str, reply: Any) -> Any:
        """Return a reply as a server with the workload APIs would give it."""
        if self.form.kind is POD_GROUP or not isinstance(reply, dict):
            return reply
        convert: Callable[[Object], None] | None = None
        if _GROUP_PATH.match(path):
            convert = self._decode_group
        elif re.search(r"/namespaces/[^/]+/pods(/|$|\?)", path):
            convert = self._decode_pod
        if convert is not None:
            for obj in reply.get("items", [reply] if "spec" in reply else ()) or ():
                convert(obj)
        return reply

    def _link(self, pod: Object, group: Object | None) -> None:
        """Let a pod or a template name its group."""
        if not group:
            return
        if self.form.link is None:
            pod["spec"]["schedulingGroup"] = group
            return
        fields, key = self.form.link
        pod.setdefault("metadata", {}).setdefault(fields, {})[key] = group["podGroupName"]

    def _job_requests(self, request: ScenarioRequest, body: Object) -> list[ScenarioRequest]:
        """Return the requests that create a Job of our controller, and its group before it."""
        job = body["spec"]["jobTemplate"] if body["kind"] == "CronJob" else body
        spec = job["spec"]
        spec.setdefault("managedBy", OWN_JOB_CONTROLLER)
        template = spec["template"]
        self._link(template, template["spec"].pop("schedulingGroup", None))
        if self.form.kind is POD_GROUP:
            return [ScenarioRequest(request.method, request.path, body)]
        if "gangPolicy" in spec:
            raise NotExpressible("no annotation says that a Job has no group")
        scheduling = spec.pop("scheduling", None) or {}
        if set(scheduling) - {"schedulingPolicy", "schedulingConstraints"}:
            raise NotExpressible("annotations have a policy and a topology only")
        gang = (scheduling.get("schedulingPolicy") or {}).get("gang")
        topology = (scheduling.get("schedulingConstraints") or {}).get("topology") or ()
        send = ScenarioRequest(request.method, request.path, body)
        if not self.form.compat:
            given = {POLICY_ANNOTATION: "gang"} if gang is not None else {}
            if gang and "minCount" in gang:
                given[MIN_COUNT_ANNOTATION] = str(gang["minCount"])
            if topology:
                given[TOPOLOGY_KEY_ANNOTATION] = topology[0]["key"]
            if given:
                job.setdefault("metadata", {}).setdefault("annotations", {}).update(given)
            return [send]
        if topology:
            raise NotExpressible("groups of other projects have no topology")
        if gang is None:
            return [send]
        name = job["metadata"]["name"]
        self._link(template, {"podGroupName": name})
        group = {
            "apiVersion": self.form.kind.api_version,
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": gang.get("minCount", spec.get("parallelism", 1))},
        }
        return [ScenarioRequest("POST", self.form.kind.url_path("default"), group), send]

    def _encode_spec(self, spec: Object) -> Object:
        """Return the spec of a gang as another project has it."""
        known = {"schedulingPolicy", "priorityClassName", "disruptionMode"}
        count = _dig(spec, *_COUNT)
        if set(spec) - known or count is None or "all" in spec.get("disruptionMode", {}):
            raise NotExpressible("groups of other projects have a minimum and a priority only")
        encoded: Object = {"minMember": count}
        if self.form.has_priority and "priorityClassName" in spec:
            encoded["priorityClassName"] = spec["priorityClassName"]
        return encoded

    def _decode_group(self, group: Object) -> None:
        spec = group["spec"]
        if self.form.compat:
            group["spec"] = {"schedulingPolicy": {"gang": {"minCount": spec.get("minMember", 1)}}}
        elif "schedulingPolicy" in spec:
            # No admission writes the priority of a class to custom resources.
            found = self._classes.get(spec.get("priorityClassName", ""), {})
            spec.setdefault("priority", found.get("value", 0))

    def _decode_pod(self, pod: Object) -> None:
        assert self.form.link is not None
        fields, key = self.form.link
        if name := (pod["metadata"].get(fields) or {}).pop(key, ""):
            pod["spec"]["schedulingGroup"] = {"podGroupName": name}


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
