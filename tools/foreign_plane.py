"""A foreign API server with our scheduler and controllers beside it, for recorded scenarios.

    replay.py ── HTTP ──▶ proxy (`ScenarioTranslator`) ── HTTPS ──▶ `phalanx up` without components
                                                                       ▲                 ▲
                                                       `phalanx scheduler`     `phalanx controllers`

`phalanx up` acts as the foreign server: without GroupBindings, and without the workload APIs where
the form says so. The definitions of other projects are those of their own manifests.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION
from phalanx.api.wire import Object
from tests.controllers.custom_groups import COSCHEDULING_DEFINITION, VOLCANO_DEFINITION
from tools.control_plane import Access, Command, ControlPlane
from tools.foreign_forms import (
    CONTROLLERS,
    SCHEDULER_NAME,
    ForeignForm,
    ScenarioRequest,
    ScenarioTranslator,
)

_JSON = "application/json"
#: The fields that we read of other projects' PodGroups, for a folder without their definitions.
OTHER_DEFINITIONS = {"scheduler-plugins": COSCHEDULING_DEFINITION, "volcano": VOLCANO_DEFINITION}


def load_definitions(form: ForeignForm, manifests: Path) -> list[Object]:
    """Return the definitions of a form: ours, or those that another project publishes."""
    if form.compat:
        for file in sorted((manifests / form.compat).glob("*podgroups.yaml")):
            found = yaml.safe_load(file.read_text())
            # A link is stored as the path of its target.
            if isinstance(found, dict):
                return [found]
            print(f"{file} is not a definition: the fields that we read are used instead")
        return [OTHER_DEFINITIONS[form.compat]]
    return workload_definitions() if form.link else []


class ForeignControlPlane(ControlPlane):
    """A foreign server in one form, with scheduler and controllers as processes beside it."""

    def __init__(self, form: ForeignForm, definitions: Sequence[Object], *options: str) -> None:
        super().__init__(*options, "scheduler,controllers,nodes", "--feature-gates", form.gates)
        self._form, self._definitions = form, definitions
        own = self.kubeconfig
        compat = ("--compat", form.compat) if form.compat else ()
        self._components = [
            Command(*words, "--kubeconfig", str(own))
            for words in (
                ("scheduler", "--scheduler-name", SCHEDULER_NAME, *compat),
                ("controllers", "--controllers", CONTROLLERS),
            )
        ]
        self._proxy: TranslatingProxy | None = None

    def start(self) -> None:
        """Start the server, create the definitions, then start the components and the proxy."""
        super().start()
        started: list[Command] = []
        try:
            access = self.access
            for definition in self._definitions:
                path = CUSTOM_RESOURCE_DEFINITION.url_path()
                code, reply = send(access, ScenarioRequest("POST", path, definition), _JSON)
                assert code < 300, reply
            for component in self._components:
                component.start()
                started.append(component)
        except BaseException:
            for component in started:
                component.stop()
            super().stop()
            raise
        self._proxy = TranslatingProxy(access, self._form)
        self._proxy.start()
        # replay.py talks to the proxy.
        self.kubeconfig = self.kubeconfig.with_name("proxy")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(f"server: {self._proxy.url}\ntoken: {access.token}\n")

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return super().alive and all(component.alive for component in self._components)

    def stderr_tail(self) -> str:
        """Return the stderr of the first process that has ended, else of the server."""
        ended = [component for component in self._components if not component.alive]
        return ended[0].stderr_tail() if ended else super().stderr_tail()

    def stop(self) -> int:
        """Stop the proxy and all processes."""
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None
        codes = [component.stop() for component in self._components]
        return max(codes, key=bool, default=0) or super().stop()


def send(access: Access, request: ScenarioRequest, content: str) -> tuple[int, Any]:
    """Send one request; return the status code and the decoded reply."""
    connection = http.client.HTTPSConnection(access.host, access.port, context=access.tls())
    try:
        headers = {"Authorization": f"Bearer {access.token}", "Content-Type": content}
        data = None if request.body is None else json.dumps(request.body).encode()
        connection.request(request.method, request.path, data, headers)
        reply = connection.getresponse()
        text = reply.read()
        try:
            return reply.status, json.loads(text or b"{}")
        except json.JSONDecodeError:
            # "404 page not found": the server has no such kind.
            return reply.status, {}
    finally:
        connection.close()


class TranslatingProxy:
    """Forwards requests of a scenario to a server, translated to its form."""

    def __init__(self, access: Access, form: ForeignForm) -> None:
        translator = ScenarioTranslator(form)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                content = self.headers.get("Content-Type") or _JSON
                code: int = 200
                reply: Any = {"items": []}
                asked = ScenarioRequest(self.command, self.path, body)
                for one in translator.requests(asked):
                    code, reply = send(access, one, content)
                data = json.dumps(translator.reply(self.path, reply)).encode()
                self.send_response(code)
                self.send_header("Content-Type", _JSON)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_PUT = do_DELETE = do_GET

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
