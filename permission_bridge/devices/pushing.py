"""Messages to the browsers of a person, with what became of each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.errors import CallerError
from passerelle.permission_bridge.devices.web_push import GONE
from passerelle.permission_bridge.forwarding import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.permission_bridge.devices.subscriptions import Subscription, Subscriptions
    from passerelle.permission_bridge.devices.web_push import WebPush


@dataclass(frozen=True, slots=True)
class Pushing:
    """Sends to many browsers at once. Without ``web_push`` every push fails, and says why."""

    web_push: WebPush | None
    subscriptions: Subscriptions

    async def send(
        self,
        principal: Principal,
        wanted: Mapping[str, Subscription],
        compose: Callable[[str], JsonObject],
        topic: str,
        ttl_s: int,
    ) -> list[Target]:
        """One message to each device; ``compose`` gives that of a device.

        Raises:
            StoreUnavailable: the key to sign with cannot be had.
        """
        web_push = self.web_push
        if web_push is None:
            return [Target(None, "failed", "webpush", name, "not_installed") for name in wanted]
        faults = await asyncio.gather(
            *(web_push.send(one, compose(name), topic, ttl_s) for name, one in wanted.items())
        )
        told: list[Target] = []
        for device, fault in zip(wanted, faults, strict=True):
            told.append(Target(None, "failed" if fault else "sent", "webpush", device, fault))
            if fault == GONE:
                await self._forget(principal, device)
        return told

    async def _forget(self, principal: Principal, device: str) -> None:
        """The browser takes no pushes there any more; whoever asks for its device next sees that."""
        try:
            await self.subscriptions.remove(principal, device, "push service")
        except CallerError:
            return  # the device itself is gone
