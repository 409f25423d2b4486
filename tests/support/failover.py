"""A primary and a replica behind one address that moves, as a managed store has it; acknowledged writes can be lost.

Replication is cut by pointing the replica at a dead port: one that is only stopped still finds the tail in its socket.
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
    """``url`` is what a store is opened with; it leads to the primary until ``promote``."""

    primary: Server
    replica: Server
    address: FaultProxy
    port: int
    """Of the primary, for its replica."""

    @property
    def url(self) -> str:
        """The address that moves."""
        return self.address.url

    @property
    def replica_uptime_s(self) -> int:
        """For how long the replica has run."""
        told = cast("dict[str, int]", ask(self.replica.url, "INFO", "server"))
        return told["uptime_in_seconds"]

    async def await_replicated(self) -> None:
        """Returns when the replica has what the primary has."""
        await wait_until(
            lambda: _offset(self.primary) == _offset(self.replica), 10, "the replica is level"
        )

    def cut_replication(self) -> None:
        """From here on the replica gets nothing."""
        ask(self.replica.url, "REPLICAOF", "127.0.0.1", 1)

    def mend_replication(self) -> None:
        """The replica follows again."""
        ask(self.replica.url, "REPLICAOF", "127.0.0.1", self.port)

    def restart_primary(self) -> None:
        """The primary dies and comes back with what it has."""
        restart_server(self.primary)

    def promote(self) -> None:
        """The primary dies, the replica takes its place, and the address moves with all connections cut."""
        for process in self.primary.processes:
            end_process(process)
        ask(self.replica.url, "REPLICAOF", "NO", "ONE")
        self.address.upstream = self.replica.url.removeprefix("unix://")
        self.address.cut()


@asynccontextmanager
async def run_pair() -> AsyncGenerator[Pair]:
    """Two servers, level with each other."""
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
    told = _replication(server)
    return told["master_repl_offset" if told["role"] == "master" else "slave_repl_offset"]
