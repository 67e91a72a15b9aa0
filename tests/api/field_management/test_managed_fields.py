"""Owners of fields after creates, updates, patches and applies."""

from __future__ import annotations

import copy
from typing import Any

from phalanx.api.field_management.field_set import FieldSet
from phalanx.api.field_management.managed_fields import (
    MAX_UPDATE_ENTRIES,
    ApplyConflicts,
    ApplyResult,
    FieldManager,
    FieldOwner,
    Unmergeable,
    server_side_apply,
    update_managed_fields,
)
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object

CONFIG_MAP = schema("core.v1.ConfigMap")
POD = schema("core.v1.Pod")
POD_GROUP = schema("scheduling.v1beta1.PodGroup")

ONE, TWO, THREE = FieldManager("one", "v1"), FieldManager("two", "v1"), FieldManager("three", "v1")


def time_at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def config_map(**values: str) -> Object:
    """Return a ConfigMap as clients send it."""
    return {"metadata": {"name": "x"}, **({"data": values} if values else {})}


def create_object(kind: Schema, obj: Object, writer: FieldManager, second: int = 0) -> Object:
    return update_object(kind, None, obj, writer, second)


def update_object(
    kind: Schema, old: Object | None, obj: Object, writer: FieldManager, second: int
) -> Object:
    """Return an object as the server stores it after an update."""
    new = copy.deepcopy(obj)
    entries = update_managed_fields(kind, old, new, manager=writer, now=time_at(second))
    new["metadata"].pop("managedFields", None)
    return with_entries(new, entries)


def with_entries(obj: Object, entries: list[Object]) -> Object:
    return {
        **obj,
        "metadata": {**obj["metadata"], **({"managedFields": entries} if entries else {})},
    }


def apply_object(
    kind: Schema, live: Object | None, config: Object, writer: FieldManager, second: int = 0,
    *, force: bool = False,
) -> Object:  # fmt: skip
    result = server_side_apply(kind, live, config, manager=writer, now=time_at(second), force=force)
    assert isinstance(result, ApplyResult), result
    return result.object


def managed_fields_entries(obj: Object) -> list[Object]:
    found: list[Object] = obj["metadata"].get("managedFields", [])
    return found


def owned_fields(obj: Object, manager: str) -> Any:
    """Return the fields that a manager owns, in all its entries."""
    found = FieldSet()
    for entry in managed_fields_entries(obj):
        if entry["manager"] == manager:
            found = found | FieldSet.from_fields_v1(entry["fieldsV1"])
    return found.to_fields_v1()


# --------------------------------------------------------------------------------------- updates


def test_creator_owns_all_fields_of_its_request() -> None:
    obj = {"metadata": {"name": "x", "labels": {"app": "y"}}, "data": {"a": "1"}}
    assert managed_fields_entries(create_object(CONFIG_MAP, obj, ONE)) == [
        {
            "manager": "one",
            "operation": "Update",
            "apiVersion": "v1",
            "time": time_at(0),
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:data": {".": {}, "f:a": {}},
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            },
        }
    ]


def test_update_owns_changed_fields_only() -> None:
    first = create_object(CONFIG_MAP, config_map(a="1", b="1"), ONE)
    second = update_object(CONFIG_MAP, first, config_map(a="2", b="1", c="1"), TWO, 1)
    assert owned_fields(second, "one") == {"f:data": {".": {}, "f:b": {}}}
    assert owned_fields(second, "two") == {"f:data": {"f:a": {}, "f:c": {}}}
    assert [entry["time"] for entry in managed_fields_entries(second)] == [time_at(0), time_at(1)]


def test_removed_field_leaves_every_entry_and_empty_entries_are_dropped() -> None:
    first = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    second = update_object(CONFIG_MAP, first, config_map(a="1", b="1"), TWO, 1)
    third = update_object(CONFIG_MAP, second, config_map(a="1"), ONE, 2)
    assert owned_fields(third, "one") == {"f:data": {".": {}, "f:a": {}}}
    assert [entry["manager"] for entry in managed_fields_entries(third)] == ["one"]
    assert managed_fields_entries(third)[0]["time"] == time_at(0)
    assert managed_fields_entries(update_object(CONFIG_MAP, third, config_map(), TWO, 3)) == []


def test_write_without_change_keeps_the_entries() -> None:
    first = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    assert update_managed_fields(
        CONFIG_MAP, first, config_map(a="1"), manager=TWO, now=time_at(9)
    ) is managed_fields_entries(first)


