"""Webhook receivers on a stream: a cursor, a state and one due row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.log import read_hash
from passerelle.store.retry import retry
from passerelle.store.scripts import read_script

if TYPE_CHECKING:
    from passerelle.core.ports import StreamRef
    from passerelle.store.nodes import Nodes

TargetState: TypeAlias = Literal["live", "backoff", "dead"]
Settled: TypeAlias = Literal["ok", "unclaimed"]


@dataclass(frozen=True, slots=True)
class Target:
    """``filter`` is a facade id, or ``*`` for the whole stream; ``cursor`` is what the receiver has."""

    state: TargetState
    filter: str
    tries: int
    cursor: str

    def encode(self) -> str:
        """The stored form."""
        return f"{self.state}|{self.filter}|{self.tries}|{self.cursor}"


def decode_target(stored: bytes) -> Target:
    """The target of a stored form."""
    state, chosen, tries, cursor = stored.decode().split("|", 3)
    return Target(cast("TargetState", state), chosen, int(tries), cursor)


class RedisTargets:
    """Targets over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def read(self, stream: StreamRef) -> dict[str, Target]:
        """All targets of a stream by their id."""
        command = pack("HGETALL", keys.stream_targets(stream))
        [reply] = await retry(lambda: self._nodes.read(stream.shard, command))
        return {name: decode_target(value) for name, value in read_hash(reply).items()}

    async def create(self, stream: StreamRef, target: str, first: Target) -> bool:
        """Adds a target that gets what comes after its cursor; False when the id is taken."""
        packed = pack("HSETNX", keys.stream_targets(stream), target, first.encode())
        return await retry(lambda: self._nodes.write(stream.shard, packed)) == 1

    async def remove(self, stream: StreamRef, target: str) -> None:
        """Ends a target; its due row goes with the next claim."""
        packed = pack("HDEL", keys.stream_targets(stream), target)
        await retry(lambda: self._nodes.write(stream.shard, packed))

    async def settle(
        self, stream: StreamRef, target: str, token: str, outcome: Target, delay_ms: int = 0
    ) -> Settled:
        """Records a delivery under the claim ``token``; after ``backoff`` the next try is ``delay_ms`` away."""
        epoch, sequence, _ = outcome.cursor.split(".")
        packed = read_script("target").pack_call(
            [keys.stream_targets(stream), keys.due(stream.shard), keys.head(stream)],
            {
                "target": target,
                "token": token,
                "cursor": outcome.cursor,
                "epoch": epoch,
                "seq": sequence,
                "state": outcome.state,
                "tries": outcome.tries,
                "delay": delay_ms,
            },
        )
        reply = await self._nodes.write(stream.shard, packed)
        return cast("Settled", cast("bytes", reply).decode())
