"""Rules of Workloads."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.kinds import WORKLOAD
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries, summarize

BASIC: Object = {"schedulingPolicy": {"basic": {}}}
FULL: Object = {
    "name": "a",
    "schedulingPolicy": {"gang": {"minCount": 2}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
    "disruptionMode": {"all": {}},
    "priorityClassName": "high",
    "priority": 1,
    "preemptionPolicy": "PreemptLowerPriority",
}
REFERENCE = {"apiGroup": "batch", "kind": "Job", "name": "j"}


def pod_group_template(name: str, **fields: Any) -> Object:
    return {"name": name, **BASIC, **fields}


def composite(
    name: str, *children: Object, leaves: tuple[Object, ...] = (), **fields: Any
) -> Object:
    """A composite template above others."""
    lists = {"podGroupTemplates": list(leaves), "compositePodGroupTemplates": list(children)}
    return {"name": name, **BASIC, **fields, **{key: held for key, held in lists.items() if held}}


def flat_workload(*templates: Object, **fields: Any) -> Object:
    return workload(podGroupTemplates=list(templates), **fields)


def tree_workload(*composites: Object) -> Object:
    return workload(compositePodGroupTemplates=list(composites))


def workload(**spec: Any) -> Object:
    return {"metadata": {"name": "w", "namespace": "n"}, "spec": spec}


def validation_causes(new: Object, old: Object | None = None) -> CauseSummaries:
    return summarize(validate(WORKLOAD, new, old))


def single_message(new: Object, old: Object | None = None) -> str:
    (cause,) = validate(WORKLOAD, new, old)
    return cause.message


# ---- what it may be ------------------------------------------------------------------------------


def test_a_workload_has_templates_of_one_sort() -> None:
    both = workload(
        podGroupTemplates=[pod_group_template("a")],
        compositePodGroupTemplates=[composite("b", leaves=(pod_group_template("c"),))],
    )
    assert (validation_causes(workload()), validation_causes(both)) == (
        ["spec: Invalid"],
        ["spec: Invalid"],
    )
    assert "must specify one of: `podGroupTemplates`" in single_message(workload())
    assert "{podGroupTemplates, compositePodGroupTemplates}" in single_message(both)


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"name": ""}, ["name: Required"]),
        ({"name": "a.b"}, ["name: Invalid"]),
        ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
        (
            {"schedulingPolicy": {"gang": {"minCount": 0}}},
            ["schedulingPolicy.gang.minCount: Required"],
        ),
        (
            {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            ["schedulingConstraints.topology: TooMany"],
        ),
        ({"resourceClaims": [{"name": "c"}]}, ["resourceClaims[0]: Invalid"]),
        ({"disruptionMode": {}}, ["disruptionMode: Invalid"]),
        ({"priorityClassName": "No_Name"}, ["priorityClassName: Invalid"]),
        ({"priority": 1_000_000_001}, ["priority: Invalid"]),
        ({"preemptionPolicy": "never"}, ["preemptionPolicy: NotSupported"]),
    ],
)
def test_a_template_is_judged_as_a_group_is(fields: Object, causes: CauseSummaries) -> None:
    assert validation_causes(flat_workload({**FULL, **fields})) == prefix_summaries(
        "spec.podGroupTemplates[0]", causes
    )


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"name": ""}, ["name: Required"]),
        (
            {"schedulingPolicy": {"gang": {"minGroupCount": 0}}},
            ["schedulingPolicy.gang.minGroupCount: Required"],
        ),
        (
            {"schedulingPolicy": {"basic": {}, "gang": {"minGroupCount": 1}}},
            ["schedulingPolicy: Invalid"],
        ),
        ({"disruptionMode": {"single": {}, "all": {}}}, ["disruptionMode: Invalid"]),
        (
            {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            ["schedulingConstraints.topology: TooMany"],
        ),
    ],
)
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_a_composite_template_is_judged_at_every_level(
    fields: Object, causes: CauseSummaries, levels: int
) -> None:
    path, inner = "", {**composite("t", leaves=(pod_group_template("p"),)), **fields}
    for level in range(levels):
        path, inner = path + ".compositePodGroupTemplates[0]", composite(f"l{level}", inner)
    assert validation_causes(tree_workload(inner)) == prefix_summaries(
        f"spec.compositePodGroupTemplates[0]{path}", causes
    )


def test_a_template_inside_a_composite_is_judged_where_it_stands() -> None:
    bad = pod_group_template("p", disruptionMode={})
    assert validation_causes(
        tree_workload(composite("t", leaves=(pod_group_template("o"), bad)))
    ) == ["spec.compositePodGroupTemplates[0].podGroupTemplates[1].disruptionMode: Invalid"]


def test_there_are_eight_templates_to_a_list() -> None:
    many = [pod_group_template(f"t{n}") for n in range(9)]
    assert validation_causes(flat_workload(*many[:8])) == []
    assert validation_causes(flat_workload(*many)) == ["spec.podGroupTemplates: TooMany"]
    assert validation_causes(tree_workload(composite("t", leaves=tuple(many)))) == [
        "spec.compositePodGroupTemplates[0].podGroupTemplates: TooMany"
    ]


@pytest.mark.parametrize(
    ("reference", "causes"),
    [
        (REFERENCE, []),
        ({"kind": "Pod", "name": "p"}, []),
        ({"apiGroup": "batch"}, ["kind: Required", "name: Required"]),
        ({"kind": ".", "name": "a/b"}, ["kind: Invalid", "name: Invalid"]),
        ({**REFERENCE, "apiGroup": "Batch"}, ["apiGroup: Invalid"]),
    ],
)
def test_a_workload_may_name_its_controller(reference: Object, causes: CauseSummaries) -> None:
    assert validation_causes(
        flat_workload(pod_group_template("a"), controllerRef=reference)
    ) == prefix_summaries("spec.controllerRef", causes)


# ---- the tree ------------------------------------------------------------------------------------


def test_two_templates_of_one_list_have_two_names() -> None:
    assert validation_causes(flat_workload(pod_group_template("a"), pod_group_template("a"))) == [
        "spec.podGroupTemplates[1]: Duplicate"
    ]


@pytest.mark.parametrize(
    ("composites", "path"),
    [
        ([composite("t", leaves=(pod_group_template("t"),))], "[0].podGroupTemplates[0]"),
        (
            [
                composite("t", leaves=(pod_group_template("p"),)),
                composite("u", leaves=(pod_group_template("p"),)),
            ],
            "[1].podGroupTemplates[0]",
        ),
        (
            [
                composite(
                    "t", composite("u", leaves=(pod_group_template("u2"), pod_group_template("t")))
                )
            ],
            "[0].compositePodGroupTemplates[0].podGroupTemplates[1]",
        ),
        (
            [
                composite(
                    "t",
                    composite("p", leaves=(pod_group_template("q"),)),
                    leaves=(pod_group_template("p"),),
                )
            ],
            "[0].compositePodGroupTemplates[0]",
        ),
    ],
)
def test_no_name_stands_twice_in_a_tree(composites: list[Object], path: str) -> None:
    assert validation_causes(tree_workload(*composites)) == [
        f"spec.compositePodGroupTemplates{path}.name: Duplicate"
    ]


def nested_composite(levels: int) -> Object:
    """Composites one below the other, the lowest above a pod group."""
    inner = composite("l0", leaves=(pod_group_template("p"),))
    for level in range(1, levels):
        inner = composite(f"l{level}", inner)
    return inner


@pytest.mark.parametrize("levels", [4, 5, 60])
def test_a_tree_has_four_levels_at_most(levels: int) -> None:
    assert validation_causes(tree_workload(nested_composite(3))) == []
    deep = tree_workload(
        composite("flat", leaves=(pod_group_template("q"),)), nested_composite(levels)
    )
    assert validation_causes(deep) == ["spec.compositePodGroupTemplates[1]: Invalid"]
    assert single_message(deep).endswith(": maximum template hierarchy depth is 4")


def test_a_composite_has_children() -> None:
    lonely = composite("t", composite("u"), composite("v", leaves=(pod_group_template("p"),)))
    assert validation_causes(tree_workload(lonely, composite("w"))) == [
        "spec.compositePodGroupTemplates[1]: Invalid",
        "spec.compositePodGroupTemplates[0].compositePodGroupTemplates[0]: Invalid",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"priority": 1}, {"priority": 2}),
        ({"priority": 0}, {}),
        ({"priorityClassName": "high"}, {"priorityClassName": "low"}),
        ({"priorityClassName": "high"}, {}),
    ],
)
def test_all_templates_have_one_priority(one: Object, other: Object) -> None:
    assert (
        validation_causes(
            flat_workload(pod_group_template("a", **one), pod_group_template("b", **one))
        )
        == []
    )
    assert single_message(
        flat_workload(pod_group_template("a", **one), pod_group_template("b", **other))
    ).endswith("detected multiple priority configurations")
    mixed = tree_workload(composite("t", leaves=(pod_group_template("p", **other),), **one))
    assert validation_causes(mixed) == ["spec: Invalid"]
    assert single_message(mixed).endswith("must be identical, detected multiple values")


def test_templates_may_preempt_or_not_as_they_like() -> None:
    never = pod_group_template("b", preemptionPolicy="Never")
    assert (
        validation_causes(
            flat_workload(pod_group_template("a", preemptionPolicy="PreemptLowerPriority"), never)
        )
        == []
    )


# ---- what may change -----------------------------------------------------------------------------


def test_the_counts_of_gangs_may_change() -> None:
    def counts(leaf_count: int, group_count: int) -> Object:
        policy = {"gang": {"minCount": leaf_count}}
        leaves = (pod_group_template("p", schedulingPolicy=policy),)
        gang = {"gang": {"minGroupCount": group_count}}
        return tree_workload(composite("t", leaves=leaves, schedulingPolicy=gang))

    assert validation_causes(counts(5, 2), counts(2, 1)) == []
    assert validation_causes(counts(0, 0), counts(2, 1)) == [
        "spec.compositePodGroupTemplates[0].schedulingPolicy.gang.minGroupCount: Required",
        "spec.compositePodGroupTemplates[0].podGroupTemplates[0].schedulingPolicy.gang.minCount: "
        "Required",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedulingConstraints", {"topology": [{"key": "other"}]}),
        ("resourceClaims", None),
        ("disruptionMode", {"single": {}}),
        ("priorityClassName", "other"),
        ("priority", 2),
        ("preemptionPolicy", "Never"),
    ],
)
def test_nothing_else_of_a_template_changes(field: str, value: Any) -> None:
    new = {key: said for key, said in {**FULL, field: value}.items() if said is not None}
    assert validation_causes(flat_workload(new), flat_workload(FULL)) == [
        f"spec.podGroupTemplates[0].{field}: Invalid"
    ]
    assert single_message(flat_workload(new), flat_workload(FULL)).endswith("field is immutable")


def test_a_gang_template_stays_one() -> None:
    gang = pod_group_template("a", schedulingPolicy={"gang": {"minCount": 2}})
    assert validation_causes(flat_workload(pod_group_template("a")), flat_workload(gang)) == [
        "spec.podGroupTemplates[0].schedulingPolicy.basic: Invalid",
        "spec.podGroupTemplates[0].schedulingPolicy.gang: Invalid",
    ]


def test_templates_neither_come_nor_go() -> None:
    one, two = (
        flat_workload(pod_group_template("a")),
        flat_workload(pod_group_template("a"), pod_group_template("b")),
    )
    assert validation_causes(two, one) == ["spec.podGroupTemplates[1]: Forbidden"]
    assert validation_causes(one, two) == ["spec.podGroupTemplates: Forbidden"]
    assert validation_causes(flat_workload(pod_group_template("z")), one) == [
        "spec.podGroupTemplates[0]: Forbidden",
        "spec.podGroupTemplates: Forbidden",
    ]


def test_templates_below_composites_neither_come_nor_go() -> None:
    one, two = (pod_group_template("a"),), (pod_group_template("a"), pod_group_template("b"))
    small, large = (tree_workload(composite("t", leaves=leaves)) for leaves in (one, two))
    path = "spec.compositePodGroupTemplates[0].podGroupTemplates"
    assert validation_causes(large, small) == [f"{path}[1]: Forbidden"]
    assert validation_causes(small, large) == [f"{path}: Forbidden"]


def test_a_flat_workload_does_not_become_a_tree() -> None:
    assert validation_causes(
        tree_workload(composite("t", leaves=(pod_group_template("a"),))),
        flat_workload(pod_group_template("a")),
    ) == [
        "spec.podGroupTemplates: Forbidden",
        "spec.compositePodGroupTemplates[0]: Forbidden",
    ]


def test_templates_are_known_by_their_names_in_any_order() -> None:
    a, b = (
        pod_group_template("a", priority=1),
        pod_group_template("b", priority=1, disruptionMode={"all": {}}),
    )
    assert validation_causes(flat_workload(b, a), flat_workload(a, b)) == []


def test_what_is_as_it_was_is_not_judged_again() -> None:
    old = flat_workload(pod_group_template("a"), pod_group_template("b", disruptionMode={}))
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"k": "v"}
    assert validation_causes(new, old) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [(None, REFERENCE), (REFERENCE, None), (REFERENCE, {**REFERENCE, "name": "other"})],
)
def test_the_controller_is_named_at_creation_or_never(old: Any, new: Any) -> None:
    def named(reference: Any) -> Object:
        return flat_workload(
            pod_group_template("a"), **({"controllerRef": reference} if reference else {})
        )

    assert validation_causes(named(new), named(old)) == ["spec.controllerRef: Invalid"]
    assert single_message(named(new), named(old)).endswith("field is immutable")
