"""The table of admission steps: what each step reads, and what that means for the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import cast

import msgspec
import orjson
import pytest

from phalanx.api.kinds import (
    CERTIFICATE_SIGNING_REQUEST,
    COMPOSITE_POD_GROUP,
    KINDS,
    LIMIT_RANGE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_GROUP,
    POD_GROUP_V1ALPHA2,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_QUOTA,
    SERVICE,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server import admission
from phalanx.server.admission import ADMISSION_STEPS, AdmissionRequest, AdmissionStep, kinds_read
from phalanx.server.resource_quotas import QUOTA_INDEX_PREFIX
from phalanx.store.kv import KeyValue, Store
from tests.api.validation.test_platform_kinds import signing_request
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.server.api import Api
from tests.server.old_versions import (
    GANG,
    api_with_workload,
    new_object,
    pod_group_with_reference,
)
from tests.server.test_service_account_admission import start_api


class UndeclaredReadError(Exception):
    """A step has read a kind that its row does not declare."""


class DeclaredReader:
    """A store that refuses to read other kinds than those that a step declares."""

    def __init__(self, store: Store, step: AdmissionStep) -> None:
        self._store, self._step = store, step
        kinds = KINDS if step.reads is None else step.reads
        self._prefixes = tuple(kind.store_prefix() for kind in kinds)
        if RESOURCE_QUOTA in kinds:
            self._prefixes += (QUOTA_INDEX_PREFIX,)
        #: The prefixes of what was read.
        self.read_prefixes: set[str] = set()

    def get(self, key: str) -> KeyValue | None:
        self._check(key)
        return self._store.get(key)

    def range(self, prefix: str) -> Sequence[KeyValue]:
        self._check(prefix)
        return self._store.range(prefix)

    def pending(self, key: str) -> KeyValue | None:
        self._check(key)
        return self._store.pending(key)

    def pending_range(self, prefix: str) -> Sequence[KeyValue]:
        self._check(prefix)
        return self._store.pending_range(prefix)

    def _check(self, key: str) -> None:
        prefix = next((prefix for prefix in self._prefixes if key.startswith(prefix)), None)
        if prefix is None:
            raise UndeclaredReadError(f"{self._step.plugin} reads {key}")
        self.read_prefixes.add(prefix)


#: Called with each step that runs, and the reader through which it read.
Observer = Callable[[AdmissionStep, DeclaredReader], None]


def guard_step(step: AdmissionStep, observe: Observer) -> AdmissionStep:
    """The same step, which only reaches the store through a DeclaredReader."""

    def run(request: AdmissionRequest) -> None:
        context = request.context
        reader = DeclaredReader(context.store, step)
        guarded = replace(context, store=cast("Store", reader))
        # The copy shares the object and the list of writes with the request.
        try:
            step.run(msgspec.structs.replace(request, context=guarded))
        finally:
            observe(step, reader)

    return step._replace(run=run)


@pytest.fixture
def install_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replaces the table for one test."""

    def install(steps: Collection[AdmissionStep]) -> None:
        monkeypatch.setattr(admission, "ADMISSION_STEPS", tuple(steps))
        admission._steps.cache_clear()

    yield install
    monkeypatch.undo()
    admission._steps.cache_clear()


def priority_class(name: str, **fields: object) -> Object:
    return {"metadata": {"name": name}, "value": 7, **fields}


def limit_range(name: str) -> Object:
    limits = [
        {"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "4"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}},
    ]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"limits": limits}}


def quota(name: str) -> Object:
    meta = {"name": name, "namespace": "default"}
    hard = {"limits.cpu": "100", "pods": "100", "count/podgroups.scheduling.k8s.io": "100"}
    return {"metadata": meta, "spec": {"hard": hard}}


