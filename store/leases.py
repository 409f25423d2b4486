"""Leases: which instance drives what, by the server's clock."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import RecordDamaged, StoreUnavailable
from passerelle.core.ids import SHARDS, Shard
from passerelle.core.ports.leases import Alive, Lease, LeaseLost, LeaseRequest, TakenOver
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_text, as_texts
from passerelle.store.scripts import Script, read_script

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from passerelle.core.batch import Incarnation
    from passerelle.store.connection import RespValue
    from passerelle.store.lua_script import Control
    from passerelle.store.nodes import Nodes

ALIVE_MS: Final = 5_000
"""An instance silent for longer gets no duties."""
_FORGET_MS: Final = 30_000
_REST_LEASES: Final = 120
"""The set of a dead instance that drove nothing in a shard is kept for this many leases, at least for half as many."""
_DUTY_LEASES: Final = 24
"""A duty is held for this many leases without a sign of its owner, if no instance knows which ones live."""


def _read_lease(reply: RespValue) -> Lease | LeaseLost:
    """Raises ValueError: a stored number is none."""
    match cast("list[bytes | int]", reply):
        case [b"ok", until, now, duty, found, epoch]:
            return Lease(
                int(until),
                int(now),
                duty == 1,
                int(found) if found else None,
                int(epoch),
            )
        case _:
            return LeaseLost()


def _read_takeover(reply: RespValue) -> TakenOver | Alive:
    match cast("list[bytes | list[bytes]]", reply):
        case [b"gone", bytes(number), list(runs), list(channels)]:
            names = [name.decode() for name in runs]
            return TakenOver(
                number=int(number),
                runs=tuple(zip(names[::2], names[1::2], strict=True)),
                channels=tuple(channel.decode() for channel in channels),
            )
        case _:
            return Alive()


def _try_lease(shard: Shard, reply: RespValue) -> Lease | LeaseLost | RecordDamaged:
    try:
        with _reading(shard):
            return _read_lease(reply)
    except RecordDamaged as error:
        return error


@contextmanager
def _reading(shard: Shard) -> Generator[None]:
    """Raises RecordDamaged where a reply has something else than the script writes: the store was damaged."""
    try:
        yield
    except ValueError as error:
        reason = f"the leases of shard {shard.tag} are damaged: {error}"
        raise RecordDamaged(reason) from None


_ANNOUNCE: Final = Script("announce", as_texts, lane="leases")
_RELEASE: Final = Script("release", as_text, lane="leases")
_TAKE_OVER: Final = Script("take_over", _read_takeover, lane="leases")


class RedisLeases:
    """``core.ports.leases.Leases`` over a server or cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def extend(self, request: LeaseRequest, lease_ms: int) -> Lease | LeaseLost:
        """Opens or extends the lease; a duty that is held and no longer wanted is released."""
        packed = _pack_lease(request, lease_ms)
        reply = await self._nodes.update(request.shard, packed, lane="leases")
        with _reading(request.shard):
            return _read_lease(reply)

    async def extend_each(
        self, requests: Sequence[LeaseRequest], lease_ms: int
    ) -> list[Lease | LeaseLost | StoreUnavailable]:
        """The same for one lease in each of many shards, together; nothing is retried."""
        commands = [(request.shard, _pack_lease(request, lease_ms)) for request in requests]
        seen, sent_s = self._nodes.generation, monotonic()
        replies = await self._nodes.lease_each(commands)
        received_s = monotonic()
        answers = [
            reply if isinstance(reply, StoreUnavailable) else _try_lease(request.shard, reply)
            for request, reply in zip(requests, replies, strict=True)
        ]
        if self._nodes.generation == seen:
            self._note_times(requests, answers, sent_s, received_s)
        return answers

    def _note_times(
        self,
        requests: Sequence[LeaseRequest],
        answers: Sequence[Lease | LeaseLost | StoreUnavailable],
        sent_s: float,
        received_s: float,
    ) -> None:
        """Records one server time of each primary that answered."""
        times = {
            self._nodes.node(request.shard): answer.now_ms
            for request, answer in zip(requests, answers, strict=True)
            if isinstance(answer, Lease)
        }
        for node, now_ms in times.items():
            node.time.note(now_ms, sent_s, received_s)

    async def take_over(self, shard: Shard, instance: str) -> TakenOver | Alive:
        """Marks an expired lease as gone and returns what it drove; an empty one is deleted with its due row."""
        names = [keys.own(shard, instance), keys.due(shard), keys.lessees(shard)]
        with _reading(shard):
            return await self._nodes.run(_TAKE_OVER, shard, names, {"instance": instance})

    async def release(self, shard: Shard, driver: Incarnation) -> None:
        """Ends the lease at once, so that its runs are taken over without waiting."""
        await self._nodes.run(
            _RELEASE,
            shard,
            [
                keys.own(shard, driver.instance),
                keys.duty(shard),
                keys.due(shard),
                keys.lessees(shard),
            ],
            {"instance": driver.instance, "inc": str(driver.number)},
        )

    async def announce(self, instance: str) -> dict[str, int]:
        """Announces this instance, and returns recently announced ones: duties are spread over them."""
        control: Control = {"instance": instance, "forget": _FORGET_MS}
        with _reading(Shard(0)):
            seen_ago = await self._nodes.run(_ANNOUNCE, Shard(0), [keys.instances()], control)
        seen = zip(seen_ago[::2], map(int, seen_ago[1::2]), strict=True)
        return {name: silent_ms for name, silent_ms in seen if silent_ms <= ALIVE_MS}

    async def withdraw(self, instance: str) -> None:
        """Removes the instance from the list, so that others get its duties at once."""
        packed = pack("ZREM", keys.instances(), instance)
        await self._nodes.update(Shard(0), packed, lane="leases")


@lru_cache(2 * SHARDS)
def _pack_lease(request: LeaseRequest, lease_ms: int) -> bytes:
    """Cached: the same bytes are sent several times per lease, for the life of the instance."""
    driver, shard = request.driver, request.shard
    return read_script("lease").pack_call(
        [
            keys.own(shard, driver.instance),
            keys.duty(shard),
            keys.due(shard),
            keys.lessees(shard),
            keys.meta(shard),
        ],
        {
            "instance": driver.instance,
            "inc": str(driver.number),
            "seen": str(request.seen),
            "opens": request.opens,
            "duty": request.wants_duty,
            "length": lease_ms,
            "rest": lease_ms * _REST_LEASES if request.may_rest else 0,
            "living": request.living,
            "hold": lease_ms * _DUTY_LEASES,
        },
    )
