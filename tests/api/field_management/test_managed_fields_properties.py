"""Properties of field management, on similar objects."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.field_management.field_set import FieldSet
from phalanx.api.field_management.managed_fields import (
    ApplyConflicts,
    ApplyResult,
    server_side_apply,
)
from phalanx.api.field_management.merge_diff import compare, owned_fields
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object
from tests.api.field_management.test_managed_fields import (
    CONFIG_MAP,
    ONE,
    POD,
    POD_GROUP,
    THREE,
    TWO,
    apply_object,
    create_object,
    managed_fields_entries,
    time_at,
    update_object,
)

NODE = schema("core.v1.Node")
JOB = schema("batch.v1.Job")

WORDS = st.sampled_from(("1", "2"))
TEXTS = st.dictionaries(st.sampled_from("abcd"), WORDS, max_size=3)
PORTS = st.lists(
    st.sampled_from((80, 443)).map(lambda port: {"containerPort": port}), max_size=2, unique_by=str
)
CONTAINER: st.SearchStrategy[Object] = st.fixed_dictionaries({
    "name": st.sampled_from("xyz"),
}, optional={
    "image": WORDS,
    "command": st.lists(WORDS, min_size=1, max_size=2),
    "env": TEXTS.map(lambda env: [{"name": key, "value": env[key]} for key in env]),
    "resources": st.fixed_dictionaries({}, optional={"limits": TEXTS}),
    "ports": PORTS,
})  # fmt: skip
CONTAINERS = st.lists(CONTAINER, max_size=3, unique_by=lambda one: str(one["name"]))
POD_SPECS = st.fixed_dictionaries({}, optional={
    "containers": CONTAINERS,
    "nodeSelector": TEXTS,
    "securityContext": st.fixed_dictionaries({}, optional={"runAsUser": st.integers(0, 1)}),
    "hostname": WORDS,
})  # fmt: skip
POLICIES: tuple[Object, ...] = ({"basic": {}}, {"gang": {"minCount": 1}}, {"gang": {"minCount": 2}})
MODES: tuple[Object, ...] = ({"single": {}}, {"all": {}})
GROUP_SPECS: st.SearchStrategy[Object] = st.fixed_dictionaries({}, optional={
    "schedulingPolicy": st.sampled_from(POLICIES),
    "priorityClassName": WORDS,
    "disruptionMode": st.sampled_from(MODES),
})  # fmt: skip
SPECS: dict[Schema, st.SearchStrategy[Object]] = {
    CONFIG_MAP: st.fixed_dictionaries({}, optional={"data": TEXTS, "immutable": st.booleans()}),
    POD: st.fixed_dictionaries({}, optional={"spec": POD_SPECS}),
    JOB: POD_SPECS.map(lambda spec: {"spec": {"template": {"spec": spec}}}),
    NODE: st.fixed_dictionaries(
        {}, optional={"status": st.fixed_dictionaries({"capacity": TEXTS, "phase": WORDS})}
    ),
    POD_GROUP: st.fixed_dictionaries({}, optional={"spec": GROUP_SPECS}),
}
METADATA = st.fixed_dictionaries({"name": st.just("o")}, optional={
    "labels": TEXTS,
    "finalizers": st.lists(st.sampled_from(("a/b", "c/d")), unique=True),
})  # fmt: skip
DrawnObjects = tuple[Schema, list[Object]]


@st.composite
def draw_objects(draw: st.DrawFn, count: int) -> DrawnObjects:
    """Draw similar objects of one kind."""
    kind = draw(st.sampled_from(list(SPECS)))
    found = []
    for _ in range(count):
        obj = copy.deepcopy({"metadata": draw(METADATA), **draw(SPECS[kind])})
        kind.normalize(obj)
        found.append(obj)
    return kind, found


def create_and_update(kind: Schema, first: Object, second: Object) -> Object:
    """Return an object with a creator and two appliers."""
    return apply_object(kind, create_object(kind, first, ONE), second, TWO, 1, force=True)


def field_set_of(obj: Object, manager: str, operation: str = "Apply") -> FieldSet:
    found = (
        e
        for e in managed_fields_entries(obj)
        if (e["manager"], e["operation"]) == (manager, operation)
    )
    return FieldSet(next((entry["fieldsV1"] for entry in found), None))


@given(draw_objects(3))
def test_apply_is_idempotent(case: DrawnObjects) -> None:
    kind, (first, second, config) = case
    once = apply_object(kind, create_and_update(kind, first, second), config, THREE, 2, force=True)
    assert apply_object(kind, once, config, THREE, 3) == once
    new = apply_object(kind, None, config, THREE)
    assert apply_object(kind, new, config, THREE, 3) == new


@given(draw_objects(4))
def test_applier_owns_exactly_the_fields_of_its_last_configuration(case: DrawnObjects) -> None:
    kind, (first, second, before, config) = case
    live = apply_object(kind, create_and_update(kind, first, second), before, THREE, 2, force=True)
    live = apply_object(kind, live, config, THREE, 3, force=True)
    assert field_set_of(live, "three") == owned_fields(kind, config)


@given(draw_objects(3))
def test_a_forced_apply_wins(case: DrawnObjects) -> None:
    kind, (first, second, config) = case
    before = create_and_update(kind, first, second)
    after = apply_object(kind, before, config, THREE, 2, force=True)
    taken = compare(kind, before, after).changed
    others = field_set_of(after, "one", "Update") | field_set_of(after, "two")
    assert not others & taken
    assert field_set_of(before, "two") - taken - compare(
        kind, before, after
    ).removed == field_set_of(after, "two")
    assert isinstance(
        server_side_apply(kind, after, config, manager=THREE, now=time_at(3)), ApplyResult
    )


@given(draw_objects(3))
def test_unforced_apply_never_changes_fields_of_others(case: DrawnObjects) -> None:
    kind, (first, second, config) = case
    before = create_and_update(kind, first, second)
    result = server_side_apply(kind, before, config, manager=THREE, now=time_at(2))
    if isinstance(result, ApplyResult):
        for manager, operation in (("one", "Update"), ("two", "Apply")):
            assert field_set_of(result.object, manager, operation) == field_set_of(
                before, manager, operation
            )
    else:
        assert isinstance(result, ApplyConflicts)
        assert result.causes


@given(draw_objects(2))
def test_order_of_agreeing_appliers_does_not_matter(case: DrawnObjects) -> None:
    kind, (first, second) = case
    live = apply_object(kind, None, first, ONE)
    result = server_side_apply(kind, live, second, manager=TWO, now=time_at(0))
    if isinstance(result, ApplyResult):
        other = apply_object(kind, apply_object(kind, None, second, TWO), first, ONE)
        assert not any(compare(kind, result.object, other))
        for manager in ("one", "two"):
            fields = field_set_of(result.object, manager, "Apply")
            assert fields == field_set_of(other, manager, "Apply")


@given(draw_objects(3))
def test_update_owns_what_it_changes_and_nothing_else(case: DrawnObjects) -> None:
    kind, (first, second, wanted) = case
    before = create_and_update(kind, first, second)
    after = update_object(kind, before, wanted, THREE, 2)
    changed, removed = compare(kind, before, wanted)
    if not managed_fields_entries(before):
        assert managed_fields_entries(after) == []
        return
    assert field_set_of(after, "three", "Update") == changed
    for manager, operation in (("one", "Update"), ("two", "Apply")):
        kept = field_set_of(before, manager, operation) - changed - removed
        assert field_set_of(after, manager, operation) == kept


@given(draw_objects(2))
def test_dropped_field_is_removed_unless_another_manager_owns_it(case: DrawnObjects) -> None:
    kind, (first, second) = case
    live = apply_object(kind, None, first, ONE)
    live = apply_object(kind, live, second, TWO, 1, force=True)
    rest = apply_object(kind, live, {"metadata": {"name": "o"}}, ONE, 2)
    ones, twos = owned_fields(kind, first), owned_fields(kind, second)
    left = owned_fields(kind, rest)
    assert not (ones - twos) & left
    assert left == twos
    assert field_set_of(rest, "two") == twos


@given(draw_objects(2))
def test_only_applier_can_replace_and_empty_its_object(case: DrawnObjects) -> None:
    kind, (first, second) = case
    live = apply_object(kind, apply_object(kind, None, first, ONE), second, ONE, 1)
    assert not any(compare(kind, live, second))
    bare: Object = {"metadata": {"name": "o"}}
    assert apply_object(kind, live, bare, ONE, 2) == bare