def claim(name: str) -> Object:
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def use_every_step() -> None:
    """Create, change and delete objects so that each row of the table runs."""
    template = {"name": "a", "schedulingPolicy": GANG}
    api = await api_with_workload(podGroupTemplates=[template])
    await api.create(PRIORITY_CLASS, priority_class("named"))
    await api.create(PRIORITY_CLASS, priority_class("fallback", globalDefault=True))
    await api.create(LIMIT_RANGE, limit_range("limits"))
    await api.create(RESOURCE_QUOTA, quota("quota"))
    await api.create(NODE, node("n"))
    await api.create(POD, pod("p"), pod("q", spec={"priorityClassName": "named"}))
    await api.create(POD_GROUP, pod_group("new", 1))
    await api.create(POD_GROUP_V1ALPHA2, pod_group_with_reference(POD_GROUP_V1ALPHA2, "old"))
    reference = {"workloadName": "w", "templateName": "a"}
    composite: Object = {"schedulingPolicy": {"basic": {}}, "workloadRef": reference}
    await api.create(COMPOSITE_POD_GROUP, new_object(COMPOSITE_POD_GROUP, "tree", **composite))
    asked = {"metadata": {"name": "csr"}, **signing_request()}
    await api.create(CERTIFICATE_SIGNING_REQUEST, asked)
    labels = {"metadata": {"labels": {"a": "b"}}}
    merge = {"content-type": "application/merge-patch+json"}
    path = CERTIFICATE_SIGNING_REQUEST.url_path("", "csr")
    assert (await api.ask("PATCH", path, labels, headers=merge)).code == 200
    await api.create(PERSISTENT_VOLUME_CLAIM, claim("c"))
    volume: Object = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    volume["hostPath"] = {"path": "/data"}
    await api.create(PERSISTENT_VOLUME, {"metadata": {"name": "v"}, "spec": volume})
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "c", bound, part="status")).code == 200
    more = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "c", more)).code == 403
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "adminAccess": True}}
    wanted = {"devices": {"requests": [request, {**request, "name": "other"}]}}
    for kind, asked in ((RESOURCE_CLAIM, wanted), (RESOURCE_CLAIM_TEMPLATE, {"spec": wanted})):
        answer = await api.ask("POST", kind.url_path("default"), new_object(kind, "c", **asked))
        causes = [cause["field"] for cause in answer.body["details"]["causes"]]
        assert (answer.code, causes) == (422, ["spec.devices.requests[0].adminAccess"])
    spec = {"type": "NodePort", "ports": [{"port": 80}]}
    await api.create(SERVICE, {"metadata": {"name": "s", "namespace": "default"}, "spec": spec})
    for kind, name in ((PERSISTENT_VOLUME_CLAIM, "c"), (RESOURCE_QUOTA, "quota"), (POD, "p")):
        answer = await api.patch(kind, name, {"metadata": {"labels": {"a": "b"}}})
        assert answer.code == 200, answer.body
    assert (await api.delete(POD, "p")).code == 200
    await api.create(NAMESPACE, {"metadata": {"name": "spare"}})
    assert (await api.delete(NAMESPACE, "spare")).code == 200
    assert (await api.delete(NAMESPACE, "default")).code == 403
    nowhere = POD_GROUP_V1ALPHA2.url_path("nowhere")
    group = pod_group_with_reference(POD_GROUP_V1ALPHA2)
    group["metadata"]["namespace"] = "nowhere"
    assert (await api.ask("POST", nowhere, group)).code == 404


@in_virtual_time
async def test_every_step_reads_only_the_kinds_that_it_declares(
    install_steps: Callable[..., None],
) -> None:
    observed: dict[AdmissionStep, set[str]] = {}

    def observe(step: AdmissionStep, reader: DeclaredReader) -> None:
        observed.setdefault(step, set()).update(reader.read_prefixes)

    install_steps([guard_step(step, observe) for step in ADMISSION_STEPS])
    await use_every_step()
    accounts = await start_api(admit_service_accounts=True)
    assert (await accounts.ask("POST", POD.url_path("default"), pod("p"))).code == 403
    assert [step.plugin for step in ADMISSION_STEPS if step not in observed] == []
    unread = [
        (step.plugin, kind.name)
        for step, prefixes in observed.items()
        for kind in step.reads or ()
        if kind.store_prefix() not in prefixes
    ]
    assert unread == []


