"""Push notifications of a person, in the person's shard: agents that are muted, and pushes held for a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
    """Mutes by person, with times of the store; each ends by itself."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def mute(self, owner: str, peer: str, keep_ms: int) -> int:
        """Mutes an agent from now on, and says until when; the last call for an agent counts.

        Raises:
            StoreUnavailable: whether it is muted is not known.
        """
        return await self._write(owner, peer, keep_ms)

    async def unmute(self, owner: str, peer: str) -> None:
        """Ends a mute, if there is one. Raises StoreUnavailable."""
        await self._write(owner, peer, 0)

    async def list_muted(self, owner: str) -> dict[str, int]:
        """The agents that are muted now, with the times at which that ends, in ms.

        Raises:
            StoreUnavailable: nobody knows.
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
"""What is read at a time of what is held; the rest keeps its row, and comes next."""
_KEEP_MS: Final = 31 * 24 * 3_600_000
"""Longer than a question is open."""
_DEFER_PUSH: Final = Script(
    "defer_push", lambda reply: int(float(as_text(reply))) if reply else None
)
_SETTLE_BUNDLE: Final = Script("settle_bundle", as_text)


@dataclass(frozen=True, slots=True)
class HeldPush:
    """An attempt to tell of a question, held for the person's next bundle."""

    action_id: str
    attempt: str

    def __str__(self) -> str:
        return f"{self.action_id} {self.attempt}"


class RedisBundles:
    """Counts pushes by person, with times of the store. Each bundle that is owed is a row of its due set (I9)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def defer(self, owner: str, push: HeldPush, most: int, ends_ms: int) -> int | None:
        """When the bundle goes out that a push waits for; None where it goes out by itself, and is counted.

        ``most`` pushes of different questions go out in a window. What would end before its bundle does not wait, until
        twice as many have gone out: from then on it waits as all do, and the bundle leaves it out.
        Asked again about the same push the answer is the same.

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
        """What waits for the next bundle, at most ``AT_ONCE`` of it, the first to be due first.

        Raises:
            StoreUnavailable: nobody knows.
        """
        shard = shard_of(owner)
        command = pack("ZRANGE", keys.held(shard, owner), 0, AT_ONCE - 1)
        held = await self._nodes.query(shard, command, as_texts)
        words = (member.partition(" ") for member in held)
        return [HeldPush(action, attempt) for action, _, attempt in words]

    async def settle(self, row: DueRow, told: Sequence[HeldPush], *, last: bool) -> None:
        """These are held no more; with ``last`` the row ends, or stays for what came up meanwhile.

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
                "told": [str(one) for one in told],
            },
        )


def name_bundle(owner: str) -> str:
    """The row of the due set that owes a person a bundle."""
    return f"{ROW}:{owner}"
