"""The server on real sockets: ports in use, the Server header, and shutdown within a time limit."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import websockets
from httpx import AsyncClient, ConnectError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from passerelle.core.errors import ConfigInvalid, StoreUnavailable
from passerelle.gateway.server import Listener, Server, bind, stop_on_signals
from passerelle.runtime.common.version import SERVER
from tests.support.waiting import wait_until


class Site:
    """Responds at once, when released, or never; counts open sockets."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.waiting = 0
        self.sockets = 0
        self.app = Starlette(
            routes=[
                Route("/", self._answer),
                Route("/slow", self._answer_slowly),
                WebSocketRoute("/socket", self._talk),
            ]
        )

    async def _answer(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("here")

    async def _answer_slowly(self, _request: Request) -> PlainTextResponse:
        self.waiting += 1
        await self.release.wait()
        return PlainTextResponse("late")

    async def _talk(self, socket: WebSocket) -> None:
        await socket.accept()
        self.sockets += 1
        async for text in socket.iter_text():
            await socket.send_text(text)
        self.sockets -= 1


@asynccontextmanager
async def serving(
    site: Site, drain: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[tuple[Listener, asyncio.Event, asyncio.Task[None]]]:
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(Server(site.app, listener, drain).serve(stop))
    try:
        yield listener, stop, task
    finally:
        stop.set()
        site.release.set()
        await task


def test_error_for_a_port_in_use_names_it() -> None:
    first = bind("127.0.0.1", 0)
    with pytest.raises(ConfigInvalid) as caught:
        bind("127.0.0.1", first.port)
    first.close()
    assert caught.value.details["where"] == "port"
    assert caught.value.message == (
        f"port: {first.url.rpartition(':')[2]} on 127.0.0.1 is in use; "
        "choose another, or 0 for a free one"
    )


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a\0b", "x" * 64])
def test_unavailable_host_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        bind(host, 0)
    assert caught.value.details["where"] == "host"


def test_url_can_be_opened_on_this_machine() -> None:
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("0.0.0.0", "127.0.0.1")):  # noqa: S104
        listener = bind(host, 0)
        listener.close()
        assert listener.url.startswith(f"http://{shown}:")
        assert not listener.url.endswith(":0")


@pytest.mark.anyio
async def test_every_response_has_the_server_header() -> None:
    async with serving(Site()) as (listener, _, _), AsyncClient(base_url=listener.url) as http:
        assert (await http.get("/")).headers["Server"] == SERVER
        assert (await http.get("/nothing")).headers["Server"] == SERVER
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"this is not HTTP\r\n\r\n")
        refusal = await asyncio.wait_for(reader.read(), 15)
        assert refusal.startswith(b"HTTP/1.1 400")
        assert f"server: {SERVER}".encode() in refusal.lower().replace(b"\r\n", b"\n")
        writer.close()
        async with websockets.connect(f"ws://127.0.0.1:{listener.port}/socket") as socket:
            assert socket.response is not None
            assert socket.response.headers["Server"] == SERVER


@pytest.mark.anyio
async def test_active_request_is_answered_during_shutdown_and_new_ones_are_refused() -> None:
    site = Site()
    drained: list[int] = []

    async def drain() -> None:
        drained.append(site.waiting)
        site.release.set()

    async with serving(site, drain) as (listener, stop, task), AsyncClient() as http:
        slow = asyncio.create_task(http.get(f"{listener.url}/slow"))
        await wait_until(lambda: site.waiting == 1, 15, "the slow request arrives")
        stop.set()
        assert (await slow).text == "late"
        await asyncio.wait_for(task, 15)
        assert drained == [1]
        with pytest.raises(ConnectError):
            await http.get(listener.url)


@pytest.mark.anyio
async def test_drain_runs_with_open_sockets() -> None:
    site = Site()
    seen: list[int] = []

    async def drain() -> None:
        seen.append(site.sockets)

    async with serving(site, drain) as (listener, stop, task):
        async with websockets.connect(f"ws://127.0.0.1:{listener.port}/socket") as socket:
            await wait_until(lambda: site.sockets == 1, 15, "the socket is open")
            stop.set()
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 15)
        await asyncio.wait_for(task, 15)
    assert seen == [1]


@pytest.mark.anyio
async def test_endless_request_is_aborted_on_shutdown() -> None:
    site = Site()
    async with serving(site) as (listener, stop, task), AsyncClient() as http:
        slow = asyncio.create_task(http.get(f"{listener.url}/slow"))
        await wait_until(lambda: site.waiting == 1, 15, "the slow request arrives")
        stop.set()
        await asyncio.wait_for(task, 9)
        await asyncio.gather(slow, return_exceptions=True)
        assert slow.exception() is not None or slow.result().status_code == 500


@pytest.mark.anyio
async def test_port_is_free_after_shutdown() -> None:
    async with serving(Site()) as (listener, _, _):
        port = listener.port
    bind("127.0.0.1", port).close()


@pytest.mark.anyio
async def test_first_signal_sets_stop_and_a_second_one_calls_back() -> None:
    stop, repeated = asyncio.Event(), asyncio.Event()
    with stop_on_signals(stop, repeated.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 15)
        assert not repeated.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(repeated.wait(), 15)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.anyio
async def test_failing_drain_still_closes_the_port() -> None:
    async def drain() -> None:
        raise StoreUnavailable("gone", "no")

    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(Server(Site().app, listener, drain).serve(stop))
    async with AsyncClient() as http:
        assert (await http.get(listener.url)).text == "here"
    port = listener.port
    stop.set()
    with pytest.raises(StoreUnavailable):
        await task
    bind("127.0.0.1", port).close()
