"""One gateway and one agent as processes, callers, and the gateway's memory."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import aiohttp
import orjson
import yaml

from passerelle.demo.processes import GatewayProcess, start
from tests.memory import linked_agent
from tests.memory.agent import NAME
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.wire.json import Json, JsonObject

MB: Final = 1_000_000
QUIET: Final = "quiet"
"""The agent of uninvolved callers."""
BUDGET_BYTES: Final = 256 * 1024 * 1024
_SECRET: Final = "psr_memory_"
_CALLERS: Final = ("alice", "bob", "carol")
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)
_SCOPES: Final = ("a2a:call", "tasks:read", "tasks:write", "channels:connect")
_HEADERS: Final = {"A2A-Version": "1.0", "Content-Type": "application/json"}
_SMALL: Final = 16_384
_EVENTS_WITHIN_S: Final = 120.0


@dataclass(slots=True)
class SlowReader:
    """A caller that sends a request and reads no answer."""

    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    def leave(self) -> None:
        """Cuts the connection."""
        self.writer.transport.abort()


@dataclass(slots=True)
class Site:
    """The tools of a case."""

    gateway: GatewayProcess
    agent_url: str
    http: aiohttp.ClientSession
    slow: list[SlowReader] = field(default_factory=list[SlowReader])
    grpc_port: int = 0
    """The gRPC port; 0: none."""

    # ------------------------------------------------------------ memory of the gateway

    @property
    def pid(self) -> int:
        """The gateway's process; its engine is another one."""
        assert self.gateway.child is not None
        return self.gateway.child.process.pid

    def is_alive(self) -> bool:
        """Whether it still runs."""
        assert self.gateway.child is not None
        return not self.gateway.child.has_ended()

    def read_memory(self, name: str) -> int:
        """``VmHWM`` or ``VmRSS`` in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        line = next(one for one in status.splitlines() if one.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024

    def reset_peak(self) -> None:
        """Resets ``VmHWM`` to the current usage."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    async def settle(self) -> None:
        """Returns when its memory has stopped growing: all requests have arrived."""
        seen: list[int] = []

        def is_still() -> bool:
            seen.append(self.read_memory("VmRSS"))
            last = seen[-200:]
            return len(last) == 200 and last[-1] - min(last) < MB

        await wait_until(is_still, 60.0, "the memory of the gateway is stable")

    # ------------------------------------------------------------ callers

    def headers(self, caller: str) -> dict[str, str]:
        """Headers that identify a caller."""
        return {**_HEADERS, "Authorization": f"Bearer {_SECRET}{caller}"}

    @property
    def path(self) -> str:
        """The JSON-RPC endpoint of the agent."""
        return f"/agents/{NAME}"

    async def call(
        self, caller: str, method: str, params: JsonObject, agent: str = NAME
    ) -> JsonObject:
        """The whole answer of a JSON-RPC call."""
        async with self.http.post(
            f"{self.gateway.url}/agents/{agent}",
            data=write_call(method, params),
            headers=self.headers(caller),
        ) as response:
            return cast("JsonObject", orjson.loads(await response.read()))

    async def measure(
        self, caller: str, method: str, params: JsonObject, version: str = "1.0"
    ) -> int:
        """Bytes of the answer of a call, which is read and dropped."""
        size = 0
        async with self.http.post(
            self.gateway.url + self.path,
            data=write_call(method, params),
            headers={**self.headers(caller), "A2A-Version": version},
        ) as response:
            assert response.status == 200, response.status
            async for piece in response.content.iter_any():
                size += len(piece)
        return size

    @asynccontextmanager
    async def stream(self, caller: str, text: str, agent: str = NAME) -> AsyncGenerator[Events]:
        """The events of a streamed message."""
        async with self.http.post(
            f"{self.gateway.url}/agents/{agent}",
            data=write_call("SendStreamingMessage", write_message(text)),
            headers=self.headers(caller),
        ) as response:
            assert response.content_type == "text/event-stream", await response.text()
            yield Events(response.content)

    async def ask_slowly(
        self, caller: str, method: str, params: JsonObject, version: str = "1.0"
    ) -> SlowReader:
        """Sends a request over a new connection, and reads no answer."""
        body = write_call(method, params)
        return await self.write_slowly(self.write_head(caller, len(body), version=version) + body)

    def write_head(
        self, caller: str, size: int, path: str | None = None, version: str = "1.0"
    ) -> bytes:
        """The head of a call with a body of ``size`` bytes; ``path`` replaces that of the agent."""
        lines = {
            **self.headers(caller),
            "A2A-Version": version,
            "Host": "gateway",
            "Content-Length": str(size),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST {path or self.path} HTTP/1.1\r\n{head}\r\n".encode()

    async def write_slowly(self, raw: bytes) -> SlowReader:
        """The same for any bytes."""
        sock = socket.socket()
        # Otherwise the kernel of this machine would buffer the answer.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.gateway.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=_SMALL)
        slow = SlowReader(writer, reader)
        self.slow.append(slow)
        writer.write(raw)
        await writer.drain()
        return slow

    @asynccontextmanager
    async def link_agent(self) -> AsyncGenerator[None]:
        """Runs the agent that dials in."""
        url = self.gateway.url.replace("http", "ws", 1)
        arguments = ("tests.memory.linked_agent", f"{url}/v1/channel", self.agent_url)
        environ = {
            "PYTHONPATH": str(Path.cwd()),
            linked_agent.TOKEN: f"{_SECRET}{linked_agent.NAME}",
        }
        process = start("linked", arguments, self.gateway.folder, environ)
        try:
            await process.read_line("linked")
            yield
        finally:
            await process.stop()

    async def release(self) -> None:
        """Releases the agent's tasks that wait to begin."""
        async with self.http.post(f"{self.agent_url}/go") as response:
            await response.read()

    async def read_brought(self) -> int:
        """Bytes of endless output that the gateway has read."""
        async with self.http.get(f"{self.agent_url}/brought") as response:
            return int(orjson.loads(await response.read())["bytes"])

    async def rest(self) -> None:
        """Returns when no run is driven any longer."""

        async def is_idle() -> bool:
            url = f"{self.gateway.url}/metrics"
            async with self.http.get(url, headers=self.gateway.authorization) as response:
                return "\npasserelle_runs_driven 0.0\n" in await response.text()

        await wait_until(is_idle, 90.0, "no run is driven any more")

    def leave_all(self) -> None:
        """Disconnects every slow reader."""
        for slow in self.slow:
            slow.leave()
        self.slow.clear()


@dataclass(slots=True)
class Events:
    """The events of a stream, one by one."""

    content: aiohttp.StreamReader

    async def next(self) -> JsonObject | None:
        """The result or error in the next event; None at the end."""
        data = bytearray()
        while line := await self._read_line():
            if line == b"\n":
                if data:
                    return cast("JsonObject", orjson.loads(bytes(data)))
            elif line.startswith(b"data:"):
                data += line[5:]
        return None

    async def _read_line(self) -> bytes:
        """A whole line, however long."""
        line = bytearray()
        while piece := await self.content.readany():
            end = piece.find(b"\n")
            if end < 0:
                line += piece
                continue
            line += piece[: end + 1]
            self.content.unread_data(piece[end + 1 :])
            return bytes(line)
        return bytes(line)

    async def read_to_end(self) -> JsonObject:
        """Reads to the end without keeping events; returns the last one."""
        last: JsonObject = {}
        while (event := await self.next()) is not None:
            last = event
        return last


def write_message(text: str, **members: Json) -> JsonObject:
    """Params of a message."""
    message: JsonObject = {
        "messageId": str(uuid.uuid4()),
        "role": "ROLE_USER",
        "parts": [{"text": text}],
        **members,
    }
    return {"message": message}


def write_call(method: str, params: JsonObject, number: int = 1) -> bytes:
    """A JSON-RPC request; ``number`` is its id."""
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


@asynccontextmanager
async def run_site(
    folder: Path, timeout: JsonObject, outputs: JsonObject, **settings: Json
) -> AsyncGenerator[Site]:
    """Starts everything, and stops it at the end; ``timeout`` is the agents', the others are sections."""
    async with AsyncExitStack() as stack:
        urls: dict[str, str] = {}
        for name in (NAME, QUIET):
            agent = start(name, ("tests.memory.agent",), folder, {"PYTHONPATH": str(Path.cwd())})
            stack.push_async_callback(agent.stop)
            urls[name] = (await agent.read_line("agent at ")).removeprefix("agent at ")
        agent_url = urls[NAME]
        path = folder / "passerelle.yaml"
        path.write_text(
            yaml.safe_dump(_write_config(urls, timeout, outputs) | settings), encoding="utf-8"
        )
        gateway = GatewayProcess(folder, path)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=_TIMEOUT,
                read_bufsize=1 << 20,
            )
        )
        grpc = cast("JsonObject", settings.get("grpc", {}))
        site = Site(gateway, agent_url, http, grpc_port=cast("int", grpc.get("port", 0)))
        stack.callback(site.leave_all)
        yield site


def _write_config(urls: dict[str, str], timeout: JsonObject, outputs: JsonObject) -> JsonObject:
    clients: list[Json] = [
        {
            "name": name,
            "key_hash": hashlib.sha256(f"{_SECRET}{name}".encode()).hexdigest(),
            "may_call": ["*"],
            "kind": "service",
            "scopes": list(_SCOPES),
        }
        for name in _CALLERS
    ]
    linked = linked_agent.NAME
    clients.append(
        {
            "name": linked,
            "key_hash": hashlib.sha256(f"{_SECRET}{linked}".encode()).hexdigest(),
            "serves": [linked],
            "may_call": [],
            "scopes": ["channels:connect", "agents:serve"],
        }
    )
    agents: list[Json] = [
        {"name": name, "url": url, "timeout": timeout} for name, url in urls.items()
    ]
    return {
        "memory": {"budget_bytes": BUDGET_BYTES},
        "outputs": outputs,
        "public_url": "https://gateway.example",
        "agents": [*agents, {"name": linked, "transport": "channel"}],
        "clients": clients,
        "log_format": "json",
    }
