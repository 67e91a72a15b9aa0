"""Recorded responses of a real API server: requests, comparison and runner.

A case is a list of requests with the recorded responses (`tests/recorded/`). The runner needs one
function, `send`, so the same cases run in-process and over HTTPS. The comparison covers:

- of a failure: code, reason, causes and details; of a success: code and the whole object;
- `"*"` in a recorded text stands for any text, and alone for any value;
- null, "" and absent are equal; so are absent and `{}` for the keys in `EMPTY_IS_ABSENT`;
- the number of warnings, not their wording;
- where the recorded server answered a client's mistake with a 500, any 4xx passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

#: Sends method, path, query, headers (lower case; an empty authorization means none) and body;
#: returns the code, the headers and the body.
Send = Callable[
    [str, str, str, Mapping[str, str], bytes], tuple[int, Sequence[tuple[str, str]], bytes]
]
#: Placeholders of names that differ from run to run: {"ns": "case-7", ...}.
Words = dict[str, str]

FOLDER = Path(__file__).parent / "recorded"
PASSING = Path(__file__).parent / "reference_passing.txt"
#: Fields that differ between implementations.
IGNORED = {"managedFields", "storageVersionHash"}
UNORDERED = {"verbs", "shortNames", "categories"}
EMPTY_IS_ABSENT = {"status", "resources", "metadata", "strategy"}
COMPARED_DETAILS = ("name", "group", "kind", "retryAfterSeconds")


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded case; `file` is its path within the recordings."""

    file: str
    name: str
    steps: Sequence[Mapping[str, Any]]
    cleanup: Sequence[str]

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def names_a_token(self) -> bool:
        """Whether the case tests authentication, which only the HTTP server performs."""
        return any("token" in step["request"] for step in self.steps)

    @property
    def is_generated(self) -> bool:
        """Whether the case is one of many that cross kinds with operations."""
        return self.file.startswith("generated/")


def passing_cases() -> list[Case]:
    """Return the recorded API cases that pass and must keep passing."""
    passing = set(PASSING.read_text().splitlines()) if PASSING.exists() else set()
    return [case for case in recorded_cases() if str(case) in passing]


def recorded_cases() -> Iterator[Case]:
    """Yield all recorded API cases of the suite, in a stable order."""
    for folder in ("api", "generated"):
        for path in sorted((FOLDER / folder).glob("*.json")):
            for case in json.loads(path.read_text()):
                file = f"{folder}/{path.name}"
                yield Case(file, case["name"], case["steps"], case.get("cleanup", ()))


# ---- comparison ----------------------------------------------------------------------------------


