"""A primary with replicas and Sentinels, on loopback."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import redis

from tests.support.engine import (
    Server,
    answers,
    ask,
    end_process,
    redis_on_path,
    run_server,
    start_process,
)
from tests.support.ports import find_free_port
from tests.support.waiting import block_until

SERVICE = "store"
_QUORUM = 2


@dataclass(slots=True)
class SentinelGroup:
    """``servers`` by port, the first primary first; ``sentinels`` are their ports."""

    servers: dict[int, Server] = field(default_factory=dict["int", "Server"])
    sentinels: list[int] = field(default_factory=list["int"])

    @property
    def url(self) -> str:
        """A store is opened with this URL."""
        return self.url_of(*self.sentinels)

    @staticmethod
    def url_of(*ports: int) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def find_primary(self) -> int:
        """The port that the first Sentinel names."""
        found = self.ask_sentinel("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(cast("list[bytes]", found)[1])

    def is_primary(self, port: int) -> bool:
        """Whether the first Sentinel and the server itself agree that it is the primary."""
        try:
            role = cast("list[bytes]", ask_port(port, "ROLE"))[0]
        except redis.ConnectionError:
            return False  # it cuts connections while it changes its role
        return role == b"master" and self.find_primary() == port

    def ask_sentinel(self, *command: str) -> object:
        return ask_port(self.sentinels[0], *command)

    def kill(self, port: int) -> None:
        """Kills a server."""
        for process in self.servers[port].processes:
            end_process(process)


def ask_port(port: int, *command: str) -> object:
    """Sends one command to a loopback port and returns the client library's reply."""
    return ask(f"redis://127.0.0.1:{port}", *command)


@contextmanager
def run_sentinel_group(*options: str, replicas: int = 2) -> Generator[SentinelGroup]:
    """A primary with replicas in sync, and three Sentinels that know all of them."""
    binary, program = redis_on_path(), shutil.which("redis-sentinel")
    assert binary is not None, "redis-server is not on PATH"
    assert program is not None, "redis-sentinel is not on PATH"
    watched = SentinelGroup()
    with ExitStack() as stack:
        ports = [find_free_port() for _ in range(replicas + 1)]
        for port in ports:
            follows = () if port == ports[0] else ("--replicaof", "127.0.0.1", str(ports[0]))
            listens = (
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--repl-diskless-sync-delay",
                "0",
            )
            watched.servers[port] = stack.enter_context(
                run_server(binary, *listens, *follows, *options)
            )
        for port in ports[1:]:
            block_until(partial(_is_linked, port), 20, "a replica is linked")
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-t-")))
        for place in range(3):
            port = find_free_port()
            watched.sentinels.append(port)
            file = directory / f"sentinel-{place}.conf"
            file.write_text(_write_config(port, ports[0], directory))
            process = start_process([program, str(file)])
            stack.callback(end_process, process)
        for port in watched.sentinels:
            url = f"redis://127.0.0.1:{port}"
            block_until(partial(answers, url), 20, "a Sentinel answers")
        for port in watched.sentinels:
            block_until(partial(_knows_all, port, replicas), 30, "a Sentinel knows all others")
        yield watched


def _write_config(port: int, primary: int, directory: Path) -> str:
    lines = (
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {directory}",
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {_QUORUM}",
        f"sentinel down-after-milliseconds {SERVICE} 1000",
        f"sentinel failover-timeout {SERVICE} 6000",
    )
    return "\n".join((*lines, ""))


def _is_linked(port: int) -> bool:
    role = cast("list[object]", ask_port(port, "ROLE"))
    return role[0] == b"slave" and role[3] == b"connected"


def _knows_all(port: int, replicas: int) -> bool:
    others = cast("list[object]", ask_port(port, "SENTINEL", "SENTINELS", SERVICE))
    followers = cast("list[object]", ask_port(port, "SENTINEL", "REPLICAS", SERVICE))
    return len(others) == 2 and len(followers) == replicas
