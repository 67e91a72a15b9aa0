"""Who owns which field after creates, updates, patches and applies."""

from __future__ import annotations

import copy
from typing import Any

from phalanx.api.owning.fieldset import FieldSet
from phalanx.api.owning.ownership import (
    MAX_UPDATES,
    Applied,
    Conflicts,
    Owner,
    Unmergeable,
    Writer,
    after_update,
    apply,
)
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object

CONFIG_MAP = schema("core.v1.ConfigMap")
POD = schema("core.v1.Pod")
POD_GROUP = schema("scheduling.v1beta1.PodGroup")

ONE, TWO, THREE = Writer("one", "v1"), Writer("two", "v1"), Writer("three", "v1")


def moment(second: int) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def data(**values: str) -> Object:
    """A ConfigMap as clients send it."""
    return {"metadata": {"name": "x"}, **({"data": values} if values else {})}


def created(kind: Schema, obj: Object, writer: Writer, second: int = 0) -> Object:
    return written(kind, None, obj, writer, second)


def written(kind: Schema, old: Object | None, obj: Object, writer: Writer, second: int) -> Object:
    """An object as a server stores it after an update."""
    new = copy.deepcopy(obj)
    entries = after_update(kind, old, new, writer, moment(second))
    new["metadata"].pop("managedFields", None)
    return with_entries(new, entries)


def with_entries(obj: Object, entries: list[Object]) -> Object:
    return {
        **obj,
        "metadata": {**obj["metadata"], **({"managedFields": entries} if entries else {})},
    }


def applied(
    kind: Schema, live: Object | None, config: Object, writer: Writer, second: int = 0,
    *, force: bool = False,
) -> Object:  # fmt: skip
    result = apply(kind, live, config, writer, moment(second), force=force)
    assert isinstance(result, Applied), result
    return result.object


def entries(obj: Object) -> list[Object]:
    found: list[Object] = obj["metadata"].get("managedFields", [])
    return found


def fields(obj: Object, manager: str) -> Any:
    """What a manager owns, in all its entries."""
    found = FieldSet()
    for entry in entries(obj):
        if entry["manager"] == manager:
            found = found | FieldSet.from_fields_v1(entry["fieldsV1"])
    return found.to_fields_v1()


# --------------------------------------------------------------------------------------- updates


def test_a_creator_owns_all_that_it_said() -> None:
    obj = {"metadata": {"name": "x", "labels": {"app": "y"}}, "data": {"a": "1"}}
    assert entries(created(CONFIG_MAP, obj, ONE)) == [
        {
            "manager": "one",
            "operation": "Update",
            "apiVersion": "v1",
            "time": moment(0),
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:data": {".": {}, "f:a": {}},
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            },
        }
    ]


def test_an_update_makes_changed_fields_its_own_and_leaves_the_rest() -> None:
    first = created(CONFIG_MAP, data(a="1", b="1"), ONE)
    second = written(CONFIG_MAP, first, data(a="2", b="1", c="1"), TWO, 1)
    assert fields(second, "one") == {"f:data": {".": {}, "f:b": {}}}
    assert fields(second, "two") == {"f:data": {"f:a": {}, "f:c": {}}}
    assert [entry["time"] for entry in entries(second)] == [moment(0), moment(1)]


def test_a_removed_field_leaves_every_set_and_empty_entries_vanish() -> None:
    first = created(CONFIG_MAP, data(a="1"), ONE)
    second = written(CONFIG_MAP, first, data(a="1", b="1"), TWO, 1)
    third = written(CONFIG_MAP, second, data(a="1"), ONE, 2)
    assert fields(third, "one") == {"f:data": {".": {}, "f:a": {}}}
    assert [entry["manager"] for entry in entries(third)] == ["one"]
    assert entries(third)[0]["time"] == moment(0)
    assert entries(written(CONFIG_MAP, third, data(), TWO, 3)) == []


def test_a_write_that_changes_nothing_hands_the_entries_on() -> None:
    first = created(CONFIG_MAP, data(a="1"), ONE)
    assert after_update(CONFIG_MAP, first, data(a="1"), TWO, moment(9)) is entries(first)


