"""The files of the web UI: content types, access, caching and their contents."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import phalanx
from phalanx.api.wire import Request
from tests.server.api import ApiResponse
from tests.server.conftest import ListeningServer, Send

FOLDER = Path(phalanx.__file__).parent / "ui"
FILES = tuple(sorted(path.name for path in FOLDER.iterdir()))
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
LONGEST = 300


def headers(answer: ApiResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers}


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_its_content_type(in_process: Send, name: str) -> None:
    answer = in_process(Request("GET", f"/ui/{name}"))
    assert (answer.code, answer.kind) == (200, KINDS[Path(name).suffix])
    assert answer.text == (FOLDER / name).read_bytes()


def test_the_root_redirects_to_the_page(in_process: Send) -> None:
    moved = in_process(Request("GET", "/ui"))
    assert (moved.code, headers(moved)["location"]) == (308, "/ui/")
    answer = in_process(Request("GET", "/ui/"))
    assert answer.text == (FOLDER / "index.html").read_bytes()


def test_a_cached_file_is_not_sent_again(in_process: Send) -> None:
    first = in_process(Request("GET", "/ui/page.js"))
    mark = headers(first)["etag"]
    assert headers(first)["cache-control"] == "no-cache"
    for known in (mark, f"W/{mark}", f'"other", {mark}', "*"):
        again = in_process(Request("GET", "/ui/page.js", headers={"if-none-match": known}))
        assert (again.code, again.text, headers(again)["etag"]) == (304, b"", mark)
    stale = in_process(Request("GET", "/ui/page.js", headers={"if-none-match": '"other"'}))
    assert stale.code == 200


@pytest.mark.parametrize("name", ["", "page.js", "page.css"])
def test_the_content_security_policy_allows_only_this_server(in_process: Send, name: str) -> None:
    found = headers(in_process(Request("GET", f"/ui/{name}")))
    policy = dict(part.split(" ", 1) for part in found["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in found["content-security-policy"]
    assert found["referrer-policy"] == "no-referrer"


# ---- other paths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/ui/nothing.js",
        "/ui/../server/app.py",
        "/ui/%2e%2e/server/app.py",
        "/ui/..%2fserver%2fapp.py",
        "/ui//etc/passwd",
        "/ui/./page.js",
        "/ui/page.js/",
        "/ui/page.js%00",
        "/ui/index.html/x",
    ],
)
def test_no_path_leads_outside_of_the_folder(send: Send, path: str) -> None:
    answer = send(Request("GET", path))
    assert (answer.code, answer.text) == (404, b"404 page not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_the_page_is_read_only(in_process: Send, method: str) -> None:
    assert in_process(Request(method, "/ui/")).code == 405


@pytest.mark.parametrize("path", ["/uix", "/uix/", "/u"])
def test_paths_that_resemble_the_page_are_not_found(https: ListeningServer, path: str) -> None:
    assert https.send(Request("GET", path), "").code == 403
    assert https.send(Request("GET", path)).code == 404


# ---- over the network ----------------------------------------------------------------------------


def test_the_page_needs_no_token_but_a_wrong_one_is_refused(https: ListeningServer) -> None:
    assert https.send(Request("GET", "/ui/"), "").code == 200
    assert https.send(Request("GET", "/ui/"), "wrong").code == 401


def test_requests_of_foreign_pages_are_refused(https: ListeningServer) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert https.send(Request("GET", "/ui/page.js", headers=foreign), "").code == 403
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert https.send(Request("GET", "/ui/page.js", headers=own), "").code == 200


def test_a_head_request_gets_the_headers_of_the_file(https: ListeningServer) -> None:
    whole = https.send(Request("GET", "/ui/page.css"), "")
    head = https.send(Request("HEAD", "/ui/page.css"), "")
    assert (head.code, head.text) == (200, b"")
    assert headers(head)["etag"] == headers(whole)["etag"]
    assert headers(head)["content-length"] == str(len(whole.text))


# ---- contents of the files -----------------------------------------------------------------------


class Inline(HTMLParser):
    """Collects what the policy would refuse, and the files that the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []
        self.wanted: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given):
            self.refused.append(tag)
        self.refused += [name for name in given if name == "style" or name.startswith("on")]
        self.wanted += [str(given[name]) for name in ("src",) if name in given]
        if tag == "link":
            self.wanted.append(str(given["href"]))


def test_the_page_complies_with_its_policy_and_refers_only_to_existing_files() -> None:
    found = Inline()
    found.feed((FOLDER / "index.html").read_text())
    assert found.refused == []
    assert set(found.wanted) <= set(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_a_module_is_short_documented_and_imports_existing_modules(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= LONGEST
    assert text.startswith("/* ")
    imported = re.findall(r'from "([^"]+)"', text)
    assert [one for one in imported if one.removeprefix("./") not in FILES] == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|document\.write", text)