def test_status_has_its_own_entry() -> None:
    kubelet = FieldManager("kubelet", "v1", "status")
    spec = {"containers": [{"name": "c"}]}
    pod = create_object(POD, {"metadata": {}, "spec": spec, "status": {}}, ONE)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    running = update_object(POD, pod, {**pod, "status": status}, kubelet, 1)
    assert managed_fields_entries(running)[1] == {
        "manager": "kubelet",
        "operation": "Update",
        "apiVersion": "v1",
        "time": time_at(1),
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:status": {
                "f:conditions": {
                    ".": {},
                    'k:{"type":"Ready"}': {".": {}, "f:status": {}, "f:type": {}},
                },
                "f:phase": {},
            }
        },
        "subresource": "status",
    }
    unready = {**status, "conditions": [{"type": "Ready", "status": "False"}]}
    again = update_object(POD, running, {**running, "status": unready}, kubelet, 2)
    assert (
        managed_fields_entries(again)[1]["fieldsV1"]
        == managed_fields_entries(running)[1]["fieldsV1"]
    )
    assert [entry["time"] for entry in managed_fields_entries(again)] == [time_at(0), time_at(2)]


def test_versions_and_subresources_have_separate_entries() -> None:
    obj = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    obj = update_object(CONFIG_MAP, obj, config_map(a="1", b="1"), FieldManager("one", "v2"), 1)
    obj = update_object(
        CONFIG_MAP, obj, config_map(a="1", b="1", c="1"), FieldManager("one", "v1", "status"), 1
    )
    assert [(e["apiVersion"], e.get("subresource")) for e in managed_fields_entries(obj)] == [
        ("v1", None),
        ("v1", "status"),
        ("v2", None),
    ]


def test_entries_are_sorted_by_operation_time_and_manager() -> None:
    obj = create_object(CONFIG_MAP, config_map(a="1"), THREE, 0)
    obj = update_object(CONFIG_MAP, obj, config_map(a="1", b="1"), TWO, 0)
    obj = update_object(CONFIG_MAP, obj, config_map(a="1", b="1", c="1"), ONE, 1)
    obj = apply_object(CONFIG_MAP, obj, config_map(d="1"), FieldManager("zed", "v1"), 2)
    assert [entry["manager"] for entry in managed_fields_entries(obj)] == [
        "zed",
        "three",
        "two",
        "one",
    ]


def test_oldest_updates_are_joined_beyond_the_limit() -> None:
    values: dict[str, str] = {}
    obj: Object | None = None
    for at in range(MAX_UPDATE_ENTRIES + 3):
        values[f"k{at:02}"] = "1"
        obj = update_object(
            CONFIG_MAP, obj, config_map(**values), FieldManager(f"m{at:02}", "v1"), at
        )
    assert obj is not None
    assert len(managed_fields_entries(obj)) == MAX_UPDATE_ENTRIES
    assert [entry["manager"] for entry in managed_fields_entries(obj)[:2]] == [
        "ancient-changes",
        "m04",
    ]
    assert managed_fields_entries(obj)[0]["time"] == time_at(3)
    assert owned_fields(obj, "ancient-changes") == {
        "f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}, "f:k03": {}}
    }


def test_updates_of_different_versions_are_not_joined() -> None:
    obj, values = (
        create_object(CONFIG_MAP, config_map(z="1"), FieldManager("old", "v0")),
        {"z": "1"},
    )
    for at in range(MAX_UPDATE_ENTRIES + 1):
        values[f"k{at:02}"] = "1"
        obj = update_object(
            CONFIG_MAP, obj, config_map(**values), FieldManager(f"m{at:02}", "v1"), at + 1
        )
    joined = [(e["manager"], e["apiVersion"]) for e in managed_fields_entries(obj)[:2]]
    assert joined == [("old", "v0"), ("ancient-changes", "v1")]
    assert len(managed_fields_entries(obj)) == MAX_UPDATE_ENTRIES


def test_joined_entry_is_extended_within_a_second() -> None:
    values: dict[str, str] = {}
    obj: Object | None = None
    for at in range(MAX_UPDATE_ENTRIES + 5):
        values[f"k{at:02}"] = "1"
        obj = update_object(
            CONFIG_MAP, obj, config_map(**values), FieldManager(f"a{at:02}", "v1"), 0
        )
    assert obj is not None
    managers = [entry["manager"] for entry in managed_fields_entries(obj)]
    assert len(managers) == len(set(managers)) == MAX_UPDATE_ENTRIES


def test_client_may_send_valid_entries_only() -> None:
    obj = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    given = [{**managed_fields_entries(obj)[0], "manager": "renamed"}]
    sent = with_entries(config_map(a="1"), given)
    assert [
        e["manager"]
        for e in update_managed_fields(CONFIG_MAP, obj, sent, manager=ONE, now=time_at(1))
    ] == ["renamed"]
    rows: tuple[Object, ...] = (
        {"fieldsV1": {"nonsense": {}}},
        {"operation": "Steal"},
        {"fieldsType": "FieldsV2"},
        {"apiVersion": ""},
    )
    for nonsense in rows:
        sent = with_entries(config_map(a="1"), [{**given[0], **nonsense}])
        assert update_managed_fields(
            CONFIG_MAP, obj, sent, manager=ONE, now=time_at(1)
        ) is managed_fields_entries(obj)
    part = FieldManager("one", "v1", "status")
    assert update_managed_fields(
        CONFIG_MAP, obj, sent, manager=part, now=time_at(1)
    ) is managed_fields_entries(obj)


