"""Stores notification attempts: facts, once per attempt, and the devices that were pushed to.

An attempt changes no record that an answer is compared with. Besides its facts it leaves an idempotency row, which
prevents writing them twice and lists the devices that got a push.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueClaim, IdempotencyRow
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.permission_bridge.answers.action_rows import name_notice
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from passerelle.core.batch import DueChange
    from passerelle.core.decision import Decision
    from passerelle.core.events import Fact
    from passerelle.core.ports.due import DueRow
    from passerelle.permission_bridge.delivery_record import DeliveryTarget
    from passerelle.runtime.records.writes import Writes

FIRST: Final = "1"
AGAIN: Final = "2"
REMINDER: Final = "3"
PAUSE_OVER: Final = "q"
BUNDLED: Final = "b"
_NUMBERS: Final = {AGAIN: 2, REMINDER: 3, PAUSE_OVER: 4}
_KEEP_MS: Final = 31 * 24 * 3_600_000


def number_attempt(attempt: str) -> int:
    """The attempt number in facts: 2 and 3 for later attempts, 4 after a pause."""
    return _NUMBERS.get(attempt[:1], 1)


@frozen
class DeliveryAttempts:
    """Reads and writes attempts in the store."""

    writes: Writes

    async def settle(
        self,
        action: ActionRecord,
        row: DueRow,
        facts: list[Fact],
        targets: Sequence[DeliveryTarget] = (),
        due: tuple[DueChange, ...] = (),
    ) -> None:
        """Writes the facts of an attempt, and ends its due row."""
        await self._append(action, _name_row(row.member), facts, targets, row, due)

    async def add(
        self,
        action: ActionRecord,
        attempt: str,
        facts: list[Fact],
        targets: Sequence[DeliveryTarget],
        due: tuple[DueChange, ...] = (),
    ) -> None:
        """Writes the facts of a bundled push, without ending a row of the request."""
        key = _name_row(name_notice(action.request.action_id, attempt))
        await self._append(action, key, facts, targets, None, due)

    async def is_recorded(self, action: ActionRecord, attempt: str) -> bool:
        """Whether the facts of an attempt are written."""
        return await self._read(action, attempt) is not None

    async def find_next(self, action: ActionRecord, kind: str, now: str = "") -> str:
        """The next free name for an attempt of a repeatable kind; ``now`` is the current attempt."""
        if now.startswith(kind):
            return f"{kind}{int(now.removeprefix(kind) or 0) + 1}"
        return (await self._walk(action, kind))[0]

    async def list_pushed(self, action: ActionRecord, owners: Iterable[str]) -> frozenset[str]:
        """Devices that earlier attempts pushed to; ``owners`` are people who also get bundles."""
        steps = [f"s{step}" for step in range(1, len(action.request.audience))]
        single = (self._read(action, one) for one in (FIRST, AGAIN, REMINDER, *steps))
        many = (self._walk(action, one) for one in (PAUSE_OVER, *map(name_bundled, owners)))
        results, walks = await asyncio.gather(asyncio.gather(*single), asyncio.gather(*many))
        found: set[str] = set()
        for result in (*results, *(one for _, walked in walks for one in walked)):
            found.update(orjson.loads(result) if result else ())
        return frozenset(found)

    async def _walk(self, action: ActionRecord, attempt: str) -> tuple[str, list[bytes]]:
        """The first unused name of a kind of attempt, and the results of the ones before it."""
        results: list[bytes] = []
        name = attempt
        while (result := await self._read(action, name)) is not None:
            results.append(result)
            name = f"{attempt}{len(results)}"
        return name, results

    async def _read(self, action: ActionRecord, attempt: str) -> bytes | None:
        action_id = action.request.action_id
        key = _name_row(name_notice(action_id, attempt))
        stored = await self.writes.log.read_idempotency(shard_of(action_id), key)
        return None if stored is None else stored[1]

    async def _append(
        self,
        action: ActionRecord,
        key: str,
        facts: list[Fact],
        targets: Sequence[DeliveryTarget],
        claim: DueClaim | None,
        due: tuple[DueChange, ...],
    ) -> None:
        sent = [one for one in targets if one.way == "webpush" and one.outcome == "sent"]
        pushed = orjson.dumps([one.device_id for one in sent])
        idem = IdempotencyRow(key, key, pushed, _KEEP_MS)

        def body(decision: Decision) -> AppendOptions:
            decision.add(facts)
            return AppendOptions(claim=claim, due=due, idem=idem)

        await self.writes.decide(action.scope.session_id, [], body)


def name_bundled(owner: str) -> str:
    """The attempts that notify a person by bundles."""
    return f"{BUNDLED}{owner}."


def _name_row(member: str) -> str:
    return f"forwarded {member}"
