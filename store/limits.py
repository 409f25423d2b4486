"""Shared limits: blocks of concurrency slots and of rate tokens, so that no request asks the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.ids import derive_shard
from passerelle.store import keys
from passerelle.store.scripts import read_script

if TYPE_CHECKING:
    from passerelle.store.nodes import Nodes

HOLD_MS: Final = 10_000
"""A block of a dead instance is free again after this."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What an instance holds in all (``slots``) and what it got just now (``tokens``)."""

    slots: int
    tokens: int
    now_ms: int


class RedisLimits:
    """Blocks out of the limit of a peer or caller, in the shard of its name."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def take(
        self,
        name: str,
        instance: str,
        *,
        slots: int,
        limit: int,
        tokens: int = 0,
        rate: int = 0,
        hold_ms: int = HOLD_MS,
    ) -> Granted:
        """Sets how many slots the instance holds (0 gives all back) and draws tokens of this second.

        Never tried again here: a repeat could draw tokens twice.
        """
        shard = derive_shard("limit", name)
        packed = read_script("slots").pack_call(
            [keys.limits(shard, name)],
            {
                "instance": instance,
                "slots": slots,
                "limit": limit,
                "tokens": tokens,
                "rate": rate,
                "hold": hold_ms,
            },
        )
        granted, drawn, now = cast("list[int | bytes]", await self._nodes.write(shard, packed))
        return Granted(int(granted), int(drawn), int(now))
