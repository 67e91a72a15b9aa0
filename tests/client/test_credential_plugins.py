"""Credential plugins (exec in a kubeconfig): input, output, expiry and errors."""

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
from .test_kubeconfig import base64_of, config, identity_page, write_yaml

V1, V1BETA1 = plugins.EXEC_API_VERSIONS


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


def plugin_script(folder: Path, text: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def plugin_printing(
    folder: Path, status: Object, *, version: str = V1, kind: str = "ExecCredential"
) -> str:
    """Write a plugin that prints this status and counts its runs."""
    answer = {"apiVersion": version, "kind": kind, "status": status}
    (folder / "answer").write_bytes(orjson.dumps(answer))
    return plugin_script(folder, f"echo x >> {folder}/runs\ncat {folder}/answer")


def run_count(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


@asynccontextmanager
async def client_with_plugin(
    plugin: CredentialPlugin, clock: Clock | None = None, page: Any = None
) -> AsyncIterator[Client]:
    """A client with a plugin's credential, connected to a server that answers with the user."""
    async with serving(page or identity_page) as url:
        client = Client(
            HttpTransport(url, credentials=PluginCredential(plugin, None, clock or WallClock()))
        )
        try:
            yield client
        finally:
            await client.close()


def test_plugin_runs_once_and_its_token_is_sent_with_many_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with client_with_plugin(
            CredentialPlugin(V1, plugin_printing(tmp_path, {"token": "t"}))
        ) as client:
            replies = await asyncio.gather(*(client.get_raw("/") for _ in range(5)))
            assert replies == [b"- Bearer t"] * 5

    asyncio.run(scenario())
    assert run_count(tmp_path) == 1


def test_plugin_runs_again_when_its_credential_has_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    status = {"token": "t", "expirationTimestamp": "1970-01-01T00:01:00Z"}

    async def scenario() -> None:
        async with client_with_plugin(
            CredentialPlugin(V1, plugin_printing(tmp_path, status)), clock
        ) as client:
            for time, expected in ((0.0, 1), (59.0, 1), (60.0, 2), (61.0, 3)):
                clock.time = time
                await client.get_raw("/")
                assert run_count(tmp_path) == expected

    asyncio.run(scenario())


def test_plugin_runs_again_at_once_when_the_server_answers_401(tmp_path: Path) -> None:
    rejected: list[str] = []

    async def page(request: web.Request) -> web.StreamResponse:
        if not rejected:
            rejected.append(request.method)
            return web.Response(status=401)
        return web.Response(text="in")

    async def scenario() -> None:
        plugin = CredentialPlugin(V1, plugin_printing(tmp_path, {"token": "t"}))
        async with client_with_plugin(plugin, page=page) as client:
            assert await client.get_raw("/") == b"in"
            assert run_count(tmp_path) == 2

    asyncio.run(scenario())


def test_certificate_of_the_plugin_is_presented(tmp_path: Path) -> None:
    tls = server_tls(authority(OURS), tmp_path)
    pair = authority(OURS).issue("alice")
    status = {"clientCertificateData": pair.pem, "clientKeyData": pair.key}

    async def scenario() -> None:
        async with serving(identity_page, tls) as url:
            kubeconfig = config(
                cluster={
                    "server": url,
                    "certificate-authority-data": base64_of(authority(OURS).pem),
                },
                user={"exec": {"apiVersion": V1BETA1, "command": "./plugin"}},
            )
            plugin_printing(tmp_path, status, version=V1BETA1)
            access = load([write_yaml(tmp_path / "config", kubeconfig)])
            client = create_client(access, allow_exec=True)
            assert await client.get_raw("/") == b"alice -"
            await client.close()

    asyncio.run(scenario())


def test_client_runs_a_plugin_only_if_allowed(tmp_path: Path) -> None:
    plugin_printing(tmp_path, {"token": "t"})
    exec_ = {"apiVersion": V1BETA1, "command": "./plugin"}
    access = load([write_yaml(tmp_path / "config", config(user={"exec": exec_}))])
    with pytest.raises(KubeconfigError, match="pass allow_exec=True"):
        create_client(access)
    assert not (tmp_path / "runs").exists()


def test_plugin_receives_its_arguments_environment_and_cluster_info(
    tmp_path: Path,
) -> None:
    command = plugin_script(
        tmp_path,
        f'echo "$1 $GREETING" > {tmp_path}/args; echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
        f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": "t"}}}}\'',
    )
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    kubeconfig = config(
        cluster={
            "certificate-authority-data": base64_of("CA"),
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
    client_config = load([write_yaml(tmp_path / "config", kubeconfig)])
    assert client_config.plugin is not None
    credential = PluginCredential(client_config.plugin, None, WallClock())
    assert asyncio.run(credential.get()).token == "t"
    assert (tmp_path / "args").read_text() == "login hello\n"
    cluster = {
        "server": "https://h:1", "certificate-authority-data": base64_of("CA"),
        "config": {"audience": "a"},
    }  # fmt: skip
    assert orjson.loads((tmp_path / "info").read_text()) == {
        "apiVersion": V1, "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": cluster},
    }  # fmt: skip
    without_cluster = replace(client_config.plugin, cluster=None)
    assert orjson.loads(without_cluster.exec_info(interactive=False))["spec"] == {
        "interactive": False
    }


def test_command_without_a_slash_is_resolved_on_the_path(tmp_path: Path) -> None:
    found = parse_plugin({"apiVersion": V1BETA1, "command": "aws"}, tmp_path, {})
    assert (found.command, found.interactive_mode, found.cluster) == ("aws", "IfAvailable", None)
    relative = parse_plugin({"apiVersion": V1BETA1, "command": "bin/aws"}, tmp_path, {})
    assert relative.command == str(tmp_path / "bin/aws")


@pytest.mark.parametrize(
    ("exec_", "message"),
    [
        ({"apiVersion": V1, "command": "x"}, "must say its interactiveMode"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}, "v1alpha1"),
        ({"apiVersion": V1BETA1}, "has no command"),
        ({"apiVersion": V1BETA1, "command": "x", "interactiveMode": "Now"}, "'Now', not one of"),
        ({"apiVersion": V1BETA1, "command": "x", "args": "y"}, "cannot be read: Expected `array"),
    ],
)
def test_invalid_plugin_is_reported_when_the_kubeconfig_is_loaded(
    tmp_path: Path, exec_: Object, message: str
) -> None:
    path = write_yaml(tmp_path / "config", config(user={"exec": exec_}))
    with pytest.raises(KubeconfigError, match=message) as raised:
        load([path])
    assert str(raised.value).startswith('exec of user "one" in ')


def test_missing_plugin_is_reported_with_its_install_hint() -> None:
    plugin = CredentialPlugin(
        V1, "no-such-program", install_hint="Install it with: brew install it"
    )

    async def scenario() -> None:
        async with client_with_plugin(plugin) as client:
            with pytest.raises(Unreachable, match="cannot be run: No such file or directory; Inst"):
                await client.get_raw("/")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 3", "failed with exit code 3"),
        ("echo hello", "did not print an ExecCredential"),
        ("echo '{}'", "printed a nameless object"),
    ],
)
def test_failing_plugin_is_reported(tmp_path: Path, text: str, message: str) -> None:
    credential = PluginCredential(
        CredentialPlugin(V1, plugin_script(tmp_path, text)), None, WallClock()
    )
    with pytest.raises(CredentialError, match=message):
        asyncio.run(credential.get())


