"""The target of a notification button: ``POST /v1/approvals/answers``, authenticated by the token of the push.

There is no GET: a program that follows links by itself must not decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol

from pydantic import Field
from starlette.responses import JSONResponse
from starlette.routing import Route

from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope
from passerelle.core.wire.codec import from_bytes
from passerelle.core.wire.record import record
from passerelle.gateway.http.bodies import read_json
from passerelle.gateway.rpc.table import render_result
from passerelle.permission_bridge.devices.action_tokens import TOKEN_LIMIT, make_answer
from passerelle.runtime.common.calls import require_scope

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from passerelle.core.commands import CommandService
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.devices.action_tokens import ActionTokens

BODY_LIMIT_BYTES: Final = TOKEN_LIMIT + 512
PATH: Final = "/v1/approvals/answers"


@record
class ButtonParams:
    """The token of the push, and the option of the pressed button."""

    token: Annotated[str, Field(min_length=1, max_length=TOKEN_LIMIT)]
    option_id: Annotated[str, Field(min_length=1, max_length=255)]


class KnowsDevices(Protocol):
    """Finds the current principal of a paired device."""

    async def find_device(self, principal: str, tenant: str, device: str) -> Principal:
        """Raises Unauthenticated for a revoked device."""
        ...


@frozen
class ButtonEdge:
    """Answers requests with a token."""

    tokens: ActionTokens
    devices: KnowsDevices
    service: CommandService

    async def answer(self, request: Request) -> Response:
        """Decides as the device that received the push."""
        params = from_bytes(ButtonParams, await read_json(request, BODY_LIMIT_BYTES))
        token = self.tokens.read(params.token)
        principal = await self.devices.find_device(token.principal, token.tenant, token.device)
        require_scope(principal, (AccessScope.DECIDE,))
        answer = make_answer(token, params.option_id)
        result = await self.service.execute(principal, answer, token.token_id)
        return JSONResponse(render_result(result), 200, {"Cache-Control": "no-store"})


def make_button_route(edge: ButtonEdge) -> Route:
    """The route of the edge."""
    return Route(PATH, edge.answer, methods=["POST"], name="answer_by_button")
