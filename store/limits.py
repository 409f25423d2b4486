"""Shared limits: blocks of concurrency slots and of metered units, so that requests need no store call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, cast

from passerelle.core.ids import derive_shard
from passerelle.core.ports.limits import Bucket, Drawn, Granted, Period
from passerelle.store import keys
from passerelle.store.scripts import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ports.limits import LimitDraw
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import ControlValue
    from passerelle.store.nodes import Nodes

_HEAD: Final = 2
_PER_DRAW: Final = 3


def _read_numbers(reply: RespValue) -> list[int]:
    return [int(number) for number in cast("list[int | bytes]", reply)]


_SLOTS: Final = Script("slots", _read_numbers)


class RedisLimits:
    """Draws blocks from limits, in the shard of the limit's name. Implements ``core.ports.limits.Limits``."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def take(
        self,
        name: str,
        instance: str,
        *,
        slots: int,
        limit: int,
        hold_ms: int,
        draws: Sequence[LimitDraw] = (),
    ) -> Granted:
        """One round trip for all limits of one name. Not retried here: a repeat could draw twice."""
        shard = derive_shard("limit", name)
        numbers = await self._nodes.run_once(
            _SLOTS,
            shard,
            [keys.limits(shard, name)],
            {
                "instance": instance,
                "slots": slots,
                "limit": limit,
                "hold": hold_ms,
                "draws": [_describe(draw) for draw in draws],
            },
        )
        drawn = tuple(
            Drawn(*numbers[at : at + _PER_DRAW]) for at in range(_HEAD, len(numbers), _PER_DRAW)
        )
        return Granted(numbers[0], numbers[1], drawn)


def _describe(draw: LimitDraw) -> ControlValue:
    match draw:
        case Bucket():
            return {"meter": draw.meter, "want": draw.want, "limit": draw.limit, "per": draw.per_ms}
        case Period():
            return {
                "meter": draw.meter,
                "want": draw.want,
                "limit": draw.limit,
                "from": draw.from_ms,
                "till": draw.till_ms,
                "mark": draw.mark,
            }
        case _:
            assert_never(draw)
