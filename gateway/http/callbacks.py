"""``POST /callbacks/{run}/{nonce}``: a peer reports that a task has changed.

A valid call gets 202 before anything is done about it. Every other one gets the same 404, so that callers cannot find
out which runs exist, or what was wrong.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.routing import Route

from passerelle.a2a_mapping.members import read_object
from passerelle.core.errors import InvalidInput, StoreUnavailable, TooLarge
from passerelle.delegation.runs.callbacks import PATH
from passerelle.gateway.auth.credentials import read_bearer
from passerelle.gateway.http.bodies import read_bytes

if TYPE_CHECKING:
    from starlette.requests import Request

    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.callbacks import CallbackEdge

BODY_LIMIT_BYTES: Final = 1_048_576
_TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105  the name of a header


def make_callback_route(edge: CallbackEdge) -> Route:
    """The route."""

    async def answer(request: Request) -> Response:
        run = request.path_params["run"]
        if edge.callbacks.is_too_often(run):
            return Response(status_code=HTTPStatus.ACCEPTED)
        task = await _check(edge, request, run)
        if task is None:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        return Response(
            status_code=HTTPStatus.ACCEPTED, background=BackgroundTask(_wake, edge, task)
        )

    return Route(f"{PATH}/{{run}}/{{nonce}}", answer, methods=["POST"])


async def _wake(edge: CallbackEdge, task: str) -> None:
    """Runs after the response. A driver on another instance is notified there."""
    here = edge.wake(task)
    structlog.get_logger().info("callback.taken", task=task, here=here)


async def _check(edge: CallbackEdge, request: Request, run: str) -> str | None:
    body = await _read(request)
    if body is None:
        return None
    tokens = (
        request.headers.get(_TOKEN),
        read_bearer(request.headers.get("Authorization")),
    )
    try:
        return await edge.callbacks.judge(run, request.path_params["nonce"], tokens, body)
    except StoreUnavailable as error:
        structlog.get_logger().warning("callback.held", reason=error.reason)
        return None


async def _read(request: Request) -> JsonObject | None:
    try:
        return read_object(await read_bytes(request, BODY_LIMIT_BYTES))
    except (InvalidInput, TooLarge):
        return None
