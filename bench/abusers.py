"""The abuser: a process that executes the abuse named in its orders against a gateway.

Reads one order per line from standard input and answers with one line once the abuse has started; the next order ends
it first. It exits at the end of its input. Whatever the gateway refuses or cuts is repeated: that is the abuse.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, TypeAlias, assert_never

import orjson
import uvloop

from passerelle.a2a_mapping.members import object_at, text_at

_STUCK_S: Final = 0.2
_BEGINS_S: Final = 20.0
_AGAIN_S: Final = 0.05
_SIP_S: Final = 0.05
_SMALL: Final = 16_384
_PIPELINE: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000
_numbers: Final = itertools.count(1)
StreamPair: TypeAlias = "tuple[asyncio.StreamReader, asyncio.StreamWriter]"


@dataclass(frozen=True, slots=True)
class AbuseOrder:
    """``count`` connections that do the same to the agent at ``url``; the kind ``rest`` does nothing.

    ``text`` is the text of the message; for ``bodies`` it is repeated to ``size`` bytes.
    """

    kind: Literal["pipelines", "slow readers", "talk", "half-open", "bodies", "rest"]
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    count: int = 0
    text: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class AbuseStarted:
    """The outcome of an order: the abuse has started, or the reason why it has not."""

    error: str | None = None


class RunningAbuse:
    """One order in progress. Ending it cuts its connections and cancels its tasks."""

    def __init__(self, order: AbuseOrder) -> None:
        self._order = order
        host, _, target = order.url.removeprefix("http://").partition("/")
        self._host, _, port = host.rpartition(":")
        self._port = int(port or 0)
        self._target = f"/{target}"
        self._under_way = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self._remote: list[str] = []
        self._waits_for = 0

    async def begin(self) -> None:
        """Returns when all connections are active.

        Raises:
            TimeoutError: some did not start in time.
        """
        order = self._order
        if order.kind == "slow readers":
            self._spawn(self._read_fast, 1)
            async with asyncio.timeout(_BEGINS_S):
                await self._under_way.wait()
        match order.kind:
            case "pipelines":
                self._spawn(self._pipeline, order.count)
            case "slow readers":
                self._spawn(self._read_slowly, order.count)
            case "talk":
                self._spawn(self._read_fast, order.count)
            case "half-open":
                self._spawn(self._send_partial, order.count)
            case "bodies":
                self._spawn(self._send_bodies, order.count)
            case "rest":
                return
            case _:
                assert_never(order.kind)
        async with asyncio.timeout(_BEGINS_S):
            await self._under_way.wait()

    async def end(self) -> None:
        """Returns when all connections and tasks have ended."""
        for one in self._working:
            one.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        for task in self._remote:
            reader, writer = await self._open()
            writer.write(self._write_call("CancelTask", {"id": task}))
            await _read_answer(reader)
            writer.transport.abort()

    def _spawn(self, act: Callable[[Callable[[], None]], Awaitable[None]], count: int) -> None:
        self._under_way.clear()
        self._waits_for = count
        for _ in range(count):
            self._working.append(asyncio.create_task(self._repeat(act)))

    async def _repeat(self, act: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Repeats ``act`` whatever its outcome."""
        is_reported = False

        def report_started() -> None:
            nonlocal is_reported
            if not is_reported:
                is_reported = True
                self._waits_for -= 1
                if not self._waits_for:
                    self._under_way.set()

        while True:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await act(report_started)
            await asyncio.sleep(_AGAIN_S)

    # ------------------------------------------------------------ kinds of abuse

    async def _pipeline(self, report_started: Callable[[], None]) -> None:
        """Requests without a credential until the gateway stops reading; no answer is read."""
        reader, writer = await self._open(receive_bytes=_SMALL)
        del reader
        try:
            with suppress(TimeoutError):
                while True:
                    writer.write(_PIPELINE)
                    async with asyncio.timeout(_STUCK_S):
                        await writer.drain()
                    report_started()
        finally:
            report_started()
            writer.transport.abort()

    async def _read_fast(self, report_started: Callable[[], None]) -> None:
        """A stream of the agent, read at full speed."""
        reader, writer = await self._open()
        try:
            writer.write(self._write_call("SendStreamingMessage", self._message(self._order.text)))
            self._remote.append(await _read_task(reader))
            report_started()
            while await reader.read(1 << 20):
                pass
        finally:
            writer.transport.abort()

    async def _read_slowly(self, report_started: Callable[[], None]) -> None:
        """A stream of the same task, read byte by byte."""
        reader, writer = await self._open(receive_bytes=_SMALL)
        try:
            writer.write(self._write_call("SubscribeToTask", {"id": self._remote[0]}))
            await reader.readexactly(1)
            report_started()
            while await reader.read(1):  # noqa: ASYNC110  that is its pace
                await asyncio.sleep(_SIP_S)
        finally:
            writer.transport.abort()

    async def _send_partial(self, report_started: Callable[[], None]) -> None:
        """Nothing, half a head or half a body, until the gateway closes."""
        whole = self._write_call("GetTask", {"id": "x" * 200})
        reader, writer = await self._open()
        try:
            writer.write((b"", whole[:60], whole[:-100])[next(_numbers) % 3])
            report_started()
            await reader.read()
        finally:
            writer.transport.abort()

    async def _send_bodies(self, report_started: Callable[[], None]) -> None:
        """Large messages one after the other."""
        order = self._order
        text = order.text * (order.size // len(order.text))
        reader, writer = await self._open()
        try:
            while True:
                writer.write(self._write_call("SendMessage", self._message(text)))
                report_started()
                await writer.drain()
                await _read_answer(reader)
        finally:
            writer.transport.abort()

    # ------------------------------------------------------------ requests

    async def _open(self, receive_bytes: int | None = None) -> StreamPair:
        link = socket.socket()
        if receive_bytes is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        link.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(link, (self._host, self._port))
        except BaseException:
            link.close()
            raise
        return await asyncio.open_connection(sock=link, limit=receive_bytes or 1 << 20)

    @staticmethod
    def _message(text: str) -> dict[str, object]:
        number = f"abuse-{next(_numbers)}"
        message = {"messageId": number, "role": "ROLE_USER", "parts": [{"text": text}]}
        return {"message": message}

    def _write_call(self, method: str, params: dict[str, object]) -> bytes:
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        headers = {
            "Host": f"{self._host}:{self._port}",
            "Content-Type": "application/json",
            "A2A-Version": "1.0",
            "Content-Length": str(len(body)),
            **self._order.headers,
        }
        lines = "".join(f"{name}: {said}\r\n" for name, said in headers.items())
        return f"POST {self._target} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]
    return await reader.readexactly(int(length))


async def _read_task(reader: asyncio.StreamReader) -> str:
    """The id in the first event of a stream."""
    while line := await reader.readline():
        if line.startswith(b"data:"):
            result = object_at(orjson.loads(line[5:]), "result")
            return text_at(object_at(result, "task"), "id")
    raise asyncio.IncompleteReadError(b"", None)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    abuse = RunningAbuse(AbuseOrder("rest"))
    try:
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            begun = AbuseStarted()
            try:
                await abuse.end()
                abuse = RunningAbuse(AbuseOrder(**orjson.loads(line)))
                await abuse.begin()
            except (OSError, asyncio.IncompleteReadError) as error:
                begun = AbuseStarted(f"{type(error).__name__}: {error}")
            sys.stdout.buffer.write(orjson.dumps(asdict(begun)) + b"\n")
            sys.stdout.buffer.flush()
    finally:
        await abuse.end()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
