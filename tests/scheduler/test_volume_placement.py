"""Pods and gangs with PersistentVolumeClaims: which nodes take them, and which volumes they get."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Binding, Placed, Preempting, Waiting
from phalanx.scheduler.plugins.volume_assignments import NO_VOLUME_FOUND, NOT_ENOUGH_STORAGE
from phalanx.scheduler.plugins.volume_binding import AFFINITY_CONFLICT, VOLUME_MISSING
from phalanx.scheduler.plugins.volume_filters import IN_USE, LIMIT_EXCEEDED, ZONE_CONFLICT
from phalanx.scheduler.queue.decision_log import (
    PersistentVolumeClaimObserved,
    PersistentVolumeObserved,
    PodObserved,
    PodsAssumed,
)
from phalanx.scheduler.volumes.demand import UNBOUND_IMMEDIATE
from phalanx.scheduler.volumes.state import VolumeObject
from tests.scheduler.builders import composite, gang, key
from tests.scheduler.configurations import policy
from tests.scheduler.volume_builders import (
    VolumeCluster,
    bound_pair,
    claiming_pod,
    csi_driver,
    csi_node,
    csi_volume,
    host,
    storage_capacity,
    storage_class,
    volume,
    volume_attachment,
    volume_claim,
)

NODES = [host("n1"), host("n2"), host("n3")]


# ---- bound claims --------------------------------------------------------------------------------


def test_a_bound_claim_pins_the_pod_to_the_node_of_its_volume() -> None:
    cluster = VolumeCluster(NODES, bound_pair("data", nodes=["n2"]), [claiming_pod("p", "data")])
    assert cluster.place() == ({"p": "n2"}, {})


def test_members_with_one_bound_claim_each_are_of_one_shape() -> None:
    volumes = [one for n in range(3) for one in bound_pair(f"d{n}")]
    pods = [claiming_pod(f"p{n}", f"d{n}", group="g") for n in range(3)]
    cluster = VolumeCluster(NODES, volumes, pods, [gang("g", 3)])
    entity = cluster.state.pop(0.0)
    assert entity is not None
    assert len({id(member.shape) for member in entity.members}) == 1
    decision = cluster.state.decide(entity)
    assert isinstance(decision, Placed)
    assert decision.volumes == ()


@pytest.mark.parametrize(
    ("volumes", "reason"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        (
            [volume_claim("data", bound_to="v", phase="Lost")],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "v"',
        ),
        ([volume_claim("data", bound_to="v")], VOLUME_MISSING),
        ([volume_claim("data"), storage_class(volumeBindingMode="Immediate")], UNBOUND_IMMEDIATE),
        ([volume_claim("data", storageClassName="other")], UNBOUND_IMMEDIATE),
        ([volume_claim("data", volumeName="v"), volume("v")], UNBOUND_IMMEDIATE),
        ([volume_claim("data"), volume("v", "1Gi")], NO_VOLUME_FOUND),
        (bound_pair("data", nodes=["gone"]), AFFINITY_CONFLICT),
    ],
)
def test_claims_that_cannot_be_used_are_refused_with_the_words_of_kubernetes(
    volumes: list[VolumeObject], reason: str
) -> None:
    cluster = VolumeCluster(NODES, volumes, [claiming_pod("p", "data")])
    assert cluster.refuse() == {reason: 3}


def test_a_pod_waits_for_its_ephemeral_claim() -> None:
    message = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-x"'
    cluster = VolumeCluster(NODES, [], [claiming_pod("p", ephemeral="x")])
    assert cluster.refuse() == {message: 3}
    foreign = VolumeCluster(NODES, [volume_claim("p-x")], [claiming_pod("p", ephemeral="x")])
    text = "PVC default/p-x was not created for pod default/p (pod is not owner)"
    assert foreign.refuse() == {text: 3}


@pytest.mark.parametrize(
    "label", ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]
)
def test_the_zone_label_of_a_volume_draws_the_pod_into_that_zone(label: str) -> None:
    nodes = [host("n1", zone="a"), host("n2", zone="b"), host("n3", zone="c")]
    volumes = bound_pair("data", labels={label: "b__d"})
    assert VolumeCluster(nodes, volumes, [claiming_pod("p", "data")]).place()[0] == {"p": "n2"}
    elsewhere = VolumeCluster(nodes[:1], volumes, [claiming_pod("p", "data")])
    assert elsewhere.refuse() == {ZONE_CONFLICT: 1}
    unlabelled = VolumeCluster([host("n9")], volumes, [claiming_pod("p", "data")])
    assert unlabelled.place()[0] == {"p": "n9"}


# ---- claims that are bound with the pod ----------------------------------------------------------


def test_the_smallest_volume_that_fits_is_taken() -> None:
    volumes = [
        volume("big", "20Gi"),
        volume("mid", "7Gi"),
        volume("small", "4Gi"),
        volume("block", "5Gi", volumeMode="Block"),
        volume("other", "5Gi", storageClassName="other"),
        volume("many", "5Gi", accessModes=["ReadOnlyMany"]),
        volume("taken", "5Gi", claim="x"),
        volume("pending", "5Gi", phase="Pending"),
    ]
    cluster = VolumeCluster(NODES, [*volumes, volume_claim("data")], [claiming_pod("p", "data")])
    assert cluster.place()[1] == {"data": "mid"}


def test_the_selector_of_a_claim_narrows_the_choice() -> None:
    volumes = [volume("a", labels={"tier": "slow"}), volume("b", labels={"tier": "fast"})]
    chosen = volume_claim("data", selector={"matchLabels": {"tier": "fast"}})
    cluster = VolumeCluster(NODES, [*volumes, chosen], [claiming_pod("p", "data")])
    assert cluster.place()[1] == {"data": "b"}


@pytest.mark.parametrize(
    "reserved",
    [
        volume("mine", "1Gi", nodes=["n3"], claim="data", phase="Available"),
        volume("mine", nodes=["n3"], claim="data", phase="Available", volumeMode="Block"),
        volume("mine", nodes=["n3"], claim="data", phase="Available", storageClassName="other"),
    ],
)
def test_a_reserved_volume_that_does_not_suit_the_claim_is_passed_over(
    reserved: VolumeObject,
) -> None:
    objects: list[VolumeObject] = [volume("a", nodes=["n1"]), reserved, volume_claim("data")]
    _, got = VolumeCluster(NODES, objects, [claiming_pod("p", "data")]).place()
    assert got == {"data": "a"}


def test_a_volume_that_is_reserved_for_the_claim_wins_over_smaller_ones() -> None:
    reserved = volume("mine", "50Gi", nodes=["n3"], claim="data", phase="Available")
    cluster = VolumeCluster(
        NODES, [volume("a"), reserved, volume_claim("data")], [claiming_pod("p", "data")]
    )
    assert cluster.place() == ({"p": "n3"}, {"data": "mine"})


def test_every_member_gets_the_local_volume_of_another_node() -> None:
    volumes = [volume(f"v{n}", nodes=[f"n{n}"]) for n in (1, 2, 3)]
    claims = [volume_claim(f"d{n}") for n in range(3)]
    pods = [claiming_pod(f"p{n}", f"d{n}", group="g") for n in range(3)]
    nodes, got = VolumeCluster(NODES, [*volumes, *claims], pods, [gang("g", 3)]).place()
    assert sorted(nodes.values()) == ["n1", "n2", "n3"]
    assert {got[f"d{n}"] for n in range(3)} == {"v1", "v2", "v3"}
    assert all(got[f"d{n}"] == f"v{nodes[f'p{n}'][1:]}" for n in range(3))


def test_a_gang_waits_until_there_is_a_volume_for_every_member() -> None:
    volumes = [volume("v1", nodes=["n1"]), volume("v2", nodes=["n2"])]
    claims = [volume_claim(f"d{n}") for n in range(3)]
    pods = [claiming_pod(f"p{n}", f"d{n}", group="g") for n in range(3)]
    cluster = VolumeCluster(NODES, [*volumes, *claims], pods, [gang("g", 3)])
    assert cluster.refuse() == {NO_VOLUME_FOUND: 3}
    assert cluster.state.pop(1000.0) is not None


def test_earlier_members_change_their_volume_if_a_later_one_needs_it() -> None:
    # The smaller volume is the only one that n2 reaches.
    volumes = [volume("v1", "6Gi", nodes=["n1", "n2"]), volume("v2", "9Gi", nodes=["n1"])]
    claims = [volume_claim("da"), volume_claim("db")]
    nodes = [host("n1", cpu="1"), host("n2", cpu="1")]
    pods = [claiming_pod(f"p{n}", f"d{n}", group="g") for n in "ab"]
    placed, got = VolumeCluster(nodes, [*volumes, *claims], pods, [gang("g", 2)]).place()
    by_node = {placed[f"p{n}"]: got[f"d{n}"] for n in "ab"}
    assert by_node == {"n1": "v2", "n2": "v1"}


def test_the_claims_of_one_pod_get_different_volumes_of_its_node() -> None:
    volumes = [volume("a", "6Gi", nodes=["n2"]), volume("b", "8Gi", nodes=["n2"]), volume("c")]
    claims = [volume_claim("one", "7Gi"), volume_claim("two", "5Gi")]
    cluster = VolumeCluster(NODES, [*volumes[:2], *claims], [claiming_pod("p", "one", "two")])
    assert cluster.place() == ({"p": "n2"}, {"two": "a", "one": "b"})


def test_a_claim_that_members_share_is_bound_once_and_restricts_all_of_them() -> None:
    volumes: list[VolumeObject] = [volume("v", nodes=["n1", "n3"], accessModes=["ReadWriteMany"])]
    volumes.append(volume_claim("data", accessModes=["ReadWriteMany"]))
    pods = [claiming_pod(f"p{n}", "data", group="g", cpu="3") for n in range(2)]
    nodes, got = VolumeCluster(NODES, volumes, pods, [gang("g", 2)]).place()
    assert (sorted(nodes.values()), got) == (["n1", "n3"], {"data": "v"})


def test_groups_of_a_tree_share_a_claim_that_the_first_of_them_binds() -> None:
    modes: dict[str, Any] = {"accessModes": ["ReadWriteMany"]}
    volumes: list[VolumeObject] = [
        volume("v1", nodes=["n1"], **modes),
        volume("v2", nodes=["n2"], **modes),
        volume("own", "5Gi", nodes=["n1", "n2"]),
        volume_claim("data", **modes),
        volume_claim("scratch"),
    ]
    groups: list[Group] = [composite("t", 2), gang("a", 1, parent="t"), gang("b", 1, parent="t")]
    pods = [
        claiming_pod("a0", "data", group="a"),
        claiming_pod("a1", "data", group="a"),
        claiming_pod("b0", "scratch", "data", group="b"),
    ]
    nodes, got = VolumeCluster(NODES, volumes, pods, groups).place()
    assert len(nodes) == 3
    assert set(nodes.values()) == {got["data"].replace("v", "n")}
    assert got["scratch"] == "own"


# ---- provisioning --------------------------------------------------------------------------------


def test_a_claim_without_a_volume_is_provisioned_where_the_class_allows_it() -> None:
    nodes = [host("n1", zone="a"), host("n2", zone="b")]
    topology = {"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["b"]}]}
    found = storage_class(provisioner="disk.example", allowedTopologies=[topology])
    cluster = VolumeCluster(nodes, [found, volume_claim("data")], [claiming_pod("p", "data")])
    assert cluster.place() == ({"p": "n2"}, {"data": ""})
    only_a = VolumeCluster(nodes[:1], [found, volume_claim("data")], [claiming_pod("p", "data")])
    assert only_a.refuse() == {NO_VOLUME_FOUND: 1}


def test_a_volume_is_provisioned_only_where_there_is_enough_storage() -> None:
    volumes: list[VolumeObject] = [
        storage_class(provisioner="disk.example"),
        csi_driver(storageCapacity=True),
        storage_capacity("c1", "1Gi", {"kubernetes.io/hostname": "n1"}),
        storage_capacity("c2", "50Gi", {"kubernetes.io/hostname": "n2"}, maximumVolumeSize="4Gi"),
        volume_claim("data"),
    ]
    cluster = VolumeCluster(NODES, volumes, [claiming_pod("p", "data")])
    assert cluster.refuse() == {NOT_ENOUGH_STORAGE: 3}
    more = storage_capacity("c3", "5Gi", {"kubernetes.io/hostname": "n3"})
    found = VolumeCluster(NODES, [*volumes, more], [claiming_pod("p", "data")])
    assert found.place() == ({"p": "n3"}, {"data": ""})


def test_a_claim_with_a_selected_node_pins_the_pod_to_it_while_it_exists() -> None:
    found = storage_class(provisioner="disk.example")
    for selected, expected in (("n3", "n3"), ("gone", "n1")):
        waiting = volume_claim("data", selected_node=selected)
        cluster = VolumeCluster(NODES, [found, waiting], [claiming_pod("p", "data")])
        assert cluster.place() == ({"p": expected}, {"data": ""})


def test_members_that_share_a_claim_to_be_provisioned_go_to_one_node() -> None:
    volumes: list[VolumeObject] = [
        storage_class(provisioner="disk.example"),
        volume_claim("data"),
    ]
    pods = [claiming_pod(f"p{n}", "data", group="g", cpu="2") for n in range(2)]
    nodes = [host("n1", cpu="2"), host("n2")]
    placed, _ = VolumeCluster(nodes, volumes, pods, [gang("g", 2)]).place()
    assert set(placed.values()) == {"n2"}


# ---- what other pods use -------------------------------------------------------------------------


def once_pod_pair() -> list[VolumeObject]:
    return bound_pair("data", accessModes=["ReadWriteOncePod"])


def test_a_read_write_once_pod_claim_has_one_user() -> None:
    pods = [claiming_pod("first", "data", on="n1"), claiming_pod("second", "data")]
    assert VolumeCluster(NODES, once_pod_pair(), pods).refuse() == {IN_USE: 3}


def test_members_of_a_gang_cannot_share_a_read_write_once_pod_claim() -> None:
    pods = [claiming_pod(f"p{n}", "data", group="g") for n in range(2)]
    cluster = VolumeCluster(NODES, once_pod_pair(), pods, [gang("g", 2)])
    assert cluster.refuse() == {IN_USE: 3}


def test_preemption_frees_a_read_write_once_pod_claim() -> None:
    pods = [
        claiming_pod("low", "data", on="n1", priority=0),
        claiming_pod("high", "data", priority=10),
    ]
    decision = VolumeCluster(NODES, once_pod_pair(), pods).decide()
    assert isinstance(decision, Preempting)
    assert [victim.pod for victim in decision.victims] == [key("low")]


def limited(*counts: int) -> list[VolumeObject]:
    return [csi_node(f"n{number}", limit=count) for number, count in enumerate(counts, 1)]


def csi_pair(name: str) -> list[VolumeObject]:
    return [csi_volume(f"v-{name}", name), volume_claim(name, bound_to=f"v-{name}")]


def test_attach_limits_are_counted_for_all_members() -> None:
    pairs = [one for n in range(4) for one in csi_pair(f"d{n}")]
    pods = [claiming_pod(f"p{n}", f"d{n}", group="g", cpu="100m") for n in range(4)]
    nodes, _ = VolumeCluster(NODES, [*pairs, *limited(1, 2, 1)], pods, [gang("g", 4)]).place()
    assert sorted(nodes.values()) == ["n1", "n2", "n2", "n3"]
    full = VolumeCluster(NODES, [*pairs, *limited(1, 1, 1)], pods, [gang("g", 4)])
    assert full.refuse() == {LIMIT_EXCEEDED: 3}


def test_volumes_that_pods_of_a_node_share_are_attached_once() -> None:
    pods = [claiming_pod("first", "d", on="n2"), claiming_pod("second", "d")]
    cluster = VolumeCluster(NODES, [*csi_pair("d"), *limited(0, 1, 0)], pods)
    assert cluster.place()[0] == {"second": "n2"}


def test_attachments_that_no_pod_explains_count() -> None:
    volumes = [*csi_pair("d"), *limited(1, 0, 0), csi_volume("old")]
    attached = volume_attachment("a", "n1", "old")
    cluster = VolumeCluster(NODES, [*volumes, attached], [claiming_pod("p", "d")])
    assert cluster.refuse() == {LIMIT_EXCEEDED: 3}


def test_preemption_frees_attach_slots_even_if_the_volume_is_still_attached() -> None:
    pods = [claiming_pod("low", "a", on="n1"), claiming_pod("high", "b", priority=10)]
    volumes = [*csi_pair("a"), *csi_pair("b"), *limited(1, 0, 0)]
    attached = volume_attachment("a", "n1", "v-a")
    decision = VolumeCluster(NODES, [*volumes, attached], pods).decide()
    assert isinstance(decision, Preempting)
    assert [victim.pod for victim in decision.victims] == [key("low")]


def test_a_required_driver_must_be_installed_on_the_node() -> None:
    volumes = [*csi_pair("d"), csi_driver(preventPodSchedulingIfMissing=True)]
    missing = VolumeCluster(NODES, volumes, [claiming_pod("p", "d")])
    assert missing.refuse() == {"node(s) did not have CSI driver disk.example": 3}
    installed = csi_node("n2", limit=None)
    found = VolumeCluster(NODES, [*volumes, installed], [claiming_pod("p", "d")])
    assert found.place()[0] == {"p": "n2"}


# ---- wake-ups ------------------------------------------------------------------------------------


def test_a_new_volume_wakes_the_pods_that_wait_for_one() -> None:
    cluster = VolumeCluster(NODES, [volume_claim("data")], [claiming_pod("p", "data")])
    assert isinstance(cluster.decide(), Waiting)
    assert cluster.state.pop(0.5) is None
    cluster.state.observe(PersistentVolumeObserved(0.5, Key("", "v"), volume("v")))
    entity = cluster.state.pop(0.5)
    assert entity is not None
    assert isinstance(cluster.state.decide(entity), Placed)


def test_an_assumed_volume_is_taken_until_the_binding_fails() -> None:
    volumes: list[VolumeObject] = [volume("v"), volume_claim("a"), volume_claim("b")]
    pods = [claiming_pod("p", "a"), claiming_pod("q", "b")]
    cluster = VolumeCluster(NODES, volumes, pods)
    entity = cluster.state.pop(0.0)
    assert entity is not None
    decision = cluster.state.decide(entity)
    assert isinstance(decision, Placed)
    cluster.state.commit(entity, decision, 0.0)
    assert cluster.refuse() == {NO_VOLUME_FOUND: 3}
    cluster.state.rollback(decision.bindings, 0.0)
    assert cluster.state.cache.check() == []
    assert not cluster.state.cache.volumes.state.assumed


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_assumed_volume_is_free_if_the_binding_fails_after_another_client_bound_the_pod(
    node: str,
) -> None:
    volumes: list[VolumeObject] = [volume("v"), volume_claim("a"), volume_claim("b")]
    cluster = VolumeCluster(NODES, volumes, [claiming_pod("p", "a")])
    decision = cluster.decide()
    assert isinstance(decision, Placed)
    cluster.state.observe(PodObserved(1.0, key("p"), claiming_pod("p", "a", on=node)))
    assert cluster.state.cache.check() == []
    assert cluster.state.cache.volumes.has_assumed
    cluster.state.rollback(decision.bindings, 2.0)
    assert not cluster.state.cache.volumes.has_assumed
    cluster.state.observe(PodObserved(3.0, key("q"), claiming_pod("q", "b")))
    assert cluster.place()[1] == {"b": "v"}


def test_a_volume_stays_assumed_until_its_claim_is_observed_even_after_the_pod() -> None:
    volumes: list[VolumeObject] = [volume("v"), volume_claim("a"), volume_claim("b")]
    pods = [claiming_pod("p", "a"), claiming_pod("q", "b")]
    cluster = VolumeCluster(NODES, volumes, pods)
    (node,) = cluster.place()[0].values()
    cluster.state.observe(PodObserved(1.0, key("p"), claiming_pod("p", "a", on=node)))
    checkpoint = [one for one in cluster.state.checkpoint(1.0) if isinstance(one, PodsAssumed)]
    assert [[volume.volume for volume in one.volumes] for one in checkpoint] == [["v"]]
    assert cluster.refuse() == {NO_VOLUME_FOUND: 3}
    bound = volume_claim("a", bound_to="v")
    cluster.state.observe(PersistentVolumeClaimObserved(2.0, key("a"), bound))
    assert not cluster.state.cache.volumes.has_assumed
    assert cluster.state.cache.check() == []


# ---- trees, topology, nominations, configuration -------------------------------------------------


def test_the_groups_of_a_tree_do_not_count_on_the_same_volume() -> None:
    volumes = [volume("v1", nodes=["n1"]), volume("v2", nodes=["n2"])]
    claims = [volume_claim("ca"), volume_claim("cb")]
    pods = [claiming_pod(f"p{n}", f"c{n}", group=f"g{n}") for n in "ab"]
    groups: list[Group] = [composite("t", 2), gang("ga", 1, parent="t"), gang("gb", 1, parent="t")]
    nodes, got = VolumeCluster(NODES, [*volumes, *claims], pods, groups).place()
    assert sorted(got.values()) == ["v1", "v2"]
    assert sorted(nodes.values()) == ["n1", "n2"]
    short = VolumeCluster(NODES, [volumes[0], *claims], pods, groups)
    assert isinstance(short.decide(), Waiting)


def test_a_gang_goes_to_the_zone_that_has_enough_volumes() -> None:
    nodes = [host(f"n{n}", zone="ab"[n % 2]) for n in range(4)]
    volumes: list[VolumeObject] = [volume("v0", nodes=["n0"]), volume("v1", nodes=["n1"])]
    volumes += [volume("v3", nodes=["n3"]), volume_claim("c0"), volume_claim("c1")]
    pods = [claiming_pod(f"p{n}", f"c{n}", group="g") for n in range(2)]
    group = gang("g", 2, topology="topology.kubernetes.io/zone")
    placed, _ = VolumeCluster(nodes, volumes, pods, [group]).place()
    assert sorted(placed.values()) == ["n1", "n3"]


def test_the_volume_of_a_nominated_pod_is_not_taken() -> None:
    volumes: list[VolumeObject] = [volume("v", nodes=["n1"]), volume_claim("a"), volume_claim("b")]
    waiting = claiming_pod("p", "a", priority=10, schedulingGates=[{"name": "later"}])
    cluster = VolumeCluster(NODES, volumes, [waiting, claiming_pod("q", "b")])
    cluster.state.cache.nominate([Binding(key("p"), "uid-p", "n1")])
    assert cluster.refuse() == {NO_VOLUME_FOUND: 3}


def test_disabled_plugins_do_not_check_claims() -> None:
    names = ("VolumeBinding", "VolumeRestrictions", "NodeVolumeLimits", "VolumeZone")
    one = policy({"plugins": {"multiPoint": {"disabled": [{"name": name} for name in names]}}})
    cluster = VolumeCluster(NODES, [], [claiming_pod("p", "absent")])
    entity = cluster.state.pop(0.0)
    assert entity is not None
    assert isinstance(decide(entity, cluster.state.cache.snapshot(), one), Placed)


def test_a_selected_node_and_a_reserved_volume_limit_the_domains_of_a_gang() -> None:
    nodes = [host(f"n{n}", zone="ab"[n % 2]) for n in range(4)]
    key_ = "topology.kubernetes.io/zone"
    volumes: list[VolumeObject] = [
        storage_class(provisioner="disk.example"),
        volume_claim("c0", selected_node="n3"),
        volume("mine", nodes=["n1"], claim="c1", phase="Available"),
        volume_claim("c1"),
    ]
    pods = [claiming_pod(f"p{n}", f"c{n}", group="g") for n in range(2)]
    placed, got = VolumeCluster(nodes, volumes, pods, [gang("g", 2, topology=key_)]).place()
    assert placed == {"p0": "n3", "p1": "n1"}
    assert got == {"c0": "", "c1": "mine"}


def test_volumes_that_change_or_go_are_no_candidates_any_more() -> None:
    claims: list[VolumeObject] = [volume_claim("a"), volume_claim("b"), volume_claim("c")]
    pods = [claiming_pod(f"p{n}", n) for n in "abc"]
    sorts = [volume("all"), volume("one", nodes=["n1"]), volume("two", nodes=["n1", "n2"])]
    cluster = VolumeCluster(NODES, [*claims, *sorts], pods)
    assert set(cluster.place()[1].values()) < {"all", "one", "two"}
    for gone in sorts:
        cluster.state.observe(PersistentVolumeObserved(0.0, gone.metadata.key, None))
    assert cluster.refuse() == {NO_VOLUME_FOUND: 3}
