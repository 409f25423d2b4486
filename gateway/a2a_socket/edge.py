"""``GET /agents/<name>/ws``: the handshake, and the calls of one socket.

Once its body is read, a call runs through the same code as one over HTTP, so the bindings cannot diverge. What differs
is here: the handshake authenticates the caller, and each call checks it again; answers are matched by id; a reader that
leaves one stream keeps the others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketDisconnect

from passerelle.a2a_mapping.envelopes import render_rpc_error
from passerelle.a2a_mapping.errors import InvalidRequest
from passerelle.a2a_mapping.socket_frames import (
    PATH,
    SUBPROTOCOL,
    CallFrame,
    CancelFrame,
    RefusedFrame,
    read_frame,
)
from passerelle.a2a_mapping.version import CURRENT, HEADER
from passerelle.channels.origins import WebOrigins
from passerelle.core.agent_name import is_served
from passerelle.core.errors import CallerError, NotFound, Unauthenticated, VersionNotSupported
from passerelle.core.frozen import frozen
from passerelle.core.wire.headers import REASON, find_repeated, read_fields
from passerelle.gateway.a2a.http_request import FRAMED
from passerelle.gateway.a2a.paths import AGENTS, split_path
from passerelle.gateway.a2a_socket.answer import SocketAnswer
from passerelle.gateway.auth.credentials import API_KEY_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Scope
    from starlette.websockets import WebSocket

    from passerelle.a2a_mapping.rpc import RpcId
    from passerelle.core.credentials import Credentials
    from passerelle.core.errors import PasserelleError
    from passerelle.gateway.a2a.face import Face

MOST_CALLS: Final = 64
"""Calls that one socket may have open; at this number reading pauses."""
_UNSUPPORTED_DATA: Final = 1003
_TOKEN_EXPIRED: Final = 4401
_FORBIDDEN: Final = 4503
_OWN_HEADERS: Final = frozenset(
    {
        *("connection", "upgrade", "content-length", "content-type", "transfer-encoding"),
        *("sec-websocket-key", "sec-websocket-version", "sec-websocket-protocol"),
        *("sec-websocket-extensions", "cookie", "accept", "last-event-id"),
    }
)
"""Used for the handshake only."""


@frozen
class SocketEdge:
    """Serves sockets. ``redeem`` returns the credentials for a ticket; ``origins`` are the web origins allowed."""

    face: Face
    redeem: Callable[[str, str | None, str], Awaitable[Credentials]]
    origins: WebOrigins

    async def handle(self, websocket: WebSocket) -> None:
        """Serves one socket from handshake to end."""
        try:
            scope = await self._admit(websocket)
        except CallerError as error:
            status = _choose_status(error)
            headers = {"www-authenticate": 'Bearer realm="passerelle"'} if status == 401 else {}  # noqa: PLR2004  unauthorized
            await websocket.send_denial_response(PlainTextResponse(error.message, status, headers))
            return
        await websocket.accept(subprotocol=SUBPROTOCOL)
        await _Connection(self.face, websocket, scope).serve()

    async def _admit(self, websocket: WebSocket) -> Scope:
        """The scope for the calls of a socket, after the caller and the agent are checked.

        Raises:
            Unauthenticated: no valid credential.
            NotFound: no agent of that name for this caller.
            InvalidRequest: another subprotocol, another version, or a web page of a foreign origin.
        """
        if SUBPROTOCOL not in websocket.scope.get("subprotocols", []):
            raise InvalidRequest("Sec-WebSocket-Protocol", f"must be {SUBPROTOCOL}")
        pairs = websocket.scope["headers"]
        proxied = self.face.parts.reader.certificate_header
        repeated = find_repeated([name for name, _ in pairs])
        if repeated is not None:
            raise InvalidRequest(repeated, REASON)
        headers = {
            name: value
            for name, value in read_fields(pairs, proxied).items()
            if name not in _OWN_HEADERS
        }
        origin = headers.get("origin")
        # A web page must be listed or of the same host; programs send no origin.
        if not self.origins.admits(origin, headers.get("host")):
            raise InvalidRequest("Origin", "is not allowed")
        version = headers.setdefault(HEADER.lower(), CURRENT)
        if version != CURRENT:
            raise VersionNotSupported(version, (CURRENT,))
        parts = self.face.parts
        shown = parts.reader.read_scope(websocket.scope)
        ticket = websocket.query_params.get("ticket")
        if ticket is not None:
            shown = await self.redeem(ticket, origin, websocket.query_params.get("device", ""))
            headers |= _show(shown)
        principal = await parts.authenticator.authenticate(shown)
        names = parts.agents.names
        agent, rest = split_path(websocket.scope["path"], names) or ("", "")
        if rest != PATH or not is_served(agent, names) or not principal.sees(agent):
            raise NotFound("agent", agent)
        return {
            **websocket.scope,
            "type": "http",
            "scheme": "https" if websocket.scope["scheme"] == "wss" else "http",
            "method": "POST",
            "path": f"{AGENTS}/{agent}",
            "query_string": b"",
            "headers": headers,
            "extensions": {FRAMED: {}},
        }


@dataclass(slots=True)
class _Call:
    """One call in progress. Its request is its frame; ``left`` is set when its answer is no longer read."""

    frame: CallFrame
    answer: SocketAnswer
    left: asyncio.Event = field(default_factory=asyncio.Event)
    is_read: bool = False

    async def receive(self) -> Message:
        """The request, and later the disconnect of its caller."""
        if not self.is_read:
            self.is_read = True
            return {"type": "http.request", "body": self.frame.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


class _Connection:
    """One accepted socket."""

    def __init__(self, face: Face, websocket: WebSocket, scope: Scope) -> None:
        self._face = face
        self._websocket = websocket
        self._scope = scope
        self._calls: dict[str | int, _Call] = {}
        self._room = asyncio.Semaphore(MOST_CALLS)

    async def serve(self) -> None:
        """Serves until the socket ends; the work of its calls continues without their caller (I6)."""
        async with asyncio.TaskGroup() as group:
            try:
                while (text := await self._read()) is not None:
                    await self._take(group, text)
            finally:
                for call in self._calls.values():
                    call.left.set()

    async def _read(self) -> str | None:
        try:
            message = await self._websocket.receive()
        except WebSocketDisconnect:
            return None
        if message["type"] == "websocket.disconnect":
            return None
        text: str | None = message.get("text")
        if text is None:
            await self._close(_UNSUPPORTED_DATA)
        return text

    async def _take(self, group: asyncio.TaskGroup, text: str) -> None:
        frame = read_frame(text)
        if isinstance(frame, CancelFrame):
            call = self._calls.get(frame.id) if frame.id is not None else None
            if call is not None:
                call.left.set()
            return
        if frame.id in self._calls:
            await self._refuse(frame.id, InvalidRequest("id", "is the id of an open call"))
            return
        if isinstance(frame, RefusedFrame):
            await self._refuse(frame.id, frame.error)
            return
        await self._room.acquire()
        call = _Call(frame, SocketAnswer(frame.id, self._send))
        if frame.id is not None:
            self._calls[frame.id] = call
        group.create_task(self._serve(call))

    async def _serve(self, call: _Call) -> None:
        headers = {
            **self._scope["headers"],
            **call.frame.headers,
            "content-type": "application/json",
        }
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        try:
            await self._face({**self._scope, "headers": raw}, call.receive, call.answer.take)
            if call.left.is_set():
                await call.answer.end_early()
            await self._check_access(call.answer)
        finally:
            if call.frame.id is not None:
                self._calls.pop(call.frame.id, None)
            self._room.release()

    async def _check_access(self, answer: SocketAnswer) -> None:
        """Closes the socket if its caller has lost access."""
        if answer.is_missing:
            await self._close(_FORBIDDEN)
        elif answer.is_unauthenticated:
            await self._close(_TOKEN_EXPIRED)

    async def _refuse(self, rpc_id: RpcId, error: PasserelleError) -> None:
        await self._send(orjson.dumps(render_rpc_error(error, rpc_id).body).decode())

    async def _send(self, text: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, OSError):  # the reader sees the end
            await self._websocket.send_text(text)

    async def _close(self, code: int) -> None:
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self._websocket.close(code)


def _choose_status(error: CallerError) -> int:
    match error:
        case Unauthenticated():
            return 401
        case NotFound():
            return 404
        case _:
            return 400


def _show(shown: Credentials) -> dict[str, str]:
    """The credential headers, which a browser could not send."""
    headers: dict[str, str] = {}
    if shown.bearer is not None:
        headers["authorization"] = f"Bearer {shown.bearer}"
    if shown.api_key is not None:
        headers[API_KEY_HEADER] = shown.api_key
    return headers
