"""Programs that hand out credentials: how they are asked, believed, and complained about."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from phalanx.api.wire import Object
from phalanx.client import credentials as plugins
from phalanx.client.client import Client
from phalanx.client.credentials import (
    CredentialError,
    CredentialPlugin,
    PluginCredential,
    ServerTrust,
    parse_plugin,
)
from phalanx.client.http import HttpTransport
from phalanx.client.kubeconfig import KubeconfigError, create_client, load
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock, WallClock

from .certificates import OURS, authority, server_tls
from .test_http import serving
from .test_kubeconfig import config, encoded, saved, who

V1, V1BETA1 = plugins.EXEC_API_VERSIONS


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def script(folder: Path, text: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answering(
    folder: Path, status: Object, *, version: str = V1, kind: str = "ExecCredential"
) -> str:
    """A program that answers so, and counts how often it is asked."""
    answer = {"apiVersion": version, "kind": kind, "status": status}
    (folder / "answer").write_bytes(orjson.dumps(answer))
    return script(folder, f"echo x >> {folder}/runs\ncat {folder}/answer")


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


@asynccontextmanager
async def entering(
    plugin: CredentialPlugin, clock: Clock | None = None, page: Any = None
) -> AsyncIterator[Client]:
    """A client of a server whose pages say who asks."""
    async with serving(page or who) as url:
        client = Client(
            HttpTransport(url, credentials=PluginCredential(plugin, None, clock or WallClock()))
        )
        try:
            yield client
        finally:
            await client.close()


def test_its_token_is_shown_and_it_is_run_once_for_many_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with entering(CredentialPlugin(V1, answering(tmp_path, {"token": "t"}))) as client:
            told = await asyncio.gather(*(client.get_raw("/") for _ in range(5)))
            assert told == [b"- Bearer t"] * 5

    asyncio.run(scenario())
    assert runs(tmp_path) == 1


def test_what_has_expired_is_asked_for_again(tmp_path: Path) -> None:
    clock = ManualClock()
    status = {"token": "t", "expirationTimestamp": "1970-01-01T00:01:00Z"}

    async def scenario() -> None:
        async with entering(CredentialPlugin(V1, answering(tmp_path, status)), clock) as client:
            for time, expected in ((0.0, 1), (59.0, 1), (60.0, 2), (61.0, 3)):
                clock.time = time
                await client.get_raw("/")
                assert runs(tmp_path) == expected

    asyncio.run(scenario())


def test_what_the_server_does_not_accept_is_asked_for_again_at_once(tmp_path: Path) -> None:
    refused: list[str] = []

    async def door(request: web.Request) -> web.StreamResponse:
        if not refused:
            refused.append(request.method)
            return web.Response(status=401)
        return web.Response(text="in")

    async def scenario() -> None:
        plugin = CredentialPlugin(V1, answering(tmp_path, {"token": "t"}))
        async with entering(plugin, page=door) as client:
            assert await client.get_raw("/") == b"in"
            assert runs(tmp_path) == 2

    asyncio.run(scenario())


def test_its_certificate_is_shown(tmp_path: Path) -> None:
    tls = server_tls(authority(OURS), tmp_path)
    pair = authority(OURS).issue("alice")
    status = {"clientCertificateData": pair.pem, "clientKeyData": pair.key}

    async def scenario() -> None:
        async with serving(who, tls) as url:
            content = config(
                cluster={
                    "server": url,
                    "certificate-authority-data": encoded(authority(OURS).pem),
                },
                user={"exec": {"apiVersion": V1BETA1, "command": "./plugin"}},
            )
            answering(tmp_path, status, version=V1BETA1)
            client = create_client(load([saved(tmp_path / "config", content)]))
            assert await client.get_raw("/") == b"alice -"
            await client.close()

    asyncio.run(scenario())


def test_it_is_told_what_it_is_asked_for_and_what_it_may_know_of_the_cluster(
    tmp_path: Path,
) -> None:
    command = script(
        tmp_path,
        f'echo "$1 $GREETING" > {tmp_path}/told; echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
        f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": "t"}}}}\'',
    )
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    content = config(
        cluster={
            "certificate-authority-data": encoded("CA"),
            "extensions": [extension, {"name": "other", "extension": {"b": "c"}}],
        },
        user={
            "exec": {
                "apiVersion": V1, "command": command, "args": ["login"],
                "env": [{"name": "GREETING", "value": "hello"}], "provideClusterInfo": True,
                "interactiveMode": "Never",
            }
        },
    )  # fmt: skip
    access = load([saved(tmp_path / "config", content)])
    assert access.plugin is not None
    login = PluginCredential(access.plugin, None, WallClock())
    assert asyncio.run(login.get()).token == "t"
    assert (tmp_path / "told").read_text() == "login hello\n"
    cluster = {
        "server": "https://h:1", "certificate-authority-data": encoded("CA"),
        "config": {"audience": "a"},
    }  # fmt: skip
    assert orjson.loads((tmp_path / "info").read_text()) == {
        "apiVersion": V1, "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": cluster},
    }  # fmt: skip
    quiet = replace(access.plugin, cluster=None)
    assert orjson.loads(quiet.exec_info(interactive=False))["spec"] == {"interactive": False}


def test_a_command_without_a_slash_is_looked_for_on_the_path(tmp_path: Path) -> None:
    found = parse_plugin({"apiVersion": V1BETA1, "command": "aws"}, tmp_path, {})
    assert (found.command, found.interactive_mode, found.cluster) == ("aws", "IfAvailable", None)
    beside = parse_plugin({"apiVersion": V1BETA1, "command": "bin/aws"}, tmp_path, {})
    assert beside.command == str(tmp_path / "bin/aws")


@pytest.mark.parametrize(
    ("exec_", "sentence"),
    [
        ({"apiVersion": V1, "command": "x"}, "must say its interactiveMode"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}, "v1alpha1"),
        ({"apiVersion": V1BETA1}, "has no command"),
        ({"apiVersion": V1BETA1, "command": "x", "interactiveMode": "Now"}, "'Now', not one of"),
        ({"apiVersion": V1BETA1, "command": "x", "args": "y"}, "cannot be read: Expected `array"),
    ],
)
def test_what_cannot_be_a_plugin_is_told_when_the_kubeconfig_is_read(
    tmp_path: Path, exec_: Object, sentence: str
) -> None:
    path = saved(tmp_path / "config", config(user={"exec": exec_}))
    with pytest.raises(KubeconfigError, match=sentence) as raised:
        load([path])
    assert str(raised.value).startswith('exec of user "one" in ')


def test_what_is_not_installed_comes_with_the_hint_how_to_do_that() -> None:
    plugin = CredentialPlugin(
        V1, "no-such-program", install_hint="Install it with: brew install it"
    )

    async def scenario() -> None:
        async with entering(plugin) as client:
            with pytest.raises(Unreachable, match="cannot be run: No such file or directory; Inst"):
                await client.get_raw("/")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("exit 3", "failed with exit code 3"),
        ("echo hello", "did not answer an ExecCredential"),
        ("echo '{}'", "answered a nameless object"),
    ],
)
def test_what_goes_wrong_with_it_is_told(tmp_path: Path, text: str, sentence: str) -> None:
    login = PluginCredential(CredentialPlugin(V1, script(tmp_path, text)), None, WallClock())
    with pytest.raises(CredentialError, match=sentence):
        asyncio.run(login.get())


PAIR = {"clientCertificateData": "C", "clientKeyData": "K"}


@pytest.mark.parametrize(
    ("status", "version", "sentence"),
    [
        ({"token": "t"}, V1BETA1, "answered in the version"),
        ({}, V1, "neither a token nor a client certificate"),
        ({"clientKeyData": "K"}, V1, "only one of client certificate and key"),
        (PAIR, V1, "what .* answered cannot be used"),
        ({"token": "t", "expirationTimestamp": "soon"}, V1, "what .* answered cannot be used"),
    ],
)
def test_what_it_answers_must_make_sense(
    tmp_path: Path, status: Object, version: str, sentence: str
) -> None:
    plugin = CredentialPlugin(V1, answering(tmp_path, status, version=version))
    with pytest.raises(CredentialError, match=sentence):
        asyncio.run(PluginCredential(plugin, ServerTrust(insecure=True), WallClock()).get())


def test_one_that_wants_to_ask_somebody_needs_a_terminal(tmp_path: Path) -> None:
    plugin = CredentialPlugin(V1, answering(tmp_path, {"token": "t"}), interactive_mode="Always")
    with pytest.raises(CredentialError, match="there is no terminal"):
        asyncio.run(PluginCredential(plugin, None, WallClock()).get())


def test_one_that_is_broken_is_not_run_for_every_request(tmp_path: Path) -> None:
    command = script(tmp_path, f"echo x >> {tmp_path}/runs; exit 1")

    async def scenario() -> None:
        login = PluginCredential(CredentialPlugin(V1, command), None, WallClock())
        for _ in range(3):
            with pytest.raises(CredentialError, match="exit code 1"):
                await login.get()

    asyncio.run(scenario())
    assert runs(tmp_path) == 1


def test_one_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "PLUGIN_TIMEOUT", 0.1)
    login = PluginCredential(
        CredentialPlugin(V1, script(tmp_path, "exec sleep 60")), None, WallClock()
    )
    with pytest.raises(CredentialError, match="did not end within 0 s"):
        asyncio.run(login.get())
