"""Reads and writes kubeconfig files, and finds the in-cluster configuration.

Several files are merged; the first one that sets a field wins. Fields that select the server or the
user and are not supported are errors, never ignored. An exec plugin is a program that a kubeconfig
names: it runs only with `allow_exec`, in `credentials`, at the first request.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.credentials import (
    EXEC_EXTENSION,
    Credential,
    CredentialPlugin,
    CredentialSource,
    InvalidPlugin,
    PluginCredential,
    ServerTrust,
    StaticCredential,
    TokenFileCredential,
    parse_plugin,
)
from phalanx.client.transports import Transport
from phalanx.clock import WallClock
from phalanx.yaml_files import describe_error

#: Fields that select the server or the user and that we do not support.
_UNSUPPORTED = {
    "context": (),
    "cluster": ("proxy-url",),
    "user": ("auth-provider", "username", "password", "as", "as-uid", "as-groups"),
}


#: Cluster fields that an exec plugin receives, in addition to the CA.
_PLUGIN_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "disable-compression",
)
#: Where a pod finds the credentials of its service account.
SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeconfigError(Exception):
    """A kubeconfig is missing, malformed or unsupported; the message is one sentence."""


class ExecNotAllowed(KubeconfigError):
    """The kubeconfig names an exec plugin, which was not allowed to run."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A server and a credential for it; `ca`, `certificate` and `key` are PEM texts.

    A token file is read again regularly; a `plugin` provides credentials that are not stored here.
    `tls_server_name` is the name in the server's certificate if it differs from the URL.
    """

    server: str
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    namespace: str = "default"
    insecure: bool = False
    token_file: Path | None = None
    plugin: CredentialPlugin | None = None
    tls_server_name: str = ""

    @property
    def needed_plugin(self) -> CredentialPlugin | None:
        """The exec plugin, unless another credential comes first."""
        is_enough = self.token or self.token_file or self.certificate
        return None if is_enough else self.plugin


def kubeconfig_paths(environment: Mapping[str, str], default: Path) -> list[Path]:
    """Return the files of $KUBECONFIG, or else the given default."""
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [default]


def load_in_cluster(
    environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT_DIRECTORY
) -> ClientConfig | None:
    """Return the configuration of a pod in a cluster, if this process runs in one."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not (folder / "token").exists():
        return None
    try:
        ca, namespace = ((folder / name).read_text() for name in ("ca.crt", "namespace"))
        token = (folder / "token").read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"the service account cannot be read: {error}") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClientConfig(server, ca, token, namespace=namespace.strip(), token_file=folder / "token")


def load(paths: Sequence[Path], context: str = "") -> ClientConfig:
    """Return the configuration of a context, by default the current one."""
    files = [_KubeconfigFile(path, _read_yaml(path)) for path in paths if path.exists()]
    if not files:
        raise KubeconfigError(f"there is no kubeconfig at {' or '.join(map(str, paths))}")
    currents = (file.content.get("current-context") for file in files)
    name = context or next(filter(None, currents), "")
    if not name:
        raise KubeconfigError(f"{files[0].path} has no current-context; name one with --context")
    chosen = _find_entry(files, "context", name)
    cluster = _find_entry(files, "cluster", chosen.text("cluster"))
    return _build_config(cluster, _find_user(files, chosen), chosen.text("namespace"))


def create_client(access: ClientConfig, *, allow_exec: bool = False) -> Client:
    """Return a client; the server is verified unless `insecure` is set."""
    return Client(create_transport(access, allow_exec=allow_exec))


def create_transport(access: ClientConfig, *, allow_exec: bool = False) -> Transport:
    """Return the transport to the server.

    Raises ExecNotAllowed if it needs an exec plugin and `allow_exec` is not set, and
    KubeconfigError for unusable certificates.
    """
    if access.needed_plugin and not allow_exec:
        raise ExecNotAllowed(
            f"the credential for {access.server} comes from the program "
            f"{access.needed_plugin.command}, which the kubeconfig names; pass allow_exec=True "
            "to run it"
        )
    # Imported late: aiohttp takes a quarter of a second, and commands that only write a kubeconfig
    # do not need it.
    from phalanx.client.http import HttpTransport

    try:
        login = _credential_source(access)
    except ValueError as error:
        raise KubeconfigError(
            f"the certificates for {access.server} cannot be used: {error}"
        ) from error
    return HttpTransport(access.server, credentials=login, server_name=access.tls_server_name)


def _credential_source(access: ClientConfig) -> CredentialSource:
    """Return the credential source. Raises ValueError."""
    is_private = access.server.startswith("https:")
    trust = ServerTrust(access.ca, access.insecure) if is_private else None
    tls = trust.ssl_context(access.certificate, access.key) if trust else None
    credential = Credential(access.token, tls)
    if access.token_file:
        return TokenFileCredential(access.token_file, credential)
    if access.needed_plugin:
        return PluginCredential(access.needed_plugin, trust, WallClock())
    return StaticCredential(credential)


def write(
    path: Path, server: str, ca_pem: str, token: str = "", name: str = "phalanx", *,
    client_certificate: tuple[str, str] | None = None,
) -> None:  # fmt: skip
    """Write a kubeconfig with one context atomically, readable by its owner only.

    The user has a token or a client certificate (certificate and key as PEM texts).
    """
    cluster = {"server": server, "certificate-authority-data": _base64(ca_pem)}
    user = {"token": token}
    if client_certificate:
        certificate, key = map(_base64, client_certificate)
        user = {"client-certificate-data": certificate, "client-key-data": key}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    try:
        write_atomically(path, yaml.safe_dump(content, sort_keys=False))
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _KubeconfigFile:
    path: Path
    content: Object