def differences(want: Any, got: Any, at: str = "") -> list[str]:
    """Return where `got` differs from the recorded value."""
    if want == "*":
        return [f"{at}: missing"] if _is_empty(got) else []
    if isinstance(want, dict) and isinstance(got, dict):
        return [d for key in _keys(want, got) for d in _at_key(want, got, key, f"{at}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [d for n, (w, g) in pairs for d in differences(w, g, f"{at}[{n}]")]
    if _is_equal(want, got):
        return []
    return [f"{at}: wanted {_shorten(want)}, got {_shorten(got)}"]


def _keys(want: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    return [key for key in (*want, *(key for key in got if key not in want)) if key not in IGNORED]


def _at_key(want: Mapping[str, Any], got: Mapping[str, Any], key: str, at: str) -> list[str]:
    wanted, actual = want.get(key), got.get(key)
    if _is_empty(wanted, key) and _is_empty(actual, key):
        return []
    if key in UNORDERED and isinstance(wanted, list) and isinstance(actual, list):
        wanted, actual = sorted(wanted), sorted(actual)
    return differences(wanted, actual, at)


def _is_empty(value: Any, key: str = "") -> bool:
    return value is None or value == "" or (value == {} and key in EMPTY_IS_ABSENT)


def _is_equal(want: Any, got: Any) -> bool:
    if _is_empty(want) and _is_empty(got):
        return True
    if isinstance(want, str) and isinstance(got, str) and "*" in want:
        pattern = ".*".join(re.escape(part) for part in want.split("*"))
        return re.fullmatch(pattern, got, re.DOTALL) is not None
    return bool(want == got) and isinstance(want, bool) == isinstance(got, bool)


def _shorten(value: Any) -> str:
    return json.dumps(value)[:160]


def answer_differences(want: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Return where a response (see `seen`) differs from the recorded one."""
    if want["code"] == 500 and 400 <= got["code"] < 500:
        return []
    wanted = {key: value for key, value in want.items() if key != "message"}
    wanted["warnings"] = len(want.get("warnings", ()))
    if "causes" in want:
        wanted["causes"] = sorted(want["causes"])
    return differences(wanted, dict(got))


# ---- responses -----------------------------------------------------------------------------------


def seen(
    code: int,
    headers: Sequence[tuple[str, str]],
    answer: Any,
    keep: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return a response in the format of the recordings."""
    warnings = sum(name.lower() == "warning" for name, _ in headers)
    if code < 400:
        found = {path: _kept(answer, path) for path in keep} if keep else answer
        return {"code": code, "object": found, "warnings": warnings}
    details = answer.get("details") or {}
    causes = [[c.get("field", ""), c.get("reason", "")] for c in details.get("causes") or ()]
    return {
        "code": code,
        "reason": answer.get("reason", ""),
        "causes": sorted(causes),
        "details": {key: details[key] for key in COMPARED_DETAILS if key in details},
        "warnings": warnings,
    }


def _kept(answer: Any, path: str) -> Any:
    value = dig(answer, path)
    if path.rpartition(".")[2] in UNORDERED and isinstance(value, list):
        return sorted(value)
    return value


def decoded(query: str, code: int, body: bytes) -> Any:
    """Decode the body of a response: JSON, the events of a watch, or text."""
    text = body.decode(errors="replace")
    try:
        if code == 200 and "watch" in parse_qs(query):
            events = [json.loads(line) for line in text.splitlines()]
            if all("type" in event and "object" in event for event in events):
                return {"events": events}
        return json.loads(text)
    except ValueError:
        return {"text": text}


def dig(value: Any, path: str) -> Any:
    """Return the value at a path: `items.0.spec`, `resources[name=pods]`, `paths[api/v1]`."""
    for bracketed, plain in re.findall(r"\[([^\]]*)\]|([^.\[\]]+)", path):
        value = _part(value, bracketed, plain)
    return value


def _part(value: Any, bracketed: str, plain: str) -> Any:
    key, equals, text = bracketed.partition("=")
    if equals:
        return next((item for item in value or () if str(item.get(key)) == text), None)
    if isinstance(value, list):
        return value[int(plain)] if plain.isdigit() and int(plain) < len(value) else None
    return value.get(key or plain) if isinstance(value, dict) else None


def fill(value: Any, words: Words) -> Any:
    """Replace the `{placeholders}` of a recorded value, in keys too."""
    if isinstance(value, str):
        for word, text in words.items():
            value = value.replace("{" + word + "}", text)
        return value
    if isinstance(value, Mapping):
        return {fill(key, words): fill(item, words) for key, item in value.items()}
    return [fill(item, words) for item in value] if isinstance(value, list) else value


# ---- runner --------------------------------------------------------------------------------------


def run(case: Case, send: Send, word: str) -> list[str]:
    """Run the steps of a case in its own namespace; return where the responses differ.

    `word` makes names unique. Recorded pauses are skipped: they let the recorded server's admission
    catch up, while ours reads its own writes.
    """
    words = {"ns": f"case-{word}", "id": f"x{word}"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": words["ns"]}}
    _ask(send, {"method": "POST", "path": "/api/v1/namespaces", "body": namespace}, words)
    found = [
        f"step {number}, {step['request']['method']} {step['request']['path']}{difference}"
        for number, step in enumerate(case.steps)
        for difference in _step(send, step, words)
    ]
    for path in (*case.cleanup, "/api/v1/namespaces/{ns}"):
        _ask(send, {"method": "DELETE", "path": path}, words)
    return found


def _step(send: Send, step: Mapping[str, Any], words: Words) -> list[str]:
    """Run one step and save in `words` the values that later steps need."""
    request = step["request"]
    repeated = {word: text * n for word, (text, n) in request.get("repeated", {}).items()}
    code, headers, answer = _ask(send, request, {**words, **repeated})
    for word, path in step.get("save", {}).items():
        words[word] = str(dig(answer, path) or "")
    want = fill(step["answer"], {**words, **repeated})
    return answer_differences(want, seen(code, headers, answer, step.get("keep")))


def _ask(
    send: Send, request: Mapping[str, Any], words: Words
) -> tuple[int, Sequence[tuple[str, str]], Any]:
    path, _, query = fill(request["path"], words).partition("?")
    body = fill(request.get("body"), words)
    headers = {"accept": request.get("accept", "application/json")}
    if body is not None:
        headers["content-type"] = request.get("type", "application/json")
    given = fill(request.get("headers", {}), words)
    headers.update({name.lower(): value for name, value in given.items()})
    if "token" in request:
        headers["authorization"] = f"Bearer {request['token']}" if request["token"] else ""
    data = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    code, reply_headers, answer = send(request["method"], path, query, headers, data)
    return code, reply_headers, decoded(query, code, answer)
