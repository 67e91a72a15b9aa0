from __future__ import annotations

from phalanx.api.wire import Reply, Request, User
from phalanx.client.transports import InProcess, Unreachable

from .conftest import run

ADMIN = User("admin", ("system:masters",))


def test_inside_one_process_a_body_is_handed_over_and_the_user_is_the_transports() -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Reply:
        seen.append(request)
        return Reply(200, b"{}")

    body = {"kind": "Pod"}
    transport = InProcess(handler, ADMIN)
    assert run(transport.send(Request("POST", "/x", "a=b", {"accept": "y"}, body))) == Reply(
        200, b"{}"
    )
    run(transport.close())
    assert seen == [Request("POST", "/x", "a=b", {"accept": "y"}, body, ADMIN)]
    assert seen[0].body is body


def test_a_server_that_is_not_there_is_told_in_one_sentence() -> None:
    error = Unreachable("https://127.0.0.1:6443", "Connection refused")
    assert str(error) == "cannot reach https://127.0.0.1:6443: Connection refused"
    assert (error.server, error.cause) == ("https://127.0.0.1:6443", "Connection refused")
