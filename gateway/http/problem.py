"""Errors as RFC 9457 problems: one table from an error class to an HTTP status."""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from passerelle.a2a_mapping import errors as a2a_errors
from passerelle.core import errors
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.near import find_near
from passerelle.runtime.observability.logs import explain_fault

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
INTERNAL: Final = 500
_CLIENT_CLOSED: Final = 499
"""The status that proxies log for a caller that did not wait."""

STATUSES: Final[dict[type[errors.PasserelleError], int]] = {
    errors.PasserelleError: INTERNAL,
    errors.CallerError: 400,
    errors.InvalidInput: 400,
    errors.MalformedBody: 400,
    a2a_errors.InvalidRequest: 400,
    errors.BadCursor: 400,
    errors.GraphLimit: 409,
    errors.InvalidContent: 422,
    errors.UnknownOption: 422,
    errors.TooLarge: 413,
    errors.ArtifactTooLarge: 413,
    errors.UnknownMethod: 404,
    errors.VersionNotSupported: 400,
    errors.ContentTypeNotSupported: 415,
    errors.Unauthenticated: 401,
    errors.CredentialExpired: 401,
    errors.Forbidden: 403,
    errors.Limited: 429,
    errors.NotFound: 404,
    errors.UnsupportedOperation: 409,
    a2a_errors.PushNotificationNotSupported: 409,
    a2a_errors.ExtendedCardNotConfigured: 409,
    a2a_errors.ExtensionRequired: 400,
    errors.NotCancelable: 409,
    errors.WriteConflict: 409,
    errors.VersionMismatch: 412,
    errors.IdempotencyConflict: 409,
    errors.ActionClosed: 410,  # 409 if another answer won, see find_status
    errors.StaleAnswer: 412,
    errors.StreamGap: 410,
    errors.ConfigInvalid: INTERNAL,
    errors.DirectoryInUse: INTERNAL,
    errors.RemoteError: 503,
    errors.StoreUnavailable: 503,
    errors.ArchiveDamaged: 503,
    errors.RecordDamaged: 503,
    errors.EngineFailed: 503,
    errors.PeerUnavailable: 502,
    errors.PeerBusy: 429,
    errors.PeerRefused: 502,
    errors.InvalidAgentResponse: 502,
    errors.IssuerUnavailable: 503,
    errors.InstanceFull: 503,
    errors.Draining: 503,
}
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}
_NO_SUCH_PATH: Final = "this path does not exist; GET / lists the entry points"


def find_status(error: errors.PasserelleError) -> int:
    """The HTTP status of an error; a class that is not in the table has that of its nearest base class."""
    if isinstance(error, errors.ActionClosed) and error.state == "already_resolved":
        return 409
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def describe(error: errors.PasserelleError) -> JsonObject:
    """The members of the problem in addition to ``type``, ``title`` and ``status``."""
    members: JsonObject = {**error.details}
    if "status" in members:
        # ``status`` of a problem is the HTTP status; that of a task or schedule is named ``state`` here.
        members["state"] = members.pop("status")
    if isinstance(error, errors.ActionClosed):
        members["winner"] = error.winner
    return members


def render_problem(error: errors.PasserelleError) -> Response:
    """The response for a PasserelleError, with ``Retry-After`` and ``WWW-Authenticate`` where they apply."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.Limited) or (
        isinstance(error, errors.RemoteError) and (error.retryable or error.retry_after_s)
    ):
        headers["Retry-After"] = str(error.retry_after_s or RETRY_AFTER_S)
    if isinstance(error, errors.Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="passerelle"'
    return _respond(find_status(error), error.stable_code, error.message, describe(error), headers)


async def answer_error(_request: Request, error: Exception) -> Response:
    """Starlette's handler for PasserelleErrors."""
    if not isinstance(error, errors.PasserelleError):
        raise error
    return render_problem(error)


async def answer_status(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own errors: unknown path, wrong method."""
    if not isinstance(error, HTTPException):
        raise error
    code, headers = _CODES.get(error.status_code, "bad_request"), dict(error.headers or {})
    match error.status_code:
        case 404:
            detail = _suggest_path(request)
        case 405:
            headers["Allow"] = _list_methods(request)
            detail = f"{request.method} is not allowed here; use {headers['Allow']}"
        case _:
            detail = error.detail
    return _respond(error.status_code, code, detail, {}, headers)


def _list_methods(request: Request) -> str:
    """The methods of all routes at this path: each route knows only its own (RFC 9110 section 10.2.1)."""
    app: Starlette = request.app
    found = {
        method
        for route in app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return ", ".join(sorted(found))


def _suggest_path(request: Request) -> str:
    """The detail of a 404, with the most similar path without ids; the public index lists all of them."""
    app: Starlette = request.app
    paths = [
        route.path
        for route in app.routes
        if isinstance(route, Route) and "{" not in route.path and route.path != "/"
    ]
    near = find_near(request.url.path, paths)
    return f"{_NO_SUCH_PATH}; did you mean {near}?" if near else _NO_SUCH_PATH


class FaultGuard:
    """Answers an internal error with a 500 that shows no internals, and logs it once.

    The connection stays open, since other requests of the caller may use it. A response that has started cannot be
    taken back: the exception goes on to the server, which logs it and closes the connection. A request that is cut off
    by a shutdown before it has an answer gets ``Draining``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; passes anything else on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            if not has_begun:
                stopped = errors.Draining(
                    "this instance stopped before it had an answer", wrote="unknown"
                )
                await render_problem(stopped)(scope, receive, send)
            raise
        except Exception as error:
            if has_begun:
                raise
            structlog.get_logger().error("http.fault", path=scope["path"], exc_info=error)
            await render_problem(explain_fault())(scope, receive, send)


async def answer_disconnected(_request: Request, _error: Exception) -> Response:
    """Starlette's handler for a caller that left during its request: the response is not read."""
    return Response(status_code=_CLIENT_CLOSED)


EXCEPTION_HANDLERS: Final = {
    ClientDisconnect: answer_disconnected,
    errors.PasserelleError: answer_error,
    HTTPException: answer_status,
}


def _respond(
    status: int, code: str, detail: str, members: JsonObject, headers: dict[str, str]
) -> Response:
    body = {
        **members,
        "type": f"urn:passerelle:problem:{code}",
        "title": code.replace("_", " "),
        "status": status,
        "code": code,
        "detail": detail,
    }
    return Response(
        orjson.dumps(body),
        status,
        headers={"Cache-Control": "no-store", **headers},
        media_type=MEDIA_TYPE,
    )
