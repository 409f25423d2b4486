"""A server-sent event stream as a channel link: its record and its facts (EXT-8, CHN-1).

It has the same records and facts as a WebSocket. Its channel is one device with one stream. A reader sends nothing when
it leaves, so the end of its request is a lost connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from passerelle.channels.admission import name_channel
from passerelle.channels.inputs import NoticeDue
from passerelle.channels.link_record import LinkRecord
from passerelle.channels.story import LinkEnded, LinkFactWriter, LinkStory
from passerelle.core.errors import StoreUnavailable
from passerelle.core.wire.codec import to_bytes
from passerelle.core.wire.times import format_ms
from passerelle.protocol.concurrency import keep_until_done
from passerelle.protocol.frames import Gap, Mode, Snapshot, Subscribe, Subscribed

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from passerelle.channels.position import CursorGap
    from passerelle.channels.services import LinkFacts
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.channels import Channels
    from passerelle.core.principal import Principal
    from passerelle.protocol.closing import CloseCode
    from passerelle.protocol.cursor import Cursor

PROTOCOL: Final = "passerelle.v1+sse"
NAMELESS: Final = "sse"
"""The device of a reader that names none."""
_FINISH_S: Final = 5.0


class StreamLink:
    """One request that follows a stream. Writes its facts in the order of these calls."""

    def __init__(
        self,
        links: StreamLinks,
        where: tuple[str, str, int, str],
        stream: str,
        cursor: Cursor | None,
    ) -> None:
        """``where`` is owner, channel, generation, and the start time."""
        self.owner, self.channel, self.generation, self.since = where
        self.stream = stream
        self._links = links
        self._story = LinkStory(continues=False, asked=(Subscribe(stream, cursor=cursor),))
        self._link_facts = LinkFactWriter(links.facts)

    def begin(self, mode: Mode, cursor: Cursor, missed: int = 0) -> None:
        """The stream resumes from ``cursor``; only the first call counts."""
        self._record(Subscribed(self.stream, mode, cursor, dense=False, missed=missed))

    def repair(self, gap: CursorGap, cursor: Cursor) -> None:
        """A snapshot as of ``cursor`` replaced the missing events."""
        self.begin("gap", cursor)
        frame = Gap(self.stream, gap.why, gap.have, gap.top, gap.first, "inline")
        self._record(frame)
        self._record(Snapshot(self.stream, cursor, {}))

    async def keep(self) -> None:
        """Renews the record; if the store does not answer, the next call does it."""
        with suppress(StoreUnavailable):
            driver = self._links.facts.find_driver(self.owner)
            await self._links.channels.keep(self.channel, self.generation, driver)

    def end(self, code: CloseCode | None) -> None:
        """The stream has ended: closed by the gateway with ``code``, or by the reader."""
        over = [
            replace(fact, code=None) if isinstance(fact, LinkEnded) else fact
            for fact in self._story.end(code, left=False)
        ]
        self._links.spawn(self._link_facts.finish(self, over, _FINISH_S))

    def _record(self, frame: Subscribed | Gap | Snapshot) -> None:
        self._link_facts.add(self, self._story.take(NoticeDue(frame)))


@dataclass(slots=True)
class StreamLinks:
    """Opens links of streams, and writes their facts."""

    channels: Channels
    facts: LinkFacts
    clock: Clock
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"], init=False)

    async def open(
        self, principal: Principal, device: str, stream: str, cursor: Cursor | None
    ) -> StreamLink:
        """Writes the record of a link.

        Raises:
            StoreUnavailable: it could not be written.
        """
        channel = name_channel(principal, f"{device}@{stream}")
        now = format_ms(self.clock.now_ms())
        record = LinkRecord(
            channel_id=channel,
            transport="sse",
            peer_role="ui",
            account_ref=principal.key,
            tenant=principal.tenant,
            principal=principal.id,
            capabilities=(),
            last_seen_at=now,
            resume_token_ref=channel,
            native_protocol=PROTOCOL,
            device_id=device,
            paired=principal.paired,
        )
        driver = self.facts.find_driver(principal.key)
        greeted = await self.channels.record_hello(principal.key, channel, to_bytes(record), driver)
        return StreamLink(self, (principal.key, channel, greeted.generation, now), stream, cursor)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Runs work that outlives the request."""
        keep_until_done(asyncio.create_task(work), self._tasks)

    async def finish(self) -> None:
        """Returns once the last facts are stored, or have failed."""
        while self._tasks:
            await asyncio.wait(self._tasks)
