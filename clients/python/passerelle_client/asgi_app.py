"""Calls an agent's ASGI application in process: no socket and no port.

The application gets the request that its JSON-RPC binding would get over HTTP (A2A 1.0 section 9). Its response is
forwarded as it arrives: ``send`` returns once the item is sent, so a slow reader slows the agent down (backpressure).
A caller that leaves shows as ``http.disconnect``; the application decides how to react.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from passerelle.core.wire.sse import SseParser
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.wire.json import Json, JsonObject

Message: TypeAlias = "MutableMapping[str, Any]"
App: TypeAlias = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
"""Any ASGI 3 application."""

MAX_ITEM_BYTES: Final = 16 * 1024 * 1024
_OK: Final = 200
_REDIRECTED: Final = 300
_FAILED: Final = 500
_LOG: Final = logging.getLogger(__name__)
_CARD_PATH: Final = "/.well-known/agent-card.json"


@dataclass(frozen=True, slots=True)
class AppAnswer:
    """The response, or the end of a stream (no ``data``)."""

    data: JsonObject | None


@dataclass(frozen=True, slots=True)
class A2aError:
    """The application returned an A2A error, under an HTTP status."""

    code: int
    message: str
    details: Json
    status: int = 200
    retry_s: int | None = None


@dataclass(frozen=True, slots=True)
class HttpError:
    """The application returned an HTTP status without an A2A response."""

    status: int
    retry_s: int | None


@dataclass(frozen=True, slots=True)
class Fault:
    """The application broke off its response, or it cannot be read; ``is_too_long``: a repeat would be as long."""

    reason: str
    is_too_long: bool = False


AppOutcome: TypeAlias = AppAnswer | A2aError | HttpError | Fault


class _Stop(Exception):
    """Ends an exchange from inside ``send``."""


class AppExchange:
    """One request to the application. ``leave`` disconnects the caller."""

    def __init__(
        self,
        app: App,
        scope: Message,
        body: bytes,
        on_item: Callable[[JsonObject], Awaitable[None]],
    ) -> None:
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._on_item = on_item
        self._left = asyncio.Event()
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._parser: SseParser | None = None
        self._whole = bytearray()
        self._error: AppOutcome | None = None
        self._is_complete = False

    def leave(self) -> None:
        """Disconnects the caller: no further response is read."""
        self._left.set()

    async def run(self) -> AppOutcome:
        """Runs the request. Every stream item is forwarded before the next one is read."""
        try:
            await self._app(self._scope, self.receive, self._send)
        except _Stop:
            pass
        except Exception as error:  # noqa: BLE001  any exception of an application is its fault
            _LOG.exception("the application raised an exception")
            if not self._status:
                # As a server answers for it over HTTP: the application got the request, and failed.
                return HttpError(_FAILED, None)
            if not self._is_complete:
                return Fault(f"{type(error).__name__}: {error}")
        if self._error is not None:
            return self._error
        if self._parser is not None:
            return (
                Fault("the stream ended inside an event")
                if self._parser.in_event
                else AppAnswer(None)
            )
        return self._read_whole()

    async def receive(self) -> Message:
        """Returns the ASGI messages of the request to the application."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        match message:
            case {"type": "http.response.start", "status": int() as status}:
                self._status = status
                self._headers = {
                    bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())
                }
                media_type = self._headers.get(b"content-type", b"").lower()
                if self._is_success and media_type.startswith(b"text/event-stream"):
                    self._parser = SseParser(MAX_ITEM_BYTES)
            case {"type": "http.response.body"}:
                self._is_complete = not message.get("more_body", False)
                await self._take(bytes(message.get("body", b"")))
            case _:
                pass

    async def _take(self, chunk: bytes) -> None:
        if self._parser is None:
            self._whole += chunk
            if len(self._whole) > MAX_ITEM_BYTES:
                self._fail(Fault(f"an answer over {MAX_ITEM_BYTES} bytes", is_too_long=True))
            return
        for payload in self._parser.feed(chunk):
            outcome = _read_envelope(payload)
            if not isinstance(outcome, AppAnswer):
                self._fail(outcome)
            elif outcome.data is not None:
                await self._on_item(outcome.data)
        if self._parser.overflowed:
            self._fail(Fault(f"an event over {MAX_ITEM_BYTES} bytes", is_too_long=True))

    @property
    def _is_success(self) -> bool:
        return _OK <= self._status < _REDIRECTED

    def _fail(self, error: AppOutcome) -> None:
        self._error = error
        raise _Stop

    def _read_whole(self) -> AppOutcome:
        outcome = _read_envelope(bytes(self._whole))
        if self._is_success:
            return outcome
        retry = self._headers.get(b"retry-after", b"")
        retry_s = int(retry) if retry.isdigit() else None
        match outcome:
            case A2aError():
                return replace(outcome, status=self._status, retry_s=retry_s)
            case Fault():
                return HttpError(self._status, retry_s)
            case _:
                return outcome


