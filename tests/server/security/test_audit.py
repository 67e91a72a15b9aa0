from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import orjson
import pytest

from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import CONFIG_MAP, POD, SECRET
from phalanx.api.wire import ANONYMOUS, Object, UserInfo
from phalanx.clock import Clock
from phalanx.server.security.audit import AuditFile, AuditLog, encode_line
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.server.api import Api
from tests.server.security.rbac_fixtures import JOE, grant, make_role


class Pad(AuditLog):
    """An audit log on a pad of paper: what is noted is there at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda lines: None, clock)
        self.rows: list[Object] = []

    def _enqueue(self, row: Object) -> None:
        self.rows.append(orjson.loads(encode_line(row)))


async def audited() -> tuple[Api, Pad]:
    api = await Api.start()
    pad = Pad(api.server.context.clock)
    api.server.audit = pad
    return api, pad


def said(row: Object, *fields: str) -> list[object]:
    return [row.get(field) for field in fields]


@in_virtual_time
async def test_a_write_is_noted_with_who_what_where_and_how_it_ended() -> None:
    api, pad = await audited()
    await api.create(POD, pod("a"))
    (row,) = pad.rows
    assert row == {
        "time": "2027-01-15T08:00:00Z", "id": row["id"], "user": "admin",
        "groups": ["system:masters", "system:authenticated"], "code": 201, "decision": "allow",
        "verb": "create", "group": "", "version": "v1", "resource": "pods",
        "namespace": "default", "name": "a",
    }  # fmt: skip


@in_virtual_time
async def test_reads_are_not_noted_unless_they_are_refused() -> None:
    api, pad = await audited()
    await api.ask("GET", POD.url_path("default"))
    await api.ask("GET", "/version", user=ANONYMOUS)
    assert pad.rows == []
    await api.ask("GET", POD.url_path("default"), user=JOE)
    await api.ask("GET", "/metrics", user=ANONYMOUS)
    fields = ("user", "verb", "resource", "path", "code", "decision")
    assert [said(row, *fields) for row in pad.rows] == [
        ["joe", "list", "pods", None, 403, "forbid"],
        ["system:anonymous", "get", None, "/metrics", 403, "forbid"],
    ]


@in_virtual_time
async def test_what_failed_for_other_reasons_is_noted_too() -> None:
    api, pad = await audited()
    await api.delete(POD, "none")
    await api.ask("POST", POD.url_path("default"), b"{")
    assert [said(row, "verb", "code", "decision") for row in pad.rows] == [
        ["delete", 404, "allow"], ["create", 400, "allow"],
    ]  # fmt: skip


@in_virtual_time
async def test_whoever_acts_as_somebody_else_is_noted_as_both() -> None:
    api, pad = await audited()
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    await make_role(api, "be-ann", {**rule, "resourceNames": ["ann"]})
    await grant(api, JOE, "be-ann")
    pad.rows.clear()
    as_ann = {"impersonate-user": "ann"}
    await api.ask("POST", POD.url_path("default"), pod("a"), user=JOE, headers=as_ann)
    as_bob = {"impersonate-user": "bob"}
    await api.ask("POST", POD.url_path("default"), pod("a"), user=JOE, headers=as_bob)
    assert [said(row, "user", "actor", "code") for row in pad.rows] == [
        ["ann", "joe", 403], ["joe", None, 403],
    ]  # fmt: skip


@in_virtual_time
async def test_no_secret_and_no_query_is_ever_noted() -> None:
    api, pad = await audited()
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"k": "hush"}}
    await api.create(SECRET, secret)
    headers = {"authorization": "Bearer hush", "cookie": "hush"}
    await api.ask("DELETE", SECRET.url_path("default", "s"), headers=headers, query={"x": "hush"})
    pad.record_refusal(Unauthorized(), {**headers, "host": "localhost"})
    assert b"hush" not in orjson.dumps(pad.rows)
    assert said(pad.rows[-1], "code", "decision", "host") == [401, "forbid", "localhost"]


@in_virtual_time
async def test_a_refusal_carries_its_number_and_a_client_may_choose_it() -> None:
    api, pad = await audited()
    refused = await api.ask("GET", POD.url_path("default", "none"))
    assert len(refused.header_values("audit-id")) == 1
    chosen = await api.ask("POST", CONFIG_MAP.url_path("default"), {"metadata": {"name": "c"}},
                           headers={"audit-id": "mine-1"})  # fmt: skip
    assert (chosen.code, chosen.header_values("audit-id")) == (201, ["mine-1"])
    assert pad.rows[-1]["id"] == "mine-1"
    forged = await api.ask("GET", POD.url_path("default"), headers={"audit-id": "a\r\nb"})
    assert "\r" not in forged.header_values("audit-id")[0]


@in_virtual_time
async def test_a_line_is_one_line_whatever_a_name_holds() -> None:
    api, pad = await audited()
    user = UserInfo("joe\r\n{}", ("system:authenticated",))
    await api.ask("DELETE", "/api/v1/namespaces/default/pods/a%0D%0Ab", user=user)
    assert b"\n" not in orjson.dumps(pad.rows[-1])


def test_a_full_file_is_put_aside_and_all_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", max_bytes=10, max_rotated=2)
    for number in range(5):
        file.append([f"line {number}, long\n".encode()])
    found = {path.name: path.read_text() for path in sorted(tmp_path.iterdir())}
    assert found == {
        "audit.log": "line 4, long\n", "audit.log.1": "line 3, long\n",
        "audit.log.2": "line 2, long\n",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_what_is_noted_is_written_at_the_end_at_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scenario() -> None:
        api = await Api.start()
        api.server.audit = AuditLog(AuditFile(path).append, api.server.context.clock)
        await api.create(POD, pod("a"))
        api.server.audit.close()

    asyncio.run(scenario())
    assert orjson.loads(path.read_bytes())["name"] == "a"


@pytest.mark.parametrize("who", [ADMIN, JOE], ids=str)
@in_virtual_time
async def test_without_a_log_nothing_is_noted(who: UserInfo) -> None:
    api = await Api.start()
    assert api.server.audit is None
    await api.ask("GET", POD.url_path("default"), user=who)
