from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from phalanx.api.budget import Budget, BudgetSpec
from phalanx.api.meta import Key, Meta
from phalanx.scheduler.decision import (
    Binding,
    Decision,
    Impossible,
    Part,
    Placed,
    Preempting,
    Refusal,
    Refused,
    Victim,
    Waiting,
)
from phalanx.scheduler.events import OWN, PEERS, ROOM, Event
from phalanx.scheduler.queueing.entry import Id, Memory, Rank, Turn
from phalanx.scheduler.queueing.record import (
    FORMAT,
    Answered,
    Assumed,
    Begun,
    BudgetSeen,
    CompositeSeen,
    Decided,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    Promised,
    Record,
    Remembered,
    Scribe,
    Searched,
    ServiceSeen,
    Spared,
    Took,
    Undone,
    brief,
    read,
    spoken,
    understood,
)
from phalanx.scheduler.rescue.program import GaveUp, Later, Solved, Unsolvable
from tests.scheduler.builders import alone, composite, entity, gang, key, node, pod

REFUSED = Refused(key("a"), "uid-a", Refusal(3, (("Insufficient cpu", 3),), ("add one",), ROOM))
DECISIONS: list[Decision] = [
    Placed(None, (Binding(key("a"), "uid-a", "n"),), (REFUSED,)),
    Waiting(key("g"), (REFUSED, Refused(key("b"), "uid-b", None)), 2, 1, 1, 0, PEERS),
    Impossible(key("g"), (), "SchedulerError", "no", "edit it", OWN),
    Preempting(
        Waiting(
            key("t"),
            (REFUSED,),
            2,
            1,
            1,
            0,
            PEERS,
            preemption="helps",
            promised=(Binding(key("a"), "uid-a", "n"),),
            parts=(Part(key("t"), True, None), Part(key("g"), False, None)),
        ),
        (Victim(key("v"), "uid-v", "n", key("w"), True),),
    ),
]
MEMORY = Memory(
    id=Id(True, key("g")), state="BACKING_OFF", timestamp=1.5, sequence=3, ready=0.5, attempts=2,
    failures=1, errors=0, until=9.0, wakes_on=(Event.NODE_ADDED,), queued=Rank(True, 0, 1.5, 3),
    members=(Turn(key("a"), 2, 0.1),), others=(key("b"),),
)  # fmt: skip
BINDINGS = (Binding(key("a"), "uid-a", "n"),)
RECORDS: list[Record] = [
    Begun(0.0, FORMAT, "1.2", ("packer",), {"profiles": []}, 7, False),
    NamespaceSeen(1.0, "default", {"team": "a"}),
    NamespaceSeen(1.0, "gone", None),
    ServiceSeen(1.0, key("s"), {"app": "web"}),
    NodeSeen(1.0, "n", node("n", {"zone": "a"}, room={"cpu": 1.5})),
    GroupSeen(1.0, key("g"), gang("g", 2)),
    CompositeSeen(1.0, key("t"), composite("t", 2)),
    BudgetSeen(1.0, key("b"), Budget(Meta(name="b"), BudgetSpec({"matchLabels": {"a": "b"}}))),
    PodSeen(1.0, key("a"), pod("a", "g", cpu="1")),
    Assumed(1.0, BINDINGS),
    Remembered(1.0, MEMORY),
    Took(2.0, brief(entity(gang("g", 1), [pod("a", "g")], [pod("b", "g", on="n")]))),
    Took(2.0, brief(alone(pod("a")))),
    Answered(2.5, Solved((0, 3))),
    Answered(2.5, Unsolvable()),
    Answered(2.5, GaveUp("it is hard")),
    Answered(2.5, Later()),
    Searched(2.5),
    Decided(3.0, key("a"), {"Placed": {"group": None, "bindings": [], "leftovers": []}}),
    Undone(4.0, BINDINGS),
    Spared(5.0, ((key("v"), "uid-v"),)),
    Promised(6.0, BINDINGS, ((key("v"), "uid-v"),)),
]


def test_what_is_written_is_read_again() -> None:
    assert list(read(Scribe().lines(RECORDS))) == list(enumerate(RECORDS, 1))


def test_a_beginning_that_says_less_is_of_a_scheduler_that_had_no_more_to_say() -> None:
    line = b'{"is":"begin","at":0.0,"format":1,"version":"1.2","schedulers":["packer"]}'
    beginning = msgspec.json.decode(line, type=Begun)
    assert beginning == Begun(0.0, FORMAT, "1.2", ("packer",), None, 0, groups_preempt=True)


def test_every_sort_of_record_is_among_those() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(Record))


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: type(one).__name__)
def test_what_is_spoken_is_understood(decision: Decision) -> None:
    assert understood(spoken(decision)) == decision


def test_every_sort_of_decision_can_be_spoken() -> None:
    assert {type(decision) for decision in DECISIONS} == set(get_args(Decision))


def test_what_has_no_order_is_always_spoken_in_the_same() -> None:
    said = spoken(DECISIONS[1])["Waiting"]
    assert said["wakes_on"] == sorted(PEERS)
    assert said["pods"][0][2]["wakes_on"] == sorted(ROOM)


@pytest.mark.parametrize("said", [{}, {"Guessed": {}}, {"Placed": {"bindings": 3}}])
def test_what_is_no_decision_is_not_understood(said: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"decision|Expected|missing"):
        understood(said)


def test_a_line_can_be_read_by_anybody() -> None:
    (line,) = Scribe().lines([NamespaceSeen(1.0, "default", {"team": "a"})])
    text = b'{"is":"namespace","at":1.0,"name":"default","labels":{"team":"a"},"seal":"'
    assert line.startswith(text)
    assert line.endswith(b'"}\n')


def test_entities_are_told_by_what_was_seen_of_them() -> None:
    told = brief(entity(gang("g", 1), [pod("a", "g")], [pod("b", "g", on="n")]))
    assert (told.key, told.group, told.scheduler) == (Key("default", "g"), "", "default-scheduler")
    assert [(seat.name, seat.uid) for seat in told.members] == [("a", "uid-a")]
    assert told.others == (("b", "uid-b"),)
    assert brief(alone(pod("a"))).group is None