PAIR = {"clientCertificateData": "C", "clientKeyData": "K"}


@pytest.mark.parametrize(
    ("status", "version", "message"),
    [
        ({"token": "t"}, V1BETA1, "printed an ExecCredential of version"),
        ({}, V1, "neither a token nor a client certificate"),
        ({"clientKeyData": "K"}, V1, "only one of client certificate and key"),
        (PAIR, V1, "the output of .* cannot be used"),
        (
            {"token": "t", "expirationTimestamp": "soon"},
            V1,
            "the output of .* cannot be used",
        ),
    ],
)
def test_invalid_credential_of_a_plugin_is_rejected(
    tmp_path: Path, status: Object, version: str, message: str
) -> None:
    plugin = CredentialPlugin(V1, plugin_printing(tmp_path, status, version=version))
    with pytest.raises(CredentialError, match=message):
        asyncio.run(PluginCredential(plugin, ServerTrust(insecure=True), WallClock()).get())


def test_interactive_plugin_needs_a_terminal(tmp_path: Path) -> None:
    plugin = CredentialPlugin(
        V1, plugin_printing(tmp_path, {"token": "t"}), interactive_mode="Always"
    )
    with pytest.raises(CredentialError, match="there is no terminal"):
        asyncio.run(PluginCredential(plugin, None, WallClock()).get())


def test_failing_plugin_does_not_run_for_every_request(tmp_path: Path) -> None:
    command = plugin_script(tmp_path, f"echo x >> {tmp_path}/runs; exit 1")

    async def scenario() -> None:
        credential = PluginCredential(CredentialPlugin(V1, command), None, WallClock())
        for _ in range(3):
            with pytest.raises(CredentialError, match="exit code 1"):
                await credential.get()

    asyncio.run(scenario())
    assert run_count(tmp_path) == 1


def test_plugin_that_exceeds_its_timeout_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "PLUGIN_TIMEOUT", 0.1)
    credential = PluginCredential(
        CredentialPlugin(V1, plugin_script(tmp_path, "exec sleep 60")), None, WallClock()
    )
    with pytest.raises(CredentialError, match="did not end within 0 s"):
        asyncio.run(credential.get())
