"""Field trees: positions of structs in the objects of a kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from phalanx.api.schema import ITEM, FieldPath, FieldTree, build_field_tree

POD_SPEC = {"core.v1.PodSpec": [((), "here")]}


def tree_paths(
    tree: FieldTree[str] | None, above: str = "", seen: tuple[int, ...] = ()
) -> Iterator[str]:
    """Yield the path of every row, each once."""
    if tree is None or id(tree) in seen:
        return
    yield from (f"{above} {row}" for row in tree.rows)
    for step, inner in tree.fields.items():
        yield from tree_paths(inner, f"{above}.{step}", (*seen, id(tree)))
    yield from tree_paths(tree.item, f"{above}[]", (*seen, id(tree)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("core.v1.Pod", [".spec here"]),
        ("core.v1.PodTemplate", [".template.spec here"]),
        ("batch.v1.Job", [".spec.template.spec here"]),
        ("batch.v1.CronJob", [".spec.jobTemplate.spec.template.spec here"]),
        ("core.v1.PodList", [".items[].spec here"]),
        ("core.v1.ConfigMap", []),
    ],
)
def test_struct_is_found_wherever_it_is_embedded(kind: str, expected: list[str]) -> None:
    assert list(tree_paths(build_field_tree(kind, POD_SPEC))) == expected


def test_recursive_struct_is_found_at_every_depth() -> None:
    rows = {"scheduling.v1beta1.PodGroupTemplate": [((), "leaf")]}
    root = build_field_tree("scheduling.v1beta1.WorkloadSpec", rows)
    assert root is not None
    tree: FieldTree[str] | None = root
    for _ in range(3):
        assert tree is not None
        leaves = tree.fields["podGroupTemplates"].item
        assert leaves is not None
        assert leaves.rows == ("leaf",)
        tree = tree.fields["compositePodGroupTemplates"].item


def test_row_may_be_below_its_struct() -> None:
    way: FieldPath = ("containers", ITEM, "resources")
    found = build_field_tree("core.v1.Pod", {"core.v1.PodSpec": [(way, "deep"), ((), "here")]})
    assert list(tree_paths(found)) == [".spec here", ".spec.containers[].resources deep"]


def test_child_is_found_by_field_or_index() -> None:
    found = build_field_tree("core.v1.PodList", POD_SPEC)
    assert found is not None
    items = found.child("items")
    assert items is not None
    assert items.child("0") is items.child("-")
    assert found.child("metadata") is None
