"""Real servers for tests: the packaged engine, redis-server from PATH, and a cluster of three.

They are child processes over a unix socket (cluster nodes need TCP ports on loopback), tied to the test process, in a
temporary directory. Fixtures start one server per test session and leg, on first use. The store fixture empties the
server and checks that a test leaves no permanent key behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from passerelle.store import keys
from passerelle.store.engine_binary import EngineBinary, find_engine
from passerelle.store.engine_process import EngineSettings, build_command, die_with_parent
from passerelle.store.store import Store, StoreSettings
from tests.support.ports import find_free_port
from tests.support.waiting import block_until

SLOTS = 16_384
REDIS_URL = os.environ.get("REDIS_URL")


@dataclass(slots=True)
class Server:
    """A running server, or the nodes of a cluster; a store is opened with ``url``."""

    url: str
    processes: list[subprocess.Popen[bytes]] = field(
        default_factory=list["subprocess.Popen[bytes]"]
    )
    node_urls: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The URL of each node."""
        return self.node_urls or (self.url,)


@contextmanager
def run_server(binary: EngineBinary, *options: str) -> Generator[Server]:
    """One server with the embedded engine's settings, over a unix socket."""
    with tempfile.TemporaryDirectory(prefix="psr-t-") as name:
        directory = Path(name)
        path = directory / "engine.sock"
        command = build_command(binary, EngineSettings(directory, extra_options=options), path)
        process = start_process(command)
        server = Server(f"unix://{path}", [process])
        try:
            block_until(lambda: answers(server.url), 20, "the server answers")
            yield server
        finally:
            for started in server.processes:
                end_process(started)


@contextmanager
def run_cluster(binary: EngineBinary, size: int = 3) -> Generator[Server]:
    """A cluster on loopback; slots, config epochs and CLUSTER MEET are set by client commands."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-t-")))
        ports = [(find_free_port(), find_free_port()) for _ in range(size)]
        server = Server("", node_urls=tuple(f"redis://127.0.0.1:{port}" for port, _ in ports))
        server.url = server.node_urls[0]
        for port, bus_port in ports:
            home = directory / str(port)
            home.mkdir()
            settings = EngineSettings(
                home,
                extra_options=(
                    *("--port", str(port), "--cluster-port", str(bus_port)),
                    *("--bind", "127.0.0.1", "--cluster-enabled", "yes"),
                    *("--cluster-node-timeout", "2000"),
                ),
            )
            process = start_process(build_command(binary, settings, home / "engine.sock"))
            server.processes.append(process)
            stack.callback(end_process, process)
        join_nodes(server, ports)
        yield server


def join_nodes(server: Server, ports: list[tuple[int, int]]) -> None:
    """Assigns slots to every node and joins the nodes."""
    size = len(ports)
    for place, url in enumerate(server.node_urls):
        block_until(partial(answers, url), 20, f"{url} answers")
        first, last = place * SLOTS // size, (place + 1) * SLOTS // size - 1
        ask(url, "CLUSTER", "ADDSLOTSRANGE", first, last)
        ask(url, "CLUSTER", "SET-CONFIG-EPOCH", place + 1)
        port, bus_port = ports[0]
        ask(url, "CLUSTER", "MEET", "127.0.0.1", port, bus_port)
    for url in server.node_urls:
        block_until(partial(_serves_all, url, size), 30, f"{url} sees the whole cluster")


def start_process(command: list[str]) -> subprocess.Popen[bytes]:
    """A server process that ends with the test process."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        restore_signals=False,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - two system calls and nothing else
    )


