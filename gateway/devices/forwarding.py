"""A question on its way to people, by due rows: links first, pushes where nobody looks, and a fact for each target.

The rows of a question are set with its opening (``control/action_rows.py``). The first tells all: whoever is connected
has it from the inbox, and who has no active device gets a push at once. The second, 20 s later, pushes to those whose
active device has not answered. The third, at half of the time, reminds everybody. Those who come later in the audience
have a row of their own. Every target has an outcome, and that there was none is a fact too: an outage of all pushes
must not look like care. Whoever says that the question was shown to them is not pushed to for want of an answer, and
in quiet hours (``permission_bridge/quiet.py``) pushes wait, with a row for their end. When the question ends, one more
push takes the shown one away.

A push may go out twice where a process dies between sending and recording it: it replaces itself, by its topic. Facts
are written once, by the row of their attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.approval_audience import list_paired_readers
from passerelle.core.approval_record import ActionRecord
from passerelle.core.batch import Claim, DueChange, EntityKind, EntityRef, IdempotencyRow
from passerelle.core.errors import CallerError
from passerelle.core.events import Fact
from passerelle.core.ids import place, read_shard
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.principal import Principal
from passerelle.core.times import format_ms
from passerelle.gateway.control.action_rows import name_notice
from passerelle.gateway.control.writes import Terms
from passerelle.gateway.devices.web_push import GONE
from passerelle.permission_bridge.forwarding import Target, record_forwarding
from passerelle.permission_bridge.quiet import find_quiet_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from passerelle.core.decision import Decision
    from passerelle.core.ids import Shard
    from passerelle.core.json import JsonObject
    from passerelle.core.ports.due import DueRow
    from passerelle.gateway.control.writes import Writes
    from passerelle.gateway.devices.action_tokens import ActionTokens
    from passerelle.gateway.devices.reaching import Reach, Reaching
    from passerelle.gateway.devices.subscriptions import Subscription
    from passerelle.gateway.devices.web_push import WebPush
    from passerelle.permission_bridge.quiet import QuietHours

FIRST: Final = "1"
AGAIN: Final = "2"
REMINDER: Final = "3"
QUIET_OVER: Final = "q"
_NUMBERS: Final = {AGAIN: 2, REMINDER: 3, QUIET_OVER: 4}
"""Attempts that only push; all others tell links and webhooks as well, and are the first for whom they tell."""
QUIET: Final = "quiet"
"""Reason of a push that waits for the end of quiet hours."""
_KEEP_MS: Final = 31 * 24 * 3_600_000
_CLEAR_S: Final = 3_600


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Handlers of the rows that bring a question to people. Without ``web_push`` there are links and webhooks."""

    writes: Writes
    reaching: Reaching
    web_push: WebPush | None
    tokens: ActionTokens
    drop: Callable[[Shard, DueRow], Awaitable[bool]]
    quiet: tuple[QuietHours, ...] = ()

    async def on_notify(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``notify:<action>:<attempt>``: tells people, and records whom and how."""
        action = await self._find(row.entity)
        attempt = row.member.rpartition(":")[2]
        step = int(attempt[1:]) if attempt.startswith("s") else None
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        if step is not None and action.step < step:
            return  # the audience grows in a moment; the row comes due again
        if attempt == AGAIN and not await self._is_recorded(action, FIRST):
            return  # both are due, and only who was told by the first is not told by the second
        before = await self._list_pushed(action)
        targets: list[Target] = []
        paired = list_paired_readers(action)
        for principal in list_people(action, step):
            reach = await self.reaching.find(principal, paired=principal.key in paired)
            targets += await self._tell(action, principal, reach, attempt, before)
        until_ms = self._find_end_of_hold(action, targets)
        await self._record(action, row, attempt, targets, until_ms)

    async def on_stalled(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``stalled:<action>``: nobody has decided for long, which somebody should notice."""
        action = await self._find(row.entity)
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        warning = WarningRaised("approval_stalled", f"still open: {action.request.title}")
        await self._append(action, row, [Fact(action.scope, warning)], b"")

    async def on_clear(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``clear:<action>``: it has ended, so pushes that show it are replaced."""
        action = await self._find(row.entity)
        if action is not None and not action.is_open and self.web_push is not None:
            pushed = await self._list_pushed(action)
            message = _describe_end(action)
            for principal in list_people(action, None) if pushed else ():
                reach = await self.reaching.find(principal)
                wanted = {name: one for name, one in reach.subscriptions.items() if name in pushed}
                await self._push(action, principal, wanted, message, _CLEAR_S)
        await self.drop(shard, row)

    async def _tell(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: Reach,
        attempt: str,
        before: frozenset[str],
    ) -> list[Target]:
        reminds, first = attempt == REMINDER, attempt not in _NUMBERS
        told = [Target(link, "queued", "ws", device) for link, device in reach.links.items()]
        told += [
            Target(name, "queued" if works else "failed", "webhook")
            for name, works in reach.webhooks.items()
        ]
        wanted = {
            name: one for name, one in reach.subscriptions.items() if reminds or name not in before
        }
        quiet_ms = self._find_quiet_end(action, principal)
        why = _find_hold(action, principal, reach, attempt, quiet_ms)
        if why is not None:
            pushed = [Target(None, "suppressed", "webpush", name, why) for name in wanted]
        else:
            left_s = (action.request.expires_ms - self.writes.clock.now_ms()) // 1000
            silent: JsonObject = {"silent": True} if quiet_ms is not None else {}
            pushed = await self._push(
                action, principal, wanted, {**_describe(action), **silent}, left_s
            )
        return [*told, *pushed] if first else pushed

    def _find_quiet_end(self, action: ActionRecord, principal: Principal) -> int | None:
        now_ms = self.writes.clock.now_ms()
        return find_quiet_end(self.quiet, principal.id, action.request.risk, now_ms)

    def _find_end_of_hold(self, action: ActionRecord, targets: list[Target]) -> int | None:
        """When what was held back for quiet hours goes out."""
        if not any(one.reason == QUIET for one in targets):
            return None
        ends = [self._find_quiet_end(action, one) for one in list_people(action, None)]
        return min((end for end in ends if end is not None), default=self.writes.clock.now_ms())

    async def _push(
        self,
        action: ActionRecord,
        principal: Principal,
        wanted: dict[str, Subscription],
        message: JsonObject,
        ttl_s: int,
    ) -> list[Target]:
        web_push = self.web_push
        if web_push is None:
            return [Target(None, "failed", "webpush", name, "not_installed") for name in wanted]
        topic = action.request.action_id
        faults = await asyncio.gather(
            *(
                web_push.send(
                    one, self._add_buttons(message, action, principal, name), topic, ttl_s
                )
                for name, one in wanted.items()
            )
        )
        told: list[Target] = []
        for device, fault in zip(wanted, faults, strict=True):
            told.append(Target(None, "failed" if fault else "sent", "webpush", device, fault))
            if fault == GONE:
                await self._forget(principal, device)
        return told

    def _add_buttons(
        self, message: JsonObject, action: ActionRecord, principal: Principal, device: str
    ) -> JsonObject:
        buttons = self.tokens.offer(action, principal, device) if action.is_open else None
        return message if buttons is None else {**message, "answers": buttons}

    async def _forget(self, principal: Principal, device: str) -> None:
        """The browser takes no pushes there any more; whoever asks for its device next sees that."""
        try:
            await self.reaching.subscriptions.remove(principal, device, "push service")
        except CallerError:
            return  # the device itself is gone

    async def _record(
        self,
        action: ActionRecord,
        row: DueRow,
        attempt: str,
        targets: list[Target],
        until_ms: int | None,
    ) -> None:
        number = _NUMBERS.get(attempt, 1)
        pushed = [
            one.device_id for one in targets if one.way == "webpush" and one.outcome == "sent"
        ]
        # A later attempt with nobody to be told says nothing new.
        facts = record_forwarding(action, targets, number) if targets or number == 1 else []
        later = name_notice(action.request.action_id, QUIET_OVER)
        due = (DueChange(later, until_ms),) if until_ms is not None else ()
        await self._append(action, row, facts, orjson.dumps(pushed), due)

    async def _append(
        self,
        action: ActionRecord,
        row: DueRow,
        facts: list[Fact],
        result: bytes,
        due: tuple[DueChange, ...] = (),
    ) -> None:
        key = _name_row(row.member)
        idem = IdempotencyRow(key, key, result, _KEEP_MS)

        def body(decision: Decision) -> Terms:
            decision.add(facts)
            return Terms(claim=Claim(row.member, row.token), due=due, idem=idem)

        await self.writes.decide(action.scope.session_id, [], body)

    async def _is_recorded(self, action: ActionRecord, attempt: str) -> bool:
        action_id = action.request.action_id
        key = _name_row(name_notice(action_id, attempt))
        return await self.writes.log.read_idempotency(place(action_id), key) is not None

    async def _list_pushed(self, action: ActionRecord) -> frozenset[str]:
        """Devices that earlier attempts have pushed to."""
        request = action.request
        shard = place(request.action_id)
        names = [*("123"), QUIET_OVER, *(f"s{step}" for step in range(1, len(request.audience)))]
        found: set[str] = set()
        for name in names:
            key = _name_row(name_notice(request.action_id, name))
            stored = await self.writes.log.read_idempotency(shard, key)
            if stored is not None and stored[1]:
                found.update(orjson.loads(stored[1]))
        return frozenset(found)

    async def _find(self, action_id: str) -> ActionRecord | None:
        if read_shard(action_id) is None:
            return None
        ref = EntityRef(EntityKind.ACTION, action_id)
        record = (await self.writes.load([ref]))[ref].record
        return record if isinstance(record, ActionRecord) else None


def _find_hold(
    action: ActionRecord, principal: Principal, reach: Reach, attempt: str, quiet_ms: int | None
) -> str | None:
    """Why no push goes out to somebody now. What would expire in quiet hours goes out without a sound instead."""
    if attempt not in _NUMBERS and reach.is_active:
        return "active"
    if attempt == "2" and principal.id in action.seen:
        return "seen"
    if quiet_ms is not None and quiet_ms < action.request.expires_ms:
        return QUIET
    return None


def list_people(action: ActionRecord, step: int | None) -> Iterable[Principal]:
    """Who is told: all who may decide by now, or those of one step of the audience."""
    request = action.request
    steps = (
        request.audience[: action.step + 1] if step is None else request.audience[step : step + 1]
    )
    named = [name for one in steps for name in one.principals] or [request.principal]
    wanted = dict.fromkeys(named)
    if not request.quorum.allow_self:
        wanted.pop(request.principal, None)
    return [Principal(name, request.tenant) for name in wanted]


def _describe(action: ActionRecord) -> JsonObject:
    """What every push may say, though the push service cannot read it: no word of the agent."""
    request = action.request
    return {
        "actionId": request.action_id,
        "rev": action.rev,
        "state": action.state,
        "title": request.title,
        "risk": request.risk,
        "expiresAt": format_ms(request.expires_ms),
    }


def _describe_end(action: ActionRecord) -> JsonObject:
    return {"actionId": action.request.action_id, "rev": action.rev, "state": action.state}


def _name_row(member: str) -> str:
    return f"forwarded {member}"