def test_the_status_has_an_entry_of_its_own() -> None:
    kubelet = Writer("kubelet", "v1", "status")
    spec = {"containers": [{"name": "c"}]}
    pod = created(POD, {"metadata": {}, "spec": spec, "status": {}}, ONE)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    running = written(POD, pod, {**pod, "status": status}, kubelet, 1)
    assert entries(running)[1] == {
        "manager": "kubelet",
        "operation": "Update",
        "apiVersion": "v1",
        "time": moment(1),
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
    again = written(POD, running, {**running, "status": unready}, kubelet, 2)
    assert entries(again)[1]["fieldsV1"] == entries(running)[1]["fieldsV1"]
    assert [entry["time"] for entry in entries(again)] == [moment(0), moment(2)]


def test_versions_and_subresources_are_kept_apart() -> None:
    obj = created(CONFIG_MAP, data(a="1"), ONE)
    obj = written(CONFIG_MAP, obj, data(a="1", b="1"), Writer("one", "v2"), 1)
    obj = written(CONFIG_MAP, obj, data(a="1", b="1", c="1"), Writer("one", "v1", "status"), 1)
    assert [(e["apiVersion"], e.get("subresource")) for e in entries(obj)] == [
        ("v1", None),
        ("v1", "status"),
        ("v2", None),
    ]


def test_appliers_come_first_then_the_older_then_by_name() -> None:
    obj = created(CONFIG_MAP, data(a="1"), THREE, 0)
    obj = written(CONFIG_MAP, obj, data(a="1", b="1"), TWO, 0)
    obj = written(CONFIG_MAP, obj, data(a="1", b="1", c="1"), ONE, 1)
    obj = applied(CONFIG_MAP, obj, data(d="1"), Writer("zed", "v1"), 2)
    assert [entry["manager"] for entry in entries(obj)] == ["zed", "three", "two", "one"]


def test_the_oldest_of_too_many_updates_become_one_entry() -> None:
    values: dict[str, str] = {}
    obj: Object | None = None
    for at in range(MAX_UPDATES + 3):
        values[f"k{at:02}"] = "1"
        obj = written(CONFIG_MAP, obj, data(**values), Writer(f"m{at:02}", "v1"), at)
    assert obj is not None
    assert len(entries(obj)) == MAX_UPDATES
    assert [entry["manager"] for entry in entries(obj)[:2]] == ["ancient-changes", "m04"]
    assert entries(obj)[0]["time"] == moment(3)
    assert fields(obj, "ancient-changes") == {
        "f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}, "f:k03": {}}
    }


def test_updates_of_different_versions_are_not_joined() -> None:
    obj, values = created(CONFIG_MAP, data(z="1"), Writer("old", "v0")), {"z": "1"}
    for at in range(MAX_UPDATES + 1):
        values[f"k{at:02}"] = "1"
        obj = written(CONFIG_MAP, obj, data(**values), Writer(f"m{at:02}", "v1"), at + 1)
    joined = [(e["manager"], e["apiVersion"]) for e in entries(obj)[:2]]
    assert joined == [("old", "v0"), ("ancient-changes", "v1")]
    assert len(entries(obj)) == MAX_UPDATES


def test_joining_goes_on_in_the_same_entry_within_a_second() -> None:
    values: dict[str, str] = {}
    obj: Object | None = None
    for at in range(MAX_UPDATES + 5):
        values[f"k{at:02}"] = "1"
        obj = written(CONFIG_MAP, obj, data(**values), Writer(f"a{at:02}", "v1"), 0)
    assert obj is not None
    managers = [entry["manager"] for entry in entries(obj)]
    assert len(managers) == len(set(managers)) == MAX_UPDATES


def test_a_client_may_send_other_entries_but_not_nonsense() -> None:
    obj = created(CONFIG_MAP, data(a="1"), ONE)
    given = [{**entries(obj)[0], "manager": "renamed"}]
    sent = with_entries(data(a="1"), given)
    assert [e["manager"] for e in after_update(CONFIG_MAP, obj, sent, ONE, moment(1))] == [
        "renamed"
    ]
    rows: tuple[Object, ...] = (
        {"fieldsV1": {"nonsense": {}}},
        {"operation": "Steal"},
        {"fieldsType": "FieldsV2"},
        {"apiVersion": ""},
    )
    for nonsense in rows:
        sent = with_entries(data(a="1"), [{**given[0], **nonsense}])
        assert after_update(CONFIG_MAP, obj, sent, ONE, moment(1)) is entries(obj)
    part = Writer("one", "v1", "status")
    assert after_update(CONFIG_MAP, obj, sent, part, moment(1)) is entries(obj)


def test_one_empty_entry_ends_the_tracking_until_somebody_applies() -> None:
    obj = created(CONFIG_MAP, data(a="1"), ONE)
    obj = written(CONFIG_MAP, obj, with_entries(data(a="1"), [{}]), ONE, 1)
    assert entries(obj) == []
    obj = written(CONFIG_MAP, obj, data(a="2"), ONE, 2)
    assert entries(obj) == []
    obj = applied(CONFIG_MAP, obj, data(b="1"), TWO, 3)
    assert [(e["manager"], e["operation"]) for e in entries(obj)] == [
        ("two", "Apply"),
        ("before-first-apply", "Update"),
    ]
    assert fields(obj, "before-first-apply") == {"f:data": {".": {}, "f:a": {}}}


# ----------------------------------------------------------------------------------------- apply


def test_an_apply_creates_what_is_not_there_and_changes_it_again() -> None:
    first = applied(CONFIG_MAP, None, data(a="1", b="2"), ONE)
    assert entries(first) == [
        {
            "manager": "one",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": moment(0),
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}, "f:b": {}}},
        }
    ]
    second = applied(CONFIG_MAP, first, data(a="5"), ONE, 1)
    assert second["data"] == {"a": "5"}
    assert applied(CONFIG_MAP, second, data(a="5"), ONE, 2) == second


