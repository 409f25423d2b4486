"""A question on its way to people, by due rows: links first, pushes where nobody looks, and a fact for each target.

The rows of a question are set with its opening (``answers/action_rows.py``). The first tells all: whoever is connected
has it from the inbox, and who has no active device gets a push at once. The second, 20 s later, pushes to those whose
active device has not answered. The third, at half of the time, reminds everybody. Those who come later in the audience
have a row of their own. Every target has an outcome, and that there was none is a fact too: an outage of all pushes
must not look like care. Whoever says that the question was shown to them is not pushed to for want of an answer. In a
time of calm (``push_hold.py``) pushes wait, with a row for its end, and when many come at once they wait for one bundle
(``bundles.py``). When the question ends, one more push takes the shown one away.

A push may go out twice where a process dies between sending and recording it: it replaces itself, by its topic. Facts
are written once, by the row of their attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.audience import list_paired_readers
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.principal import Principal
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.answers.action_rows import name_notice
from passerelle.permission_bridge.delivery_record import DeliveryTarget, record_forwarding
from passerelle.permission_bridge.devices.attempts import (
    AGAIN,
    CALM_OVER,
    FIRST,
    REMINDER,
    number_attempt,
)
from passerelle.permission_bridge.devices.push_hold import BUNDLED, CALMS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.devices.action_tokens import ActionTokens
    from passerelle.permission_bridge.devices.attempts import DeliveryAttempts
    from passerelle.permission_bridge.devices.push_hold import Calm, Holding
    from passerelle.permission_bridge.devices.reach import DeviceReach, Reaching
    from passerelle.permission_bridge.devices.subscriptions import BrowserSubscription
    from passerelle.permission_bridge.devices.web_push import Pushing

_CLEAR_S: Final = 3_600
_PAUSE_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Handlers of the rows that bring a question to people."""

    attempts: DeliveryAttempts
    reaching: Reaching
    holding: Holding
    pushing: Pushing
    tokens: ActionTokens
    drop: Callable[[Shard, DueRow], Awaitable[bool]]

    async def on_notify(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``notify:<action>:<attempt>``: tells people, and records whom and how."""
        action = await self.attempts.find(row.entity)
        attempt = row.member.rpartition(":")[2]
        step = int(attempt[1:]) if attempt.startswith("s") else None
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        if step is not None and action.step < step:
            return  # the audience grows in a moment; the row comes due again
        if attempt == AGAIN and not await self.attempts.is_recorded(action, FIRST):
            return  # both are due, and only who was told by the first is not told by the second
        people = list(list_people(action, step))
        paired = list_paired_readers(action)
        reached = [(one, await self.reaching.find(one, paired=one.key in paired)) for one in people]
        before = await self._list_pushed(
            action, [(one, reach.subscriptions) for one, reach in reached]
        )
        targets: list[DeliveryTarget] = []
        for principal, reach in reached:
            targets += await self._tell(action, principal, reach, attempt, before, now_ms)
        number = number_attempt(attempt)
        # A later attempt with nobody to be told says nothing new.
        facts = record_forwarding(action, targets, number) if targets or number == 1 else []
        due = await self.owe_after_calm(action, attempt, targets, now_ms)
        await self.attempts.settle(action, row, facts, targets, due)

    async def on_stalled(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``stalled:<action>``: nobody has decided for long, which somebody should notice."""
        action = await self.attempts.find(row.entity)
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        warning = WarningRaised("approval_stalled", f"still open: {action.request.title}")
        await self.attempts.settle(action, row, [Fact(action.scope, warning)])

    async def on_clear(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``clear:<action>``: it has ended, so pushes that show it are replaced."""
        action = await self.attempts.find(row.entity)
        if action is not None and not action.is_open and self.pushing.web_push is not None:
            people = list(list_people(action, None))
            browsers = [(one, await self.reaching.subscriptions.load(one)) for one in people]
            pushed = await self._list_pushed(action, browsers)
            message, topic = _describe_end(action), action.request.action_id
            for principal, known in browsers:
                wanted = {name: one for name, one in known.items() if name in pushed}
                if wanted:
                    await self.pushing.send(principal, wanted, lambda _: message, topic, _CLEAR_S)
        await self.drop(shard, row)

    async def _list_pushed(
        self,
        action: ActionRecord,
        browsers: Sequence[tuple[Principal, Mapping[str, BrowserSubscription]]],
    ) -> frozenset[str]:
        """Devices that a push has gone to before; where nobody has a browser that takes one, none can have."""
        if not any(known for _, known in browsers):
            return frozenset()
        return await self.attempts.list_pushed(action, [one.key for one, _ in browsers])

    async def _tell(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: DeviceReach,
        attempt: str,
        before: frozenset[str],
        now_ms: int,
    ) -> list[DeliveryTarget]:
        told = [
            DeliveryTarget(link, "queued", "ws", device) for link, device in reach.links.items()
        ]
        told += [
            DeliveryTarget(name, "queued" if works else "failed", "webhook")
            for name, works in reach.webhooks.items()
        ]
        wanted = {
            name: one
            for name, one in reach.subscriptions.items()
            if attempt == REMINDER or name not in before
        }
        pushed = await self._push_or_hold(action, principal, reach, attempt, wanted, now_ms)
        return [*told, *pushed] if number_attempt(attempt) == 1 else pushed

    async def _push_or_hold(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: DeviceReach,
        attempt: str,
        wanted: dict[str, BrowserSubscription],
        now_ms: int,
    ) -> list[DeliveryTarget]:
        if not wanted:
            return []
        calm = await self.holding.find_calm(action, principal, now_ms)
        why = self.holding.judge(action, principal, reach, attempt, calm)
        can_push = self.pushing.web_push is not None
        if why is None and can_push and await self.holding.bundle(action, principal, attempt):
            why = BUNDLED
        if why is not None:
            return hold_back(wanted, why)
        return await self.push(action, principal, wanted, calm)

    async def push(
        self,
        action: ActionRecord,
        principal: Principal,
        wanted: dict[str, BrowserSubscription],
        calm: Calm | None,
    ) -> list[DeliveryTarget]:
        """A push about one question, without a sound in quiet hours."""
        message: JsonObject = {**_describe(action), **({"silent": True} if calm else {})}

        def compose(device: str) -> JsonObject:
            buttons = self.tokens.offer(action, principal, device)
            return message if buttons is None else {**message, "answers": buttons}

        request = action.request
        left_s = (request.expires_ms - self.holding.clock.now_ms()) // 1000
        return await self.pushing.send(principal, wanted, compose, request.action_id, left_s)

    async def owe_after_calm(
        self, action: ActionRecord, attempt: str, targets: Iterable[DeliveryTarget], now_ms: int
    ) -> tuple[DueChange, ...]:
        """The row by which those are told that a time of calm has kept a push from; none after the question."""
        if not any(one.reason in CALMS for one in targets):
            return ()
        people = list_people(action, None)
        calms = [await self.holding.find_calm(action, one, now_ms) for one in people]
        until_ms = min((one.until_ms for one in calms if one is not None), default=now_ms)
        if until_ms >= action.request.expires_ms:
            return ()
        # The store's clock may be ahead of the one that a calm ends by: that is no reason to ask without a pause.
        at_ms = max(until_ms, now_ms + _PAUSE_MS)
        name = await self.attempts.find_next(action, CALM_OVER, attempt)
        return (DueChange(name_notice(action.request.action_id, name), at_ms),)


def hold_back(wanted: Iterable[str], why: str) -> list[DeliveryTarget]:
    """Devices that no push goes to now."""
    return [DeliveryTarget(None, "suppressed", "webpush", name, why) for name in wanted]


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
    """What every push may say, though the push service cannot read it; the title is bounded and made safe."""
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
