"""An agent behind NAT: it dials in, and is served by the gateway at ``/agents/<name>``.

::

    async with ReverseAgent(url, token=get_token, name="builder", handler=app) as agent:
        await agent.serve_forever()

``handler`` is any ASGI application that speaks A2A over JSON-RPC, such as one made with the a2a-sdk; it is called in
process, and needs no port. The link is opened again whenever it ends. A call that was under way then goes on in the
application, and its answer is lost: the gateway asks for the task over the next link, and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from passerelle.channels.client_dial import Credential, Dialer, Identity
from passerelle.channels.client_items import (
    ChannelStopped,
    Connected,
    Connecting,
    Offline,
    Status,
    Stopped,
)
from passerelle.channels.client_link import Link
from passerelle.channels.closing import CloseCode, is_retryable
from passerelle.channels.frames import Drain, Expiry, Refusal, Renew
from passerelle.channels.reverse_app import App, InProcess, live, read_own_card
from passerelle.channels.reverse_calls import CallsAtWork
from passerelle.channels.reverse_frames import (
    AgentCall,
    CallPiece,
    Credit,
    Register,
    Registered,
    StopWaiting,
    Unregister,
    Unregistered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from ssl import SSLContext
    from types import TracebackType

    from passerelle.channels.frames import ServerFrame
    from passerelle.core.json import Json, JsonObject

__all__ = ["ReverseAgent"]

_RENEWS_BELOW_S: Final = 60
_FRAME_BYTES: Final = 65_536
_RETRIED_REFUSALS: Final = frozenset({"store_unavailable", "draining"})


def _draw() -> float:
    return secrets.randbelow(2**32) / 2**32


class ReverseAgent:
    """An agent's link to the gateway; use it as an async context manager."""

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
        on_status: Callable[[Status], None] | None = None,
        jitter: Callable[[], float] = _draw,
        tls: SSLContext | None = None,
    ) -> None:
        """``url`` is that of the gateway's ``/v1/channel``, and begins with ws:// or wss://.

        ``card`` is the agent card as JSON; absent, it is asked of the handler. ``path`` is where the handler speaks
        JSON-RPC; absent, it is read off the card. ``most`` calls are taken at once.
        """
        identity = Identity(
            url, device or f"agent-{name}", token, secrets.token_hex(4), "agent", tls
        )
        self.name = name
        self._dialer = Dialer(identity, jitter)
        self._handler = handler
        self._card = card
        self._path = path
        self._most = most
        self._on_status = on_status
        self._jitter = jitter
        self._status: Status = Connecting()
        self._app: InProcess | None = None
        self._served = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._run_task: asyncio.Task[None] | None = None
        self._replacement: asyncio.Task[Link | None] | None = None
        self._link: Link | None = None

    async def __aenter__(self) -> Self:
        self._run_task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._link is not None:
            await self._link.send(Unregister(self.name))
            await self._link.close()
        running = [task for task in (self._run_task, self._replacement) if task]
        for task in (*running, *self._tasks):
            task.cancel()
        await asyncio.gather(*running, *self._tasks, return_exceptions=True)
        if not isinstance(self._status, Stopped):
            self._stop(Stopped(CloseCode.NORMAL))

    @property
    def status(self) -> Status:
        """Connecting, Connected (and served), Offline or Stopped."""
        return self._status

    async def wait_served(self) -> None:
        """Returns when the gateway serves the agent.

        Raises:
            ChannelStopped: it never will: the name is not granted, or another one has it.
        """
        await self._wait(self._served)

    async def serve_forever(self) -> None:
        """Returns never, but by an error.

        Raises:
            ChannelStopped: the link has ended for good.
        """
        await self._wait(self._over)

    async def _wait(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(one.wait()) for one in (event, self._over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if isinstance(self._status, Stopped):
            raise ChannelStopped(self._status)

    # ------------------------------------------------------------ links

    async def _run(self) -> None:
        try:
            async with live(self._handler):
                await self._prepare()
                await self._stay_linked()
        except (LookupError, RuntimeError) as error:
            self._stop(Stopped(CloseCode.NORMAL, str(error)))

    async def _prepare(self) -> None:
        if self._card is None:
            self._card = await read_own_card(self._handler)
        self._app = InProcess(self._handler, self._path or _find_path(self._card))

    async def _stay_linked(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dialled = await self._await_replacement() or await self._dialer.dial((), None)
            ended = dialled
            if isinstance(dialled, Link):
                begun_s = loop.time()
                ended = await self._serve(dialled)
                self._dialer.note(loop.time() - begun_s)
            if self._replacement is not None:
                continue
            if isinstance(ended, Stopped) and not is_retryable(ended.code):
                self._stop(ended)
                return
            pause_s = self._dialer.choose_pause_s()
            self._set_status(Offline(ended.code if isinstance(ended, Stopped) else 0, pause_s))
            await asyncio.sleep(pause_s)
            self._set_status(Connecting())

    async def _serve(self, link: Link) -> Stopped:
        """Registers over a link, and reads it until it ends; how it ended."""
        app, card = self._app, self._card
        if app is None or card is None:
            raise AssertionError("nothing is dialled before there is something to serve")
        calls = CallsAtWork(app, link.send, link.welcome.limits.get("in", _FRAME_BYTES))
        self._link = link
        beating = asyncio.create_task(link.beat(self._jitter, dict))
        ended: Stopped | None = None
        try:
            await link.send(Register(self.name, card, self._most))
            async for frame in link.read():
                ended = await self._take(link, calls, frame)
                if ended is not None:
                    await link.close()
                    break
        finally:
            self._link = None
            self._served.clear()
            calls.cut()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        return ended or Stopped(link.close_code)

    async def _take(self, link: Link, calls: CallsAtWork, frame: ServerFrame) -> Stopped | None:
        """One frame of the gateway; how the link is to end, where it is."""
        match frame:
            case AgentCall():
                self._spawn(calls.begin(frame))
            case CallPiece() | Credit() | StopWaiting():
                calls.take(frame)
            case Registered():
                self._set_status(Connected(frozenset()))
                self._served.set()
            case Unregistered(code=code):
                return self._lose_name(code)
            case Refusal():
                return self._take_refusal(frame)
            case Expiry() | Drain():
                await self._take_notice(link, frame)
            case _:
                pass
        return None

    async def _take_notice(self, link: Link, notice: Expiry | Drain) -> None:
        if isinstance(notice, Drain):
            if self._replacement is None:
                self._replacement = asyncio.create_task(self._replace(link, notice))
        elif notice.expires_s <= _RENEWS_BELOW_S:
            token = await self._dialer.renew()
            if token is not None:
                await link.send(Renew(token))

    def _lose_name(self, code: str) -> Stopped | None:
        """While we move to another link that is this one's own doing."""
        if self._replacement is not None:
            return None
        wrong = CloseCode.SUPERSEDED if code == "superseded" else CloseCode.FORBIDDEN
        return Stopped(wrong, f"{self.name} is not served over this link any more: {code}")

    def _take_refusal(self, refusal: Refusal) -> Stopped | None:
        if refusal.fatal:
            self._dialer.retry_s = refusal.retry_s
        if refusal.of != "reg":
            return None
        if refusal.code in _RETRIED_REFUSALS:
            return Stopped(CloseCode.STORE_UNAVAILABLE, refusal.message)
        return Stopped(CloseCode.FORBIDDEN, f"{refusal.code}: {refusal.message}")

    async def _replace(self, link: Link, drain: Drain) -> Link | None:
        """Opens the next link first and leaves the old one then."""
        await asyncio.sleep(drain.jitter_ms / 1000 * self._jitter())
        fresh = await self._dialer.dial((), None)
        await link.close()
        return fresh if isinstance(fresh, Link) else None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await_replacement(self) -> Link | None:
        replacement, self._replacement = self._replacement, None
        return None if replacement is None else await replacement

    def _stop(self, status: Stopped) -> None:
        self._set_status(status)
        self._over.set()

    def _set_status(self, status: Status) -> None:
        self._status = status
        if self._on_status is not None:
            self._on_status(status)


def _find_path(card: JsonObject) -> str:
    """Where the application speaks JSON-RPC, by its own card."""
    listed: Json = card.get("supportedInterfaces")
    for entry in listed if isinstance(listed, list) else []:
        match entry:
            case {"protocolBinding": "JSONRPC", "url": str() as url}:
                return urlsplit(url).path or "/"
            case _:
                pass
    return "/"
