"""A primary and a replica behind one movable address, like a managed store; acknowledged writes can be lost.

Replication is cut by pointing the replica at a closed port: a paused replica would still find the tail in its socket.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

from tests.support.engine import (
    Server,
    answers,
    ask,
    end_process,
    redis_on_path,
    restart_server,
    run_server,
)
from tests.support.ports import find_free_port
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until


@dataclass(slots=True)
class Pair:
    """A store is opened with ``url``; it leads to the primary until ``promote``."""

    primary: Server
    replica: Server
    address: FaultProxy
    port: int
    """The primary's address for its replica."""

    @property
    def url(self) -> str:
        """The movable address."""
        return self.address.url

    @property
    def replica_uptime_s(self) -> int:
        """Uptime of the replica, in seconds."""
        info = cast("dict[str, int]", ask(self.replica.url, "INFO", "server"))
        return info["uptime_in_seconds"]

    async def await_replicated(self) -> None:
        """Returns when the replica has all that the primary holds."""
        await wait_until(
            lambda: _offset(self.primary) == _offset(self.replica), 10, "the replica is level"
        )

    def cut_replication(self) -> None:
        """Stops replication."""
        ask(self.replica.url, "REPLICAOF", "127.0.0.1", 1)

    def mend_replication(self) -> None:
        """Resumes replication."""
        ask(self.replica.url, "REPLICAOF", "127.0.0.1", self.port)

    def restart_primary(self) -> None:
        """Kills the primary and restarts it over its data."""
        restart_server(self.primary)

    def promote(self) -> None:
        """Kills the primary, promotes the replica, cuts all connections and moves the address."""
        for process in self.primary.processes:
            end_process(process)
        ask(self.replica.url, "REPLICAOF", "NO", "ONE")
        self.address.upstream = self.replica.url.removeprefix("unix://")
        self.address.cut()


@asynccontextmanager
async def run_pair() -> AsyncGenerator[Pair]:
    """Two servers in sync."""
    binary = redis_on_path()
    assert binary is not None, "redis-server is not on PATH"
    port = find_free_port()
    listens = ("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    with (
        run_server(binary, *listens) as primary,
        run_server(binary, "--replicaof", "127.0.0.1", str(port)) as replica,
    ):
        await wait_until(lambda: answers(replica.url), 10, "the replica answers")
        await wait_until(lambda: _is_linked(replica), 20, "the replica is linked")
        async with fault_proxy(primary.url.removeprefix("unix://")) as address:
            yield Pair(primary, replica, address, port)


def _replication(server: Server) -> dict[str, object]:
    return cast("dict[str, object]", ask(server.url, "INFO", "replication"))


def _is_linked(replica: Server) -> bool:
    return _replication(replica).get("master_link_status") == "up"


def _offset(server: Server) -> object:
    info = _replication(server)
    return info["master_repl_offset" if info["role"] == "master" else "slave_repl_offset"]
