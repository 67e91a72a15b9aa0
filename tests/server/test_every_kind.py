"""Every kind of a default Kubernetes: listed, watched, and with the objects that exist at start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import orjson
import pytest

from phalanx.api.conversion.hub import hub_kind
from phalanx.api.errors import NotFound
from phalanx.api.kinds import (
    API_SERVICE,
    CERTIFICATE_SIGNING_REQUEST,
    COMPONENT_STATUS,
    FLOW_SCHEMA,
    HORIZONTAL_POD_AUTOSCALER,
    HORIZONTAL_POD_AUTOSCALER_V1,
    KINDS,
    LEASE,
    PRIORITY_LEVEL_CONFIGURATION,
    SERVICE_CIDR,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.server.security.authorization import ADMIN
from phalanx.sim import virtual_time
from tests.api.validation.test_platform_kinds import autoscaler, signing_request
from tests.controllers.trial_cluster import TrialCluster

#: What the informers of kube-scheduler and kube-controller-manager read when they start: every
#: built-in resource that can be listed and watched, because of quotas and garbage collection.
READ_AT_START = {
    "v1": "configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims "
    "persistentvolumes pods podtemplates replicationcontrollers resourcequotas secrets "
    "serviceaccounts services",
    "admissionregistration.k8s.io/v1": "mutatingadmissionpolicies mutatingadmissionpolicybindings "
    "mutatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicybindings "
    "validatingwebhookconfigurations",
    "apiextensions.k8s.io/v1": "customresourcedefinitions",
    "apiregistration.k8s.io/v1": "apiservices",
    "apps/v1": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "autoscaling/v1": "horizontalpodautoscalers",
    "autoscaling/v2": "horizontalpodautoscalers",
    "batch/v1": "cronjobs jobs",
    "certificates.k8s.io/v1": "certificatesigningrequests clustertrustbundles "
    "podcertificaterequests",
    "certificates.k8s.io/v1beta1": "clustertrustbundles podcertificaterequests",
    "coordination.k8s.io/v1": "leases",
    "discovery.k8s.io/v1": "endpointslices",
    "events.k8s.io/v1": "events",
    "flowcontrol.apiserver.k8s.io/v1": "flowschemas prioritylevelconfigurations",
    "networking.k8s.io/v1": "ingressclasses ingresses ipaddresses networkpolicies servicecidrs",
    "node.k8s.io/v1": "runtimeclasses",
    "policy/v1": "poddisruptionbudgets",
    "rbac.authorization.k8s.io/v1": "clusterrolebindings clusterroles rolebindings roles",
    "resource.k8s.io/v1": "deviceclasses devicetaintrules resourceclaims resourceclaimtemplates "
    "resourceslices",
    "resource.k8s.io/v1beta1": "deviceclasses resourceclaims resourceclaimtemplates resourceslices",
    "resource.k8s.io/v1beta2": "deviceclasses devicetaintrules resourceclaims "
    "resourceclaimtemplates resourceslices",
    "scheduling.k8s.io/v1": "priorityclasses",
    "scheduling.k8s.io/v1alpha3": "compositepodgroups podgroups workloads",
    "scheduling.k8s.io/v1beta1": "podgroups workloads",
    "storage.k8s.io/v1": "csidrivers csinodes csistoragecapacities storageclasses "
    "volumeattachments volumeattributesclasses",
    "storagemigration.k8s.io/v1": "storageversionmigrations",
    "storagemigration.k8s.io/v1beta1": "storageversionmigrations",
}
#: Reads of a part: pods that have not ended, credentials by their type, single objects.
READ_BY_SELECTOR = (
    ("/api/v1/pods", "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"),
    ("/api/v1/nodes", "fieldSelector=spec.unschedulable%3Dfalse"),
    ("/api/v1/secrets", "fieldSelector=type%3Dkubernetes.io%2Fservice-account-token"),
    (
        "/api/v1/namespaces/kube-system/secrets",
        "fieldSelector=type%3Dbootstrap.kubernetes.io%2Ftoken",
    ),
    (
        "/api/v1/namespaces/kube-system/configmaps",
        "fieldSelector=metadata.name%3Dextension-apiserver-authentication",
    ),
    ("/api/v1/namespaces/kube-public/configmaps", "fieldSelector=metadata.name%3Dcluster-info"),
    (
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        "labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver",
    ),
    (
        "/apis/discovery.k8s.io/v1/endpointslices",
        "labelSelector=endpointslice.kubernetes.io%2Fmanaged-by",
    ),
    ("/apis/resource.k8s.io/v1/resourceslices", "fieldSelector=spec.nodeName%3Dn"),
)


def run(scenario: Callable[[TrialCluster], Awaitable[None]]) -> None:
    """Run a scenario against a server in virtual time."""

    async def main() -> None:
        cluster = TrialCluster()
        await cluster.server.start()
        await scenario(cluster)

    virtual_time.run_virtual(main)


#: How components ask: typed informers, and those of metadata of the garbage collector.
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_METADATA = f"{_PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = f"{_PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
#: The first bytes of a protobuf message of Kubernetes.
_MAGIC = b"k8s\0"


@pytest.mark.parametrize(
    ("list_accept", "watch_accept"),
    [("application/json",) * 2, (_PROTOBUF,) * 2, (_METADATA_LIST, _METADATA)],
    ids=["json", "protobuf", "metadata"],
)
def test_components_can_list_and_watch_what_they_read_at_start(
    list_accept: str, watch_accept: str
) -> None:
    is_protobuf = _PROTOBUF in list_accept

    async def read(cluster: TrialCluster, path: str, selector: str = "") -> None:
        """List and watch as informers do, both ways: a list first, or a watch that begins so."""
        accept, part = {"accept": list_accept}, f"limit=500&{selector}"
        listed = await cluster.server.handle(Request("GET", path, part, accept, user=ADMIN))
        assert isinstance(listed, Reply), path
        assert (listed.code, listed.body.startswith(_MAGIC)) == (200, is_protobuf), path
        query = (
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersion=0"
            f"&resourceVersionMatch=NotOlderThan&{selector}"
        )
        accept = {"accept": watch_accept}
        watch = await cluster.server.handle(Request("GET", path, query, accept, user=ADMIN))
        assert isinstance(watch, StreamReply), path
        assert (_PROTOBUF in watch.content_type) == is_protobuf, path
        async with aclosing(watch.chunks) as chunks:
            first = await anext(chunks)
            assert b"k8s.io/initial-events-end" in first, path

    async def scenario(cluster: TrialCluster) -> None:
        for version, plurals in READ_AT_START.items():
            root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
            for plural in plurals.split():
                await read(cluster, f"{root}/{plural}")
        for path, selector in READ_BY_SELECTOR:
            await read(cluster, path, selector)

    run(scenario)


def test_every_stored_kind_is_read_by_some_component_or_ours() -> None:
    read = {
        (version, plural)
        for version, plurals in READ_AT_START.items()
        for plural in plurals.split()
    }
    ours = ("phalanx.dev", "jobset.x-k8s.io", "leaderworkerset.x-k8s.io", "scheduling.k8s.io",
            "metrics.k8s.io", "coordination.k8s.io")  # fmt: skip
    missing = [
        kind.resource
        for kind in KINDS
        if "watch" in kind.verbs
        and kind.group not in ours
        and (kind.api_version, kind.plural) not in read
    ]
    assert missing == []


def test_objects_of_every_cluster_exist_at_start() -> None:
    async def scenario(cluster: TrialCluster) -> None:
        for kind, names in (
            (FLOW_SCHEMA, {"exempt", "catch-all"}),
            (PRIORITY_LEVEL_CONFIGURATION, {"exempt", "catch-all"}),
            (SERVICE_CIDR, {"kubernetes"}),
            (API_SERVICE, {"v1.", "v1.apps", "v2.autoscaling"}),
        ):
            found = {obj["metadata"]["name"] for obj in await cluster.list_objects(kind)}
            assert names <= found, kind.name
        revision = cluster.store.revision
        await cluster.server.start()
        assert cluster.store.revision == revision

    run(scenario)


def test_component_statuses_follow_the_leases() -> None:
    async def scenario(cluster: TrialCluster) -> None:
        lease = {
            "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15,
                     "renewTime": "2027-01-15T07:00:00.000000Z"},
        }  # fmt: skip
        await cluster.client.create(LEASE, lease)
        reply = await cluster.server.handle(Request("GET", COMPONENT_STATUS.url_path(), user=ADMIN))
        items = orjson.loads(reply.body)["items"]  # type: ignore[union-attr]
        states = {one["metadata"]["name"]: one["conditions"][0]["status"] for one in items}
        assert states == {"controller-manager": "True", "etcd-0": "True", "scheduler": "False"}
        one = await cluster.server.handle(
            Request("GET", COMPONENT_STATUS.url_path("", "etcd-0"), user=ADMIN)
        )
        assert orjson.loads(one.body)["metadata"]["name"] == "etcd-0"  # type: ignore[union-attr]

    run(scenario)


def test_certificate_requests_record_their_user_and_are_approved_once() -> None:
    async def scenario(cluster: TrialCluster) -> None:
        kind, key = CERTIFICATE_SIGNING_REQUEST, Key("", "csr")
        asked = signing_request(username="another user")
        created = await cluster.client.create(kind, {"metadata": {"name": "csr"}, **asked})
        assert created["spec"]["username"] == "user"
        condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "ok"}
        change = {"status": {"conditions": [condition], "certificate": "eA=="}}
        approved = await cluster.client.patch(kind, key, change, subresource="approval")
        assert approved["status"]["conditions"][0]["type"] == "Approved"
        assert "certificate" not in approved["status"]
        issued = await cluster.client.patch(
            kind, key, {"status": {"certificate": "eA=="}}, subresource="status"
        )
        assert issued["status"]["certificate"] == "eA=="

    run(scenario)


def test_autoscalers_are_one_object_in_both_versions() -> None:
    async def scenario(cluster: TrialCluster) -> None:
        assert hub_kind(HORIZONTAL_POD_AUTOSCALER_V1) is HORIZONTAL_POD_AUTOSCALER
        key, meta = Key("default", "web"), {"name": "web", "namespace": "default"}
        old = autoscaler(targetCPUUtilizationPercentage=60)
        await cluster.client.create(HORIZONTAL_POD_AUTOSCALER_V1, {"metadata": meta, **old})
        new = await cluster.client.get(HORIZONTAL_POD_AUTOSCALER, key, dict)
        assert new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 60
        await cluster.client.delete(HORIZONTAL_POD_AUTOSCALER, key)
        with pytest.raises(NotFound):
            await cluster.client.get(HORIZONTAL_POD_AUTOSCALER_V1, key, dict)

    run(scenario)