class InProcess:
    """The JSON-RPC endpoint of an application, at ``path``."""

    def __init__(self, app: App, path: str) -> None:
        self._app = app
        self._path = path

    def begin(
        self,
        method: str,
        params: JsonObject,
        headers: Mapping[str, str],
        on_item: Callable[[JsonObject], Awaitable[None]],
    ) -> AppExchange:
        """Starts a call by its A2A 1.0 method name."""
        envelope = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = orjson.dumps(envelope)
        sent = {
            "Host": "agent",
            "Accept": "application/json, text/event-stream",
            **headers,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
        }
        return AppExchange(self._app, make_scope("POST", self._path, sent), body, on_item)


async def read_own_card(app: App) -> JsonObject:
    """Returns the card that an application serves at the well-known path.

    Raises:
        LookupError: it serves no card.
    """

    async def skip(_item: JsonObject) -> None:
        return

    body = bytearray()
    started: list[int] = []

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append(message["status"])
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))

    scope = make_scope("GET", _CARD_PATH, {"Host": "agent", "A2A-Version": "1.0"})
    exchange = AppExchange(app, scope, b"", skip)
    await app(scope, exchange.receive, take)
    card: Json = None
    with suppress(orjson.JSONDecodeError):
        card = orjson.loads(bytes(body))
    if started != [_OK] or not isinstance(card, dict):
        raise LookupError(f"the application serves no agent card at {_CARD_PATH}; pass one as card")
    return card


def make_scope(method: str, path: str, headers: Mapping[str, str]) -> Message:
    """Returns the ASGI scope of an in-process request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers.items()
        ],
        "client": ("gateway", 0),
        "server": ("agent", 80),
        "state": {},
        "extensions": {},
    }


@asynccontextmanager
async def run_lifespan(app: App) -> AsyncGenerator[None]:
    """Runs the lifespan of an application around the block. An application without lifespan support works too.

    Raises:
        RuntimeError: the application reports that its startup failed.
    """
    received: asyncio.Queue[Message] = asyncio.Queue()
    sent: asyncio.Queue[Message] = asyncio.Queue()
    received.put_nowait({"type": "lifespan.startup"})
    scope: Message = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.ensure_future(app(scope, received.get, sent.put))
    try:
        begun = await _read_lifespan(running, sent)
        if begun.get("type") == "lifespan.startup.failed":
            raise RuntimeError(f"the application cannot start: {begun.get('message', '')}")
        yield
        if not running.done():
            received.put_nowait({"type": "lifespan.shutdown"})
            await _read_lifespan(running, sent)
    finally:
        await cancel_all([running])


async def _read_lifespan(running: asyncio.Future[None], sent: asyncio.Queue[Message]) -> Message:
    """Returns the next lifespan message of the application; an empty one if it ended without one."""
    reading = asyncio.ensure_future(sent.get())
    waits: list[asyncio.Future[Any]] = [running, reading]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        return reading.result()
    reading.cancel()
    return {}


def _read_envelope(raw: bytes) -> AppOutcome:
    try:
        envelope: Json = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return Fault("not JSON")
    match envelope:
        case {"error": {"code": int() as code, "message": str() as message, "data": details}}:
            return A2aError(code, message, details)
        case {"error": {"code": int() as code, "message": str() as message}}:
            return A2aError(code, message, None)
        case {"result": dict() as result}:
            return AppAnswer(result)
        case _:
            return Fault("no JSON-RPC response")
