"""The answers of `phalanx why` on paper, without a cluster."""

from __future__ import annotations

from phalanx.api.meta import Key
from phalanx.cli.why import WhyAnswer, answer_data, format_answer
from phalanx.scheduler.diagnosis.diagnosis import (
    NOT_READY,
    CapacityEvidence,
    CapacityRow,
    Diagnosis,
)
from phalanx.scheduler.explain import Cure, CureKind, PodMessage
from phalanx.scheduler.queue.queued_entity import EntityId

GANG = EntityId(True, Key("default", "train"))
RACK = "topology.kubernetes.io/rack"


def text(found: Diagnosis, subject: EntityId = GANG) -> list[str]:
    return format_answer(WhyAnswer(subject, found)).splitlines()


def test_who_is_not_ready_hears_only_that() -> None:
    found = Diagnosis(NOT_READY, "waiting for 2 members, 1 is there", 0, 1)
    assert text(found) == [
        "PodGroup default/train is not ready to be scheduled: waiting for 2 members, 1 is there",
        "  members: 0 placed, 1 pending",
    ]


def test_columns_are_as_wide_as_what_stands_in_them() -> None:
    rows = (
        CapacityRow("gpu 8", 128, "a-rack-with-a-long-name", 4, 100, 1000, "nvidia.com/gpu"),
        CapacityRow("gpu 8", 128, "r2", 16, 0, 64, ""),
    )
    found = Diagnosis("Unschedulable", "no", 0, 128, evidence=CapacityEvidence(RACK, 128, rows, 40))
    assert text(found)[3:] == [
        "Room for members that ask for gpu 8 (128 pending, 128 needed in one rack):",
        "  RACK                      NODES   FIT NOW   IF EMPTY   LIMITED BY",
        "  a-rack-with-a-long-name       4       100       1000   nvidia.com/gpu",
        "  r2                           16         0         64   -",
        "  … and 40 more",
    ]


def test_each_sort_of_member_has_a_table() -> None:
    rows = (
        CapacityRow("cpu 1", 2, "a", 1, 1, 1, "cpu"),
        CapacityRow("cpu 3", 1, "a", 1, 0, 1, "cpu"),
    )
    found = Diagnosis("Unschedulable", "no", 0, 3, evidence=CapacityEvidence("", 3, rows))
    heads = [line for line in text(found) if line.startswith("Room for ")]
    assert heads == [
        "Room for members that ask for cpu 1 (2 pending, 3 needed):",
        "Room for members that ask for cpu 3 (1 pending, 3 needed):",
    ]


def test_what_was_not_tried_is_told_apart_and_not_at_length() -> None:
    cures = (Cure("pray", True, CureKind.LOOSER, 1), *(Cure(f"hope {i}") for i in range(9)))
    found = Diagnosis("Unschedulable", "no", 0, 3, cures=cures, decisions=64, is_cut_short=True)
    assert text(found)[3:] == [
        "It would help to:",
        "  - pray",
        "It may bring it nearer (not tried out) to:",
        "  - hope 0",
        "  - hope 1",
        "  - hope 2",
        "There may be smaller changes: the search ended after 64 decisions.",
    ]


def test_pods_that_hear_the_same_are_told_of_together() -> None:
    pods = tuple(PodMessage(Key("default", f"p{i}"), "", "", "full") for i in range(5))
    found = Diagnosis("Unschedulable", "no", 0, 5, pods)
    assert text(found)[3:] == ["  p0, p1, p2 and 2 more: full"]


def test_programs_get_everything() -> None:
    rows = (CapacityRow("cpu 1", 2, "a", 1, 1, 1, "cpu"),)
    found = Diagnosis(
        "Unschedulable", "no", 1, 2, cures=(Cure("hope"),), evidence=CapacityEvidence("", 2, rows),
        tree=Key("default", "t"),
    )  # fmt: skip
    told = answer_data(WhyAnswer(GANG, found))
    assert told["cures"] == [{"sort": "hint", "size": 0, "text": "hope", "verified": False}]
    assert told["evidence"]["rows"] == [{
        "asks": "cpu 1", "members": 2, "place": "a", "nodes": 1, "fit": 1, "empty": 1,
        "limit": "cpu",
    }]  # fmt: skip
    assert (told["kind"], told["tree"], told["pods"]) == ("PodGroup", "t", [])
