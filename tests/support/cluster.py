"""A cluster of primaries with one replica each, on the same engine as the other tests.

A test cuts off a replica by removing the account that it replicates with. The nodes still see each other, so the
cluster promotes the replica when its primary dies, without the writes that it lacks.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import redis

from passerelle.store.engine_process import EngineSettings, build_command
from tests.support.engine import (
    Server,
    answers,
    ask,
    end_process,
    run_cluster,
    start_process,
)
from tests.support.ports import find_free_port
from tests.support.waiting import block_until, wait_until

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.engine_binary import EngineBinary

_ACCOUNT: Final = "replicating"
_PASSWORD: Final = "of-a-test"
_MOVED_WITHIN_S: Final = 300


@dataclass(slots=True)
class ServerCluster:
    """``primaries[n]`` has ``replicas[n]``; a failover changes which of the two serves."""

    primaries: Server
    replicas: Server

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes, for opening a store."""
        return [*self.primaries.nodes, *self.replicas.nodes]

    async def await_replicated(self, place: int) -> None:
        """Returns when the replica has all that its primary holds now; other writers may continue."""
        wanted = _offset(self.primaries.nodes[place])
        replica = self.replicas.nodes[place]
        await wait_until(lambda: _offset(replica) >= wanted, 20, "the replica is level")

    def cut_replication(self, place: int) -> None:
        """Stops replication: the replica receives nothing more and cannot reconnect."""
        ask(self.primaries.nodes[place], "ACL", "DELUSER", _ACCOUNT)

    def kill_primary(self, place: int) -> None:
        """Kills the primary with SIGKILL: the cluster promotes its replica."""
        end_process(self.primaries.processes[place])

    async def await_promoted(self, place: int) -> None:
        """Returns when the replica serves and another node knows it."""
        url = self.replicas.nodes[place]
        await wait_until(lambda: _read_info(url, "role") == "master", 30, "the replica is promoted")
        others = [one for at, one in enumerate(self.primaries.nodes) if at != place]
        await wait_until(lambda: all(map(_is_whole, others)), 30, "the cluster is whole")

    async def move_slots(self, source: int, target: int, count: int) -> None:
        """Moves slots with all of their keys, as an operator would."""
        source_id, target_id = (_node_id(self.primaries.nodes[at]) for at in (source, target))
        command = (
            *("redis-cli", "--cluster", "reshard", self.primaries.url.removeprefix("redis://")),
            *("--cluster-from", source_id, "--cluster-to", target_id),
            *("--cluster-slots", str(count), "--cluster-yes"),
        )
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        async with asyncio.timeout(_MOVED_WITHIN_S):
            said, _ = await process.communicate()
        assert process.returncode == 0, said.decode(errors="replace")[-2_000:]

    def serves(self, place: int, shard: Shard) -> bool:
        """Whether a primary holds the keys of a shard."""
        try:
            ask(self.primaries.nodes[place], "EXISTS", f"{{{shard.tag}}}:")
        except redis.ResponseError:
            return False
        return True

    def count_behind(self, place: int) -> int:
        """Bytes of writes that the replica lacks."""
        return _offset(self.primaries.nodes[place]) - _offset(self.replicas.nodes[place])


@contextmanager
def run_replicated_cluster(binary: EngineBinary, size: int = 3) -> Generator[ServerCluster]:
    """Primaries with all slots, each with a replica in sync."""
    with ExitStack() as stack:
        primaries = stack.enter_context(run_cluster(binary, size))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psr-t-")))
        replicas = Server("")
        for url in primaries.nodes:
            ask(url, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
            account = ("on", f">{_PASSWORD}", "+psync", "+replconf", "+ping")
            ask(url, "ACL", "SETUSER", _ACCOUNT, *account)
            port, bus_port = find_free_port(), find_free_port()
            home = directory / str(port)
            home.mkdir()
            settings = EngineSettings(
                home,
                extra_options=(
                    *("--port", str(port), "--cluster-port", str(bus_port)),
                    *("--bind", "127.0.0.1", "--cluster-enabled", "yes"),
                    *("--cluster-node-timeout", "2000"),
                    *("--masteruser", _ACCOUNT, "--masterauth", _PASSWORD),
                ),
            )
            process = start_process(build_command(binary, settings, home / "engine.sock"))
            stack.callback(end_process, process)
            replicas.processes.append(process)
            replicas.node_urls += (f"redis://127.0.0.1:{port}",)
            replica = replicas.node_urls[-1]
            block_until(partial(answers, replica), 20, f"{replica} answers")
            ask(url, "CLUSTER", "MEET", "127.0.0.1", port, bus_port)
            primary_id = _node_id(url)
            block_until(partial(_follows, replica, primary_id), 30, f"{replica} is a replica")
        for replica in replicas.nodes:
            block_until(partial(_is_linked, replica), 30, f"{replica} is linked")
        yield ServerCluster(primaries, replicas)


def _follows(url: str, primary_id: str) -> bool:
    """Whether a node became the replica of another, which it has to know first."""
    known = cast("bytes", ask(url, "CLUSTER", "NODES")).decode()
    if primary_id not in known:
        return False
    ask(url, "CLUSTER", "REPLICATE", primary_id)
    return True


def _is_linked(url: str) -> bool:
    return _read_info(url, "master_link_status") == "up"


def _node_id(url: str) -> str:
    return cast("bytes", ask(url, "CLUSTER", "MYID")).decode()


def _is_whole(url: str) -> bool:
    return "cluster_state:ok" in cast("bytes", ask(url, "CLUSTER", "INFO")).decode()


def _offset(url: str) -> int:
    name = "master_repl_offset" if _read_info(url, "role") == "master" else "slave_repl_offset"
    return cast("int", _read_info(url, name))


def _read_info(url: str, name: str) -> object:
    return cast("dict[str, object]", ask(url, "INFO", "replication")).get(name)
