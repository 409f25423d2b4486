"""Webhook receivers on a stream: a cursor, a state and one due row each.

A target is created and ended by the append of a ``TargetChange``, and woken by the appends that it wants. The caller
decides what its row delivers, and how often it is retried.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store import keys
from passerelle.store.archive.restoring import restore_session
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash, as_scores, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.store.archive.reader import Archive
    from passerelle.store.nodes import Nodes

TargetState: TypeAlias = Literal["live", "backoff", "dead", "done"]
"""``done`` is never stored: it ends the target."""
Revived: TypeAlias = Literal["ok", "live", "unknown"]
_REVIVE: Final = Script("revive", as_text)
_TARGET: Final = Script("target", as_texts)


@frozen
class Target:
    """``filter`` is a facade id, or ``*`` for the whole stream; ``cursor`` is what the receiver has confirmed.

    The rest is 0 or empty while deliveries succeed: tries and refusals since the last success, the time of the first of
    them (ms), and the reason of the last failure (one word).
    """

    state: TargetState
    filter: str
    cursor: str
    tries: int = 0
    since_ms: int = 0
    refusals: int = 0
    reason: str = ""


@frozen
class StuckTarget:
    """A target whose deliveries have failed since ``since_ms``."""

    stream: StreamRef
    name: str
    since_ms: int


@frozen
class Settlement:
    """``claimed``: the claim was valid and the outcome is stored. ``token``: of the row, if it stays claimed.

    ``confirmed``: a replica has everything written before, or there are no replicas.
    """

    claimed: bool
    token: str | None
    confirmed: bool


def decode_target(stored: bytes) -> Target:
    """Decodes the stored form."""
    state, chosen, tries, cursor, since, refusals, reason = stored.decode().split("|", 6)
    return Target(
        cast("TargetState", state), chosen, cursor, int(tries), int(since), int(refusals), reason
    )


class RedisTargets:
    """Targets over a server or cluster."""

    def __init__(self, nodes: Nodes, archive: Archive) -> None:
        self._nodes = nodes
        self._archive = archive

    async def read(self, stream: StreamRef) -> dict[str, Target]:
        """All targets of a stream by their id."""
        command = pack("HGETALL", keys.stream_targets(stream))
        found = await self._nodes.query(stream.shard, command, as_hash)
        found = found or await self._read_archived(stream)
        return {name: decode_target(stored) for name, stored in found.items()}

    async def make(self, stream: StreamRef, target: str, cursor: str) -> None:
        """Creates a target for all events, due at once, unless it exists.

        Raises:
            StoreUnavailable: the outcome is unknown; the call can be repeated.
        """
        shard = stream.shard
        stored = f"live|*|0|{cursor}|0|0|"
        made = pack("HSETNX", keys.stream_targets(stream), target, stored)
        if await self._nodes.update(shard, made) == 1:
            due = pack("ZADD", keys.due(shard), "NX", 0, f"target:{target}")
            await self._nodes.update(shard, due)

    async def find(self, stream: StreamRef, target: str) -> Target | None:
        """One target of a stream."""
        command = pack("HGET", keys.stream_targets(stream), target)
        stored = await self._nodes.query(stream.shard, command, as_bytes)
        if stored is None:
            stored = (await self._read_archived(stream)).get(target)
        return None if stored is None else decode_target(stored)

    async def _read_archived(self, stream: StreamRef) -> dict[str, bytes]:
        if stream.kind is not StreamKind.SESSION:
            return {}
        frame = await self._archive.find(stream.shard, stream.id)
        return {} if frame is None else as_hash(frame.targets)

    async def settle(
        self,
        stream: StreamRef,
        target: str,
        token: str,
        outcome: Target,
        *,
        delay_ms: int = 0,
        hold_ms: int = 0,
    ) -> Settlement:
        """Records a delivery under the claim ``token``; after ``backoff`` the next try is ``delay_ms`` away.

        A live target that is behind the head is due at once, or stays claimed for ``hold_ms``.
        """
        epoch, sequence, _ = outcome.cursor.split(".")
        shard = stream.shard
        reply, confirmed = await self._nodes.run_replicated(
            _TARGET,
            shard,
            [keys.stream_targets(stream), keys.due(shard), keys.head(stream), keys.stuck(shard)],
            {
                "target": target,
                "stream": stream.id,
                "token": token,
                "cursor": outcome.cursor,
                "epoch": epoch,
                "seq": sequence,
                "state": outcome.state,
                "tries": outcome.tries,
                "since": outcome.since_ms,
                "refusals": outcome.refusals,
                "reason": outcome.reason,
                "delay": delay_ms,
                "hold": hold_ms,
            },
        )
        match reply:
            case ["ok", kept]:
                return Settlement(claimed=True, token=kept or None, confirmed=confirmed)
            case _:
                return Settlement(claimed=False, token=None, confirmed=confirmed)

    async def revive(self, stream: StreamRef, target: str) -> Revived:
        """Retries a stuck target now, from its cursor on."""
        answer = await self._revive(stream, target)
        if answer == "unknown" and stream.kind is StreamKind.SESSION:
            shard = stream.shard
            if await restore_session(self._nodes, self._archive, shard, stream.id):
                return await self._revive(stream, target)
        return answer

    async def _revive(self, stream: StreamRef, target: str) -> Revived:
        shard = stream.shard
        answer = await self._nodes.run(
            _REVIVE,
            shard,
            [keys.stream_targets(stream), keys.due(shard), keys.stuck(shard)],
            {"target": target, "stream": stream.id},
        )
        return cast("Revived", answer)

    async def list_stuck(self, limit: int) -> list[StuckTarget]:
        """Targets of all shards whose deliveries fail, the longest failing ones first."""

        async def read(shard: Shard) -> list[StuckTarget]:
            command = pack("ZRANGE", keys.stuck(shard), 0, limit - 1, "WITHSCORES")
            found = await self._nodes.query(shard, command, as_scores)
            return [_read_stuck(member, since_ms) for member, since_ms in found]

        found = await asyncio.gather(*(read(shard) for shard in ALL_SHARDS))
        rows = [row for rows in found for row in rows]
        return sorted(rows, key=lambda row: (row.since_ms, row.name))[:limit]


def _read_stuck(member: str, since_ms: int) -> StuckTarget:
    stream, _, name = member.partition(" ")
    kind = StreamKind.INBOX if stream.startswith("pr_") else StreamKind.SESSION
    return StuckTarget(StreamRef(kind, stream), name, since_ms)
