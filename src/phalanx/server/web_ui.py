"""The page at `/ui/`: files of the package `phalanx/ui`, for browsers.

Anybody may have them, as they tell nothing of the cluster: what the page shows it asks of the API,
with its user's token. A path is looked up among the names of the files that there are, so none
leads anywhere else. `app` asks here; nothing here reads the store.
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
#: What browsers are told that a file is, by how its name ends.
_CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: The page runs what is here and asks who is here; nobody shows it in a page of theirs.
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
    """A file, and the mark by which a browser knows whether it has it already."""

    content_type: str
    body: bytes
    etag: str


def is_ui_path(path: str) -> bool:
    """Whether a path is the page's or one below it."""
    return path == UI_ROOT or path.startswith(f"{UI_ROOT}/")


def serve_ui(request: Request) -> Reply:
    """A file, word that the browser has it already, or where the page begins."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed
    if request.path == UI_ROOT:
        return Reply(308, b"", _TEXT, (("location", f"{UI_ROOT}/"),))
    found = _load_files().get(request.path.removeprefix(f"{UI_ROOT}/") or _INDEX)
    if found is None:
        return Reply(404, b"404 page not found\n", _TEXT)
    # Kept by the browser, and asked about each time: a newer server means a newer page.
    headers = (*_SECURITY_HEADERS, ("cache-control", "no-cache"), ("etag", found.etag))
    if _matches_etag(request.headers.get("if-none-match", ""), found.etag):
        return Reply(304, b"", found.content_type, headers)
    return Reply(200, found.body, found.content_type, headers)


def _matches_etag(if_none_match: str, etag: str) -> bool:
    """Whether a mark is among those that a browser knows; a proxy may have called it weak."""
    marks = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return etag in marks or marks == ["*"]


@cache
def _load_files() -> Mapping[str, _StaticFile]:
    folder = files("phalanx") / "ui"
    return {one.name: _static_file(one.name, one.read_bytes()) for one in folder.iterdir()}


def _static_file(name: str, body: bytes) -> _StaticFile:
    kind = _CONTENT_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return _StaticFile(kind, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
