"""The text and data of `phalanx why`, without a cluster."""

from __future__ import annotations

from phalanx.api.meta import Key, Ref, pod_group_ref
from phalanx.cli.why import WhyAnswer, answer_data, format_answer
from phalanx.scheduler.diagnosis.capacity_evidence import CapacityEvidence, CapacityRow
from phalanx.scheduler.diagnosis.diagnosis import FITS, NOT_READY, Diagnosis
from phalanx.scheduler.explain import Cure, CureKind, PodMessage

GANG = pod_group_ref(Key("default", "train"))
RACK = "topology.kubernetes.io/rack"


def text(found: Diagnosis, subject: Ref = GANG) -> list[str]:
    return format_answer(WhyAnswer(subject, found)).splitlines()


def test_answer_about_a_gang_that_is_not_ready_is_short() -> None:
    found = Diagnosis(NOT_READY, "waiting for 2 members, 1 is there", 0, 1)
    assert text(found) == [
        "PodGroup default/train is not ready to be scheduled: waiting for 2 members, 1 is there",
        "  members: 0 placed, 1 pending",
    ]


def test_columns_are_as_wide_as_their_cells() -> None:
    rows = (
        CapacityRow("gpu 8", 128, "a-rack-with-a-long-name", 4, 100, 1000, "nvidia.com/gpu"),
        CapacityRow("gpu 8", 128, "r2", 16, 0, 64, ""),
    )
    found = Diagnosis("Unschedulable", "no", 0, 128, evidence=CapacityEvidence(RACK, 128, rows, 40))
    assert text(found)[3:] == [
        "Capacity for members that request gpu 8 (128 pending, 128 needed in one rack):",
        "  RACK                      NODES   FIT NOW   IF EMPTY   LIMITED BY",
        "  a-rack-with-a-long-name       4       100       1000   nvidia.com/gpu",
        "  r2                           16         0         64   -",
        "  … and 40 more",
    ]


def test_each_shape_of_member_has_a_table() -> None:
    rows = (
        CapacityRow("cpu 1", 2, "a", 1, 1, 1, "cpu"),
        CapacityRow("cpu 3", 1, "a", 1, 0, 1, "cpu"),
    )
    found = Diagnosis("Unschedulable", "no", 0, 3, evidence=CapacityEvidence("", 3, rows))
    heads = [line for line in text(found) if line.startswith("Capacity for ")]
    assert heads == [
        "Capacity for members that request cpu 1 (2 pending, 3 needed):",
        "Capacity for members that request cpu 3 (1 pending, 3 needed):",
    ]


def test_unverified_cures_are_listed_apart_and_limited() -> None:
    cures = (
        Cure("lower minCount", True, CureKind.LOOSER, 1),
        *(Cure(f"add cpu {i}") for i in range(9)),
    )
    found = Diagnosis("Unschedulable", "no", 0, 3, cures=cures, decisions=64, is_cut_short=True)
    assert text(found)[3:] == [
        "Possible fixes (verified):",
        "  - lower minCount",
        "Possible partial fixes (not verified):",
        "  - add cpu 0",
        "  - add cpu 1",
        "  - add cpu 2",
        "The search stopped after 64 decisions: smaller fixes may exist.",
    ]


def test_pods_with_the_same_message_share_a_line() -> None:
    pods = tuple(PodMessage(Key("default", f"p{i}"), "", "", "full") for i in range(5))
    found = Diagnosis("Unschedulable", "no", 0, 5, pods)
    assert text(found)[3:] == ["  p0, p1, p2 and 2 more: full"]


def test_data_contains_all_details() -> None:
    rows = (CapacityRow("cpu 1", 2, "a", 1, 1, 1, "cpu"),)
    found = Diagnosis(
        "Unschedulable",
        "no",
        1,
        2,
        cures=(Cure("add cpu"),),
        evidence=CapacityEvidence("", 2, rows),
        tree=Key("default", "t"),
    )
    data = answer_data(WhyAnswer(GANG, found))
    assert data["cures"] == [{"sort": "hint", "size": 0, "text": "add cpu", "verified": False}]
    assert data["evidence"]["rows"] == [{
        "asks": "cpu 1", "members": 2, "place": "a", "nodes": 1, "fit": 1, "empty": 1,
        "limit": "cpu",
    }]  # fmt: skip
    assert (data["kind"], data["tree"], data["pods"]) == ("PodGroup", "t", [])


def test_answer_begins_with_the_summary_and_keeps_the_message_of_the_condition() -> None:
    summary = "0 of 3 members fit: every node lacks gpu."
    found = Diagnosis("Unschedulable", "minCount (3) …", 0, 3, summary=summary)
    assert text(found)[:3] == [
        f"PodGroup default/train is waiting: {summary}",
        "  reason:  Unschedulable",
        "  message: minCount (3) …",
    ]
    assert answer_data(WhyAnswer(GANG, found))["summary"] == summary


def test_answer_says_that_no_scheduler_is_running_instead_of_promising_a_placement() -> None:
    fits = Diagnosis(FITS, "2 of 2 pending members would be placed now", 0, 2)
    waits = Diagnosis("Unschedulable", "no", 0, 2)
    outage = "no scheduler is running"
    assert format_answer(WhyAnswer(GANG, fits, outage)).splitlines() == [
        "PodGroup default/train would fit, but no scheduler is running: "
        "2 of 2 pending members would be placed now",
        "  scheduler: no scheduler is running",
        "  members: 0 placed, 2 pending",
    ]
    assert "  scheduler: no scheduler is running" in format_answer(WhyAnswer(GANG, waits, outage))
    assert text(fits)[0].startswith("PodGroup default/train fits and is about to be placed")