def test_another_managers_value_is_a_conflict_unless_forced() -> None:
    live = applied(CONFIG_MAP, None, data(a="1"), ONE)
    refused = apply(CONFIG_MAP, live, data(a="2", b="3"), TWO, moment(1))
    assert isinstance(refused, Conflicts)
    assert refused.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert [(c.field, c.reason, c.message) for c in refused.causes] == [
        (".data.a", "FieldManagerConflict", 'conflict with "one"')
    ]
    forced = applied(CONFIG_MAP, live, data(a="2", b="3"), TWO, 2, force=True)
    assert forced["data"] == {"a": "2", "b": "3"}
    assert [entry["manager"] for entry in entries(forced)] == ["two"]
    assert applied(CONFIG_MAP, forced, data(c="1"), ONE, 3)["data"] == {
        "a": "2",
        "b": "3",
        "c": "1",
    }


def test_conflicts_are_told_by_owner() -> None:
    live = created(CONFIG_MAP, data(a="1", b="1"), ONE)
    live = applied(CONFIG_MAP, live, data(a="1"), TWO)
    status = Writer("one", "v1", "status")
    live = written(CONFIG_MAP, live, {**live, "immutable": True}, status, 1)
    refused = apply(CONFIG_MAP, live, {**data(a="2", b="2"), "immutable": False}, THREE, moment(2))
    assert isinstance(refused, Conflicts)
    assert refused.message == (
        'Apply failed with 4 conflicts: conflicts with "one" using v1:\n- .data.a\n- .data.b\n'
        'conflicts with "one" with subresource "status" using v1:\n- .immutable\n'
        'conflicts with "two":\n- .data.a'
    )
    assert len(refused.causes) == 4
    assert refused.fields[0][0] == Owner("one", "Update", "v1")


def test_ones_own_update_is_a_conflict_too() -> None:
    live = created(CONFIG_MAP, data(a="1"), ONE)
    refused = apply(CONFIG_MAP, live, data(a="2"), ONE, moment(1))
    assert isinstance(refused, Conflicts)
    assert refused.causes[0].message == 'conflict with "one" using v1'
    shared = applied(CONFIG_MAP, live, data(a="1"), ONE, 1)
    assert [entry["operation"] for entry in entries(shared)] == ["Apply", "Update"]


def test_an_equal_value_is_shared_and_stays_until_its_last_owner_drops_it() -> None:
    live = applied(CONFIG_MAP, None, data(a="1"), ONE)
    live = applied(CONFIG_MAP, live, data(a="1"), TWO, 1)
    live = applied(CONFIG_MAP, live, data(), ONE, 2)
    assert live["data"] == {"a": "1"}
    assert [entry["manager"] for entry in entries(live)] == ["two"]
    live = applied(CONFIG_MAP, live, data(), TWO, 3)
    assert "data" not in live
    assert entries(live) == []


