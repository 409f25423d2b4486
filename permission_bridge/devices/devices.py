"""Commands of a principal about its devices (``core/session/device_requests.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.approval.commands import WithdrawVotes
from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import CallerError, InvalidInput, NotFound, UnsupportedOperation
from passerelle.core.event_type import EventType
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.session.device import Confirm, Rename, Revoke, derive_digits
from passerelle.core.session.device_requests import (
    ConfirmDevice,
    DeviceChanged,
    DevicePaired,
    GetPushKey,
    ListDevices,
    PairDevice,
    RemoveDevicePush,
    RenameDevice,
    RevokeDevice,
    SetDevicePush,
)
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.permission_bridge.devices.pairing import name_actor
from passerelle.runtime.records.idempotency import make_once

if TYPE_CHECKING:
    from passerelle.core.payloads.device import Device
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.channels import Channels
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.session.device import DeviceList
    from passerelle.core.session.device_requests import DeviceAnswer, DeviceQuery, DeviceRequest
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.answers.actions import Actions
    from passerelle.permission_bridge.devices.action_tokens import ActionTokens
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.permission_bridge.devices.pairing import Pairing
    from passerelle.permission_bridge.devices.subscriptions import BrowserSubscriptions
    from passerelle.permission_bridge.devices.web_push import WebPush
    from passerelle.runtime.records.idempotency import Once
    from passerelle.runtime.records.inbox_arrivals import InboxArrivals

RECENT_MS: Final = 60_000
_RECENT_EVENTS: Final = 512


@frozen
class Devices:
    """Lists, confirms, renames and revokes devices."""

    lists: DeviceLists
    pairing: Pairing
    subscriptions: BrowserSubscriptions
    actions: Actions
    arrivals: InboxArrivals
    channels: Channels
    projections: Projections
    clock: Clock
    tokens: ActionTokens
    web_push: WebPush | None = None

    async def execute(
        self, principal: Principal, command: DeviceRequest, idem: str | None
    ) -> DeviceAnswer:
        """Carries out one command on a device of the caller, once per idempotency key (CMD-30).

        Raises:
            NotFound, UnsupportedOperation, InvalidInput, Forbidden: nothing is changed.
            IdempotencyConflict: the key was used for another request.
        """
        once = make_once(principal, command, idem)
        known = await self._repeat(principal, command, once)
        if known is not None:
            return known
        try:
            return await self._execute_command(principal, command, once)
        except CallerError:
            # Two identical commands at once: the other one was carried out, and the device refuses the second.
            known = await self._repeat(principal, command, once)
            if known is None:
                raise
            return known

    async def _repeat(
        self, principal: Principal, command: DeviceRequest, once: Once
    ) -> DeviceAnswer | None:
        """The answer to a repeated command; None if it was not carried out before."""
        first = await once.find(self.actions.writes.log, principal.home)
        listed = await self.lists.load(principal) if first is not None else None
        device = listed.find(first.decode()) if listed and first is not None else None
        if device is None:
            return None
        if isinstance(command, PairDevice):
            until = format_ms(device.until_ms)
            return DevicePaired(device.device_id, None, None, until, repeated=True)
        return DeviceChanged(describe(device), repeated=True)

    async def _execute_command(
        self, principal: Principal, command: DeviceRequest, once: Once
    ) -> DeviceAnswer:
        match command:
            case PairDevice():
                return await self.pairing.offer(principal, command, once)
            case ConfirmDevice(device_id=device, digits=digits):
                return await self._change(principal, Confirm(device, digits), once)
            case RenameDevice(device_id=device, name=name):
                if not name.isprintable():
                    raise InvalidInput("name", "must be one printable line")
                return await self._change(principal, Rename(device, name), once)
            case RevokeDevice(device_id=device):
                return await self._revoke(principal, device, once)
            case SetDevicePush():
                listed = await self.subscriptions.set(principal, command, once)
                return DeviceChanged(_describe(listed, command.device_id))
            case RemoveDevicePush(device_id=device):
                row = once.remember(device)
                listed = await self.subscriptions.remove(principal, device, idem=row)
                return DeviceChanged(_describe(listed, device))
            case _:
                assert_never(command)

    async def read(self, principal: Principal, query: DeviceQuery) -> JsonObject:
        """Answers a query about devices."""
        match query:
            case ListDevices():
                return await self.list_all(principal)
            case GetPushKey():
                return await self.read_push_key()
            case _:
                assert_never(query)

    async def list_all(self, principal: Principal) -> JsonObject:
        """Every device of the caller, without expired offers."""
        found = await self.lists.load(principal)
        now_ms = self.clock.now_ms()
        shown: list[Json] = [
            describe(one)
            for one in (found.devices if found else ())
            if one.state in {"active", "revoked"} or one.until_ms > now_ms
        ]
        return {"devices": shown}

    async def read_push_key(self) -> JsonObject:
        """The key that a browser subscribes with.

        Raises:
            UnsupportedOperation: Web Push is not configured.
        """
        if self.web_push is None:
            raise UnsupportedOperation("Web Push needs the extra webpush and a secret_key")
        return {"publicKey": await self.web_push.read_public_key()}

    async def _change(
        self, principal: Principal, command: Confirm | Rename, once: Once
    ) -> DeviceChanged:
        row = once.remember(command.device_id)
        listed = await self.lists.change(principal, command, name_actor(principal), idem=row)
        return DeviceChanged(_describe(listed, command.device_id))

    async def _revoke(self, principal: Principal, device: str, once: Once) -> DeviceChanged:
        """Later answers of the device are refused; its recent decisions are returned, since they may need a review."""
        command = Revoke(device)
        listed = await self.lists.change(
            principal,
            command,
            name_actor(principal),
            fields=lambda _known: self.subscriptions.forget(device),
            idem=once.remember(device),
        )
        await self.channels.notify_devices(principal.key)
        held = await self._load_inbox(principal)
        withdrawn = await self._withdraw(held, device)
        decisions = await self._list_decisions(principal, held, device)
        return DeviceChanged(_describe(listed, device), tuple(decisions), withdrawn)

    async def _load_inbox(self, principal: Principal) -> list[ActionRecord]:
        """The current records of the requests in the inbox; recently closed ones may be among them."""
        await self.arrivals.wait(principal.key)
        inbox = await self.projections.read_inbox(principal.key)
        names = (action for action, _ in inbox)
        return [*(await self.actions.writes.read_all(ActionRecord, names)).values()]

    async def _withdraw(self, held: list[ActionRecord], device: str) -> int:
        """Withdraws the votes of a device. A vote that is missed here does not count either: see ``Assurance``."""
        withdrawn = 0
        for action in held:
            if not any(vote.device == device for vote in action.votes):
                continue
            try:
                withdrawing = WithdrawVotes(frozenset({device}))
                await self.actions.close(action.request.action_id, withdrawing)
            except CallerError:
                continue  # closed by now
            withdrawn += 1
        return withdrawn

    async def _list_decisions(
        self, principal: Principal, held: list[ActionRecord], device: str
    ) -> list[JsonObject]:
        """From the inbox stream, and from records that the relay has not copied there yet."""
        since_ms = self.clock.now_ms() - RECENT_MS
        found = {
            one.request.action_id: {"actionId": one.request.action_id, **to_wire(one.decision)}
            for one in held
            if one.decision is not None
        }
        found |= await self._read_closings(principal)
        return [
            one
            for one in found.values()
            if one.get("device") == device and parse_ms(str(one["decidedAt"])) >= since_ms
        ]

    async def _read_closings(self, principal: Principal) -> dict[str, JsonObject]:
        inbox = StreamRef(StreamKind.INBOX, principal.key)
        head = await self.actions.writes.log.read_head(inbox)
        if head is None:
            return {}
        after = max(0, head.sequence - _RECENT_EVENTS)
        entries = await self.actions.writes.log.read_page(inbox, after, _RECENT_EVENTS)
        found: dict[str, JsonObject] = {}
        for entry in entries:
            envelope: JsonObject = orjson.loads(entry.data)
            decision = object_at(object_at(envelope, "payload"), "decision")
            if entry.type == EventType.ACTION_RESOLVED and decision:
                action = text_at(envelope, "actionId")
                found[action] = {"actionId": action, **decision}
        return found


def describe(device: Device) -> JsonObject:
    """A device as its principal sees it: no hash of a secret, and the digits only while they are to be compared."""
    members: dict[str, Json] = {
        "deviceId": device.device_id,
        "name": device.name,
        "state": device.state,
        "scopes": list(device.scopes),
        "options": list(device.rights.options) if device.rights.options is not None else None,
        "riskUpTo": device.rights.risk_up_to,
        "keyId": device.key.key_id if device.key else None,
        "algorithm": device.key.algorithm if device.key else None,
        "offeredAt": device.offered_at,
        "confirmedAt": device.confirmed_at,
        "confirmedBy": device.confirmed_by,
        "revokedAt": device.revoked_at,
        "revokedBy": device.revoked_by,
        "push": device.push,
    }
    if device.state not in {"active", "revoked"}:
        members["expiresAt"] = format_ms(device.until_ms)
    if device.state == "proven" and device.key is not None:
        members["digits"] = derive_digits(device.device_id, device.key, device.nonce or "")
    return {name: member for name, member in members.items() if member is not None}


def _describe(listed: DeviceList, device_id: str) -> JsonObject:
    device = listed.find(device_id)
    if device is None:
        raise NotFound("device", device_id)
    return describe(device)
