"""Push subscriptions of devices: sealed secrets, stored with the device list. Facts name only the service's host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.errors import ConfigInvalid, InvalidInput, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.session.device import SetPush, name_list
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import record
from passerelle.permission_bridge.devices.pairing import name_actor

if TYPE_CHECKING:
    from passerelle.core.batch import IdempotencyRow
    from passerelle.core.principal import Principal
    from passerelle.core.session.device import DeviceList
    from passerelle.core.session.device_requests import SetDevicePush
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.devices.device_lists import DeviceLists
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.runtime.records.idempotency import Once
    from passerelle.webhooks.addresses import WebhookRules

_FIELD: Final = "push:"
_ENDPOINT_LIMIT: Final = 1_024
_P256DH: Final = re.compile(r"[A-Za-z0-9_-]{87}=?")
_AUTH: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?")


@record
class BrowserSubscription:
    """The endpoint and keys of a browser (RFC 8030, RFC 8291)."""

    endpoint: str
    p256dh: str
    auth: str


@frozen
class BrowserSubscriptions:
    """Stores push subscriptions. Without a sealer they cannot be stored."""

    lists: DeviceLists
    sealer: Sealer | None
    rules: WebhookRules

    async def set(self, principal: Principal, command: SetDevicePush, once: Once) -> DeviceList:
        """Stores the subscription of a device, replacing an earlier one.

        Raises:
            UnsupportedOperation: secrets cannot be stored here, or the device is not active.
            InvalidInput: an address that may not be called.
            NotFound: no such device.
        """
        if self.sealer is None:
            raise UnsupportedOperation("secrets cannot be stored: redis_url needs a secret_key")
        kept = read_subscription(command.subscription)
        self.rules.judge(kept.endpoint, "subscription.endpoint")
        place = _name_place(name_list(principal), command.device_id)
        sealed = self.sealer.seal(to_bytes(kept), place)
        host = urlsplit(kept.endpoint).hostname
        return await self.lists.change(
            principal,
            SetPush(command.device_id, host),
            name_actor(principal),
            fields=lambda _known: {f"{_FIELD}{command.device_id}": sealed},
            idem=once.remember(command.device_id),
        )

    async def remove(
        self,
        principal: Principal,
        device: str,
        actor: str | None = None,
        idem: IdempotencyRow | None = None,
    ) -> DeviceList:
        """Removes the subscription of a device.

        Raises:
            NotFound, UnsupportedOperation: there is no such device.
        """
        return await self.lists.change(
            principal,
            SetPush(device, None),
            actor or name_actor(principal),
            fields=lambda _known: self.forget(device),
            idem=idem,
        )

    def forget(self, device: str) -> dict[str, bytes | None]:
        """The change of stored fields when a device ends."""
        return {f"{_FIELD}{device}": None}

    async def load(self, whose: Principal) -> dict[str, BrowserSubscription]:
        """The subscriptions of a principal's devices that can be unsealed here, by device."""
        if self.sealer is None:
            return {}
        list_id = name_list(whose)
        found: dict[str, BrowserSubscription] = {}
        for name, sealed in (await self.lists.load_fields(list_id)).items():
            device = name.removeprefix(_FIELD)
            if device == name:
                continue
            try:
                plain = self.sealer.unseal(sealed, _name_place(list_id, device))
            except ConfigInvalid:
                continue  # sealed with a key that is gone: the device subscribes again
            found[device] = from_bytes(BrowserSubscription, plain, newer=True)
        return found


def read_subscription(said: JsonObject) -> BrowserSubscription:
    """Parses a browser's subscription; unknown members are ignored.

    Raises:
        InvalidInput: the address or a key is missing or invalid.
    """
    keys = object_at(said, "keys")
    found = BrowserSubscription(
        text_at(said, "endpoint"), text_at(keys, "p256dh"), text_at(keys, "auth")
    )
    if not 0 < len(found.endpoint) <= _ENDPOINT_LIMIT:
        raise InvalidInput("subscription.endpoint", f"is 1 to {_ENDPOINT_LIMIT} characters")
    if not _P256DH.fullmatch(found.p256dh):
        raise InvalidInput("subscription.keys.p256dh", "is a point of P-256 in base64url")
    if not _AUTH.fullmatch(found.auth):
        raise InvalidInput("subscription.keys.auth", "is 16 bytes in base64url")
    return found


def _name_place(list_id: str, device: str) -> str:
    return f"{list_id} {_FIELD}{device}"
