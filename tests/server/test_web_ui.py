"""The page's files: what they are served as, who may have them, and that nothing else is had."""

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


# ---- what is served ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is(in_process: Send, name: str) -> None:
    answer = in_process(Request("GET", f"/ui/{name}"))
    assert (answer.code, answer.kind) == (200, KINDS[Path(name).suffix])
    assert answer.text == (FOLDER / name).read_bytes()


def test_the_page_begins_at_its_folder(in_process: Send) -> None:
    moved = in_process(Request("GET", "/ui"))
    assert (moved.code, headers(moved)["location"]) == (308, "/ui/")
    answer = in_process(Request("GET", "/ui/"))
    assert answer.text == (FOLDER / "index.html").read_bytes()


def test_a_browser_that_has_a_file_is_not_sent_it_again(in_process: Send) -> None:
    first = in_process(Request("GET", "/ui/page.js"))
    mark = headers(first)["etag"]
    assert headers(first)["cache-control"] == "no-cache"
    for known in (mark, f"W/{mark}", f'"other", {mark}', "*"):
        again = in_process(Request("GET", "/ui/page.js", headers={"if-none-match": known}))
        assert (again.code, again.text, headers(again)["etag"]) == (304, b"", mark)
    stale = in_process(Request("GET", "/ui/page.js", headers={"if-none-match": '"other"'}))
    assert stale.code == 200


@pytest.mark.parametrize("name", ["", "page.js", "page.css"])
def test_the_page_may_only_run_and_ask_what_is_here(in_process: Send, name: str) -> None:
    found = headers(in_process(Request("GET", f"/ui/{name}")))
    policy = dict(part.split(" ", 1) for part in found["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in found["content-security-policy"]
    assert found["referrer-policy"] == "no-referrer"


# ---- and nothing else ----------------------------------------------------------------------------


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
def test_no_path_leads_elsewhere(send: Send, path: str) -> None:
    answer = send(Request("GET", path))
    assert (answer.code, answer.text) == (404, b"404 page not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_the_page_is_only_read(in_process: Send, method: str) -> None:
    assert in_process(Request(method, "/ui/")).code == 405


@pytest.mark.parametrize("path", ["/uix", "/uix/", "/u"])
def test_what_only_looks_like_the_page_is_nowhere(https: ListeningServer, path: str) -> None:
    assert https.send(Request("GET", path), "").code == 403
    assert https.send(Request("GET", path)).code == 404


# ---- over the network ----------------------------------------------------------------------------


def test_anybody_may_have_the_page_and_nobody_by_a_wrong_token(https: ListeningServer) -> None:
    assert https.send(Request("GET", "/ui/"), "").code == 200
    assert https.send(Request("GET", "/ui/"), "wrong").code == 401


def test_a_page_from_elsewhere_may_not_have_it(https: ListeningServer) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert https.send(Request("GET", "/ui/page.js", headers=foreign), "").code == 403
    own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert https.send(Request("GET", "/ui/page.js", headers=own), "").code == 200


def test_the_head_of_a_file_is_that_of_the_file(https: ListeningServer) -> None:
    whole = https.send(Request("GET", "/ui/page.css"), "")
    head = https.send(Request("HEAD", "/ui/page.css"), "")
    assert (head.code, head.text) == (200, b"")
    assert headers(head)["etag"] == headers(whole)["etag"]
    assert headers(head)["content-length"] == str(len(whole.text))


# ---- the files themselves ------------------------------------------------------------------------


class Inline(HTMLParser):
    """Collects what the policy would refuse, and what the page wants besides."""

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


def test_the_page_holds_nothing_that_its_policy_refuses_and_wants_nothing_that_is_not_there() -> (
    None
):
    found = Inline()
    found.feed((FOLDER / "index.html").read_text())
    assert found.refused == []
    assert set(found.wanted) <= set(FILES)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_a_module_is_short_says_what_it_is_and_imports_what_is_there(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= LONGEST
    assert text.startswith("/* ")
    imported = re.findall(r'from "([^"]+)"', text)
    assert [one for one in imported if one.removeprefix("./") not in FILES] == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|document\.write", text)
