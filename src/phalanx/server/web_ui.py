"""The web UI at `/ui/`: static files of the package `phalanx/ui`.

The files contain nothing about the cluster and need no authentication; the page reads the API with
the token of its user. A path is looked up among the names of the existing files, so that no path
leads outside of the folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from phalanx.api.errors import MethodNotAllowed
from phalanx.api.wire import Reply, Request

UI_ROOT = "/ui"
_INDEX = "index.html"
_TEXT = "text/plain; charset=utf-8"
#: File name extension -> content type.
_CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: The page loads only its own files, connects only to this server, and cannot be framed.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_SECURITY_HEADERS = (
    ("content-security-policy", _CONTENT_SECURITY_POLICY),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
)


@dataclass(frozen=True, slots=True)
class _StaticFile:
    """A file, and its ETag, by which browsers validate their cache."""

    content_type: str
    body: bytes
    etag: str


def is_ui_path(path: str) -> bool:
    """Whether a path belongs to the web UI."""
    return path == UI_ROOT or path.startswith(f"{UI_ROOT}/")


def serve_ui(request: Request) -> Reply:
    """A file, 304 if the browser has it, or a redirect to the page."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed
    if request.path == UI_ROOT:
        return Reply(308, b"", _TEXT, (("location", f"{UI_ROOT}/"),))
    found = _load_files().get(request.path.removeprefix(f"{UI_ROOT}/") or _INDEX)
    if found is None:
        return Reply(404, b"404 page not found\n", _TEXT)
    # Cached but validated every time: an upgraded server serves another page.
    headers = (*_SECURITY_HEADERS, ("cache-control", "no-cache"), ("etag", found.etag))
    # A proxy may have made the ETag weak.
    if_none_match = request.headers.get("if-none-match", "").split(",")
    etags = [value.strip().removeprefix("W/") for value in if_none_match]
    if found.etag in etags or etags == ["*"]:
        return Reply(304, b"", found.content_type, headers)
    return Reply(200, found.body, found.content_type, headers)


@cache
def _load_files() -> Mapping[str, _StaticFile]:
    folder = files("phalanx") / "ui"
    loaded = {}
    for file in folder.iterdir():
        extension, body = file.name.rpartition(".")[2], file.read_bytes()
        content_type = _CONTENT_TYPES.get(extension, "application/octet-stream")
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        loaded[file.name] = _StaticFile(content_type, body, etag)
    return loaded
