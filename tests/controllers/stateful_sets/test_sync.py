"""Plans of the StatefulSet controller: a pure function of a StatefulSet and what belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from phalanx.api.apps import REVISION_LABEL, ControllerRevision, StatefulSet
from phalanx.api.core import Pod
from phalanx.api.kinds import CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET
from phalanx.api.meta import timestamp
from phalanx.api.storage import PersistentVolumeClaim
from phalanx.api.wire import Object
from phalanx.controllers.reconcile_loop import Action, Create, Delete, Patch
from phalanx.controllers.stateful_sets.pod_objects import find_ordinal
from phalanx.controllers.stateful_sets.revisions import plan_revisions
from phalanx.controllers.stateful_sets.sync import MAX_STARTS, StatefulSetState, plan_sync

NOW = 1_800_000_000.0
LABELS = {"app": "web"}


def template(image: str) -> Object:
    return {
        "metadata": {"labels": LABELS},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }


def revision(image: str, number: int) -> ControllerRevision:
    data = {"spec": {"template": {**template(image), "$patch": "replace"}}}
    meta = {"name": f"web-{image}", "namespace": "default", "uid": f"uid-{image}"}
    return msgspec.convert({"metadata": meta, "data": data, "revision": number}, ControllerRevision)


def stateful_set(replicas: int = 3, image: str = "v1", **spec: Any) -> StatefulSet:
    status = spec.pop("status", {})
    obj = {
        "metadata": {"name": "web", "namespace": "default", "uid": "set", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": template(image),
            "serviceName": "web",
            **spec,
        },
        "status": status,
    }
    return msgspec.convert(obj, StatefulSet)


def pod(
    ordinal: int,
    image: str = "v1",
    *,
    ready: bool = True,
    phase: str = "Running",
    deleting: bool = False,
    since: float = NOW - 60,
) -> Pod:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": timestamp(since),
    }
    meta = {
        "name": f"web-{ordinal}",
        "namespace": "default",
        "uid": f"pod-{ordinal}",
        "labels": {**LABELS, REVISION_LABEL: f"web-{image}"},
        "deletionTimestamp": timestamp(NOW) if deleting else "",
    }
    status = {"phase": phase, "conditions": [condition]}
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": "n"}, "status": status}, Pod)


def claim(
    name: str, owners: Sequence[Object] = (), *, deleting: bool = False
) -> PersistentVolumeClaim:
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "ownerReferences": owners,
        "deletionTimestamp": timestamp(NOW) if deleting else "",
    }
    return msgspec.convert({"metadata": meta}, PersistentVolumeClaim)


def sync(
    found: StatefulSet,
    pods: Iterable[Pod] = (),
    *,
    claims: Iterable[PersistentVolumeClaim] = (),
    history: Sequence[ControllerRevision] = (revision("v1", 1),),
    others: Iterable[str] = (),
) -> StatefulSetState:
    return StatefulSetState(
        found,
        {int(one.metadata.name.rpartition("-")[2]): one for one in pods},
        {one.metadata.name: one for one in claims},
        history=history,
        other_names=frozenset(others),
        now=NOW,
    )


def pod_actions(state: StatefulSetState) -> list[str]:
    """What a plan does to pods: `+web-0` creates, `-web-0` deletes."""
    found: list[str] = []
    for action in plan_sync(state).actions:
        match action:
            case Create(kind, obj) if kind is POD:
                found.append(f"+{obj['metadata']['name']}")
            case Delete(kind, key) if kind is POD:
                found.append(f"-{key.name}")
    return found


def status_change(state: StatefulSetState) -> Object:
    patches = [one for one in plan_sync(state).actions if isinstance(one, Patch)]
    changes = [one.change for one in patches if one.kind is STATEFUL_SET]
    assert len(changes) <= 1
    assert all(isinstance(change, dict) for change in changes)
    return changes[0]["status"] if changes else {}  # type: ignore[call-overload]


def actions_about(actions: Iterable[Action], kind: Any) -> list[Any]:
    return [one for one in actions if getattr(one, "kind", None) is kind]


CLAIMS: Object = {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}
PARALLEL: Object = {"podManagementPolicy": "Parallel"}
ALL = [pod(0), pod(1), pod(2)]


@pytest.mark.parametrize(
    ("found", "pods", "actions"),
    [
        (stateful_set(), [], ["+web-0"]),
        (stateful_set(), [pod(0)], ["+web-1"]),
        (stateful_set(), [pod(0, ready=False)], []),
        (stateful_set(), [pod(0, deleting=True)], []),
        (stateful_set(), [pod(0), pod(2)], ["+web-1"]),
        (stateful_set(), ALL, []),
        (stateful_set(**PARALLEL), [pod(1, ready=False)], ["+web-0", "+web-2"]),
        (stateful_set(), [pod(0, phase="Failed"), pod(1)], ["-web-0"]),
        (stateful_set(**PARALLEL), [pod(0, phase="Succeeded"), pod(1)], ["-web-0", "+web-2"]),
        (stateful_set(), [pod(0, phase="Failed", deleting=True)], []),
        (stateful_set(1), ALL, ["-web-2"]),
        (stateful_set(1), [pod(0), pod(1), pod(2, deleting=True)], []),
        (stateful_set(1), [pod(0), pod(1, ready=False), pod(2, ready=False)], []),
        (stateful_set(1), [pod(0), pod(1, ready=False), pod(2)], ["-web-2"]),
        (stateful_set(1), [pod(0, ready=False), pod(1), pod(2)], []),
        (stateful_set(1, **PARALLEL), ALL, ["-web-2", "-web-1"]),
        (stateful_set(2, ordinals={"start": 5}), [pod(5), pod(0)], ["+web-6"]),
        (stateful_set(2, ordinals={"start": 5}), [pod(5), pod(6), pod(0)], ["-web-0"]),
        (stateful_set(0), [], []),
    ],
)
def test_pods_start_and_stop_in_order(
    found: StatefulSet, pods: list[Pod], actions: list[str]
) -> None:
    assert pod_actions(sync(found, pods)) == actions


def test_one_sync_of_an_enormous_stateful_set_is_bounded() -> None:
    found = stateful_set(2**31 - 1, **PARALLEL)
    actions = pod_actions(sync(found, [pod(1), pod(10_000)]))
    assert len(actions) == MAX_STARTS + 1
    assert (actions[0], actions[-1]) == ("+web-0", "+web-501")


def rolling(**bounds: Any) -> Object:
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": bounds}}


HISTORY = (revision("v1", 1), revision("v2", 2))


@pytest.mark.parametrize(
    ("spec", "pods", "actions"),
    [
        ({}, ALL, ["-web-2"]),
        ({}, [pod(0), pod(1), pod(2, "v2")], ["-web-1"]),
        ({}, [pod(0), pod(1), pod(2, "v2", ready=False)], []),
        ({}, [pod(0), pod(1), pod(2, deleting=True)], []),
        (rolling(partition=2), [pod(0), pod(1), pod(2, "v2")], []),
        (rolling(partition=1), [pod(0), pod(1), pod(2, "v2")], ["-web-1"]),
        (rolling(maxUnavailable=2), ALL, ["-web-2", "-web-1"]),
        (rolling(maxUnavailable="67%"), ALL, ["-web-2", "-web-1"]),
        (rolling(maxUnavailable="10%"), ALL, ["-web-2"]),
        (
            {**PARALLEL, **rolling(maxUnavailable=2)},
            [pod(0), pod(1), pod(2, "v2", ready=False)],
            ["-web-1"],
        ),
        ({"updateStrategy": {"type": "OnDelete"}}, ALL, []),
    ],
)
def test_updates_replace_pods_from_the_top(
    spec: Object, pods: list[Pod], actions: list[str]
) -> None:
    found = stateful_set(3, "v2", status={"currentRevision": "web-v1"}, **spec)
    assert pod_actions(sync(found, pods, history=HISTORY)) == actions


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        (rolling(partition=1), "v1"),
        (rolling(partition=0), "v2"),
        ({"updateStrategy": {"type": "OnDelete"}}, "v2"),
    ],
)
def test_a_pod_below_the_partition_is_created_from_the_current_revision(
    spec: Object, image: str
) -> None:
    found = stateful_set(1, "v2", status={"currentRevision": "web-v1"}, **spec)
    (created,) = actions_about(plan_sync(sync(found, history=HISTORY)).actions, POD)
    assert created.obj["spec"]["containers"][0]["image"] == image
    assert created.obj["metadata"]["labels"][REVISION_LABEL] == f"web-{image}"


def test_a_pod_has_a_stable_identity() -> None:
    made = template("v1")
    made["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    found = stateful_set(1, **CLAIMS)
    found = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, template=made))
    plan = plan_sync(sync(found, history=()))
    (created_revision,) = actions_about(plan.actions, CONTROLLER_REVISION)
    (created,) = actions_about(plan.actions, POD)
    (created_claim,) = actions_about(plan.actions, PERSISTENT_VOLUME_CLAIM)
    assert created_claim.obj["metadata"]["name"] == "data-web-0"
    assert created_claim.obj["metadata"]["labels"] == LABELS
    assert created.obj["metadata"]["labels"] == {
        **LABELS,
        REVISION_LABEL: created_revision.obj["metadata"]["name"],
        "statefulset.kubernetes.io/pod-name": "web-0",
        "apps.kubernetes.io/pod-index": "0",
    }
    spec = created.obj["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("web-0", "web")
    assert spec["volumes"] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
        {"name": "tmp", "emptyDir": {}},
    ]


def test_a_pod_waits_for_a_claim_that_is_being_deleted() -> None:
    deleted = claim("data-web-0", deleting=True)
    assert pod_actions(sync(stateful_set(1, **CLAIMS), claims=[deleted])) == []
    assert pod_actions(sync(stateful_set(1, **CLAIMS), claims=[claim("data-web-0")])) == ["+web-0"]


def test_a_pod_of_another_owner_keeps_its_name() -> None:
    assert pod_actions(sync(stateful_set(1), others=["web-0"])) == []


SET_OWNER = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "name": "web",
    "uid": "set",
    "controller": True,
    "blockOwnerDeletion": True,
}
OTHER = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": True}


@pytest.mark.parametrize(
    ("policy", "owners", "replicas", "wanted"),
    [
        ({}, [], 1, None),
        ({}, [SET_OWNER], 1, []),
        ({"whenDeleted": "Delete"}, [], 1, ["StatefulSet"]),
        ({"whenDeleted": "Delete"}, [SET_OWNER], 1, None),
        ({"whenScaled": "Delete"}, [], 1, None),
        ({"whenScaled": "Delete"}, [], 0, ["Pod"]),
        ({"whenScaled": "Delete", "whenDeleted": "Delete"}, [SET_OWNER], 0, ["Pod"]),
        ({"whenDeleted": "Delete"}, [], 0, ["StatefulSet"]),
        ({"whenDeleted": "Delete"}, [OTHER], 1, None),
        ({"whenScaled": "Delete"}, [{**OTHER, "kind": "Pod", "name": "web-0"}], 1, []),
    ],
)
def test_retention_policy_decides_about_the_owner_of_claims(
    policy: Object, owners: list[Object], replicas: int, wanted: list[str] | None
) -> None:
    found = stateful_set(replicas, persistentVolumeClaimRetentionPolicy=policy, **CLAIMS)
    plan = plan_sync(sync(found, [pod(0)], claims=[claim("data-web-0", owners)]))
    patches = actions_about(plan.actions, PERSISTENT_VOLUME_CLAIM)
    kinds = [[o["kind"] for o in one.change["metadata"]["ownerReferences"]] for one in patches]
    assert kinds == ([] if wanted is None else [wanted])


# ---- status and revisions ------------------------------------------------------------------------


def test_status_counts_pods_by_revision() -> None:
    found = stateful_set(3, "v2", status={"currentRevision": "web-v1"})
    pods = [pod(0), pod(1, ready=False), pod(2, "v2", since=NOW - 60)]
    assert status_change(sync(found, pods, history=HISTORY)) == {
        "observedGeneration": 1,
        "replicas": 3,
        "readyReplicas": 2,
        "availableReplicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 1,
        "updateRevision": "web-v2",
    }


def test_current_revision_follows_when_all_pods_are_updated() -> None:
    found = stateful_set(2, "v2", status={"currentRevision": "web-v1"})
    pods = [pod(0, "v2"), pod(1, "v2")]
    assert status_change(sync(found, pods, history=HISTORY))["currentRevision"] == "web-v2"
    manual = {"updateStrategy": {"type": "OnDelete"}}
    found = stateful_set(2, "v2", status={"currentRevision": "web-v1"}, **manual)
    assert "currentRevision" not in status_change(sync(found, pods, history=HISTORY))


def test_a_pod_is_available_after_min_ready_seconds() -> None:
    found = stateful_set(2, minReadySeconds=30)
    state = sync(found, [pod(0, since=NOW - 10)])
    assert pod_actions(state) == []
    assert plan_sync(state).requeue_after == 20.0
    change = status_change(state)
    assert change["readyReplicas"] == 1
    assert "availableReplicas" not in change
    assert pod_actions(sync(found, [pod(0, since=NOW - 30)])) == ["+web-1"]


def test_a_deleted_stateful_set_is_left_alone() -> None:
    found = stateful_set()
    meta = msgspec.structs.replace(found.metadata, deletion_timestamp=timestamp(NOW))
    assert plan_sync(sync(msgspec.structs.replace(found, metadata=meta))).actions == ()


def test_returning_to_an_old_template_renumbers_its_revision() -> None:
    plan = plan_revisions(stateful_set(1, "v1"), HISTORY, lambda name: False)
    assert plan.update.metadata.name == "web-v1"
    (action,) = plan.actions
    assert isinstance(action, Patch)
    assert isinstance(action.change, dict)
    assert action.change["revision"] == 3


def test_a_taken_name_of_a_revision_raises_the_collision_count() -> None:
    first = plan_revisions(stateful_set(), (), lambda name: False)
    taken = first.update.metadata.name
    second = plan_revisions(stateful_set(), (), lambda name: name == taken)
    assert second.collision_count == 1
    assert second.update.metadata.name != taken
    endless = plan_revisions(stateful_set(), (), lambda name: True)
    assert endless.collision_count == 100


def test_unused_revisions_beyond_the_limit_are_deleted() -> None:
    history = [revision(f"v{number}", number) for number in range(1, 6)]
    found = stateful_set(1, "v5", revisionHistoryLimit=1, status={"currentRevision": "web-v5"})
    plan = plan_sync(sync(found, [pod(0, "v1")], history=history))
    deleted = [one.key.name for one in actions_about(plan.actions, CONTROLLER_REVISION)]
    assert deleted == ["web-v2", "web-v3"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("web-0", ("web", 0)),
        ("a-b-12", ("a-b", 12)),
        ("web", None),
        ("-1", None),
        ("web-01", None),
        ("web-x", None),
        ("web-1234567890", None),
    ],
)
def test_ordinal_of_a_pod_name(name: str, found: tuple[str, int] | None) -> None:
    assert find_ordinal(name) == found
