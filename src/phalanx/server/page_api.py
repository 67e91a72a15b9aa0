"""What the page reads in addition to the Kubernetes API.

    GET  /phalanx/v1/queue[?namespace=NS]    what `phalanx queue --ended` lists
    GET  /phalanx/v1/utilisation[?since=T]   samples of the last hour and day
    POST /phalanx/v1/sign-in-codes           a sign-in code for the token of the request
    POST /phalanx/v1/sign-in                 the token of a code, once

The paths have no rights of their own: the queue needs the right to list pods and PodGroups (in the
namespace, or in all), the utilisation the right to list nodes and pods. The queue
is computed by another process of `phalanx up`; a server without one has no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.client import ACCEPTED, CREATED, OK

import orjson

from phalanx.api.errors import BadRequest, Forbidden, MethodNotAllowed, NoSuchResource, NotFound
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.wire import Object, Reply, Request
from phalanx.clock import Clock
from phalanx.server.request_info import RequestInfo, parse_query
from phalanx.server.security.authorization import AccessControl
from phalanx.server.security.sign_in import CODE_TTL, SignInCodes
from phalanx.server.utilisation import UtilisationHistory, UtilisationSampler, encode_history
from phalanx.store.kv import Store

PAGE_API_ROOT = "/phalanx/v1"
_BEARER = "bearer "
_NO_STORE = (("cache-control", "no-store"),)
#: Longest body of a sign-in.
_MAX_SIGN_IN = 1024

#: Returns the latest report, None if the first one is not ready yet, and has it renewed when due.
QueueSource = Callable[[], Object | None]
_PageHandler = Callable[["PageApi", Request], Reply]


class PageApi:
    """The endpoints of one server; the process that runs it adds what it has."""

    def __init__(self, access: AccessControl, store: Store, clock: Clock) -> None:
        self._access, self._utilisation = access, UtilisationHistory()
        #: The process that runs the server runs the sampler, too.
        self.sampler = UtilisationSampler(store, clock, self._utilisation)
        #: None: this server has no queue.
        self.queue: QueueSource | None = None
        #: None: sign-in codes are not available.
        self.codes: SignInCodes | None = None

    def serve(self, request: Request) -> Reply:
        """Answer a request below `PAGE_API_ROOT`."""
        path = request.path.removeprefix(PAGE_API_ROOT).strip("/")
        methods = _HANDLERS.get(path)
        if methods is None:
            raise NoSuchResource
        handler = methods.get(request.method)
        if handler is None:
            raise MethodNotAllowed
        return handler(self, request)

    def serve_queue(self, request: Request) -> Reply:
        """Answer with the entries of all namespaces or of one."""
        namespace = parse_query(request.query).get("namespace", "")
        self._require_list(request, POD, namespace)
        self._require_list(request, POD_GROUP, namespace)
        if self.queue is None:
            raise NotFound("this server has no queue: only phalanx up computes it")
        report = self.queue()
        if report is None:
            return Reply(ACCEPTED, orjson.dumps({"items": []}), headers=_NO_STORE)
        if namespace:
            items = [item for item in report["items"] if item["namespace"] == namespace]
            report = {**report, "items": items}
        return Reply(OK, orjson.dumps(report), headers=_NO_STORE)

    def serve_utilisation(self, request: Request) -> Reply:
        """Answer with the samples after a time."""
        self._require_list(request, NODE, "")
        self._require_list(request, POD, "")
        since = parse_query(request.query).get("since", "")
        return Reply(OK, encode_history(self._utilisation, since), headers=_NO_STORE)

    def issue_code(self, request: Request) -> Reply:
        """Answer with a new code for the token of the request."""
        codes, header = self._require_codes(), request.headers.get("authorization", "")
        if not header.lower().startswith(_BEARER) or request.actor is not None:
            raise BadRequest("a sign-in code needs a request with a bearer token of its own user")
        code = codes.issue(request.user.name, header[len(_BEARER) :].strip())
        body = {"code": code, "path": f"/ui/#/sign-in/{code}", "seconds": int(CODE_TTL)}
        return Reply(CREATED, orjson.dumps(body), headers=_NO_STORE)

    def redeem_code(self, request: Request) -> Reply:
        """Answer with the token of a code; the code is used up."""
        codes = self._require_codes()
        if not isinstance(request.body, bytes) or len(request.body) > _MAX_SIGN_IN:
            raise BadRequest("the body must be a small JSON object with a code")
        try:
            code = orjson.loads(request.body)["code"]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
            raise BadRequest('the body must be {"code": "…"}') from None
        token = codes.redeem(code) if isinstance(code, str) else None
        if token is None:
            raise Forbidden("the sign-in link is used up or expired; phalanx page prints a new one")
        return Reply(OK, orjson.dumps({"token": token}), headers=_NO_STORE)

    def _require_codes(self) -> SignInCodes:
        if self.codes is None:
            raise NotFound("sign-in links need a server that listens on a loopback address only")
        return self.codes

    def _require_list(self, request: Request, kind: Kind, namespace: str) -> None:
        """Raise Forbidden if the user may not list a kind."""
        asked = Request("GET", kind.url_path(namespace), user=request.user)
        self._access.authorize(request.user, "list", RequestInfo(asked, kind, namespace))


def is_page_api_path(path: str) -> bool:
    """Whether a path is one of the page's own."""
    return path.startswith(f"{PAGE_API_ROOT}/")


_HANDLERS: Mapping[str, Mapping[str, _PageHandler]] = {
    "queue": {"GET": PageApi.serve_queue},
    "utilisation": {"GET": PageApi.serve_utilisation},
    "sign-in-codes": {"POST": PageApi.issue_code},
    "sign-in": {"POST": PageApi.redeem_code},
}
