"""A reverse agent, for agents behind NAT: it connects to the gateway, which serves it at ``/agents/<name>``.

::

    async with ReverseAgent(url, token=get_token, name="builder", handler=app) as agent:
        await agent.serve_forever()

``handler`` is any ASGI application that speaks A2A over JSON-RPC, such as one built with the a2a-sdk. It is called in
process and needs no port. The link reconnects whenever it ends. A call in progress then continues in the application,
but its reply is lost: the gateway reads the task over the next link and never sends a message twice.

The same link carries the agent's own calls to other agents, within the permissions of its credential::

    answer = await agent.call("planner", "SendMessage", {"message": message}, idem="k-81")
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from passerelle.client.agent_calls import ServedCalls
from passerelle.client.asgi_app import App, InProcess, read_own_card, run_lifespan
from passerelle.client.dialer import Credential, Identity
from passerelle.client.items import (
    AnswersCut,
    CallRefused,
    ChannelStopped,
    Connected,
    LinkStatus,
    Stopped,
    UnknownOutcome,
)
from passerelle.client.keeper import LinkKeeper, draw
from passerelle.client.outbound_calls import OutboundCalls, OutboundRequest, Reply
from passerelle.client.upload import upload
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.concurrency import cancel_all, keep_until_done
from passerelle.protocol.frames import Answer, Drain, Expiry, Failure, Refusal
from passerelle.protocol.reverse_frames import (
    HOST_IDS,
    AgentCall,
    CallPiece,
    Credit,
    Register,
    Registered,
    StopWaiting,
    StreamItem,
    Unregister,
    Unregistered,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from ssl import SSLContext

    from passerelle.client.link import Link
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.frames import ServerFrame

__all__ = ["AnswersCut", "CallRefused", "ChannelStopped", "Reply", "ReverseAgent", "UnknownOutcome"]

_FRAME_BYTES: Final = 65_536
_RETRIED_REFUSALS: Final = frozenset({"store_unavailable", "draining"})


class ReverseAgent:
    """An agent's link to the gateway. Use it as an async context manager."""

    def __init__(  # noqa: PLR0913 - each is one property of an agent, most with a default
        self,
        url: str,
        *,
        name: str,
        handler: App,
        token: Credential = None,
        card: JsonObject | None = None,
        path: str | None = None,
        most: int = 8,
        device: str | None = None,
        on_status: Callable[[LinkStatus], None] | None = None,
        jitter: Callable[[], float] = draw,
        tls: SSLContext | None = None,
    ) -> None:
        """``url`` is the gateway's ``/v1/channel``, with the scheme ws:// or wss://.

        ``card`` is the agent card as JSON; if None, it is fetched from the handler. ``path`` is the handler's JSON-RPC
        endpoint; if None, it is read from the card. At most ``most`` calls run at a time.
        """
        identity = Identity(
            url, device or f"agent-{name}", token, secrets.token_hex(4), "agent", tls
        )
        self.name = name
        self._identity = identity
        self._keeper = LinkKeeper(identity, jitter, on_status)
        self._handler = handler
        self._card = card
        self._path = path
        self._most = most
        self._app: InProcess | None = None
        self._outbound = OutboundCalls()
        self._served = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_task: asyncio.Task[None] | None = None
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        self._run_task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._link is not None:
            await self._link.send(Unregister(self.name))
            await self._link.close()
        await cancel_all([*self._tasks, *(task for task in (self._run_task,) if task)])
        await self._keeper.end()
        if not isinstance(self._keeper.status, Stopped):
            self._stop(Stopped(CloseCode.NORMAL))

    @property
    def status(self) -> LinkStatus:
        """Connecting, Connected (the gateway serves the agent), Offline or Stopped."""
        return self._keeper.status

    async def wait_served(self) -> None:
        """Waits until the gateway serves the agent.

        Raises:
            ChannelStopped: the link ended for good: the name is not granted, or another agent has it.
        """
        await self._wait(self._served)

    async def serve_forever(self) -> None:
        """Runs until an error ends it.

        Raises:
            ChannelStopped: the link has ended for good.
        """
        await self._wait(self._over)

    # ------------------------------------------------------------ calls to other agents

    async def call(
        self,
        to: str,
        method: str,
        params: JsonObject,
        *,
        idem: str | None = None,
        headers: JsonObject | None = None,
    ) -> JsonObject:
        """Calls another agent by name; waits for a link if there is none.

        ``method`` is an A2A 1.0 name such as ``SendMessage``, ``headers`` are A2A service parameters. A timeout or a
        cancelled asyncio task stops only the waiting, not the work.

        Raises:
            CallRefused: the gateway answered with an error, by its ``code``.
            UnknownOutcome: the link was lost and the call has no ``idem``, so it is not sent again.
            ChannelStopped: the client has stopped; there is no further link.
        """
        return await self._outbound.call(OutboundRequest(to, method, params, idem, headers))

    def stream(
        self,
        to: str,
        method: str,
        params: JsonObject,
        *,
        idem: str | None = None,
        headers: JsonObject | None = None,
        window: int = 32,
    ) -> AsyncGenerator[Reply]:
        """Yields the responses of ``SendStreamingMessage`` or ``SubscribeToTask``. Stop early with ``aclosing``.

        At most ``window`` responses are in flight that the caller has not read. ``SubscribeToTask`` also accepts
        ``after``, the cursor to continue from.

        Raises:
            CallRefused: the gateway answered with an error, or ended the stream with one.
            AnswersCut: the link was lost; the error has the task, and the cursor to continue from.
            ChannelStopped: the client has stopped; there is no further link.
        """
        return self._outbound.stream(OutboundRequest(to, method, params, idem, headers), window)

    async def upload(self, content: bytes, media_type: str = "application/octet-stream") -> str:
        """Uploads large content over HTTP. Returns its address, for the ``url`` of an artifact part.

        The gateway keeps it for one day, for this agent only; a task that names it gets a copy. It is safe to upload
        the same content again.

        Raises:
            CallRefused: too large, over the quota, or the credential may not serve the name.
            UnknownOutcome: no reply arrived; try again.
        """
        return await upload(self._identity, self.name, content, media_type)

    async def _wait(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self._over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if isinstance(self._keeper.status, Stopped):
            raise ChannelStopped(self._keeper.status)

    # ------------------------------------------------------------ links

    async def _run(self) -> None:
        try:
            async with run_lifespan(self._handler):
                await self._prepare()
                self._stop(await self._keeper.run(self._serve))
        except (LookupError, RuntimeError) as error:
            self._stop(Stopped(CloseCode.NORMAL, str(error)))

    async def _prepare(self) -> None:
        if self._card is None:
            self._card = await read_own_card(self._handler)
        self._app = InProcess(self._handler, self._path or _find_path(self._card))

    async def _serve(self, link: Link) -> Stopped:
        """Registers over a link, then reads it until it closes. Returns why it ended."""
        app, card = self._app, self._card
        if app is None or card is None:
            raise AssertionError("a link opened before the application was started")
        calls = ServedCalls(app, link.send, link.welcome.limits.get("in", _FRAME_BYTES))
        self._link = link
        beating = asyncio.create_task(link.beat(self._keeper.jitter, dict))
        ended: Stopped | None = None
        try:
            await link.send(Register(self.name, card, self._most))
            await self._outbound.begin(link)
            async for frame in link.read():
                ended = await self._take(link, calls, frame)
                if ended is not None:
                    await link.close()
                    break
        finally:
            self._link = None
            self._served.clear()
            calls.cut()
            self._outbound.cut()
            await cancel_all([beating])
        return ended or Stopped(link.close_code)

    async def _take(self, link: Link, calls: ServedCalls, frame: ServerFrame) -> Stopped | None:
        """Handles one frame from the gateway. Returns the reason to end the link, or None."""
        match frame:
            case AgentCall():
                self._spawn(calls.begin(frame))
            case CallPiece(call) if not call.startswith(HOST_IDS):
                self._outbound.take(frame)
            case CallPiece() | Credit() | StopWaiting():
                calls.take(frame)
            case Answer() | Failure() | StreamItem():
                self._outbound.take(frame)
            case Registered():
                self._keeper.set_status(Connected(frozenset()))
                self._served.set()
            case Unregistered(code=code):
                return self._lose_name(code)
            case Refusal():
                return self._take_refusal(frame)
            case Expiry() | Drain():
                await self._keeper.handle_notice(link, frame)
            case _:
                pass
        return None

    def _lose_name(self, code: str) -> Stopped | None:
        """Returns the reason to stop. None while a replacement link opens: the gateway then moved the name to it."""
        if self._keeper.is_replacing:
            return None
        wrong = CloseCode.SUPERSEDED if code == "superseded" else CloseCode.FORBIDDEN
        return Stopped(wrong, f"{self.name} is no longer served over this link: {code}")

    def _take_refusal(self, refusal: Refusal) -> Stopped | None:
        self._keeper.note_refusal(refusal)
        if refusal.of != "reg":
            return None
        if refusal.code in _RETRIED_REFUSALS:
            return Stopped(CloseCode.STORE_UNAVAILABLE, refusal.message)
        return Stopped(CloseCode.FORBIDDEN, f"{refusal.code}: {refusal.message}")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        keep_until_done(asyncio.create_task(work), self._tasks)

    def _stop(self, status: Stopped) -> None:
        self._keeper.set_status(status)
        self._outbound.fail(ChannelStopped(status))
        self._over.set()


def _find_path(card: JsonObject) -> str:
    """Returns the application's JSON-RPC path, from its card."""
    listed: Json = card.get("supportedInterfaces")
    for entry in listed if isinstance(listed, list) else []:
        match entry:
            case {"protocolBinding": "JSONRPC", "url": str() as url}:
                return urlsplit(url).path or "/"
            case _:
                pass
    return "/"
