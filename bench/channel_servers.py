"""The channel servers that are compared, each in processes that end with the block."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx
import yaml

from bench.channel_clients import ServerKind
from bench.rows import MeasurementError
from bench.usage import find_children
from bench.workload import mint
from passerelle.client.channel import ChannelClient
from passerelle.core.batch import (
    ABSENT,
    Appended,
    Batch,
    EntityKind,
    EntityRef,
    EntityWrite,
    IdempotencyRow,
)
from passerelle.core.events import EncodedEvent
from passerelle.core.ids import SHARDS, Shard, shard_of
from passerelle.core.session.machine import SCHEMA, SessionRecord
from passerelle.core.wire.codec import to_bytes
from passerelle.demo.checks import wait_for
from passerelle.demo.processes import Child, GatewayProcess, launch
from passerelle.store.store import Store, StoreSettings

EVENT_BYTES: Final = 300
PEERS: Final = Path(__file__).resolve().parent / "peers"
_EPOCH: Final = "0a1b2c3d"
_READY_WITHIN_S: Final = 20.0
_OPENED: Final = "2026-01-01T00:00:00.000Z"
_MODULE: Final = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
_AT_ONCE: Final = 128
_KEPT_MS: Final = 60_000


class ChannelServer(Protocol):
    """A running server."""

    @property
    def name(self) -> str:
        """Its name in rows."""
        ...

    @property
    def wire(self) -> ServerKind:
        """Its protocol."""
        ...

    @property
    def url(self) -> str:
        """The URL for clients."""
        ...

    @property
    def token(self) -> str:
        """The clients' token."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """The serving processes, including their store."""
        ...

    async def publish(self, stream: str, place: int, number: int) -> None:
        """Publishes one event to a stream."""
        ...


