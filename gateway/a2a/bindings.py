"""How each binding wraps what it carries: results, errors, the data of server-sent events.

Events are written around the stored bytes without decoding them: two readers get equal bytes (G12).
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from passerelle.a2a_mapping.envelopes import render_rpc_error, render_status
from passerelle.a2a_mapping.rpc import render_result
from passerelle.a2a_mapping.v0_3.responses import render_legacy_status
from passerelle.core.errors import UnknownMethod
from passerelle.core.frozen import frozen
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.http_request import A2A_JSON, JSON
from passerelle.gateway.a2a.reply import HttpReply, compose_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.a2a_mapping.rpc import RpcId
    from passerelle.core.errors import PasserelleError
    from passerelle.core.wire.json import Json
    from passerelle.gateway.a2a.http_request import Incoming

_NO_STORE: Final = {"cache-control": "no-store"}
_METHOD_NOT_ALLOWED: Final = 405
EVENTS: Final = "text/event-stream"


class CallBinding(Protocol):
    """How one call is answered."""

    def render_result(self, result: Json) -> HttpReply:
        """Renders a success."""
        ...

    def render_error(self, error: PasserelleError) -> HttpReply:
        """Renders a failure before anything was sent."""
        ...

    def wrap_event(self, frame: bytes) -> bytes:
        """The data of the event that carries a StreamResponse; one line."""
        ...

    def write_failure(self, error: PasserelleError) -> bytes:
        """The whole last event of a stream that fails."""
        ...


@value
class RpcBinding:
    """JSON-RPC 2.0: everything carries the id of the request (A2A 1.0 section 9).

    ``in_events``: an error is the only event of a stream. Servers of 0.3 answer a call of a streaming method so, and
    their clients take nothing else: of an error as JSON they show the content type, and not its text.
    """

    rpc_id: RpcId = None
    in_events: bool = False

    def render_result(self, result: Json) -> HttpReply:
        return HttpReply(200, orjson.dumps(render_result(self.rpc_id, result)), JSON, _NO_STORE)

    def wrap_result(self, result: bytes) -> HttpReply:
        """Renders a success whose result is already JSON."""
        return HttpReply(200, self.wrap_event(result), JSON, _NO_STORE)

    def render_error(self, error: PasserelleError) -> HttpReply:
        reply = compose_error(render_rpc_error(error, self.rpc_id))
        if not self.in_events or reply.status != HTTPStatus.OK:
            return reply
        return replace(reply, body=self.write_failure(error), media_type=EVENTS)

    def wrap_event(self, frame: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(self.rpc_id), frame)

    def write_failure(self, error: PasserelleError) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(render_rpc_error(error, self.rpc_id).body)


@frozen
class HttpBinding:
    """HTTP+JSON: bare objects, errors as Google ``Status`` (A2A 1.0 section 11)."""

    media_type: str = A2A_JSON

    def render_result(self, result: Json) -> HttpReply:
        return HttpReply(200, orjson.dumps(result), self.media_type, _NO_STORE)

    def render_error(self, error: PasserelleError) -> HttpReply:
        return compose_error(render_status(error))

    def wrap_event(self, frame: bytes) -> bytes:
        return frame

    def write_failure(self, error: PasserelleError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(render_status(error).body)


@frozen
class LegacyHttpBinding:
    """HTTP+JSON of 0.3, below ``/v1``: always plain JSON."""

    def render_result(self, result: Json) -> HttpReply:
        return HttpReply(200, orjson.dumps(result), JSON, _NO_STORE)

    def render_error(self, error: PasserelleError) -> HttpReply:
        return compose_error(render_legacy_status(error))

    def wrap_event(self, frame: bytes) -> bytes:
        return frame

    def write_failure(self, error: PasserelleError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(render_legacy_status(error).body)


def choose_media_type(incoming: Incoming) -> str:
    """The type of a success: the request's, else one the caller accepts, else the protocol's own."""
    if incoming.media_type in {JSON, A2A_JSON}:
        return incoming.media_type
    accepted = {
        item.partition(";")[0].strip().lower()
        for item in incoming.headers.get("accept", "").split(",")
    }
    return JSON if JSON in accepted and A2A_JSON not in accepted else A2A_JSON


def refuse_verb(incoming: Incoming, allowed: Iterable[str]) -> HttpReply:
    """The answer for an existing path with a method it does not have."""
    answer = render_status(UnknownMethod(f"{incoming.verb} {incoming.path}"))
    error = answer.body["error"]
    if isinstance(error, dict):
        error["code"] = _METHOD_NOT_ALLOWED
    return compose_error(
        replace(
            answer, http_status=_METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(sorted(allowed))}
        )
    )
