"""API errors, and the Status object that carries each of them.

    ApiError
    ├── BadRequest            400 BadRequest             the body or a parameter cannot be parsed
    ├── Unauthorized          401 Unauthorized           the credential is unknown
    ├── Forbidden             403 Forbidden              refused by authorization or admission
    ├── NotFound              404 NotFound               no such object
    ├── NoSuchResource        404 NotFound               no such resource type
    ├── MethodNotAllowed      405 MethodNotAllowed
    ├── NotAcceptable         406 NotAcceptable
    ├── AlreadyExists         409 AlreadyExists
    ├── Conflict              409 Conflict               another write came first
    ├── Expired               410 Expired                the revision is compacted: list again
    ├── RequestTimeout        408 Timeout                the request did not arrive in time
    ├── TooLarge              413 RequestEntityTooLarge
    ├── UnsupportedMediaType  415 UnsupportedMediaType
    ├── Invalid               422 Invalid                with one cause per field
    ├── TooManyRequests       429 TooManyRequests        retry later
    ├── HeadersTooLarge       431 RequestHeaderFieldsTooLarge
    ├── Timeout               504 Timeout
    ├── AdmissionDenied       chosen by a webhook or policy
    └── ServerError           500 InternalError          a bug, or a reply that cannot be decoded

The server converts them to replies in one place (`server/app.py`); the client rebuilds the same
class from a Status.

A `Cause` is the error of one field. `required`, `invalid` and the other constructors, one per
reason, build it with the messages of Kubernetes. Its field path is relative to the struct that a
check is about; `prefix_causes` puts it below the parent's path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from phalanx.api.wire import Object


@dataclass(frozen=True, slots=True)
class Cause:
    """One invalid field: `spec.x`, `FieldValueInvalid`, `Invalid value: …`."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


Causes = Sequence[Cause]
#: The causes of one field that are reported; an attacker can cause as many as a body has bytes.
MAX_CAUSES = 200


class ApiError(Exception):
    """An API error with its HTTP code and machine-readable reason."""

    code: int = 500
    reason: str = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        group: str = "",
        kind: str = "",
        causes: Sequence[Cause] = (),
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.causes = message, tuple(causes)
        self.name, self.group, self.kind, self.retry_after = name, group, kind, retry_after

    def status(self) -> Object:
        """Return the Status object for the client."""
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if details := self._details():
            status["details"] = details
        return {**status, "code": self.code}

    def _details(self) -> Object:
        causes = [{"reason": c.reason, "message": c.message, "field": c.field} for c in self.causes]
        known: dict[str, Any] = {
            "name": self.name,
            "group": self.group,
            "kind": self.kind,
            "causes": causes,
            "retryAfterSeconds": self.retry_after,
        }
        return {key: value for key, value in known.items() if value}


class BadRequest(ApiError):
    """The body or a parameter cannot be parsed."""

    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    """The credential is unknown."""

    code, reason = 401, "Unauthorized"

    def __init__(self, message: str = "Unauthorized", **details: Any) -> None:
        super().__init__(message, **details)


class Forbidden(ApiError):
    """Authorization or admission refuses the request."""

    code, reason = 403, "Forbidden"


class NotFound(ApiError):
    """No such object."""

    code, reason = 404, "NotFound"


class NoSuchResource(ApiError):
    """No such resource type."""

    code, reason = 404, "NotFound"

    def __init__(
        self, message: str = "the server could not find the requested resource", **details: Any
    ) -> None:
        super().__init__(message, **details)


class MethodNotAllowed(ApiError):
    """The path does not support the method."""

    code, reason = 405, "MethodNotAllowed"

    def __init__(
        self,
        message: str = "the server does not allow this method on the requested resource",
        **details: Any,
    ) -> None:
        super().__init__(message, **details)


class NotAcceptable(ApiError):
    """The server cannot encode any media type that the client accepts."""

    code, reason = 406, "NotAcceptable"


class AlreadyExists(ApiError):
    """An object of that name exists."""

    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    """Another write came first, or a precondition does not hold."""

    code, reason = 409, "Conflict"


class Expired(ApiError):
    """The revision is compacted. With `continue_token` a list continues at the present."""

    code, reason = 410, "Expired"

    def __init__(self, message: str, *, continue_token: str = "", **details: Any) -> None:
        super().__init__(message, **details)
        self.continue_token = continue_token

    def status(self) -> Object:
        """Return the Status object, with the continue token if there is one."""
        status = super().status()
        return (
            {**status, "metadata": {"continue": self.continue_token}}
            if self.continue_token
            else status
        )


