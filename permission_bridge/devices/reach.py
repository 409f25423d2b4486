"""The ways to reach a principal now: open connections, browsers with push subscriptions, webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.channels.link_record import LinkRecord
from passerelle.channels.services import FOLLOW_INBOX
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.wire.codec import from_bytes
from passerelle.webhooks.kinds import may_follow
from passerelle.webhooks.notifier import NEW, name_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.ports.channels import Channels, Presences
    from passerelle.core.principal import Principal
    from passerelle.permission_bridge.devices.subscriptions import (
        BrowserSubscription,
        BrowserSubscriptions,
    )
    from passerelle.store.targets import RedisTargets, Target
    from passerelle.webhooks.notifier import Notifier


_PEOPLE: Final = frozenset({"ui", "device"})
"""Peer roles of connections that a person uses."""


@frozen
class DeviceReach:
    """``links`` are channels with their devices; ``is_active``: a person has just used one of them.

    ``webhooks`` are receivers of the inbox, each with whether its deliveries succeed.
    """

    links: Mapping[str, str]
    is_active: bool
    subscriptions: Mapping[str, BrowserSubscription]
    webhooks: Mapping[str, bool]


@frozen
class Reaching:
    """Finds the ways to reach a principal."""

    presences: Presences
    channels: Channels
    subscriptions: BrowserSubscriptions
    targets: RedisTargets
    notifiers: tuple[Notifier, ...]
    find_principal: Callable[[str, str], Principal | None]
    """The current rights of a principal, by its id and tenant."""

    async def find(self, principal: Principal, *, paired: bool = False) -> DeviceReach:
        """The ways to reach a principal; with ``paired`` only paired devices, which excludes webhooks.

        Raises:
            StoreUnavailable: they cannot be read.
        """
        inbox = StreamRef(StreamKind.INBOX, principal.key)
        rows = await self.channels.list_live(principal.key)
        live = [from_bytes(LinkRecord, row, newer=True) for row in rows]
        shown = [one for one in live if one.transport == "ws" and one.peer_role in _PEOPLE]
        # Presence needs an open connection: without one it is not read.
        here = await self.presences.list_present(principal.key) if live else ()
        present = [one.presence for one in here]
        hooks: Mapping[str, Target] = {}
        if paired:
            shown = [one for one in shown if one.paired]
            known = {one.channel_id for one in shown}
            present = [one for one in present if one.channel_id in known]
        else:
            hooks = await self._read_webhooks(principal, inbox)
        links = {one.channel_id: one.device for one in present}
        for link in shown:
            links.setdefault(link.channel_id, link.device_id)
        return DeviceReach(
            links,
            any(one.state == "active" for one in present),
            await self._read_subscriptions(principal),
            {name: target.state != "dead" for name, target in hooks.items()},
        )

    async def _read_subscriptions(self, principal: Principal) -> Mapping[str, BrowserSubscription]:
        """None of a person whose devices would be refused: their subscriptions outlive its rights."""
        now = self.find_principal(principal.id, principal.tenant)
        return await self.subscriptions.load(principal) if may_follow(now, FOLLOW_INBOX) else {}

    async def _read_webhooks(self, principal: Principal, inbox: StreamRef) -> dict[str, Target]:
        """The receivers of the inbox; configured ones are created if they do not exist yet."""
        known = await self.targets.read(inbox)
        wanted = [one for one in self.notifiers if one.covers(principal)]
        missing = [name for one in wanted if (name := name_target(one, principal.key)) not in known]
        for name in missing:
            await self.targets.make(inbox, name, NEW)
        return await self.targets.read(inbox) if missing else known