def mark(place: int, number: int) -> bytes:
    """The bytes by which clients recognize an event."""
    return b"#%d %d %d#" % (place, number, time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class PasserelleServer:
    """A gateway, and direct access to its store for appends."""

    name: str
    url: str
    token: str
    owner: str
    store: Store
    gateway_pid: int
    pids: Sequence[int]
    wire: ServerKind = "passerelle"

    async def make_streams(self, count: int) -> list[str]:
        """Creates sessions of the owner, each with a first event."""
        sessions = [mint("se", Shard(number % SHARDS)) for number in range(count)]
        waiting = iter(sessions)

        async def work() -> None:
            for session in waiting:
                await self._open(session)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
        return [f"session:{session}" for session in sessions]

    async def publish(self, stream: str, place: int, number: int) -> None:
        await self._append(stream.removeprefix("session:"), mark(place, number))

    async def _open(self, session: str) -> None:
        record = SessionRecord(SCHEMA, session, self.owner, "", self.owner, _OPENED, _OPENED, 1)
        write = EntityWrite(EntityRef(EntityKind.SESSION, session), ABSENT, (to_bytes(record),))
        await self._append(session, b"", write)

    async def _append(self, session: str, text: bytes, *entities: EntityWrite) -> None:
        shard = shard_of(session)
        event, kind = mint("ev", shard), "task.progress"
        head = f'"eventId":"{event}","type":"{kind}","payload":{{"text":"'.encode()
        fill = b"e" * (EVENT_BYTES - len(head) - len(text) - 20)
        encoded = EncodedEvent(event, kind, head + text + fill + b'"}}')
        log = self.store.log
        batch = Batch(
            session,
            event,
            log.shard_epoch(shard),
            _EPOCH,
            entities=entities,
            events=(encoded,),
            feed=False,
            idem=None if entities else IdempotencyRow(event, "d", b"", _KEPT_MS),
        )
        if not isinstance(result := await log.append(batch), Appended):
            raise MeasurementError(f"an append was answered with {result}")


@dataclass(frozen=True, slots=True)
class HttpPublishServer:
    """A server with publication over HTTP, as applications use it."""

    name: str
    wire: ServerKind
    url: str
    publish_url: str
    http: httpx.AsyncClient
    pids: Sequence[int]
    token: str = ""

    async def publish(self, stream: str, place: int, number: int) -> None:
        text = mark(place, number)
        body = b'{"text":"' + text + b"e" * (EVENT_BYTES - len(text) - 11) + b'"}'
        answer = await self.http.post(f"{self.publish_url}?id={stream}", content=body)
        if not answer.is_success:
            raise MeasurementError(f"{self.name}: {answer.status_code} {answer.text[:200]}")


@asynccontextmanager
async def open_passerelle() -> AsyncGenerator[tuple[PasserelleServer, PasserelleServer]]:
    """One gateway with both back ends: the port for channels, and the main one."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_make_folder()))
        port = find_free_port()
        config = folder / "bench.yaml"
        settings = {"channels": {"port": port, "principal_connections": 100_000}}
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        gateway = GatewayProcess(folder, config)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        if gateway.child is None:
            raise MeasurementError("the gateway has not been started")
        engine = (gateway.data_dir / "socket").read_text(encoding="utf-8")
        store = await stack.enter_async_context(
            await Store.open(StoreSettings(f"unix://{engine}", folder / "blobs"))
        )
        main = f"ws://127.0.0.1:{gateway.port}/v1/channel"
        own = f"ws://127.0.0.1:{port}/v1/channel"
        async with ChannelClient(main, token=gateway.token, device="owner") as client:
            await wait_for("the gateway greets", lambda: client.welcome is not None, 10)
            owner = client.welcome.principal if client.welcome else ""
        pid = gateway.child.process.pid
        pids = (pid, *find_children(pid))
        yield (
            PasserelleServer("fast", own, gateway.token, owner, store, pid, pids),
            PasserelleServer("ASGI", main, gateway.token, owner, store, pid, pids),
        )


def find_nchan() -> str | None:
    """The reason why Nchan cannot be started here, or None."""
    if shutil.which("nginx") is None or not _MODULE.exists():
        return "install nginx and libnginx-mod-nchan"
    return None if shutil.which("redis-server") else "install redis-server"


@asynccontextmanager
async def open_nchan() -> AsyncGenerator[HttpPublishServer]:
    """Nginx with one worker, over a separate Redis."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_make_folder()))
        port = find_free_port()
        redis = await stack.enter_async_context(open_redis(folder))
        config = folder / "nginx.conf"
        config.write_text(_write_nginx(folder, port, redis.port), encoding="utf-8")
        command = (shutil.which("nginx") or "nginx", "-c", str(config), "-p", str(folder))
        child = launch("nginx", command, folder)
        stack.push_async_callback(child.stop)
        http = await stack.enter_async_context(_open_http())
        publish = f"http://127.0.0.1:{port}/pub"
        await wait_for(
            "nginx is ready", lambda: _is_up(http, f"{publish}?id=probe"), _READY_WITHIN_S
        )
        pid = child.process.pid
        pids = (pid, *find_children(pid), redis.child.process.pid)
        yield HttpPublishServer("Nchan", "nchan", f"ws://127.0.0.1:{port}/sub", publish, http, pids)


def _write_nginx(folder: Path, port: int, redis: int) -> str:
    return f"""
load_module {_MODULE};
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  nchan_redis_url redis://127.0.0.1:{redis};
  nchan_use_redis on;
  nchan_message_buffer_length 2000;
  nchan_message_timeout 10m;
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location /pub {{ nchan_publisher; nchan_channel_id $arg_id; }}
    location /sub {{ nchan_subscriber websocket; nchan_channel_id $arg_id; nchan_subscriber_first_message newest; }}
  }}
}}
"""


def find_socketio() -> str | None:
    """The reason why Socket.IO cannot be started here, or None."""
    if not (PEERS / "socketio" / "node_modules").exists():
        return "PEERS=all installs it"
    return None if shutil.which("redis-server") else "install redis-server"


def install_socketio() -> None:
    """Installs the locked packages.

    Raises:
        MeasurementError: a package does not install; the text ends with the installer's output.
    """
    if find_socketio() is None:
        return
    done = subprocess.run(
        (shutil.which("npm") or "npm", "ci", "--silent"),
        cwd=PEERS / "socketio",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise MeasurementError(f"npm ci failed: {done.stderr.strip()[-500:]}")


@asynccontextmanager
async def open_socketio() -> AsyncGenerator[HttpPublishServer]:
    """Socket.IO in one Node process, with its adapter for Redis streams."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_make_folder()))
        port = find_free_port()
        redis = await stack.enter_async_context(open_redis(folder))
        server = str(PEERS / "socketio" / "server.js")
        command = (shutil.which("node") or "node", server, str(port), str(redis.port))
        child = launch("socketio", command, folder)
        stack.push_async_callback(child.stop)
        http = await stack.enter_async_context(_open_http())
        base = f"127.0.0.1:{port}"
        await wait_for(
            "Socket.IO is ready", lambda: _is_up(http, f"http://{base}/ready"), _READY_WITHIN_S
        )
        pids = (child.process.pid, redis.child.process.pid)
        url, publish = f"ws://{base}/socket.io/", f"http://{base}/pub"
        yield HttpPublishServer("Socket.IO", "socketio", url, publish, http, pids)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A separate Redis without persistence."""

    child: Child
    port: int


@asynccontextmanager
async def open_redis(folder: Path) -> AsyncGenerator[RedisServer]:
    """Starts it for the duration of the block."""
    port = find_free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
    child = launch("redis", (shutil.which("redis-server") or "redis-server", *options), folder)
    try:
        await wait_for("Redis is ready", lambda: _accepts(port), _READY_WITHIN_S)
        yield RedisServer(child, port)
    finally:
        await child.stop()


def find_free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def pace(rate: int, count: int) -> AsyncGenerator[int]:
    """Yields numbers from 0 at a rate; a late consumer catches up without a pause."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number in itertools.islice(itertools.count(), count):
        ahead = started + number / rate - loop.time()
        if ahead > 0:
            await asyncio.sleep(ahead)
        yield number


def _open_http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=20, trust_env=False)


def _make_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="psr-bench-")


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


async def _is_up(http: httpx.AsyncClient, url: str) -> bool:
    try:
        await http.get(url)
    except httpx.HTTPError:
        return False
    return True