def restart_server(server: Server) -> None:
    """Kills a server and restarts it over its data."""
    (process,) = server.processes
    end_process(process)
    server.processes[:] = [start_process(cast("list[str]", process.args))]
    block_until(lambda: answers(server.url), 20, "the server answers again")


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends a server; its data is deleted with its directory."""
    process.kill()
    process.wait(10)


def answers(url: str) -> bool:
    """Whether a server answers PING."""
    try:
        return ask(url, "PING") is True
    except redis.RedisError:
        return False


def redis_on_path() -> EngineBinary | None:
    """``redis-server`` from PATH."""
    found = shutil.which("redis-server")
    return find_engine(Path(found)) if found else None


def legs() -> list[str]:
    """The servers that the contract suite runs on here; the summary line reports a missing leg."""
    other = ["redis"] if REDIS_URL or shutil.which("redis-server") else []
    return ["valkey", *other, "cluster"]


@contextmanager
def run_leg(leg: str) -> Generator[Server]:
    """Starts the server of a leg, or uses the one at REDIS_URL, whose data is deleted."""
    if leg == "cluster":
        with run_cluster(find_engine(None)) as server:
            yield server
    elif leg == "redis" and REDIS_URL:
        yield Server(REDIS_URL)
    else:
        binary = redis_on_path() if leg == "redis" else find_engine(None)
        assert binary is not None
        with run_server(binary) as server:
            yield server


@pytest.fixture(scope="session")
def started_legs() -> Generator[dict[str, Server]]:
    """Servers by leg; ``server`` starts each on first use."""
    with ExitStack() as stack:

        class _Starting(dict[str, Server]):
            def __missing__(self, leg: str) -> Server:
                self[leg] = stack.enter_context(run_leg(leg))
                return self[leg]

        yield _Starting()


@pytest.fixture(params=legs())
def server(request: pytest.FixtureRequest, started_legs: dict[str, Server]) -> Generator[Server]:
    """An empty server of each leg in turn; keys that a test leaves are checked for leaks and removed."""
    chosen = started_legs[request.param]
    empty(chosen)
    yield chosen
    leaks = find_leaks(chosen)
    empty(chosen)
    assert not leaks, f"keys that are never removed: {leaks}"


@pytest.fixture
def engine_server(started_legs: dict[str, Server]) -> Generator[Server]:
    """An empty packaged engine, for tests that do not depend on the server."""
    chosen = started_legs["valkey"]
    empty(chosen)
    yield chosen
    empty(chosen)


@pytest.fixture
async def store(server: Server, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Store]:
    """An open store over each leg in turn."""
    async with await Store.open(StoreSettings(server.url, tmp_path / "blobs")) as opened:
        yield opened


def ask(url: str, *command: str | bytes | int) -> object:
    """One command over its own connection, for commands that the product never sends."""
    # Without a name, which the client would read from its own distribution and send first, for each connection.
    client = redis.Redis.from_url(url, socket_timeout=5, driver_info=None)  # pyright: ignore[reportUnknownMemberType]
    execute = cast(
        "Callable[..., object]",
        client.execute_command,  # pyright: ignore[reportUnknownMemberType]
    )
    with client:
        return execute(*command)


def ask_all(url: str, commands: Iterable[Sequence[str | bytes | int]]) -> list[object]:
    """Commands over one connection, in one pipeline."""
    client: Any = redis.Redis.from_url(url, socket_timeout=5, driver_info=None)  # pyright: ignore[reportUnknownMemberType]
    with client, client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        return cast("list[object]", pipeline.execute())


def empty(server: Server) -> None:
    """Removes every key."""
    for url in server.nodes:
        ask(url, "FLUSHDB")


def find_leaks(server: Server) -> list[str]:
    """Keys without an expiry whose kind is not permanent."""
    leaks: list[str] = []
    for url in server.nodes:
        names = [name.decode() for name in cast("list[bytes]", ask(url, "KEYS", "*"))]
        passing = [name for name in names if not keys.PERMANENT.fullmatch(name)]
        ends = ask_all(url, (("PTTL", name) for name in passing))
        leaks += [name for name, ms in zip(passing, ends, strict=True) if ms == -1]
    return leaks


def _serves_all(url: str, size: int) -> bool:
    info = cast("bytes", ask(url, "CLUSTER", "INFO")).decode()
    return "cluster_state:ok" in info and f"cluster_size:{size}" in info


def link(primary: Server, replica: Server) -> None:
    """Makes one server the replica of the other; replication requires a TCP port."""
    port = find_free_port()
    ask(primary.url, "CONFIG", "SET", "bind", "127.0.0.1")
    ask(primary.url, "CONFIG", "SET", "port", port)
    ask(primary.url, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
    ask(replica.url, "REPLICAOF", "127.0.0.1", port)
    block_until(lambda: is_in_step(replica), 20, "the replica is in step")


def is_in_step(replica: Server) -> bool:
    role = cast("list[bytes]", ask(replica.url, "ROLE"))
    return role[3] == b"connected"
