"""Text of the API cannot control the terminal: every command escapes it.

A proxy in front of a control plane plays a hostile server. In every answer it inserts control
characters into the names of nodes and gangs, into messages and images.
"""

from __future__ import annotations

import io
import json
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from phalanx.api.kinds import NAMESPACE
from phalanx.api.meta import Key
from phalanx.cli import main as cli_main
from phalanx.cli.decisions import decisions_command
from phalanx.cli.output import JSON, YAML, LiveDisplay, StyledLine, align_columns, format_structured
from phalanx.controllers.scheduling.decision_log import DecisionLog, DecisionLogFile, write_inline
from phalanx.logs import escape_unprintable
from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario
from tests.builders import pod
from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import phalanx
from tests.cli.conftest import SHAPE
from tests.cli.test_every_command import QUERIES
from tools.control_plane import ControlPlane

#: Sets the title, clears the screen (C0 and C1), reverses the line, deletes, goes back.
HOSTILE = "\x1b]0;x\x07\x1b[2J\x9b31m\x85\u202e\u2066\x7f\r"
_ESCAPED = json.dumps(HOSTILE)[1:-1]
#: What the proxy changes in answers: node names, gang names, messages, images, and allocatable CPU,
#: so that `phalanx check` has a violation to report.
_CHANGES = (
    ("node-", f"node{_ESCAPED}-"),
    ("mark", f"mark{_ESCAPED}"),
    ("minCount", f"minCount{_ESCAPED}"),
    ("registry.example", f"registry{_ESCAPED}.example"),
    ('"allocatable":{"cpu":"8"', '"allocatable":{"cpu":"1"'),
)


class HostileProxy:
    """Forwards requests to a control plane and changes its answers; with `denial` denies all."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        known = yaml.safe_load(plane.kubeconfig.read_text())
        self._url = known["clusters"][0]["cluster"]["server"]
        self._token = known["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self.is_denying = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = proxy.answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any, **kwargs: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.config = folder / "hostile"
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "one",
                    "contexts": [{"name": "one", "context": {"cluster": "one"}}],
                    "clusters": [{"name": "one", "cluster": {"server": server}}],
                }
            )
        )

    def answer(self, path: str) -> tuple[int, bytes]:
        if self.is_denying:
            status = {"kind": "Status", "message": f"denied {HOSTILE}", "code": 403}
            return 403, json.dumps(status | {"reason": "Forbidden"}).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._tls) as reply:
                code, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        for plain, changed in _CHANGES:
            text = text.replace(plain, changed)
        return code, text.encode()

    def __enter__(self) -> HostileProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of its own: the gang must find both nodes empty."""
    with ControlPlane("--data", ":memory:", *SHAPE) as found:
        yield found


