"""What is said over a link and is no turn: notices and states of devices, and what we tell their people (CHN-15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.channels.admission import name_channel
from passerelle.channels.device_name import join_tab
from passerelle.core.errors import NotFound
from passerelle.core.payloads.channel import ChannelMessage
from passerelle.core.session.device_requests import NoticeSent
from passerelle.runtime.records.once import make_once

if TYPE_CHECKING:
    from passerelle.core.ports.channels import Channels
    from passerelle.core.principal import Principal
    from passerelle.core.session.device_requests import SendNotice
    from passerelle.runtime.records.home import Home


@dataclass(frozen=True, slots=True)
class ChannelNotices:
    """Writes notices into the home session, from where the inbox gets them. None of them starts or changes any work."""

    home: Home
    channels: Channels

    async def send(self, principal: Principal, command: SendNotice, idem: str | None) -> NoticeSent:
        """Takes what a device says.

        Raises:
            NotFound: no device of this name was ever connected.
            IdempotencyConflict: the key came with another notice.
        """
        device = join_tab(command.device, command.tab)
        channel = name_channel(principal, device)
        if not await self.channels.read_generation(channel):
            raise NotFound("channel", device)
        once = make_once(principal, command, idem)
        if await once.find(self.home.writes.log, principal.home) is None:
            said = ChannelMessage(channel, command.kind, "in", command.code, command.text)
            await self.home.record(principal, said, row=once.remember(channel))
        return NoticeSent(channel)

    async def tell(self, principal: Principal, message: ChannelMessage, key: str) -> None:
        """Tells the people of a principal something, once for each key.

        Raises:
            StoreUnavailable: nothing is known to be told.
        """
        await self.home.record(principal, message, key=key)
