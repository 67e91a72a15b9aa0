"""What holds for ownership whatever is written and applied, on objects that have much in common."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.owning.comparison import compare, owned
from phalanx.api.owning.fieldset import FieldSet
from phalanx.api.owning.ownership import Applied, Conflicts, apply
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object
from tests.api.owning.test_ownership import (
    CONFIG_MAP,
    ONE,
    POD,
    POD_GROUP,
    THREE,
    TWO,
    applied,
    created,
    entries,
    moment,
    written,
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
Drawn = tuple[Schema, list[Object]]


@st.composite
def drawn(draw: st.DrawFn, count: int) -> Drawn:
    """Objects of one kind that have much in common."""
    kind = draw(st.sampled_from(list(SPECS)))
    found = []
    for _ in range(count):
        obj = copy.deepcopy({"metadata": draw(METADATA), **draw(SPECS[kind])})
        kind.conform(obj)
        found.append(obj)
    return kind, found


def stored(kind: Schema, first: Object, second: Object) -> Object:
    """An object that one created and two applied to."""
    return applied(kind, created(kind, first, ONE), second, TWO, 1, force=True)


def set_of(obj: Object, manager: str, operation: str = "Apply") -> FieldSet:
    found = (e for e in entries(obj) if (e["manager"], e["operation"]) == (manager, operation))
    return FieldSet(next((entry["fieldsV1"] for entry in found), None))


@given(drawn(3))
def test_applying_twice_is_applying_once(case: Drawn) -> None:
    kind, (first, second, config) = case
    once = applied(kind, stored(kind, first, second), config, THREE, 2, force=True)
    assert applied(kind, once, config, THREE, 3) == once
    new = applied(kind, None, config, THREE)
    assert applied(kind, new, config, THREE, 3) == new


@given(drawn(4))
def test_an_applier_owns_exactly_what_it_stated_last(case: Drawn) -> None:
    kind, (first, second, before, config) = case
    live = applied(kind, stored(kind, first, second), before, THREE, 2, force=True)
    live = applied(kind, live, config, THREE, 3, force=True)
    assert set_of(live, "three") == owned(kind, config)


@given(drawn(3))
def test_a_forced_apply_wins(case: Drawn) -> None:
    kind, (first, second, config) = case
    before = stored(kind, first, second)
    after = applied(kind, before, config, THREE, 2, force=True)
    taken = compare(kind, before, after).changed
    others = set_of(after, "one", "Update") | set_of(after, "two")
    assert not others & taken
    assert set_of(before, "two") - taken - compare(kind, before, after).removed == set_of(
        after, "two"
    )
    assert isinstance(apply(kind, after, config, THREE, moment(3)), Applied)


@given(drawn(3))
def test_an_unforced_apply_never_changes_what_others_own(case: Drawn) -> None:
    kind, (first, second, config) = case
    before = stored(kind, first, second)
    result = apply(kind, before, config, THREE, moment(2))
    if isinstance(result, Applied):
        for manager, operation in (("one", "Update"), ("two", "Apply")):
            assert set_of(result.object, manager, operation) == set_of(before, manager, operation)
    else:
        assert isinstance(result, Conflicts)
        assert result.causes


@given(drawn(2))
def test_appliers_that_agree_can_come_in_any_order(case: Drawn) -> None:
    kind, (first, second) = case
    live = applied(kind, None, first, ONE)
    result = apply(kind, live, second, TWO, moment(0))
    if isinstance(result, Applied):
        other = applied(kind, applied(kind, None, second, TWO), first, ONE)
        assert not any(compare(kind, result.object, other))
        assert entries(result.object) == entries(other)


@given(drawn(3))
def test_an_update_takes_what_it_changes_and_nothing_else(case: Drawn) -> None:
    kind, (first, second, wanted) = case
    before = stored(kind, first, second)
    after = written(kind, before, wanted, THREE, 2)
    changed, removed = compare(kind, before, wanted)
    if not entries(before):
        assert entries(after) == []
        return
    assert set_of(after, "three", "Update") == changed
    for manager, operation in (("one", "Update"), ("two", "Apply")):
        kept = set_of(before, manager, operation) - changed - removed
        assert set_of(after, manager, operation) == kept


@given(drawn(2))
def test_a_dropped_field_goes_unless_somebody_else_owns_it(case: Drawn) -> None:
    kind, (first, second) = case
    live = applied(kind, None, first, ONE)
    live = applied(kind, live, second, TWO, 1, force=True)
    rest = applied(kind, live, {"metadata": {"name": "o"}}, ONE, 2)
    ones, twos = owned(kind, first), owned(kind, second)
    left = owned(kind, rest)
    assert not (ones - twos) & left
    assert left == twos
    assert set_of(rest, "two") == twos


@given(drawn(2))
def test_a_lone_applier_can_replace_and_empty_its_object(case: Drawn) -> None:
    kind, (first, second) = case
    live = applied(kind, applied(kind, None, first, ONE), second, ONE, 1)
    assert not any(compare(kind, live, second))
    bare: Object = {"metadata": {"name": "o"}}
    assert applied(kind, live, bare, ONE, 2) == bare
