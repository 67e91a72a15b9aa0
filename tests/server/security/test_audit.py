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


class MemoryAuditLog(AuditLog):
    """An audit log that keeps its rows in memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda lines: None, clock)
        self.rows: list[Object] = []

    def _enqueue(self, row: Object) -> None:
        self.rows.append(orjson.loads(encode_line(row)))


async def start_audited_server() -> tuple[Api, MemoryAuditLog]:
    api = await Api.start()
    audit_log = MemoryAuditLog(api.server.context.clock)
    api.server.audit = audit_log
    return api, audit_log


def fields_of(row: Object, *fields: str) -> list[object]:
    return [row.get(field) for field in fields]


@in_virtual_time
async def test_write_is_logged_with_user_resource_and_code() -> None:
    api, audit_log = await start_audited_server()
    await api.create(POD, pod("a"))
    (row,) = audit_log.rows
    assert row == {
        "time": "2027-01-15T08:00:00Z", "id": row["id"], "user": "admin",
        "groups": ["system:masters", "system:authenticated"], "code": 201, "decision": "allow",
        "verb": "create", "group": "", "version": "v1", "resource": "pods",
        "namespace": "default", "name": "a",
    }  # fmt: skip


@in_virtual_time
async def test_reads_are_logged_only_if_they_are_forbidden() -> None:
    api, audit_log = await start_audited_server()
    await api.ask("GET", POD.url_path("default"))
    await api.ask("GET", "/version", user=ANONYMOUS)
    assert audit_log.rows == []
    await api.ask("GET", POD.url_path("default"), user=JOE)
    await api.ask("GET", "/metrics", user=ANONYMOUS)
    fields = ("user", "verb", "resource", "path", "code", "decision")
    assert [fields_of(row, *fields) for row in audit_log.rows] == [
        ["joe", "list", "pods", None, 403, "forbid"],
        ["system:anonymous", "get", None, "/metrics", 403, "forbid"],
    ]


@in_virtual_time
async def test_failed_writes_are_logged() -> None:
    api, audit_log = await start_audited_server()
    await api.delete(POD, "none")
    await api.ask("POST", POD.url_path("default"), b"{")
    assert [fields_of(row, "verb", "code", "decision") for row in audit_log.rows] == [
        ["delete", 404, "allow"], ["create", 400, "allow"],
    ]  # fmt: skip


@in_virtual_time
async def test_impersonation_is_logged_with_both_users() -> None:
    api, audit_log = await start_audited_server()
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    await make_role(api, "be-ann", {**rule, "resourceNames": ["ann"]})
    await grant(api, JOE, "be-ann")
    audit_log.rows.clear()
    as_ann = {"impersonate-user": "ann"}
    await api.ask("POST", POD.url_path("default"), pod("a"), user=JOE, headers=as_ann)
    as_bob = {"impersonate-user": "bob"}
    await api.ask("POST", POD.url_path("default"), pod("a"), user=JOE, headers=as_bob)
    assert [fields_of(row, "user", "actor", "code") for row in audit_log.rows] == [
        ["ann", "joe", 403], ["joe", None, 403],
    ]  # fmt: skip


@in_virtual_time
async def test_secrets_and_queries_are_never_logged() -> None:
    api, audit_log = await start_audited_server()
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"k": "hush"}}
    await api.create(SECRET, secret)
    headers = {"authorization": "Bearer hush", "cookie": "hush"}
    await api.ask("DELETE", SECRET.url_path("default", "s"), headers=headers, query={"x": "hush"})
    audit_log.record_refusal(Unauthorized(), {**headers, "host": "localhost"})
    assert b"hush" not in orjson.dumps(audit_log.rows)
    assert fields_of(audit_log.rows[-1], "code", "decision", "host") == [401, "forbid", "localhost"]


@in_virtual_time
async def test_response_carries_an_audit_id_that_the_client_may_set() -> None:
    api, audit_log = await start_audited_server()
    rejected = await api.ask("GET", POD.url_path("default", "none"))
    assert len(rejected.header_values("audit-id")) == 1
    chosen = await api.ask("POST", CONFIG_MAP.url_path("default"), {"metadata": {"name": "c"}},
                           headers={"audit-id": "mine-1"})  # fmt: skip
    assert (chosen.code, chosen.header_values("audit-id")) == (201, ["mine-1"])
    assert audit_log.rows[-1]["id"] == "mine-1"
    forged = await api.ask("GET", POD.url_path("default"), headers={"audit-id": "a\r\nb"})
    assert "\r" not in forged.header_values("audit-id")[0]


@in_virtual_time
async def test_newlines_in_names_do_not_break_the_line() -> None:
    api, audit_log = await start_audited_server()
    user = UserInfo("joe\r\n{}", ("system:authenticated",))
    await api.ask("DELETE", "/api/v1/namespaces/default/pods/a%0D%0Ab", user=user)
    assert b"\n" not in orjson.dumps(audit_log.rows[-1])


def test_audit_files_are_rotated_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit.log", max_bytes=10, max_rotated=2)
    for number in range(5):
        file.append([f"line {number}, long\n".encode()])
    found = {path.name: path.read_text() for path in sorted(tmp_path.iterdir())}
    assert found == {
        "audit.log": "line 4, long\n", "audit.log.1": "line 3, long\n",
        "audit.log.2": "line 2, long\n",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_pending_rows_are_written_on_close(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scenario() -> None:
        api = await Api.start()
        api.server.audit = AuditLog(AuditFile(path).append, api.server.context.clock)
        await api.create(POD, pod("a"))
        api.server.audit.close()

    asyncio.run(scenario())
    assert orjson.loads(path.read_bytes())["name"] == "a"


@pytest.mark.parametrize("user", [ADMIN, JOE], ids=str)
@in_virtual_time
async def test_server_without_an_audit_log_serves_requests(user: UserInfo) -> None:
    api = await Api.start()
    assert api.server.audit is None
    await api.ask("GET", POD.url_path("default"), user=user)