@dataclass(frozen=True, slots=True)
class _ConfigEntry:
    """One context, cluster or user entry, and the file to which its paths are relative."""

    title: str
    content: Object
    folder: Path

    def text(self, name: str) -> str:
        value = self.content.get(name) or ""
        if not isinstance(value, str):
            raise KubeconfigError(f"{name} of {self.title} is not a text")
        return value

    def read_file(self, name: str) -> str:
        """Return the content of the file that a field names."""
        reference = self.text(name)
        try:
            return (self.folder / reference).read_text() if reference else ""
        except (OSError, UnicodeDecodeError) as error:
            raise KubeconfigError(
                f"{name} of {self.title} is {reference}, which cannot be read: {error}"
            ) from error

    def pem(self, name: str) -> str:
        """Return a PEM text that is embedded or in a file."""
        inline = self.text(f"{name}-data")
        try:
            return (
                base64.b64decode(inline, validate=True).decode() if inline else self.read_file(name)
            )
        except ValueError as error:
            raise KubeconfigError(f"{name}-data of {self.title} is not base64 of a text") from error


def _read_yaml(path: Path) -> Object:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"{path} cannot be read: it is not a text file") from error
    except yaml.YAMLError as error:
        raise KubeconfigError(f"{path} is not valid YAML: {describe_error(error)}") from error
    if not isinstance(content or {}, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig")
    return content or {}


def _find_entry(files: Sequence[_KubeconfigFile], section: str, name: str) -> _ConfigEntry:
    """Return the first entry of a name. Raises KubeconfigError for unsupported fields."""
    rows = [
        (file, row)
        for file in files
        for row in file.content.get(f"{section}s") or ()
        if isinstance(row, dict)
    ]
    for file, row in rows:
        if row.get("name") == name:
            return _check_supported(file, section, name, content=row.get(section) or {})
    available = ", ".join(str(row.get("name")) for _, row in rows) or "none"
    raise KubeconfigError(f'{files[0].path} has no {section} "{name}"; available: {available}')


def _check_supported(
    file: _KubeconfigFile, section: str, name: str, *, content: Object
) -> _ConfigEntry:
    title = f'{section} "{name}" in {file.path}'
    for unsupported in _UNSUPPORTED[section]:
        if content.get(unsupported):
            raise KubeconfigError(f"{unsupported} of {title} is not supported yet")
    return _ConfigEntry(title, content, file.path.parent)


def _find_user(files: Sequence[_KubeconfigFile], chosen: _ConfigEntry) -> _ConfigEntry:
    name = chosen.text("user")
    return (
        _find_entry(files, "user", name) if name else _ConfigEntry("anonymous", {}, chosen.folder)
    )


def _build_config(cluster: _ConfigEntry, user: _ConfigEntry, namespace: str) -> ClientConfig:
    access = ClientConfig(
        server=cluster.text("server"),
        ca=cluster.pem("certificate-authority"),
        token=user.read_file("tokenFile").strip() or user.text("token"),
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        namespace=namespace or "default",
        insecure=cluster.content.get("insecure-skip-tls-verify") is True,
        token_file=user.folder / user.text("tokenFile") if user.text("tokenFile") else None,
        plugin=_parse_plugin(cluster, user),
        tls_server_name=cluster.text("tls-server-name"),
    )
    for problem, is_there in _validate(access):
        if is_there:
            raise KubeconfigError(problem.format(cluster=cluster.title, user=user.title))
    return access


def _parse_plugin(cluster: _ConfigEntry, user: _ConfigEntry) -> CredentialPlugin | None:
    """Return the exec plugin of a user, if there is one."""
    if not user.content.get("exec"):
        return None
    cluster_info = {
        name: value for name in _PLUGIN_CLUSTER_FIELDS if (value := cluster.content.get(name))
    }
    if ca := cluster.pem("certificate-authority"):
        cluster_info["certificate-authority-data"] = _base64(ca)
    for extension in cluster.content.get("extensions") or ():
        if extension.get("name") == EXEC_EXTENSION:
            cluster_info["config"] = extension.get("extension")
    try:
        return parse_plugin(user.content["exec"], user.folder, cluster_info)
    except InvalidPlugin as error:
        raise KubeconfigError(f"exec of {user.title} {error}") from error


def _validate(access: ClientConfig) -> tuple[tuple[str, bool], ...]:
    url = urlsplit(access.server)
    return (
        ("{cluster} has no server", not access.server),
        ("server of {cluster} is not an http or https URL",
         url.scheme not in ("http", "https") or not url.hostname),
        ("{cluster} has both a certificate authority and insecure-skip-tls-verify",
         access.insecure and bool(access.ca)),
        ("{user} needs both client-certificate and client-key, or neither",
         bool(access.certificate) != bool(access.key)),
    )  # fmt: skip


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write_atomically(path: Path, text: str) -> None:
    """Write to a temporary file and rename it, so that readers never see a partial file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


#: The names of version 0.1, which programs may use.
Access = ClientConfig
search = kubeconfig_paths
in_cluster = load_in_cluster
read = load
connect = create_client
transport = create_transport
