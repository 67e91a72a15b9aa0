"""Fault trial scenarios with custom owners, and of the root certificate; see `fault_trials.py`."""

from __future__ import annotations

from phalanx.api.kinds import CONFIG_MAP, NAMESPACE, Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.namespace_objects import ROOT_CA_CONFIG_MAP
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.controllers.scenarios import config_map, namespace
from tests.controllers.trial_cluster import TrialCluster

WIDGET = Kind("example.com", "v1", "Widget", "widgets", "")
FREE_FORM: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


async def create_widgets(stage: TrialCluster, *names: str) -> list[Object]:
    """Define widgets and create some; return references to them."""
    await stage.create(custom_resource_definition(served_version(schema=FREE_FORM)))
    references: list[Object] = []
    for name in names:
        meta = {"name": name, "namespace": "default"}
        made = await stage.client.create(WIDGET, {"metadata": meta})
        references.append(
            {
                "apiVersion": WIDGET.api_version,
                "kind": WIDGET.name,
                "name": name,
                "uid": made["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
        )
    return references


async def collects_children_of_custom_resources(stage: TrialCluster) -> None:
    root, last, free = await create_widgets(stage, "root", "last", "free")
    await stage.create(
        config_map("child", root),
        config_map("both", root, free),
        config_map("slow", last),
        config_map("orphan", free),
    )
    await stage.wait_until_idle()
    await stage.delete(WIDGET, "root", "Background")
    await stage.delete(WIDGET, "last", "Foreground")
    await stage.delete(WIDGET, "free", "Orphan")


async def collects_children_of_recreated_custom_resources(stage: TrialCluster) -> None:
    (first,) = await create_widgets(stage, "root")
    await stage.create(config_map("child", first))
    await stage.wait_until_idle()
    await stage.delete(WIDGET, "root", "Background")
    meta = {"name": "root", "namespace": "default"}
    await stage.client.create(WIDGET, {"metadata": meta})
    await stage.create(config_map("late", first))


async def publishes_the_root_certificate(stage: TrialCluster) -> None:
    await stage.create(namespace("team"))
    await stage.wait_until_idle()
    await stage.client.delete(CONFIG_MAP, Key("team", ROOT_CA_CONFIG_MAP))


async def restores_the_root_certificate(stage: TrialCluster) -> None:
    await stage.create(namespace("team"))
    await stage.wait_until_idle()
    for name in ("team", "default"):
        change: Object = {"data": {"ca.crt": "forged", "more": "x"}}
        await stage.client.patch(CONFIG_MAP, Key(name, ROOT_CA_CONFIG_MAP), change)


async def publishes_no_root_certificate_in_a_deleted_namespace(stage: TrialCluster) -> None:
    await stage.create(namespace("team"), config_map("a"))
    await stage.wait_until_idle()
    await stage.delete(NAMESPACE, "team")
    await stage.wait_until_idle()
    await stage.create(namespace("team"))