class RequestTimeout(ApiError):
    """The request did not arrive in time."""

    code, reason = 408, "Timeout"


class HeadersTooLarge(ApiError):
    """The request headers exceed the limit."""

    code, reason = 431, "RequestHeaderFieldsTooLarge"


class TooLarge(ApiError):
    """The request body exceeds the limit."""

    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    """The server does not decode the media type of the body."""

    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    """The object fails validation."""

    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    """The server is overloaded; retry later."""

    code, reason = 429, "TooManyRequests"


class Timeout(ApiError):
    """The request took too long, or the requested revision did not arrive in time."""

    code, reason = 504, "Timeout"


class ServiceUnavailable(ApiError):
    """The server is stopping; another one, or this one after its restart, can answer."""

    code, reason = 503, "ServiceUnavailable"


class ServerError(ApiError):
    """A bug of the server, or a reply that is not a Status."""


class AdmissionDenied(ApiError):
    """An admission webhook or policy refuses the request, with a code and reason of its choice."""

    reason = ""

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(status["message"])
        self.code, self._status = code, status

    def status(self) -> Object:
        """Return the Status object of the webhook or policy."""
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **self._status}


class WebhookError(ServerError):
    """A webhook, or what it answered, is broken; the server itself is not."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"Internal error occurred: {detail}", causes=[Cause("", "", detail)])


class ConversionFailed(WebhookError):
    """A conversion webhook, or what it answered, is broken. Kubernetes gives no reason for it."""

    reason = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message, self.causes = message, ()

    def status(self) -> Object:
        """Return the Status object without a reason."""
        return {key: value for key, value in super().status().items() if key != "reason"}


_BY_REASON = {
    kind.reason: kind
    for kind in ApiError.__subclasses__()
    if kind not in (NoSuchResource, RequestTimeout, AdmissionDenied)
}


def from_status(code: int, status: Object) -> ApiError:
    """Rebuild the error that a Status describes."""
    details = status.get("details") or {}
    kind = _BY_REASON.get(status.get("reason", ""), ServerError)
    return kind(
        status.get("message") or f"the server answered {code}",
        name=details.get("name", ""),
        group=details.get("group", ""),
        kind=details.get("kind", ""),
        causes=tuple(
            Cause(c.get("field", ""), c.get("reason", ""), c.get("message", ""))
            for c in details.get("causes") or ()
        ),
        retry_after=details.get("retryAfterSeconds"),
    )


def required(field: str, detail: str = "") -> Cause:
    """Build the error of a missing value."""
    return Cause(field, "FieldValueRequired", _with_detail("Required value", detail))


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Build the error of a wrong value."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_to_json(value)}: {detail}")


def unsupported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    """Build the error of a value that is not one of the supported values."""
    known = ", ".join(f'"{one}"' for one in supported)
    text = f"Unsupported value: {_to_json(value)}: supported values: {known}"
    return Cause(field, "FieldValueNotSupported", text)


def duplicate(field: str, value: Any) -> Cause:
    """Build the error of a repeated value."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_to_json(value)}")


def forbidden(field: str, detail: str) -> Cause:
    """Build the error of a value that must be absent or unchanged."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def not_found(field: str, value: Any, detail: str = "") -> Cause:
    """Build the error of a reference to something that does not exist."""
    return Cause(field, "FieldValueNotFound", _with_detail(f"Not found: {_to_json(value)}", detail))


def too_long(field: str, limit: int) -> Cause:
    """Build the error of a value with more bytes than allowed."""
    return Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> Cause:
    """Build the error of a value with more items than allowed."""
    noun = "item" if limit == 1 else "items"
    text = f"Too many: {count}: must have at most {limit} {noun}"
    return Cause(field, "FieldValueTooMany", text)


def internal(field: str, detail: str) -> Cause:
    """Build the error of a check that could not be done."""
    return Cause(field, "InternalError", f"Internal error: {detail}")


def prefix_causes(parent: str, causes: Iterable[Cause]) -> list[Cause]:
    """Return the first causes with their fields below a parent's path."""
    first = islice(causes, MAX_CAUSES)
    return [Cause(_join_path(parent, c.field), c.reason, c.message) for c in first]


def join_causes(causes: Iterable[Cause]) -> str:
    """Join causes to one message: alone, or in brackets."""
    texts = [str(cause) for cause in causes]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _join_path(parent: str, field: str) -> str:
    if not field or not parent:
        return parent + field
    return f"{parent}{field}" if field.startswith("[") else f"{parent}.{field}"


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()
