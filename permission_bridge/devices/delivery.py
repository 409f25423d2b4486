"""Delivers an approval request to people, by due rows, and records one fact per target.

Open connections come first, then pushes. The rows are set when the request is opened (``answers/action_rows.py``). The
first row notifies everybody: connected devices get the request from the inbox, and a person without an active device
gets a push at once. The second row, 20 s later, pushes to people whose active device has not answered. The third, after
half of the lifetime, reminds everybody. Later audience steps have rows of their own. Every target has an outcome, and
the absence of any target is a fact as well, so that a complete push outage is visible. A person who reported having
seen the request gets no push at the second row. During a mute or quiet hours (``push_hold.py``) pushes wait, with a row
for the end of the pause; when many arrive at once they wait for one bundle (``bundles.py``). When the request is
closed, one more push replaces the notification.

If a process dies between sending a push and recording it, the push is sent twice: it replaces itself, by its topic.
Facts are written once, keyed by the row of their attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.audience import list_paired_readers
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.principal import Principal
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.answers.action_rows import name_notice
from passerelle.permission_bridge.delivery_record import DeliveryTarget, record_forwarding
from passerelle.permission_bridge.devices.attempts import (
    AGAIN,
    FIRST,
    PAUSE_OVER,
    REMINDER,
    number_attempt,
)
from passerelle.permission_bridge.devices.push_hold import BUNDLED, PAUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DropRow, DueRow
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.devices.action_tokens import ActionTokens
    from passerelle.permission_bridge.devices.attempts import DeliveryAttempts
    from passerelle.permission_bridge.devices.push_hold import PushGate, PushPause
    from passerelle.permission_bridge.devices.reach import DeviceReach, Reaching
    from passerelle.permission_bridge.devices.subscriptions import BrowserSubscription
    from passerelle.permission_bridge.devices.web_push import PushSender

_CLEAR_S: Final = 3_600
_PAUSE_MS: Final = 1_000


@frozen
class Forwarding:
    """Handlers of the due rows that deliver an approval request to people."""

    attempts: DeliveryAttempts
    reach_finder: Reaching
    push_gate: PushGate
    push_sender: PushSender
    tokens: ActionTokens
    drop: DropRow

    async def on_notify(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        """``notify:<action>:<attempt>``: notifies people, and records each target and its outcome."""
        action = await self.attempts.writes.read(ActionRecord, row.entity)
        attempt = row.member.rpartition(":")[2]
        step = int(attempt[1:]) if attempt.startswith("s") else None
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        if step is not None and action.step < step:
            return  # the audience step is added in a moment; the row comes due again
        if attempt == AGAIN and not await self.attempts.is_recorded(action, FIRST):
            return  # both rows are due; the second depends on what the first one delivered
        people = list(list_people(action, step))
        paired = list_paired_readers(action)
        reached = [
            (one, await self.reach_finder.find(one, paired=one.key in paired)) for one in people
        ]
        before = await self._list_pushed(
            action, [(one, reach.subscriptions) for one, reach in reached]
        )
        targets: list[DeliveryTarget] = []
        for principal, reach in reached:
            targets += await self._notify(action, principal, reach, attempt, before, now_ms)
        number = number_attempt(attempt)
        # A later attempt without targets adds nothing to the record.
        facts = record_forwarding(action, targets, number) if targets or number == 1 else []
        due = await self.schedule_after_pause(action, attempt, targets, now_ms)
        await self.attempts.settle(action, row, facts, targets, due)

    async def on_stalled(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``stalled:<action>``: the request was open for long without a decision; records a warning."""
        action = await self.attempts.writes.read(ActionRecord, row.entity)
        if action is None or not action.is_open:
            await self.drop(shard, row)
            return
        warning = WarningRaised("approval_stalled", f"still open: {action.request.title}")
        await self.attempts.settle(action, row, [Fact(action.scope, warning)])

    async def on_clear(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        """``clear:<action>``: the request is closed, so pushes that show it are replaced."""
        action = await self.attempts.writes.read(ActionRecord, row.entity)
        if action is not None and not action.is_open and self.push_sender.web_push is not None:
            people = list(list_people(action, None))
            browsers = [(one, await self.reach_finder.subscriptions.load(one)) for one in people]
            pushed = await self._list_pushed(action, browsers)
            message, topic = _describe_end(action), action.request.action_id
            for principal, known in browsers:
                wanted = {name: one for name, one in known.items() if name in pushed}
                if wanted:
                    await self.push_sender.send(
                        principal, wanted, lambda _: message, topic, _CLEAR_S
                    )
        await self.drop(shard, row)

    async def _list_pushed(
        self,
        action: ActionRecord,
        browsers: Sequence[tuple[Principal, Mapping[str, BrowserSubscription]]],
    ) -> frozenset[str]:
        """Devices that earlier attempts pushed to; empty if no browser of these people is subscribed."""
        if not any(known for _, known in browsers):
            return frozenset()
        return await self.attempts.list_pushed(action, [one.key for one, _ in browsers])

    async def _notify(
        self,
        action: ActionRecord,
        principal: Principal,
        reach: DeviceReach,
        attempt: str,
        before: frozenset[str],
        now_ms: int,
    ) -> list[DeliveryTarget]:
        targets = [
            DeliveryTarget(link, "queued", "ws", device) for link, device in reach.links.items()
        ]
        targets += [
            DeliveryTarget(name, "queued" if works else "failed", "webhook")
            for name, works in reach.webhooks.items()
        ]
        wanted = {
            name: one
            for name, one in reach.subscriptions.items()
            if attempt == REMINDER or name not in before
        }
        pushed = await self._push_or_hold(action, principal, reach, attempt, wanted, now_ms)
        return [*targets, *pushed] if number_attempt(attempt) == 1 else pushed

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
        pause = await self.push_gate.find_pause(action, principal, now_ms)
        why = self.push_gate.judge(action, principal, reach, attempt, pause)
        can_push = self.push_sender.web_push is not None
        if why is None and can_push and await self.push_gate.bundle(action, principal, attempt):
            why = BUNDLED
        if why is not None:
            return hold_back(wanted, why)
        return await self.push(action, principal, wanted, pause)

    async def push(
        self,
        action: ActionRecord,
        principal: Principal,
        wanted: dict[str, BrowserSubscription],
        pause: PushPause | None,
    ) -> list[DeliveryTarget]:
        """Sends a push about one request; silent during a pause."""
        message: JsonObject = {**_describe(action), **({"silent": True} if pause else {})}

        def compose(device: str) -> JsonObject:
            buttons = self.tokens.offer(action, principal, device)
            return message if buttons is None else {**message, "answers": buttons}

        request = action.request
        left_s = (request.expires_ms - self.push_gate.clock.now_ms()) // 1000
        return await self.push_sender.send(principal, wanted, compose, request.action_id, left_s)

    async def schedule_after_pause(
        self, action: ActionRecord, attempt: str, targets: Iterable[DeliveryTarget], now_ms: int
    ) -> tuple[DueChange, ...]:
        """The due row that notifies again after a pause suppressed a push; none if the request expires before that."""
        if not any(one.reason in PAUSES for one in targets):
            return ()
        people = list_people(action, None)
        pauses = [await self.push_gate.find_pause(action, one, now_ms) for one in people]
        until_ms = min((one.until_ms for one in pauses if one is not None), default=now_ms)
        if until_ms >= action.request.expires_ms:
            return ()
        # The store's clock may be ahead of the clock that ends the pause: without a minimum the row would repeat at
        # once.
        at_ms = max(until_ms, now_ms + _PAUSE_MS)
        name = await self.attempts.find_next(action, PAUSE_OVER, attempt)
        return (DueChange(name_notice(action.request.action_id, name), at_ms),)


def hold_back(wanted: Iterable[str], why: str) -> list[DeliveryTarget]:
    """Suppressed targets, one per device, with the reason."""
    return [DeliveryTarget(None, "suppressed", "webpush", name, why) for name in wanted]


def list_people(action: ActionRecord, step: int | None) -> Iterable[Principal]:
    """The people to notify: all who may decide now, or the people of one audience step."""
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
    """The content of every push. It is encrypted for the push service as well; the title is bounded and escaped."""
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
