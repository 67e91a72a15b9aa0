"""Which server, as whom: kubeconfig files, read and written, and what a pod of a cluster finds.

The command line reads one and connects; `phalanx up` writes one. Several files count as one, in
which the first to say something is right. What we do not support is refused by name, never ignored.
Runs no program and asks no cloud.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from phalanx.api.wire import Object
from phalanx.client.client import Client

#: Fields that change whom we talk to, or as whom, and that we do not understand.
_UNSUPPORTED = {
    "context": (),
    "cluster": ("proxy-url", "tls-server-name"),
    "user": ("exec", "auth-provider", "username", "password", "as", "as-uid", "as-groups"),
}


#: Where a pod finds what its service account is known by.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds after which a token that is kept in a file is read again: it may have been replaced.
_FRESH = 60.0


class KubeconfigError(Exception):
    """A kubeconfig is missing, broken, or asks for what we cannot do: in one sentence."""


@dataclass(frozen=True, slots=True)
class Access:
    """A server, and a credential for it. `ca`, `certificate` and `key` are PEM texts.

    A token that stands in a file is read from there again and again.
    """

    server: str
    ca: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    namespace: str = "default"
    insecure: bool = False
    token_file: Path | None = None


def search(environment: Mapping[str, str], default: Path) -> list[Path]:
    """Where to look: the files that $KUBECONFIG names, or else the one that the caller knows."""
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [default]


def in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access | None:
    """The server of the cluster in which this process is a pod, if it is one."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not (folder / "token").exists():
        return None
    try:
        ca, namespace = ((folder / name).read_text() for name in ("ca.crt", "namespace"))
        token = (folder / "token").read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"the service account cannot be read: {error}") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(server, ca, token, namespace=namespace.strip(), token_file=folder / "token")


def read(paths: Sequence[Path], context: str = "") -> Access:
    """What the files say about a context, or else about the current one."""
    files = [_File(path, _load(path)) for path in paths if path.exists()]
    if not files:
        raise KubeconfigError(f"there is no kubeconfig at {' or '.join(map(str, paths))}")
    currents = (file.content.get("current-context") for file in files)
    wanted = context or next(filter(None, currents), "")
    if not wanted:
        raise KubeconfigError(f"{files[0].path} has no current-context, and no other was named")
    chosen = _find(files, "context", wanted)
    cluster = _find(files, "cluster", chosen.text("cluster"))
    return _access(cluster, _user(files, chosen), chosen.text("namespace"))


def connect(access: Access) -> Client:
    """A client of that server, which must prove its identity unless `insecure` says otherwise."""
    # Imported here: it takes a quarter of a second, which those who only write a file can save.
    from phalanx.client.http import Http

    try:
        tls = _tls(access) if access.server.startswith("https:") else None
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            f"the certificates for {access.server} cannot be used: {error}"
        ) from error
    token = _TokenFile(access) if access.token_file else access.token
    return Client(Http(access.server, token=token, tls=tls))


def write(path: Path, server: str, ca_pem: str, token: str, name: str = "phalanx") -> None:
    """Put a kubeconfig of one context in place, whole or not at all, for its owner's eyes only."""
    cluster = {"server": server, "certificate-authority-data": _encode(ca_pem)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    try:
        _replace(path, yaml.safe_dump(content, sort_keys=False))
    except OSError as error:
        raise KubeconfigError(f"{path} cannot be written: {error.strerror}") from error


class _TokenFile:
    """The token in a file, read again every so often; the last one stays if that fails."""

    def __init__(self, access: Access) -> None:
        assert access.token_file is not None
        self._path, self._token = access.token_file, access.token
        self._read_at = -_FRESH

    def __call__(self) -> str:
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _FRESH:
            self._read_at = now
            with suppress(OSError, UnicodeDecodeError):
                self._token = self._path.read_text().strip() or self._token
        return self._token


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    content: Object


@dataclass(frozen=True, slots=True)
class _Entry:
    """One context, cluster or user, in a file to which its references are relative."""

    title: str
    content: Object
    folder: Path

    def text(self, name: str) -> str:
        value = self.content.get(name) or ""
        if not isinstance(value, str):
            raise KubeconfigError(f"{name} of {self.title} is not a text")
        return value

    def file(self, name: str) -> str:
        """What the file that a field names holds."""
        reference = self.text(name)
        try:
            return (self.folder / reference).read_text() if reference else ""
        except (OSError, UnicodeDecodeError) as error:
            raise KubeconfigError(
                f"{name} of {self.title} is {reference}, which cannot be read: {error}"
            ) from error

    def pem(self, name: str) -> str:
        """A field that is there itself, encoded, or as the name of a file."""
        inline = self.text(f"{name}-data")
        try:
            return base64.b64decode(inline, validate=True).decode() if inline else self.file(name)
        except ValueError as error:
            raise KubeconfigError(f"{name}-data of {self.title} is not base64 of a text") from error


def _load(path: Path) -> Object:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise KubeconfigError(f"{path} is not valid YAML{where}") from error
    if not isinstance(content or {}, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig")
    return content or {}


def _find(files: Sequence[_File], section: str, name: str) -> _Entry:
    """The first entry of that name; a field in it that we would have to ignore is refused."""
    for file in files:
        for row in file.content.get(f"{section}s") or ():
            if isinstance(row, dict) and row.get("name") == name:
                return _entry(file, section, name, row.get(section) or {})
    raise KubeconfigError(f'{files[0].path} has no {section} "{name}"')


def _entry(file: _File, section: str, name: str, content: Object) -> _Entry:
    title = f'{section} "{name}" in {file.path}'
    for unsupported in _UNSUPPORTED[section]:
        if content.get(unsupported):
            raise KubeconfigError(f"{unsupported} of {title} is not supported yet")
    return _Entry(title, content, file.path.parent)


def _user(files: Sequence[_File], chosen: _Entry) -> _Entry:
    name = chosen.text("user")
    return _find(files, "user", name) if name else _Entry("nobody", {}, chosen.folder)


def _access(cluster: _Entry, user: _Entry, namespace: str) -> Access:
    access = Access(
        server=cluster.text("server"),
        ca=cluster.pem("certificate-authority"),
        token=user.file("tokenFile").strip() or user.text("token"),
        certificate=user.pem("client-certificate"),
        key=user.pem("client-key"),
        namespace=namespace or "default",
        insecure=cluster.content.get("insecure-skip-tls-verify") is True,
        token_file=user.folder / user.text("tokenFile") if user.text("tokenFile") else None,
    )
    for problem, is_there in _problems(access):
        if is_there:
            raise KubeconfigError(problem.format(cluster=cluster.title, user=user.title))
    return access


def _problems(access: Access) -> tuple[tuple[str, bool], ...]:
    url = urlsplit(access.server)
    return (
        ("{cluster} has no server", not access.server),
        ("server of {cluster} is not an http or https URL",
         url.scheme not in ("http", "https") or not url.hostname),
        ("{cluster} has a certificate authority and says not to use it",
         access.insecure and bool(access.ca)),
        ("{user} needs both client-certificate and client-key, or neither",
         bool(access.certificate) != bool(access.key)),
    )  # fmt: skip


def _tls(access: Access) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=access.ca or None)
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.certificate:
        # OpenSSL takes it from a file only; given an empty password, it does not ask for one.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{access.certificate}\n{access.key}")
            file.flush()
            context.load_cert_chain(file.name, password="")
    return context


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _replace(path: Path, text: str) -> None:
    """Write beside the file and then rename, so that nobody ever reads half of it."""
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
