"""Web Push: messages to the browsers of a person, each encrypted for one browser, with the outcome.

Messages are encrypted as in RFC 8291 and signed by this runtime (VAPID, RFC 8292). Encryption and signing need the
extra ``webpush``; the HTTP request goes through the webhook sender: endpoints come from devices, so each address is
screened when it is connected to.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from passerelle.core.errors import CallerError, InvalidInput
from passerelle.core.frozen import frozen
from passerelle.permission_bridge.delivery_record import DeliveryTarget
from passerelle.permission_bridge.devices.device_keys import encode_base64url
from passerelle.webhooks.retries import AddressBlocked, ReceiverAnswered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.ports.chance import Clock
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.devices.subscriptions import (
        BrowserSubscription,
        BrowserSubscriptions,
    )
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.store.sealed_values import RedisPushKeys
    from passerelle.webhooks.addresses import Address, WebhookRules
    from passerelle.webhooks.retries import Outcome
    from passerelle.webhooks.sender import WebhookSender

PLACE: Final = "push key"
TIMEOUT_S: Final = 6.0
"""Shorter than the time for which a claimed due row is hidden."""
_TOKEN_MS: Final = 12 * 3_600_000
_TOPIC_CHARACTERS: Final = 32
_TAKEN: Final = frozenset({200, 201, 202, 204})
GONE: Final = "gone"


@dataclass(slots=True)
class WebPush:
    """Sends to browsers. ``contact`` is the address for operators of push services (RFC 8292 section 2.1)."""

    keys: RedisPushKeys
    sealer: Sealer
    sender: WebhookSender
    rules: WebhookRules
    clock: Clock
    contact: str
    _vapid: Any = field(default=None)

    async def read_public_key(self) -> str:
        """The key for subscriptions: ``applicationServerKey``, in base64url.

        Raises:
            StoreUnavailable: there is none yet, and none can be stored.
        """
        public = (await self._load()).public_key
        return encode_base64url(public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    async def send(
        self, subscription: BrowserSubscription, message: JsonObject, topic: str, ttl_s: int
    ) -> str | None:
        """Sends one message; a later one of the same topic replaces it if it was not delivered yet.

        Returns a short word for the failure; None if the push service accepted it. ``gone``: the subscription has
        ended.

        Raises:
            StoreUnavailable: the signing key cannot be read.
        """
        try:
            address = self.rules.judge(subscription.endpoint)
            body = _encrypt(subscription, orjson.dumps(message))
        except (InvalidInput, ValueError):
            return "refused"
        headers = {
            **await self._sign(address),
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(max(0, ttl_s)),
            "Urgency": "high",
            "Topic": name_topic(topic),
        }
        return _judge(await self.sender.post(address, headers, body))

    async def _sign(self, address: Address) -> dict[str, str]:
        vapid = await self._load()
        until_s = (self.clock.now_ms() + _TOKEN_MS) // 1000
        claims = {"aud": address.origin, "exp": until_s, "sub": self.contact}
        return cast("dict[str, str]", vapid.sign(claims))

    async def _load(self) -> Any:  # noqa: ANN401  the library has no types
        if self._vapid is None:
            from py_vapid import Vapid02  # type: ignore[import-untyped]  # noqa: PLC0415  an extra

            kept = await self.keys.read()
            if kept is None:
                fresh: Any = Vapid02()
                fresh.generate_keys()
                private = cast("bytes", fresh.private_pem())
                kept = await self.keys.keep(self.sealer.seal(private, PLACE))
            made: Any = Vapid02
            self._vapid = made.from_pem(self.sealer.unseal(kept, PLACE))
        return self._vapid


def is_installed() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("pywebpush") is not None


def name_topic(subject: str) -> str:
    """The topic for messages about one subject: 32 characters that do not reveal it (RFC 8030 section 5.4)."""
    return encode_base64url(hashlib.sha256(subject.encode()).digest())[:_TOPIC_CHARACTERS]


def _encrypt(subscription: BrowserSubscription, plain: bytes) -> bytes:
    from pywebpush import WebPusher  # type: ignore[import-untyped]  # noqa: PLC0415  an extra

    info = {
        "endpoint": subscription.endpoint,
        "keys": {"p256dh": subscription.p256dh, "auth": subscription.auth},
    }
    return cast("bytes", WebPusher(info).encode(plain, "aes128gcm")["body"])


def _judge(outcome: Outcome) -> str | None:
    match outcome:
        case ReceiverAnswered(status=status) if status in _TAKEN:
            return None
        case ReceiverAnswered(status=HTTPStatus.NOT_FOUND | HTTPStatus.GONE):
            return GONE
        case ReceiverAnswered(status=status):
            return f"http_{status}"
        case AddressBlocked():
            return "barred"
        case _:
            return outcome.reason


@frozen
class PushSender:
    """Sends to many browsers at once. Without ``web_push`` every push fails as ``not_installed``."""

    web_push: WebPush | None
    subscriptions: BrowserSubscriptions

    async def send(
        self,
        principal: Principal,
        wanted: Mapping[str, BrowserSubscription],
        compose: Callable[[str], JsonObject],
        topic: str,
        ttl_s: int,
    ) -> list[DeliveryTarget]:
        """Sends one message to each device; ``compose`` returns the message for a device.

        Raises:
            StoreUnavailable: the signing key cannot be read.
        """
        web_push = self.web_push
        if web_push is None:
            return [
                DeliveryTarget(None, "failed", "webpush", name, "not_installed") for name in wanted
            ]
        faults = await asyncio.gather(
            *(web_push.send(one, compose(name), topic, ttl_s) for name, one in wanted.items())
        )
        targets: list[DeliveryTarget] = []
        for device, fault in zip(wanted, faults, strict=True):
            targets.append(
                DeliveryTarget(None, "failed" if fault else "sent", "webpush", device, fault)
            )
            if fault == GONE:
                await self._forget(principal, device)
        return targets

    async def _forget(self, principal: Principal, device: str) -> None:
        """The browser no longer accepts pushes there; the device's subscription is removed."""
        try:
            await self.subscriptions.remove(principal, device, "push service")
        except CallerError:
            return  # the device itself is gone
