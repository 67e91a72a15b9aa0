"""Links to the Workload of a parent, as annotations of its children."""

from __future__ import annotations

import pytest

from phalanx.builder import GROUP_TEMPLATE, PARENT_COMPOSITE, Link, read_link

OTHER = "scheduling.k8s.io/parent-compositepodgroup"


def child(annotations: dict[str, str] | None) -> dict[str, object]:
    return {"metadata": {"name": "child", "annotations": annotations}}


@pytest.mark.parametrize("link", [Link("workers"), Link("workers", "root-1"), Link("")])
def test_link_is_read_as_it_was_written(link: Link) -> None:
    assert read_link(child(link.annotations())) == link


@pytest.mark.parametrize(
    ("annotations", "link"),
    [
        (None, None),
        ({}, None),
        ({PARENT_COMPOSITE: "root-1"}, None),
        ({GROUP_TEMPLATE: "workers", OTHER: "root-1"}, Link("workers", "root-1")),
        (
            {GROUP_TEMPLATE: "workers", OTHER: "root-1", PARENT_COMPOSITE: "root-2"},
            Link("workers", "root-2"),
        ),
        (
            {GROUP_TEMPLATE: "workers", OTHER: "root-1", PARENT_COMPOSITE: ""},
            Link("workers", "root-1"),
        ),
    ],
)
def test_both_spellings_of_the_parent_are_read(
    annotations: dict[str, str] | None, link: Link | None
) -> None:
    assert read_link(child(annotations)) == link


def test_spelling_of_the_proposal_is_written() -> None:
    assert Link("workers", "root-1").annotations() == {
        "scheduling.k8s.io/group-template-name": "workers",
        "scheduling.k8s.io/parent-composite-podgroup": "root-1",
    }


def test_object_without_metadata_has_no_link() -> None:
    assert read_link({}) is None
