"""``POST /v1/tickets``: a short-lived ticket with which a web page opens a channel or reads a stream once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field
from starlette.responses import JSONResponse
from starlette.routing import Route

from passerelle.core.frozen import frozen
from passerelle.core.principal import AccessScope
from passerelle.core.wire.codec import from_bytes, to_wire
from passerelle.core.wire.record import record
from passerelle.gateway.auth.tickets import TICKET_MS
from passerelle.gateway.http.bodies import read_json
from passerelle.runtime.common.calls import require_scope

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from passerelle.core.commands import Authenticator
    from passerelle.gateway.auth.credentials import CredentialReader
    from passerelle.gateway.auth.tickets import Tickets

PATH: Final = "/v1/tickets"
BODY_LIMIT_BYTES: Final = 2_048


@record
class TicketParams:
    """The device that the ticket is for."""

    device: Annotated[str, Field(min_length=1, max_length=128)]


@record
class TicketGiven:
    """``expires_in`` in seconds; redeemable once, by the same device from the same origin."""

    ticket: str
    expires_in: int


@frozen
class TicketEdge:
    """Issues tickets to callers that may open channels or read tasks."""

    tickets: Tickets
    authenticator: Authenticator
    reader: CredentialReader

    async def answer(self, request: Request) -> Response:
        """Answers one request."""
        shown = self.reader.read_scope(request.scope)
        principal = await self.authenticator.authenticate(shown)
        require_scope(principal, (AccessScope.CONNECT, AccessScope.READ_TASKS))
        params = from_bytes(TicketParams, await read_json(request, BODY_LIMIT_BYTES))
        ticket = await self.tickets.issue(shown, params.device)
        given = TicketGiven(ticket, TICKET_MS // 1000)
        return JSONResponse(to_wire(given), 201, {"Cache-Control": "no-store"})


def make_ticket_route(edge: TicketEdge) -> Route:
    """The route of the edge."""
    return Route(PATH, edge.answer, methods=["POST"], name="issue_ticket")
