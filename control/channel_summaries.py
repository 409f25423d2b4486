"""The links of a session as they are stored: acks of devices, runs of agents, questions on their way (SNAP-13)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.channels.admission import name_channel
from passerelle.channels.device_name import split_tab
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.channels import DeviceLink, show_channels
from passerelle.core.wire.codec import to_wire
from passerelle.core.wire.times import format_ms

if TYPE_CHECKING:
    from passerelle.control.models import Models
    from passerelle.core.ports.channels import Acked, Acks, Channels
    from passerelle.core.principal import Principal
    from passerelle.core.session.device_requests import GetChannels
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.stream_webhooks import StreamWebhooks

_LOOKED_AT: Final = 200
"""Devices, and questions, that are looked at."""


@dataclass(frozen=True, slots=True)
class ChannelSummaries:
    """Reads summaries."""

    models: Models
    writes: Writes
    acks: Acks
    channels: Channels
    webhooks: StreamWebhooks

    async def read(self, principal: Principal, query: GetChannels) -> JsonObject:
        """The summary of one session.

        Raises:
            NotFound: unknown, or another principal's: the two look the same.
        """
        session, head, tasks, left_out = await self.models.load_session(principal, query.session_id)
        acked = await self.acks.list_acks(StreamRef(StreamKind.SESSION, session.session_id))
        devices = await asyncio.gather(
            *(self._describe(principal, one) for one in acked[:_LOOKED_AT])
        )
        actions = await self._load_actions(tasks)
        return to_wire(
            show_channels(
                session.session_id,
                head.sequence,
                devices,
                tasks,
                actions,
                left_out,
                await self.webhooks.list_links(session.session_id, principal.key),
            )
        )

    async def _describe(self, principal: Principal, acked: Acked) -> DeviceLink:
        name, _, stream = acked.device.partition("@")
        device, tab = split_tab(name)
        channel = name_channel(principal, name)
        cursor = acked.cursor
        return DeviceLink(
            channel_id=channel,
            device=device,
            tab=tab,
            generation=acked.generation,
            seen_at=format_ms(acked.seen_ms),
            connected=await self.channels.is_live(channel),
            cursor=cursor,
            acknowledged=int(cursor.split(".")[1]) if cursor else None,
            task=stream.removeprefix("task:") or None,
        )

    async def _load_actions(self, tasks: list[TaskRecord]) -> list[ActionRecord]:
        names = [
            name for task in tasks for name in (*task.open_actions, *task.occurrences.values())
        ]
        refs = [EntityRef(EntityKind.ACTION, name) for name in dict.fromkeys(names)]
        held = await self.writes.load(refs[-_LOOKED_AT:]) if refs else {}
        return [one.record for one in held.values() if isinstance(one.record, ActionRecord)]
