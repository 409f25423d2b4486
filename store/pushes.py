"""Push notifications of a person, in the person's shard: muted agents, and pushes held for a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_int, as_ms, as_scores, as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.due import DueRow
    from passerelle.store.nodes import Nodes

MOST: Final = 100
_MUTE: Final = Script("mute", as_int)


class RedisMutes:
    """Mutes by person, with times of the store; each expires by itself."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def mute(self, owner: str, peer: str, keep_ms: int) -> int:
        """Mutes an agent from now on; returns until when. The last call for an agent counts.

        Raises:
            StoreUnavailable: the outcome is unknown.
        """
        return await self._write(owner, peer, keep_ms)

    async def unmute(self, owner: str, peer: str) -> None:
        """Ends a mute, if there is one. Raises StoreUnavailable."""
        await self._write(owner, peer, 0)

    async def list_muted(self, owner: str) -> dict[str, int]:
        """The agents that are muted now, with the end of each mute, in ms.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        shard = shard_of(owner)
        command = pack("ZRANGE", keys.mutes(shard, owner), 0, -1, "WITHSCORES")
        time, rows = await self._nodes.query_all(shard, pack("TIME"), command)
        now_ms = as_ms(time)
        return {peer: until_ms for peer, until_ms in as_scores(rows) if until_ms > now_ms}

    async def _write(self, owner: str, peer: str, keep_ms: int) -> int:
        shard = shard_of(owner)
        return await self._nodes.run(
            _MUTE,
            shard,
            [keys.mutes(shard, owner)],
            {"peer": peer, "keep": keep_ms, "most": MOST},
        )


ROW: Final = "bundle"
WINDOW_MS: Final = 60_000
AT_ONCE: Final = 256
"""Held pushes read at a time; the rest keeps its row, and follows later."""
_KEEP_MS: Final = 31 * 24 * 3_600_000
"""Longer than an approval is open."""
_DEFER_PUSH: Final = Script(
    "defer_push", lambda reply: int(float(as_text(reply))) if reply else None
)
_SETTLE_BUNDLE: Final = Script("settle_bundle", as_text)


@frozen
class HeldPush:
    """A notification attempt about an approval, held for the person's next bundle."""

    action_id: str
    attempt: str

    def __str__(self) -> str:
        return f"{self.action_id} {self.attempt}"


class RedisBundles:
    """Counts pushes by person, with times of the store. Each pending bundle is a row of the due set (I9)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def defer(self, owner: str, push: HeldPush, most: int, ends_ms: int) -> int | None:
        """Returns when the bundle that a push waits for is sent; None if the push is sent by itself, and is counted.

        At most ``most`` pushes about different approvals are sent in a window. A push about an approval that ends
        before its bundle does not wait, until twice as many were sent: from then on it waits as all do, and the bundle
        omits it. A repeated call for the same push returns the same.

        Raises:
            StoreUnavailable: whether it is counted is not known.
        """
        shard = shard_of(owner)
        return await self._nodes.run(
            _DEFER_PUSH,
            shard,
            [keys.pushes(shard, owner), keys.held(shard, owner), keys.due(shard)],
            {
                "action": push.action_id,
                "attempt": push.attempt,
                "row": name_bundle(owner),
                "most": most,
                "window": WINDOW_MS,
                "ends": str(ends_ms),
                "keep": str(_KEEP_MS),
            },
        )

    async def list_held(self, owner: str) -> list[HeldPush]:
        """Pushes that wait for the next bundle, at most ``AT_ONCE``, the first to be due first.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        shard = shard_of(owner)
        command = pack("ZRANGE", keys.held(shard, owner), 0, AT_ONCE - 1)
        held = await self._nodes.query(shard, command, as_texts)
        words = (member.partition(" ") for member in held)
        return [HeldPush(action, attempt) for action, _, attempt in words]

    async def settle(self, row: DueRow, delivered: Sequence[HeldPush], *, last: bool) -> None:
        """Removes delivered pushes; with ``last`` the row ends, or stays for pushes held meanwhile.

        Raises:
            StoreUnavailable: the row comes due again.
        """
        shard = shard_of(row.entity)
        await self._nodes.run(
            _SETTLE_BUNDLE,
            shard,
            [keys.held(shard, row.entity), keys.due(shard)],
            {
                "row": row.member,
                "token": row.token,
                "last": last,
                "told": [str(one) for one in delivered],
            },
        )


def name_bundle(owner: str) -> str:
    """The due row of a person's bundle."""
    return f"{ROW}:{owner}"
