"""Pushes that are held back because many come at once: what a person's next bundle tells of, in the person's shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import place
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_text, as_texts
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.due import DueRow
    from passerelle.store.nodes import Nodes

ROW: Final = "bundle"
WINDOW_MS: Final = 60_000
AT_ONCE: Final = 256
"""What is read at a time of what is held; the rest keeps its row, and comes next."""
_KEEP_MS: Final = 31 * 24 * 3_600_000
"""Longer than a question is open."""
_HOLD_PUSH: Final = Script("hold_push", lambda reply: int(float(as_text(reply))) if reply else None)
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

    async def hold(self, owner: str, push: HeldPush, most: int, ends_ms: int) -> int | None:
        """When the bundle goes out that a push waits for; None where it goes out by itself, and is counted.

        ``most`` pushes of different questions go out in a window. What would end before its bundle does not wait, until
        twice as many have gone out: from then on it waits as all do, and the bundle leaves it out.
        Asked again about the same push the answer is the same.

        Raises:
            StoreUnavailable: whether it is counted is not known.
        """
        shard = place(owner)
        return await self._nodes.run(
            _HOLD_PUSH,
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
        shard = place(owner)
        command = pack("ZRANGE", keys.held(shard, owner), 0, AT_ONCE - 1)
        held = await self._nodes.query(shard, command, as_texts)
        words = (member.partition(" ") for member in held)
        return [HeldPush(action, attempt) for action, _, attempt in words]

    async def settle(self, row: DueRow, told: Sequence[HeldPush], *, last: bool) -> None:
        """These are held no more; with ``last`` the row ends, or stays for what came up meanwhile.

        Raises:
            StoreUnavailable: the row comes due again.
        """
        shard = place(row.entity)
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