def test_one_empty_entry_ends_tracking_until_the_next_apply() -> None:
    obj = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    obj = update_object(CONFIG_MAP, obj, with_entries(config_map(a="1"), [{}]), ONE, 1)
    assert managed_fields_entries(obj) == []
    obj = update_object(CONFIG_MAP, obj, config_map(a="2"), ONE, 2)
    assert managed_fields_entries(obj) == []
    obj = apply_object(CONFIG_MAP, obj, config_map(b="1"), TWO, 3)
    assert [(e["manager"], e["operation"]) for e in managed_fields_entries(obj)] == [
        ("two", "Apply"),
        ("before-first-apply", "Update"),
    ]
    assert owned_fields(obj, "before-first-apply") == {"f:data": {".": {}, "f:a": {}}}


# ----------------------------------------------------------------------------------------- apply


def test_apply_creates_an_object_and_changes_it() -> None:
    first = apply_object(CONFIG_MAP, None, config_map(a="1", b="2"), ONE)
    assert managed_fields_entries(first) == [
        {
            "manager": "one",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": time_at(0),
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}},
        }
    ]
    second = apply_object(CONFIG_MAP, first, config_map(a="5"), ONE, 1)
    assert second["data"] == {"a": "5"}
    assert apply_object(CONFIG_MAP, second, config_map(a="5"), ONE, 2) == second


def test_field_of_another_manager_is_a_conflict_unless_forced() -> None:
    live = apply_object(CONFIG_MAP, None, config_map(a="1"), ONE)
    refused = server_side_apply(
        CONFIG_MAP, live, config_map(a="2", b="3"), manager=TWO, now=time_at(1)
    )
    assert isinstance(refused, ApplyConflicts)
    assert refused.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert [(c.field, c.reason, c.message) for c in refused.causes] == [
        (".data.a", "FieldManagerConflict", 'conflict with "one"')
    ]
    forced = apply_object(CONFIG_MAP, live, config_map(a="2", b="3"), TWO, 2, force=True)
    assert forced["data"] == {"a": "2", "b": "3"}
    assert [entry["manager"] for entry in managed_fields_entries(forced)] == ["two"]
    assert apply_object(CONFIG_MAP, forced, config_map(c="1"), ONE, 3)["data"] == {
        "a": "2",
        "b": "3",
        "c": "1",
    }


def test_conflicts_are_reported_by_owner() -> None:
    live = create_object(CONFIG_MAP, config_map(a="1", b="1"), ONE)
    live = apply_object(CONFIG_MAP, live, config_map(a="1"), TWO)
    status = FieldManager("one", "v1", "status")
    live = update_object(CONFIG_MAP, live, {**live, "immutable": True}, status, 1)
    refused = server_side_apply(
        CONFIG_MAP,
        live,
        {**config_map(a="2", b="2"), "immutable": False},
        manager=THREE,
        now=time_at(2),
    )
    assert isinstance(refused, ApplyConflicts)
    assert refused.message == (
        'Apply failed with 4 conflicts: conflicts with "one" using v1:\n- .data.a\n- .data.b\n'
        'conflicts with "one" with subresource "status" using v1:\n- .immutable\n'
        'conflicts with "two":\n- .data.a'
    )
    assert len(refused.causes) == 4
    assert refused.fields[0][0] == FieldOwner("one", "Update", "v1")


def test_update_of_the_same_manager_is_a_conflict_too() -> None:
    live = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    refused = server_side_apply(CONFIG_MAP, live, config_map(a="2"), manager=ONE, now=time_at(1))
    assert isinstance(refused, ApplyConflicts)
    assert refused.causes[0].message == 'conflict with "one" using v1'
    shared = apply_object(CONFIG_MAP, live, config_map(a="1"), ONE, 1)
    assert [entry["operation"] for entry in managed_fields_entries(shared)] == ["Apply", "Update"]


def test_shared_value_is_kept_until_its_last_owner_drops_it() -> None:
    live = apply_object(CONFIG_MAP, None, config_map(a="1"), ONE)
    live = apply_object(CONFIG_MAP, live, config_map(a="1"), TWO, 1)
    live = apply_object(CONFIG_MAP, live, config_map(), ONE, 2)
    assert live["data"] == {"a": "1"}
    assert [entry["manager"] for entry in managed_fields_entries(live)] == ["two"]
    live = apply_object(CONFIG_MAP, live, config_map(), TWO, 3)
    assert "data" not in live
    assert managed_fields_entries(live) == []


