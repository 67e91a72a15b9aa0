"""The history of the template of a LeaderWorkerSet, as ControllerRevisions.

A revision holds everything that the pods of a group are made from. Its key, a hash, is a label of
the pods and StatefulSets that were made from it. A group whose leader is replaced below the
partition is rebuilt from the revision of its leader. The other revisions are deleted when an update
is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.apps import ControllerRevision
from phalanx.api.kinds import CONTROLLER_REVISION
from phalanx.api.leader_worker_sets import LWS_REVISION_LABEL, NAME_LABEL, LeaderWorkerSet
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object, compact_json
from phalanx.builder.names import revision_name
from phalanx.controllers.reconcile_loop import Action, Create, Delete

#: Makes a strategic merge patch with the data replace the fields.
_REPLACE_DIRECTIVE = {"$patch": "replace"}
_SHARED_SUBDOMAIN = {"subdomainPolicy": "Shared"}


class LwsRevisions(NamedTuple):
    """The key of the present template, the sets of all known templates, and what to create."""

    key: str
    sets: dict[str, LeaderWorkerSet]
    actions: list[Action]


def plan_lws_revisions(
    lws: LeaderWorkerSet, history: Sequence[ControllerRevision], reference: Object
) -> LwsRevisions:
    """Find the revision of the present template; plan its creation if there is none."""
    data = _revision_data(lws)
    key = revision_name("", compact_json(data).decode())[1:]
    ordered = sorted(history, key=lambda one: (one.revision, one.metadata.name))
    sets = {revision_key(one.metadata): _restore(lws, one) for one in ordered}
    known = next((one for one in reversed(ordered) if one.data == data), None)
    if known is not None:
        key = revision_key(known.metadata)
        return LwsRevisions(key, {**sets, key: lws}, [])
    number = ordered[-1].revision + 1 if ordered else 1
    built: Object = {
        "metadata": {
            "name": f"{lws.metadata.name}-{key}-{number}",
            "namespace": lws.metadata.namespace,
            "labels": {NAME_LABEL: lws.metadata.name, LWS_REVISION_LABEL: key},
            "ownerReferences": [reference],
        },
        "data": data,
        "revision": number,
    }
    return LwsRevisions(key, {**sets, key: lws}, [Create(CONTROLLER_REVISION, built)])


def plan_revision_cleanup(history: Sequence[ControllerRevision], key: str) -> list[Action]:
    """Plan: delete all revisions but the present one."""
    return [
        Delete(CONTROLLER_REVISION, one.metadata.key, one.metadata.uid)
        for one in history
        if revision_key(one.metadata) != key and not one.metadata.deletion_timestamp
    ]


def revision_key(meta: ObjectMeta) -> str:
    """Return the key of the revision that an object was made from."""
    return meta.labels.get(LWS_REVISION_LABEL, "")


def _revision_data(lws: LeaderWorkerSet) -> Object:
    network = lws.spec.network_config or _SHARED_SUBDOMAIN
    return {
        "spec": {
            "leaderWorkerTemplate": {**lws.spec.leader_worker_template, **_REPLACE_DIRECTIVE},
            "networkConfig": {**network, **_REPLACE_DIRECTIVE},
        }
    }


def _restore(lws: LeaderWorkerSet, revision: ControllerRevision) -> LeaderWorkerSet:
    """The LeaderWorkerSet with the template of a revision."""
    saved = revision.data.get("spec") or {}
    template, network = (
        {key: value for key, value in (saved.get(field) or {}).items() if key != "$patch"}
        for field in ("leaderWorkerTemplate", "networkConfig")
    )
    return replace(
        lws, spec=replace(lws.spec, leader_worker_template=template, network_config=network)
    )
