from __future__ import annotations

import asyncio
import io
import os
import sys
from dataclasses import replace
from typing import TextIO

import pytest

from phalanx.cli.top_screen import TopScreen, _typed_keys, run_screen, split_keys
from tests.builders import gang, node, pod
from tests.cli.test_top_overview import RACK, cluster, summarize

WIDTH, HEIGHT = 80, 24


def screen(nodes: int = 4) -> TopScreen:
    """Racks of two nodes, a gang that runs on the first two, one that waits, and a pod."""
    made = [node(f"n{number:04}", labels={RACK: f"r{number // 2:03}"}) for number in range(nodes)]
    running, *members = gang("running", 2, cpu="1")
    for place, member in enumerate(members):
        member["spec"]["nodeName"] = f"n{place:04}"
        member["status"] = {"phase": "Running"}
    objects = [*made, running, *members, *gang("waiting", 3, cpu="9"), pod("alone", on="n0001")]
    return TopScreen(cluster(*objects), summarize(*objects), now=0.0)


def lines(shown: TopScreen) -> list[str]:
    return [line.text for line in shown.render(WIDTH, HEIGHT)]


def selected(shown: TopScreen) -> str:
    (line,) = [text for text in lines(shown) if text.startswith("> ")]
    return line.split()[1]


def title(shown: TopScreen) -> str:
    return next(
        text for text in lines(shown) if text.endswith((" of 2", " of 3", " of 4", " of 1"))
    )


def test_waiting_gangs_come_first() -> None:
    shown = screen()
    texts = lines(shown)
    assert texts[0] == "4 nodes, 3 pods placed, 3 waiting"
    assert texts[1].startswith("cpu ")
    assert title(shown) == "Gangs: 1 of 2"
    assert selected(shown) == "podgroup/waiting"
    shown.press("down")
    assert selected(shown) == "podgroup/running"
    shown.press("down")
    assert selected(shown) == "podgroup/running"


def test_tables_open_into_each_other_and_close() -> None:
    shown = screen()
    shown.press("down")
    shown.press("enter")
    assert title(shown) == "Members of PodGroup default/running: 1 of 2"
    shown.press("back")
    assert title(shown) == "Gangs: 2 of 2"
    shown.press("next")
    assert title(shown) == "By rack: 1 of 2"
    shown.press("enter")
    assert title(shown) == "Nodes of rack r000: 1 of 2"
    shown.press("down")
    shown.press("enter")
    assert title(shown) == "Pods of node n0001: 1 of 2"
    for _ in range(3):
        shown.press("back")
    assert title(shown) == "By rack: 1 of 2"
    shown.press("next")
    assert title(shown) == "Nodes: 1 of 4"
    shown.press("next")
    assert title(shown) == "Gangs: 1 of 2"
    shown.press("previous")
    assert title(shown) == "Nodes: 1 of 4"


def test_rows_are_sorted_by_any_column() -> None:
    shown = screen()
    shown.press("previous")
    for _ in range(2):
        shown.press("sort")  # by the number of pods
    assert any("PODS▲" in text for text in lines(shown))
    shown.press("reverse")
    assert selected(shown) == "n0001"
    assert any("PODS▼" in text for text in lines(shown))
    for _ in range(10):
        shown.press("sort")
    shown.press("reverse")
    assert selected(shown).startswith("n000")


def test_gangs_of_several_namespaces_have_a_column_for_it() -> None:
    ours, *members = gang("train", 2, cpu="9")
    theirs, *others = gang("train", 2, cpu="9")
    for each in (theirs, *others):
        each["metadata"]["namespace"] = "team"
    objects = [node("n10", labels={RACK: "r10"}), node("n9", labels={RACK: "r9"})]
    objects += [ours, *members, theirs, *others]
    shown = TopScreen(cluster(*objects), summarize(*objects), now=0.0)
    texts = [text for text in lines(shown) if "podgroup/train" in text]
    assert sorted(text[2:].split()[0] for text in texts) == ["default", "team"]
    alone = TopScreen(cluster(*objects), summarize(*objects), now=0.0, namespace="team")
    assert selected(alone) == "podgroup/train"
    shown.press("next")
    assert selected(shown) == "r9"  # not r10: numbers count as such
    shown.press("next")
    assert selected(shown) == "n9"


def test_members_of_a_waiting_gang_say_how_it_is_explained() -> None:
    group, *members = gang("train-5d44697974-pgt-0", 2, cpu="9")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}
    group["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    objects = [node("n0"), group, *members]
    shown = TopScreen(cluster(*objects), summarize(*objects), now=0.0)
    shown.press("enter")
    assert title(shown) == "Members of Job default/train: 1 of 2"
    assert "Never: phalanx why job/train -n default" in lines(shown)


def test_a_thousand_nodes_are_scrolled_on_a_small_screen() -> None:
    shown = screen(nodes=1000)
    shown.press("previous")
    assert all(len(text) <= WIDTH for text in lines(shown))
    assert len(lines(shown)) == HEIGHT
    page = shown.rows_shown(HEIGHT)
    shown.press("page-down", page)
    assert selected(shown) == f"n{page:04}"
    shown.press("end", page)
    assert selected(shown) == "n0999"
    assert len([text for text in lines(shown) if text.startswith(("> n", "  n"))]) == page
    shown.press("home", page)
    assert selected(shown) == "n0000"


def test_selection_stays_within_a_table_that_shrinks() -> None:
    shown = screen()
    shown.press("previous")
    shown.press("end")
    one = node("n0000")
    seen = replace(summarize(one), note="only namespace a is visible")
    shown.update(cluster(one), seen, now=1.0)
    assert selected(shown) == "n0000"
    assert "Warning: only namespace a is visible" in lines(shown)
    shown.update(cluster(), summarize(), now=2.0)
    assert "Nodes: none" in lines(shown)
    assert shown.press("enter")
    assert not shown.press("quit")


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1b", ["back"]),
        ("jj\x1b[5~q", ["down", "down", "page-up", "quit"]),
        ("xz\t", ["next"]),
        ("\x1b[Z", ["previous"]),
        # Home and End of xterm, of tmux and screen, of rxvt, and in application mode.
        ("\x1b[H\x1b[1~\x1b[7~\x1bOH", ["home"] * 4),
        ("\x1b[F\x1b[4~\x1b[8~\x1bOF", ["end"] * 4),
        # Delete, F5 and an unknown function key do nothing; in particular they do not go back.
        ("\x1b[3~\x1b[15~\x1bOPs", ["sort"]),
    ],
)
def test_typed_characters_are_split_into_keys(typed: str, keys: list[str]) -> None:
    assert list(split_keys(typed)) == keys


def test_screen_ends_when_its_terminal_is_gone() -> None:
    controller, terminal = os.openpty()

    async def read_key(source: TextIO) -> str:
        keys = asyncio.Queue[str]()
        with _typed_keys(source, keys):
            os.close(controller)
            return await asyncio.wait_for(keys.get(), 10)

    with open(terminal) as source:
        assert asyncio.run(read_key(source)) == "quit"


def test_keys_are_handled_while_the_cluster_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.openpty()

    async def show() -> None:
        async def refresh() -> None:
            # The key is typed when the read has begun, which never ends.
            os.write(reader, b"q")
            await asyncio.Event().wait()

        await run_screen(screen(), refresh, interval=0.001)

    with os.fdopen(writer) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        asyncio.run(show())
    os.close(reader)
    assert "Gangs: 1 of 2" in capsys.readouterr().out


def test_screen_ends_with_the_error_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(run_screen(screen(), fail, interval=0.001))
