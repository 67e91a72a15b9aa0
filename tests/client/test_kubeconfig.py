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


def encoded(text: str) -> str:
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


def saved(path: Path, content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_inline_data_and_a_token_are_read(tmp_path: Path) -> None:
    content = config(
        cluster={"certificate-authority-data": encoded("CA")},
        user={
            "token": "t",
            "client-certificate-data": encoded("CERT"),
            "client-key-data": encoded("KEY"),
        },
        context={"namespace": "train"},
    )
    access = load([saved(tmp_path / "config", content)])
    assert access == ClientConfig("https://h:1", "CA", "t", "CERT", "KEY", "train")


def test_files_are_found_beside_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    for name in ("ca", "cert", "key", "token"):
        (tmp_path / "pki" / name).write_text(f"{name}\n")
    content = config(
        cluster={"certificate-authority": "pki/ca"},
        user={
            "client-certificate": "pki/cert",
            "client-key": str(tmp_path / "pki/key"),
            "tokenFile": "pki/token",
            "token": "overruled",
        },
    )
    access = load([saved(tmp_path / "config", content)])
    file = tmp_path / "pki/token"
    assert access == ClientConfig(
        "https://h:1", "ca\n", "token", "cert\n", "key\n", "default", token_file=file
    )


def test_a_context_can_be_named_and_a_user_left_out(tmp_path: Path) -> None:
    content = config()
    content["contexts"].append({"name": "two", "context": {"cluster": "one"}})
    assert load([saved(tmp_path / "config", content)], "two") == ClientConfig("https://h:1")


def test_of_several_files_the_first_to_say_something_is_right(tmp_path: Path) -> None:
    first = config(user={"token": "first"})
    del first["current-context"]
    second = config(user={"token": "second"}, cluster={"server": "https://h:2"})
    second["current-context"] = "both"
    second["contexts"] = [{"name": "both", "context": {"cluster": "two", "user": "one"}}]
    second["clusters"][0]["name"] = "two"
    paths = [tmp_path / "missing", saved(tmp_path / "a", first), saved(tmp_path / "b", second)]
    assert load(paths) == ClientConfig("https://h:2", token="first")


def test_the_environment_says_where_to_look_before_the_caller_does() -> None:
    default = Path("/default")
    assert kubeconfig_paths({}, default) == [default]
    assert kubeconfig_paths({"KUBECONFIG": ""}, default) == [default]
    assert kubeconfig_paths({"KUBECONFIG": "/a::/b"}, default) == [Path("/a"), Path("/b")]


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(ClientConfig("https://h:1", token="hidden", key="hidden"))


@pytest.mark.parametrize(
    ("content", "sentence"),
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
        (config(user={"client-certificate-data": encoded("C")}), "both client-certificate and"),
        (
            config(
                cluster={
                    "insecure-skip-tls-verify": True,
                    "certificate-authority-data": encoded("C"),
                }
            ),
            "says not to use it",
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
def test_what_is_wrong_is_said_in_one_sentence(
    tmp_path: Path, content: object, sentence: str
) -> None:
    with pytest.raises(KubeconfigError, match=sentence) as raised:
        load([saved(tmp_path / "config", content)])
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_yaml_or_no_text_or_not_there_is_told(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken", tmp_path / "binary"
    broken.write_text("a: [\nb")
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(KubeconfigError, match="broken is not valid YAML in line 2"):
        load([broken])
    with pytest.raises(KubeconfigError, match="binary cannot be read"):
        load([binary])
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig at .*x or .*y"):
        load([tmp_path / "x", tmp_path / "y"])


def test_what_is_written_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    path.chmod(0o644)
    write(path, "https://127.0.0.1:6443", "CA", "secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert load([path]) == ClientConfig("https://127.0.0.1:6443", "CA", "secret")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing" / "config", "https://h:1", "CA", "t")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KubeconfigError, match="cannot be written: Is a directory"):
        write(tmp_path / "folder", "https://h:1", "CA", "t")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


async def who(request: web.Request) -> web.StreamResponse:
    """The name on the client's certificate, and its token."""
    assert request.transport is not None
    shown = request.transport.get_extra_info("peercert") or {}
    name = dict(pair for part in shown.get("subject", ()) for pair in part).get("commonName", "-")
    return web.Response(text=f"{name} {request.headers.get('Authorization', '-')}")


async def asked(access: ClientConfig) -> str:
    client = create_client(access)
    try:
        return (await client.get_raw("/")).decode()
    finally:
        await client.close()


def test_connecting_shows_the_credentials_and_checks_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(who, server_tls(authority(OURS), tmp_path)) as url:
            ours, ca = authority(OURS).issue("alice"), authority(OURS).pem
            assert await asked(ClientConfig(url, ca, "t")) == "- Bearer t"
            assert await asked(ClientConfig(url, ca, "", ours.pem, ours.key)) == "alice -"
            assert await asked(ClientConfig(url, insecure=True)) == "- -"
            for untrusted in (ClientConfig(url), ClientConfig(url, authority(THEIRS).pem)):
                with pytest.raises(Unreachable, match="certificate"):
                    await asked(untrusted)

    asyncio.run(scenario())


def test_connecting_without_tls_works() -> None:
    async def scenario() -> None:
        async with serving(who) as url:
            assert await asked(ClientConfig(url, token="t")) == "- Bearer t"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "access",
    [
        ClientConfig("https://h:1", ca="no PEM"),
        ClientConfig("https://h:1", certificate="no", key="PEM"),
    ],
)
def test_certificates_that_are_none_are_told(access: ClientConfig) -> None:
    with pytest.raises(KubeconfigError, match="the certificates for https://h:1 cannot be used"):
        create_client(access)


def service_account(folder: Path) -> dict[str, str]:
    """What a pod finds in its environment and in a folder."""
    for name, text in {"token": "first\n", "ca.crt": "CA", "namespace": "train"}.items():
        (folder / name).write_text(text)
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_of_a_cluster_finds_its_server(tmp_path: Path) -> None:
    environment = service_account(tmp_path)
    assert load_in_cluster(environment, tmp_path) == ClientConfig(
        "https://10.0.0.1:443", "CA", "first", namespace="train", token_file=tmp_path / "token"
    )
    six = load_in_cluster({**environment, "KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert six is not None
    assert six.server == "https://[fd00::1]:443"


def test_whoever_is_no_pod_finds_none(tmp_path: Path) -> None:
    assert load_in_cluster(service_account(tmp_path), tmp_path / "nowhere") is None
    assert load_in_cluster({}, tmp_path) is None


def test_a_service_account_that_is_not_whole_is_told(tmp_path: Path) -> None:
    environment = service_account(tmp_path)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(KubeconfigError, match="the service account cannot be read"):
        load_in_cluster(environment, tmp_path)


def test_a_token_in_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_TOKEN_FILE_TTL", 0.0)
    file = tmp_path / "token"

    async def scenario() -> None:
        async with serving(who) as url:
            client = create_client(ClientConfig(url, token="first", token_file=file))
            told = []
            for text in ("", "second\n", "third\n"):
                file.write_text(text)
                told.append((await client.get_raw("/")).decode())
            file.unlink()
            told.append((await client.get_raw("/")).decode())
            await client.close()
            assert told == [f"- Bearer {name}" for name in ("first", "second", "third", "third")]

    asyncio.run(scenario())


def test_a_token_that_is_refused_is_read_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"

    async def door(request: web.Request) -> web.StreamResponse:
        token = request.headers["authorization"].removeprefix("Bearer ")
        if token == "old":
            file.write_text("new")
        return web.Response(status=200 if token == "new" else 401, text=token)

    async def scenario() -> None:
        file.write_text("old")
        async with serving(door) as url:
            client = create_client(ClientConfig(url, token="old", token_file=file))
            assert await client.get_raw("/") == b"new"
            file.write_text("worse")
            await client.close()
            client = create_client(ClientConfig(url, token="worse", token_file=file))
            with pytest.raises(Unauthorized):
                await client.get_raw("/")
            await client.close()

    asyncio.run(scenario())


def test_the_name_in_the_certificate_may_be_another(tmp_path: Path) -> None:
    tls = server_tls(authority(OURS), tmp_path, "127.0.0.9")

    async def scenario() -> None:
        async with serving(who, tls) as url:
            content = config(
                cluster={
                    "server": url,
                    "certificate-authority-data": encoded(authority(OURS).pem),
                    "tls-server-name": "127.0.0.9",
                }
            )
            access = load([saved(tmp_path / "config", content)])
            client = create_client(access)
            assert await client.get_raw("/") == b"- -"
            await client.close()
            client = create_client(replace(access, tls_server_name=""))
            with pytest.raises(Unreachable, match="its certificate is not trusted"):
                await client.get_raw("/")
            await client.close()

    asyncio.run(scenario())
