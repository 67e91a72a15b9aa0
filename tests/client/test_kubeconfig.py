from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from phalanx.api.errors import Unauthorized
from phalanx.api.wire import Object
from phalanx.client import credentials
from phalanx.client.kubeconfig import (
    ClientConfig,
    KubeconfigError,
    create_client,
    kubeconfig_paths,
    load,
    load_in_cluster,
    write,
)
from phalanx.client.transports import Unreachable

from .certificates import OURS, THEIRS, authority, server_tls
from .test_http import serving


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def config(
    *, cluster: Any = None, user: Any = None, context: Any = None, name: str = "one"
) -> Object:
    return {
        "clusters": [{"name": name, "cluster": {"server": "https://h:1", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
        "current-context": name,
    }


def write_yaml(path: Path, kubeconfig: object) -> Path:
    path.write_text(yaml.safe_dump(kubeconfig))
    return path


def test_inline_data_and_token_are_loaded(tmp_path: Path) -> None:
    kubeconfig = config(
        cluster={"certificate-authority-data": base64_of("CA")},
        user={
            "token": "t",
            "client-certificate-data": base64_of("CERT"),
            "client-key-data": base64_of("KEY"),
        },
        context={"namespace": "train"},
    )
    client_config = load([write_yaml(tmp_path / "config", kubeconfig)])
    assert client_config == ClientConfig("https://h:1", "CA", "t", "CERT", "KEY", "train")


def test_relative_files_are_resolved_from_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    for name in ("ca", "cert", "key", "token"):
        (tmp_path / "pki" / name).write_text(f"{name}\n")
    kubeconfig = config(
        cluster={"certificate-authority": "pki/ca"},
        user={
            "client-certificate": "pki/cert",
            "client-key": str(tmp_path / "pki/key"),
            "tokenFile": "pki/token",
            "token": "overruled",
        },
    )
    client_config = load([write_yaml(tmp_path / "config", kubeconfig)])
    file = tmp_path / "pki/token"
    assert client_config == ClientConfig(
        "https://h:1", "ca\n", "token", "cert\n", "key\n", "default", token_file=file
    )


def test_named_context_without_a_user_is_loaded(tmp_path: Path) -> None:
    kubeconfig = config()
    kubeconfig["contexts"].append({"name": "two", "context": {"cluster": "one"}})
    assert load([write_yaml(tmp_path / "config", kubeconfig)], "two") == ClientConfig("https://h:1")


def test_first_of_several_files_wins(tmp_path: Path) -> None:
    first = config(user={"token": "first"})
    del first["current-context"]
    second = config(user={"token": "second"}, cluster={"server": "https://h:2"})
    second["current-context"] = "both"
    second["contexts"] = [{"name": "both", "context": {"cluster": "two", "user": "one"}}]
    second["clusters"][0]["name"] = "two"
    paths = [
        tmp_path / "missing",
        write_yaml(tmp_path / "a", first),
        write_yaml(tmp_path / "b", second),
    ]
    assert load(paths) == ClientConfig("https://h:2", token="first")


def test_kubeconfig_variable_overrides_the_default_path() -> None:
    default = Path("/default")
    assert kubeconfig_paths({}, default) == [default]
    assert kubeconfig_paths({"KUBECONFIG": ""}, default) == [default]
    assert kubeconfig_paths({"KUBECONFIG": "/a::/b"}, default) == [Path("/a"), Path("/b")]


def test_secrets_are_not_in_the_repr() -> None:
    assert "hidden" not in repr(ClientConfig("https://h:1", token="hidden", key="hidden"))


@pytest.mark.parametrize(
    ("kubeconfig", "message"),
    [
        (config(user={"exec": {"command": "aws"}}), 'exec of user "one" in .* has the apiVersion'),
        (config(user={"auth-provider": {"name": "x"}}), "auth-provider of user"),
        (config(user={"username": "u", "password": "p"}), "username of user"),
        (config(user={"as": "root"}), "as of user"),
        (config(cluster={"proxy-url": "http://p"}), "proxy-url of cluster"),
        (config(cluster={"server": ""}), 'cluster "one" in .* has no server'),
        (config(cluster={"server": "h:1"}), "not an http or https URL"),
        (config(cluster={"server": "https:///x"}), "not an http or https URL"),
        (config(cluster={"server": 7}), "server of cluster .* is not a text"),
        (config(cluster={"certificate-authority": "nowhere"}), "nowhere, which cannot be read"),
        (config(cluster={"certificate-authority-data": "%"}), "is not base64"),
        (config(user={"client-certificate-data": base64_of("C")}), "both client-certificate and"),
        (
            config(
                cluster={
                    "insecure-skip-tls-verify": True,
                    "certificate-authority-data": base64_of("C"),
                }
            ),
            "and insecure-skip-tls-verify",
        ),
        (config(context={"user": "two"}), 'has no user "two"'),
        (config(context={"cluster": "two"}), 'has no cluster "two"'),
        ({**config(), "current-context": "two"}, 'has no context "two"'),
        ({**config(), "current-context": ""}, "has no current-context"),
        ([], "has no current-context"),
        (["x"], "is not a kubeconfig"),
        ("text", "is not a kubeconfig"),
    ],
)
def test_invalid_kubeconfig_is_reported_in_one_line(
    tmp_path: Path, kubeconfig: object, message: str
) -> None:
    with pytest.raises(KubeconfigError, match=message) as raised:
        load([write_yaml(tmp_path / "config", kubeconfig)])
    assert "\n" not in str(raised.value)


def test_unreadable_or_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken", tmp_path / "binary"
    broken.write_text("a: [\nb")
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(
        KubeconfigError, match="broken is not valid YAML: line 2, column 2: expected"
    ):
        load([broken])
    with pytest.raises(KubeconfigError, match="binary cannot be read"):
        load([binary])
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig at .*x or .*y"):
        load([tmp_path / "x", tmp_path / "y"])


def test_written_kubeconfig_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    path.chmod(0o644)
    write(path, "https://127.0.0.1:6443", "CA", token="secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert load([path]) == ClientConfig("https://127.0.0.1:6443", "CA", "secret")
    assert list(tmp_path.iterdir()) == [path]


def test_failing_write_is_reported_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing" / "config", "https://h:1", "CA", token="t")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KubeconfigError, match="cannot be written: Is a directory"):
        write(tmp_path / "folder", "https://h:1", "CA", token="t")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


async def identity_page(request: web.Request) -> web.StreamResponse:
    """Answer with the common name of the client's certificate and its Authorization header."""
    assert request.transport is not None
    certificate = request.transport.get_extra_info("peercert") or {}
    name = dict(pair for part in certificate.get("subject", ()) for pair in part).get(
        "commonName", "-"
    )
    return web.Response(text=f"{name} {request.headers.get('Authorization', '-')}")


async def get_identity(client_config: ClientConfig) -> str:
    client = create_client(client_config)
    try:
        return (await client.get_raw("/")).decode()
    finally:
        await client.close()


def test_client_presents_its_credentials_and_verifies_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(identity_page, server_tls(authority(OURS), tmp_path)) as url:
            ours, ca = authority(OURS).issue("alice"), authority(OURS).pem
            assert await get_identity(ClientConfig(url, ca, "t")) == "- Bearer t"
            assert await get_identity(ClientConfig(url, ca, "", ours.pem, ours.key)) == "alice -"
            assert await get_identity(ClientConfig(url, insecure=True)) == "- -"
            for untrusted in (ClientConfig(url), ClientConfig(url, authority(THEIRS).pem)):
                with pytest.raises(Unreachable, match="certificate"):
                    await get_identity(untrusted)

    asyncio.run(scenario())


def test_client_connects_without_tls() -> None:
    async def scenario() -> None:
        async with serving(identity_page) as url:
            assert await get_identity(ClientConfig(url, token="t")) == "- Bearer t"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "client_config",
    [
        ClientConfig("https://h:1", ca="no PEM"),
        ClientConfig("https://h:1", certificate="no", key="PEM"),
    ],
)
def test_invalid_certificates_are_reported(client_config: ClientConfig) -> None:
    with pytest.raises(KubeconfigError, match="the certificates for https://h:1 cannot be used"):
        create_client(client_config)


def service_account(folder: Path) -> dict[str, str]:
    """Write a service account's files and return the environment of its pod."""
    for name, text in {"token": "first\n", "ca.crt": "CA", "namespace": "train"}.items():
        (folder / name).write_text(text)
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_in_cluster_config_is_loaded_from_the_service_account(tmp_path: Path) -> None:
    environment = service_account(tmp_path)
    assert load_in_cluster(environment, tmp_path) == ClientConfig(
        "https://10.0.0.1:443", "CA", "first", namespace="train", token_file=tmp_path / "token"
    )
    over_ipv6 = load_in_cluster({**environment, "KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert over_ipv6 is not None
    assert over_ipv6.server == "https://[fd00::1]:443"


def test_in_cluster_config_is_none_outside_a_pod(tmp_path: Path) -> None:
    assert load_in_cluster(service_account(tmp_path), tmp_path / "nowhere") is None
    assert load_in_cluster({}, tmp_path) is None


def test_incomplete_service_account_is_reported(tmp_path: Path) -> None:
    environment = service_account(tmp_path)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(KubeconfigError, match="the service account cannot be read"):
        load_in_cluster(environment, tmp_path)


def test_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_TOKEN_FILE_TTL", 0.0)
    file = tmp_path / "token"

    async def scenario() -> None:
        async with serving(identity_page) as url:
            client = create_client(ClientConfig(url, token="first", token_file=file))
            replies = []
            for text in ("", "second\n", "third\n"):
                file.write_text(text)
                replies.append((await client.get_raw("/")).decode())
            file.unlink()
            replies.append((await client.get_raw("/")).decode())
            await client.close()
            assert replies == [f"- Bearer {name}" for name in ("first", "second", "third", "third")]

    asyncio.run(scenario())


def test_token_file_is_read_again_at_once_after_401(tmp_path: Path) -> None:
    file = tmp_path / "token"

    async def page(request: web.Request) -> web.StreamResponse:
        token = request.headers["authorization"].removeprefix("Bearer ")
        if token == "old":
            file.write_text("new")
        return web.Response(status=200 if token == "new" else 401, text=token)

    async def scenario() -> None:
        file.write_text("old")
        async with serving(page) as url:
            client = create_client(ClientConfig(url, token="old", token_file=file))
            assert await client.get_raw("/") == b"new"
            file.write_text("worse")
            await client.close()
            client = create_client(ClientConfig(url, token="worse", token_file=file))
            with pytest.raises(Unauthorized):
                await client.get_raw("/")
            await client.close()

    asyncio.run(scenario())


def test_tls_server_name_overrides_the_name_to_verify(tmp_path: Path) -> None:
    tls = server_tls(authority(OURS), tmp_path, "127.0.0.9")

    async def scenario() -> None:
        async with serving(identity_page, tls) as url:
            kubeconfig = config(
                cluster={
                    "server": url,
                    "certificate-authority-data": base64_of(authority(OURS).pem),
                    "tls-server-name": "127.0.0.9",
                }
            )
            client_config = load([write_yaml(tmp_path / "config", kubeconfig)])
            client = create_client(client_config)
            assert await client.get_raw("/") == b"- -"
            await client.close()
            client = create_client(replace(client_config, tls_server_name=""))
            with pytest.raises(Unreachable, match="its certificate is not trusted"):
                await client.get_raw("/")
            await client.close()

    asyncio.run(scenario())
