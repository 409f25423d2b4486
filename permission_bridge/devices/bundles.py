"""One push for many approval requests: requests that arrive at once share a notification, and stay separate requests.

A person whom an agent asks six times in a minute should not get six sounds: repeated alerts lead to careless approval.
Pushes beyond the first few are deferred (``store/pushes.py``), with one due row for their bundle. Its handler leaves
out requests that were closed, were seen, or fall into a pause now, and sends the rest as one message; a single
remaining request is pushed as usual. Each request then gets the facts of its targets in its own session. If the handler
dies, the row stays, and requests that were not yet recorded are sent again: the bundle replaces itself, by its topic.
Requests beyond one page keep the row, and are handled at the next visit.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.approval.record import ActionRecord
from passerelle.core.chunks import in_chunks
from passerelle.core.frozen import frozen
from passerelle.core.wire.times import format_ms
from passerelle.permission_bridge.approvers import RISKS
from passerelle.permission_bridge.delivery_record import record_forwarding
from passerelle.permission_bridge.devices.attempts import (
    AGAIN,
    REMINDER,
    name_bundled,
    number_attempt,
)
from passerelle.permission_bridge.devices.delivery import hold_back, list_people
from passerelle.permission_bridge.devices.push_hold import BUNDLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.delivery_record import DeliveryTarget
    from passerelle.permission_bridge.devices.delivery import Forwarding
    from passerelle.permission_bridge.devices.push_hold import PushPause
    from passerelle.permission_bridge.devices.reach import DeviceReach
    from passerelle.store.pushes import HeldPush

_AT_ONCE: Final = 64
LISTED: Final = 20
"""Requests listed in a bundle: a push payload is limited to 4 kB."""


@frozen
class HeldQuestion:
    """A deferred request, the reason why it is still suppressed, and the devices that have not received it."""

    action: ActionRecord
    attempt: str
    devices: tuple[str, ...]
    why: str | None
    pause: PushPause | None


@frozen
class Bundles:
    """The handler of the due rows for bundles."""

    forwarding: Forwarding

    async def on_bundle(self, _shard: Shard, row: DueRow, now_ms: int) -> None:
        """``bundle:<owner>``: sends the deferred requests of a person, and records each of them."""
        store = self.forwarding.push_gate.bundles
        held = await store.list_held(row.entity)
        actions = await self._find_open(held)
        whose = _find_person(actions.values(), row.entity)
        if whose is not None:
            reach = await self.forwarding.reach_finder.find(whose)
            waiting = await self._look(actions, held, whose, reach, now_ms)
            sent = await self._send(whose, reach, [one for one in waiting if one.why is None])
            for some in in_chunks(waiting, _AT_ONCE):
                await asyncio.gather(*(self._record(one, row.entity, sent, now_ms) for one in some))
                ids = {one.action.request.action_id for one in some}
                done = [one for one in held if one.action_id in ids]
                await store.settle(row, done, last=False)
        await store.settle(row, held, last=True)

    async def _find_open(self, held: Sequence[HeldPush]) -> dict[str, ActionRecord]:
        found = await self.forwarding.attempts.writes.read_all(
            ActionRecord, (one.action_id for one in held)
        )
        return {name: one for name, one in found.items() if one.is_open}

    async def _look(
        self,
        actions: Mapping[str, ActionRecord],
        held: Sequence[HeldPush],
        whose: Principal,
        reach: DeviceReach,
        now_ms: int,
    ) -> list[HeldQuestion]:
        """Each request once, with the first of its deferred attempts."""
        attempts: dict[str, str] = {}
        for one in held:
            attempts.setdefault(one.action_id, one.attempt)
        names = list(actions)
        found: list[HeldQuestion] = []
        for some in in_chunks(names, _AT_ONCE):
            found += await asyncio.gather(
                *(self._judge(actions[name], attempts[name], whose, reach, now_ms) for name in some)
            )
        return [one for one in found if one.devices]

    async def _judge(
        self, action: ActionRecord, attempt: str, whose: Principal, reach: DeviceReach, now_ms: int
    ) -> HeldQuestion:
        forwarding = self.forwarding
        before = await forwarding.attempts.list_pushed(action, [whose.key])
        reminds = attempt == REMINDER
        devices = tuple(name for name in reach.subscriptions if reminds or name not in before)
        pause = await forwarding.push_gate.find_pause(action, whose, now_ms)
        # A person with an active device had time to answer there; a reminder is sent even if the request was seen.
        judged = REMINDER if reminds else AGAIN
        why = forwarding.push_gate.judge(action, whose, reach, judged, pause)
        return HeldQuestion(action, attempt, devices, why, pause)

    async def _send(
        self, whose: Principal, reach: DeviceReach, waiting: Sequence[HeldQuestion]
    ) -> dict[str, DeliveryTarget]:
        """The outcome of the one push, by device."""
        if not waiting:
            return {}
        forwarding = self.forwarding
        devices = {name for one in waiting for name in one.devices}
        wanted = {name: one for name, one in reach.subscriptions.items() if name in devices}
        if len(waiting) == 1:
            (alone,) = waiting
            targets = await forwarding.push(alone.action, whose, wanted, alone.pause)
        else:
            message = _describe([one.action for one in waiting])
            if all(one.pause for one in waiting):
                message |= {"silent": True}
            last_ms = max(one.action.request.expires_ms for one in waiting)
            left_s = (last_ms - forwarding.push_gate.clock.now_ms()) // 1000
            topic = f"bundle {whose.key}"
            targets = await forwarding.push_sender.send(
                whose, wanted, lambda _: message, topic, left_s
            )
            targets = [replace(one, reason=one.reason or BUNDLED) for one in targets]
        return {one.device_id: one for one in targets if one.device_id is not None}

    async def _record(
        self, one: HeldQuestion, owner: str, sent: Mapping[str, DeliveryTarget], now_ms: int
    ) -> None:
        attempts = self.forwarding.attempts
        targets = (
            [sent[name] for name in one.devices if name in sent]
            if one.why is None
            else hold_back(one.devices, one.why)
        )
        facts = record_forwarding(one.action, targets, number_attempt(one.attempt))
        due = await self.forwarding.schedule_after_pause(one.action, one.attempt, targets, now_ms)
        name = await attempts.find_next(one.action, name_bundled(owner))
        await attempts.add(one.action, name, facts, targets, due)


def _find_person(actions: Iterable[ActionRecord], owner: str) -> Principal | None:
    """The owner of the bundle, found in the audiences of its requests."""
    people = (one for action in actions for one in list_people(action, None))
    return next((one for one in people if one.key == owner), None)


def _describe(actions: Sequence[ActionRecord]) -> JsonObject:
    """As for a single request: no text of an agent, and no way to decide from the notification."""
    requests = [one.request for one in actions]
    return {
        "title": f"{len(requests)} approvals wait for you",
        "count": len(requests),
        "risk": max((one.risk for one in requests), key=RISKS.index),
        "expiresAt": format_ms(min(one.expires_ms for one in requests)),
        "questions": [
            {"actionId": one.request.action_id, "rev": one.rev, "risk": one.request.risk}
            for one in actions[:LISTED]
        ],
    }