@pytest.fixture(scope="module")
def hostile(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A proxy, and the namespace of a running gang `mark` and waiting gangs."""
    user = CliUser(plane.kubeconfig)
    user.create(gang_job("mark", 2, cpu="7"))
    user.eventually(lambda: any(gang.placed for gang in user.gangs()))
    user.create(gang_job("train", 3, cpu="5"), gang_job("market", 3, cpu="5"))
    user.eventually(lambda: sum("minCount" in gang.message for gang in user.gangs()) == 2)
    with HostileProxy(plane, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy, user.namespace
    user.query(lambda client: client.delete(NAMESPACE, Key("", user.namespace)))


def assert_harmless(*texts: str) -> None:
    found = {char for text in texts for char in text if not char.isprintable()}
    assert found <= {"\n"}, found


#: `check` waits for a second read before it reports, so one format is enough.
_FORMATS = [
    *((command, form) for command in QUERIES if command != "check" for form in ("json", "yaml")),
    *((command, "") for command in QUERIES),
    ("queue", "wide"),
]


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize(("command", "form"), _FORMATS)
def test_no_command_prints_control_characters_of_the_api(
    hostile: tuple[HostileProxy, str], command: str, form: str
) -> None:
    proxy, namespace = hostile
    args = [*QUERIES[command], "--kubeconfig", str(proxy.config)]
    args += [] if command == "check" else ["-n", namespace]
    done = phalanx(*args, *(["-o", form] if form else []))
    assert "Traceback" not in done.stderr
    assert_harmless(done.stdout, done.stderr)
    if form in ("json", "yaml"):
        read = json.loads if form == "json" else yaml.safe_load
        assert HOSTILE in "".join(_strings(read(done.stdout))), done.stderr
    else:
        assert "\\x1b]0;x\\x07" in done.stdout, done.stderr


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


@pytest.mark.parametrize("command", [*QUERIES, "debug"])
def test_messages_of_a_server_are_escaped_in_errors(
    hostile: tuple[HostileProxy, str], command: str, tmp_path: Path
) -> None:
    proxy, _ = hostile
    proxy.is_denying = True
    args = QUERIES.get(command, [command, str(tmp_path / "bundle")])
    done = phalanx(*args, "--kubeconfig", str(proxy.config))
    proxy.is_denying = False
    assert_harmless(done.stdout, done.stderr)
    assert "denied \\x1b]0;x\\x07" in done.stderr


def test_decisions_are_printed_without_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    scenario = parse_scenario("nodes: {each: {gpu: 1}}\nat 0: {gang: mark, pods: 1}\nuntil: 9\n")
    run_scenario(scenario, DecisionLog(write_inline(DecisionLogFile(file).write)))
    file.write_text(file.read_text().replace("mark", f"mark{_ESCAPED}"))
    for form in ("table", "json"):
        done = CliRunner().invoke(decisions_command, [str(file), "-o", form])
        assert "mark\\" in done.stdout
        assert_harmless(done.stdout)


def test_run_prints_logs_and_reasons_without_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    talks = pod("talks", spec={"restartPolicy": "Never"})
    talks["spec"]["containers"][0]["command"] = ["printf", HOSTILE]
    group, rule = "rbac.authorization.k8s.io", {"apiGroups": ["phalanx.dev"], "verbs": ["run"]}
    meta = {"apiVersion": f"{group}/v1", "metadata": {"name": "run", "namespace": "default"}}
    role = {**meta, "kind": "Role", "rules": [rule | {"resources": ["processes"]}]}
    binding = {
        **meta,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "run"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
    }
    file.write_text(yaml.safe_dump_all([role, binding, talks]))
    args = ["run", "-f", str(file), "--run-processes", "--logs"]
    done = phalanx(*args)
    assert_harmless(done.stdout, done.stderr)
    assert "\\x1b]0;x\\x07" in done.stdout


def test_tables_json_and_yaml_stay_what_they_are() -> None:
    value = {"name": f"ä{HOSTILE}", "text": "two\nlines\tand a tab", "hidden\u2028key": ["é"]}
    for form, read in ((JSON, json.loads), (YAML, yaml.safe_load)):
        text = format_structured(value, form)
        assert_harmless(text)
        assert read(text) == value
    rows = list(align_columns([["NAME", "NEXT"], ["a\nforged row", f"b{HOSTILE}"]]))
    assert len(rows) == 2
    assert_harmless(*rows)
    assert escape_unprintable("two\nlines\tü █ …") == "two\nlines\tü █ …"
    out = io.StringIO()
    LiveDisplay(out).draw([StyledLine(f"gang{HOSTILE}", "red")])
    own_codes = re.compile(r"\x1b\[(J|\d+A|31m|0m)|\r")
    assert_harmless(own_codes.sub("", out.getvalue()))


def test_commands_print_through_one_module() -> None:
    folder = Path(cli_main.__file__).parent
    direct = re.compile(r"\bclick\.s?echo\(|(?<![\w.])print\(|std(out|err)\.write\(")
    found = {path.name for path in folder.glob("*.py") if direct.search(path.read_text())}
    assert found == {"output.py"}