def test_what_an_updater_owns_too_stays() -> None:
    live = created(CONFIG_MAP, data(a="1"), ONE)
    live = applied(CONFIG_MAP, live, data(a="1", b="1"), TWO, 1)
    live = applied(CONFIG_MAP, live, data(), TWO, 2)
    assert live["data"] == {"a": "1"}


def test_metadata_stays_when_the_last_label_goes() -> None:
    labelled = {"metadata": {"name": "x", "labels": {"a": "1"}}, "data": {"a": "1"}}
    live = applied(CONFIG_MAP, None, labelled, ONE)
    live["metadata"]["uid"] = "7"
    live = applied(CONFIG_MAP, live, data(a="1"), ONE, 1)
    assert {**live["metadata"], "managedFields": ()} == {
        "name": "x",
        "uid": "7",
        "managedFields": (),
    }


def test_an_applier_keeps_its_entry_in_another_version() -> None:
    live = applied(CONFIG_MAP, None, data(a="1"), Writer("one", "v1"))
    live = applied(CONFIG_MAP, live, data(b="1"), Writer("one", "v2"), 1)
    assert [(e["manager"], e["apiVersion"]) for e in entries(live)] == [("one", "v2")]
    assert live["data"] == {"b": "1"}


def test_a_sidecar_is_added_to_and_taken_from_somebody_elses_pod() -> None:
    main = {"name": "main", "image": "a", "resources": {"limits": {"cpu": "1"}}}
    side = {"name": "side", "image": "b"}
    live = created(POD, {"metadata": {}, "spec": {"containers": [main]}}, ONE)
    live = applied(POD, live, {"metadata": {}, "spec": {"containers": [side]}}, TWO, 1)
    assert live["spec"]["containers"] == [main, side]
    assert fields(live, "two") == {
        "f:spec": {"f:containers": {'k:{"name":"side"}': {".": {}, "f:image": {}, "f:name": {}}}}
    }
    live["spec"]["containers"][1]["imagePullPolicy"] = "Always"
    live = applied(POD, live, {"metadata": {}}, TWO, 2)
    assert live["spec"]["containers"] == [main]


def test_an_item_goes_with_its_owner_even_if_an_updater_changed_it() -> None:
    config = {"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    live = applied(POD, None, config, ONE)
    changed = copy.deepcopy(live)
    changed["spec"]["containers"][1]["image"] = "x"
    live = written(POD, live, changed, TWO, 1)
    less = {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}
    live = applied(POD, live, less, ONE, 2)
    assert live["spec"]["containers"] == [{"name": "a"}]
    assert [entry["manager"] for entry in entries(live)] == ["one"]


def test_a_struct_goes_with_its_last_field_unless_others_say_something_in_it() -> None:
    def pod(**context: Any) -> Object:
        return {"metadata": {}, "spec": {"hostname": "h", **context}}

    live = applied(POD, None, pod(securityContext={"runAsUser": 1}), ONE)
    assert "securityContext" not in applied(POD, live, pod(), ONE, 1)["spec"]
    shared = applied(POD, live, {"metadata": {}, "spec": {"securityContext": {}}}, TWO, 1)
    assert applied(POD, shared, pod(), ONE, 2)["spec"]["securityContext"] == {}


def test_a_policy_is_switched_by_its_own_applier() -> None:
    def group(policy: Object) -> Object:
        return {"metadata": {}, "spec": {"schedulingPolicy": policy}}

    live = applied(POD_GROUP, None, group({"gang": {"minCount": 2}}), ONE)
    live = applied(POD_GROUP, live, group({"basic": {}}), ONE, 1)
    assert live["spec"] == {"schedulingPolicy": {"basic": {}}}


def test_items_that_cannot_be_told_apart_are_not_applied() -> None:
    config = {"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "a"}]}}
    assert apply(POD, None, config, ONE, moment(0)) == Unmergeable(
        '.spec.containers: duplicate entries for key [name="a"]'
    )


def test_nothing_that_is_given_is_changed_and_the_result_is_the_receivers() -> None:
    live = created(POD, {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}, ONE)
    config = {"metadata": {}, "spec": {"containers": [{"name": "b", "env": [{"name": "E"}]}]}}
    before = copy.deepcopy((live, config))
    result = applied(POD, live, config, TWO, 1)
    for container in result["spec"]["containers"]:
        container["image"] = "x"
    assert (live, config) == before