def test_field_that_an_updater_also_owns_is_kept() -> None:
    live = create_object(CONFIG_MAP, config_map(a="1"), ONE)
    live = apply_object(CONFIG_MAP, live, config_map(a="1", b="1"), TWO, 1)
    live = apply_object(CONFIG_MAP, live, config_map(), TWO, 2)
    assert live["data"] == {"a": "1"}


def test_metadata_is_kept_when_its_last_label_is_removed() -> None:
    labelled = {"metadata": {"name": "x", "labels": {"a": "1"}}, "data": {"a": "1"}}
    live = apply_object(CONFIG_MAP, None, labelled, ONE)
    live["metadata"]["uid"] = "7"
    live = apply_object(CONFIG_MAP, live, config_map(a="1"), ONE, 1)
    assert {**live["metadata"], "managedFields": ()} == {
        "name": "x",
        "uid": "7",
        "managedFields": (),
    }


def test_applier_keeps_its_entry_in_another_version() -> None:
    live = apply_object(CONFIG_MAP, None, config_map(a="1"), FieldManager("one", "v1"))
    live = apply_object(CONFIG_MAP, live, config_map(b="1"), FieldManager("one", "v2"), 1)
    assert [(e["manager"], e["apiVersion"]) for e in managed_fields_entries(live)] == [
        ("one", "v2")
    ]
    assert live["data"] == {"b": "1"}


def test_sidecar_is_added_to_and_removed_from_a_pod_of_another_manager() -> None:
    main = {"name": "main", "image": "a", "resources": {"limits": {"cpu": "1"}}}
    side = {"name": "side", "image": "b"}
    live = create_object(POD, {"metadata": {}, "spec": {"containers": [main]}}, ONE)
    live = apply_object(POD, live, {"metadata": {}, "spec": {"containers": [side]}}, TWO, 1)
    assert live["spec"]["containers"] == [main, side]
    assert owned_fields(live, "two") == {
        "f:spec": {"f:containers": {'k:{"name":"side"}': {".": {}, "f:image": {}, "f:name": {}}}}
    }
    live["spec"]["containers"][1]["imagePullPolicy"] = "Always"
    live = apply_object(POD, live, {"metadata": {}}, TWO, 2)
    assert live["spec"]["containers"] == [main]


def test_item_is_removed_with_its_owner_even_if_an_updater_changed_it() -> None:
    config = {"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    live = apply_object(POD, None, config, ONE)
    changed = copy.deepcopy(live)
    changed["spec"]["containers"][1]["image"] = "x"
    live = update_object(POD, live, changed, TWO, 1)
    less = {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}
    live = apply_object(POD, live, less, ONE, 2)
    assert live["spec"]["containers"] == [{"name": "a"}]
    assert [entry["manager"] for entry in managed_fields_entries(live)] == ["one"]


def test_struct_is_removed_with_its_last_field_unless_others_own_fields_in_it() -> None:
    def pod(**context: Any) -> Object:
        return {"metadata": {}, "spec": {"hostname": "h", **context}}

    live = apply_object(POD, None, pod(securityContext={"runAsUser": 1}), ONE)
    assert "securityContext" not in apply_object(POD, live, pod(), ONE, 1)["spec"]
    shared = apply_object(POD, live, {"metadata": {}, "spec": {"securityContext": {}}}, TWO, 1)
    assert apply_object(POD, shared, pod(), ONE, 2)["spec"]["securityContext"] == {}


def test_policy_is_switched_by_its_applier() -> None:
    def group(policy: Object) -> Object:
        return {"metadata": {}, "spec": {"schedulingPolicy": policy}}

    live = apply_object(POD_GROUP, None, group({"gang": {"minCount": 2}}), ONE)
    live = apply_object(POD_GROUP, live, group({"basic": {}}), ONE, 1)
    assert live["spec"] == {"schedulingPolicy": {"basic": {}}}


def test_configuration_with_duplicate_items_is_not_applied() -> None:
    config = {"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}}
    assert server_side_apply(POD, None, config, manager=ONE, now=time_at(0)) == Unmergeable(
        '.spec.containers: duplicate entries for key [name="a"]'
    )


def test_arguments_are_not_changed_and_the_result_is_a_copy() -> None:
    live = create_object(POD, {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}, ONE)
    config = {"metadata": {}, "spec": {"containers": [{"name": "b", "env": [{"name": "E"}]}]}}
    before = copy.deepcopy((live, config))
    result = apply_object(POD, live, config, TWO, 1)
    for container in result["spec"]["containers"]:
        container["image"] = "x"
    assert (live, config) == before