@in_virtual_time
async def test_a_step_that_reads_an_undeclared_kind_is_found(
    install_steps: Callable[..., None],
) -> None:
    api = await Api.start()
    limit_rangers = [step for step in ADMISSION_STEPS if step.plugin == "LimitRanger"]
    for step in limit_rangers:
        guarded = guard_step(step._replace(reads=(NAMESPACE,)), lambda step, reader: None)
        install_steps([guarded if other is step else other for other in ADMISSION_STEPS])
        kind = next(iter(step.kinds or ()))
        obj = pod("p") if kind is POD else claim("c")
        assert (await api.ask("POST", kind.url_path("default"), obj)).code == 500


def test_the_kinds_that_admission_of_a_pod_reads_are_the_union_over_its_steps() -> None:
    assert kinds_read("CREATE", POD) == {NAMESPACE, LIMIT_RANGE, PRIORITY_CLASS, SERVICE_ACCOUNT}
    assert kinds_read("CREATE", NODE) == {NAMESPACE}
    assert kinds_read("UPDATE", POD) == frozenset()
    assert kinds_read("CREATE", RESOURCE_QUOTA) == set(KINDS)


def test_a_step_declared_for_pods_adds_its_kinds_to_the_union(
    install_steps: Callable[..., None],
) -> None:
    step = AdmissionStep("New", "mutate", ("CREATE",), (POD,), (WORKLOAD,), lambda request: None)
    charge = step._replace(phase="charge", reads=(NODE,))
    install_steps([step, charge])
    assert kinds_read("CREATE", POD) == {WORKLOAD}


#: An object of each kind that admission of a pod reads.
READ_OBJECTS: dict[Kind, Object] = {
    SERVICE_ACCOUNT: {"metadata": {"name": "robot", "namespace": "default"}},
    LIMIT_RANGE: limit_range("x"),
    NAMESPACE: {"metadata": {"name": "x"}},
    PRIORITY_CLASS: priority_class("x"),
}


@pytest.mark.parametrize("kind", kinds_read("CREATE", POD), ids=lambda kind: kind.name)
@in_virtual_time
async def test_changing_an_object_that_admission_reads_invalidates_the_cache(kind: Kind) -> None:
    api = await Api.start()

    async def is_cleared_by(method: str, path: str, body: Object) -> bool:
        pods = api.server.context.admission_cache._admitted
        name = f"pod-{api.store.revision}"
        created = {"metadata": {"name": name}, "spec": pod(name)["spec"]}
        answer = await api.ask("POST", POD.url_path("default"), orjson.dumps(created))
        assert (answer.code, len(pods)) == (201, 1)
        assert (await api.ask(method, path, body)).code in (200, 201)
        return not pods

    obj = READ_OBJECTS[kind]
    labelled = {**obj, "metadata": {**obj["metadata"], "labels": {"a": "b"}}}
    path = kind.url_path("default", obj["metadata"]["name"])
    assert await is_cleared_by("POST", kind.url_path("default"), obj)
    assert await is_cleared_by("PUT", path, labelled)
    assert await is_cleared_by("DELETE", path, {})


@in_virtual_time
async def test_changing_an_object_that_admission_does_not_read_keeps_the_cache() -> None:
    api = await Api.start()
    created = {"metadata": {"name": "p"}, "spec": pod("p")["spec"]}
    answer = await api.ask("POST", POD.url_path("default"), orjson.dumps(created))
    assert answer.code == 201
    await api.create(NODE, node("n"))
    await api.create(RESOURCE_QUOTA, quota("q"))
    assert len(api.server.context.admission_cache._admitted) == 1
