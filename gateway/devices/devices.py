"""What a principal can do about its devices: the commands of ``core/device_requests.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import orjson

from passerelle.core.approval_commands import WithdrawVotes
from passerelle.core.device import Confirm, Rename, Revoke, derive_digits
from passerelle.core.device_requests import (
    ConfirmDevice,
    DeviceChanged,
    PairDevice,
    RemoveDevicePush,
    RenameDevice,
    RevokeDevice,
    SetDevicePush,
)
from passerelle.core.errors import CallerError, InvalidInput, NotFound
from passerelle.core.ports import StreamKind, StreamRef
from passerelle.core.times import format_ms, parse_ms
from passerelle.gateway.devices.pairing import name_actor

if TYPE_CHECKING:
    from passerelle.core.device import DeviceCommand, DeviceList
    from passerelle.core.device_requests import DeviceAnswer, DeviceRequest
    from passerelle.core.json import Json, JsonObject
    from passerelle.core.payloads.device import Device
    from passerelle.core.ports import Channels, Clock, EventLog, Projections
    from passerelle.core.principal import Principal
    from passerelle.gateway.control.actions import Actions
    from passerelle.gateway.devices.device_lists import DeviceLists
    from passerelle.gateway.devices.pairing import Pairing
    from passerelle.gateway.devices.subscriptions import Subscriptions

RECENT_MS: Final = 60_000
_RECENT_EVENTS: Final = 512


@dataclass(frozen=True, slots=True)
class Devices:
    """Lists, confirms, renames and revokes devices."""

    lists: DeviceLists
    pairing: Pairing
    subscriptions: Subscriptions
    actions: Actions
    channels: Channels
    projections: Projections
    log: EventLog
    clock: Clock

    async def execute(self, principal: Principal, command: DeviceRequest) -> DeviceAnswer:
        """Carries out one command on a device of the caller.

        Raises:
            NotFound, UnsupportedOperation, InvalidInput, Forbidden: nothing is changed.
        """
        match command:
            case PairDevice():
                return await self.pairing.offer(principal, command)
            case ConfirmDevice(device_id=device, digits=digits):
                return await self._change(principal, Confirm(device, digits))
            case RenameDevice(device_id=device, name=name):
                if not name.isprintable():
                    raise InvalidInput("name", "is one line that can be shown")
                return await self._change(principal, Rename(device, name))
            case RevokeDevice(device_id=device):
                return await self._revoke(principal, device)
            case SetDevicePush():
                listed = await self.subscriptions.set(principal, command)
                return DeviceChanged(_describe(listed, command.device_id))
            case RemoveDevicePush(device_id=device):
                listed = await self.subscriptions.remove(principal, device)
                return DeviceChanged(_describe(listed, device))
            case _:
                assert_never(command)

    async def list_all(self, principal: Principal) -> JsonObject:
        """Every device of the caller; what was offered and not taken up in time is left out."""
        found = await self.lists.load(principal)
        now_ms = self.clock.now_ms()
        shown: list[Json] = [
            describe(one)
            for one in (found.devices if found else ())
            if one.state in {"active", "revoked"} or one.until_ms > now_ms
        ]
        return {"devices": shown}

    async def _change(self, principal: Principal, command: DeviceCommand) -> DeviceChanged:
        listed = await self.lists.change(principal, command, name_actor(principal))
        return DeviceChanged(_describe(listed, getattr(command, "device_id", "")))

    async def _revoke(self, principal: Principal, device: str) -> DeviceChanged:
        """Nothing that comes later counts; what was just decided is named, since it may have to be looked at."""
        command = Revoke(device)
        listed = await self.lists.change(
            principal,
            command,
            name_actor(principal),
            fields=lambda _known: self.subscriptions.forget(device),
        )
        await self.channels.tell_devices(principal.key)
        withdrawn = await self._withdraw(principal, device)
        decisions = await self._list_decisions(principal, device)
        return DeviceChanged(_describe(listed, device), tuple(decisions), withdrawn)

    async def _withdraw(self, principal: Principal, device: str) -> int:
        """Takes back the votes of a device. One that this misses does not count all the same: see ``Deciding``."""
        withdrawn = 0
        for action_id, view in await self.projections.read_inbox(principal.key):
            if not _takes_votes(view):
                continue
            try:
                await self.actions.close(action_id, WithdrawVotes(frozenset({device})))
            except CallerError:
                continue  # closed by now, or without a vote of this device
            withdrawn += 1
        return withdrawn

    async def _list_decisions(self, principal: Principal, device: str) -> list[JsonObject]:
        inbox = StreamRef(StreamKind.INBOX, principal.key)
        head = await self.log.read_head(inbox)
        if head is None:
            return []
        after = max(0, head.sequence - _RECENT_EVENTS)
        since_ms = self.clock.now_ms() - RECENT_MS
        entries = await self.log.read_page(inbox, after, _RECENT_EVENTS)
        closings = (entry for entry in entries if entry.type == "action.resolved")
        found: list[JsonObject] = []
        for entry in closings:
            envelope: JsonObject = orjson.loads(entry.data)
            decision = _read(_read(envelope, "payload"), "decision")
            at = decision.get("decidedAt")
            if (
                decision.get("device") == device
                and isinstance(at, str)
                and parse_ms(at) >= since_ms
            ):
                found.append({"actionId": envelope.get("actionId"), **decision})
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


def _takes_votes(view: bytes) -> bool:
    need = _read(orjson.loads(view), "quorum").get("need")
    return isinstance(need, int) and need > 1


def _describe(listed: DeviceList, device_id: str) -> JsonObject:
    device = listed.find(device_id)
    if device is None:
        raise NotFound("device", device_id)
    return describe(device)


def _read(holder: JsonObject, name: str) -> JsonObject:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}
