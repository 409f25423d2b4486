"""A stream as a kind of target, delivered in ordered, signed batches: ``stream:<session>:<webhook id>``.

A batch is ``{stream, from, cursor, events}``: the stored envelopes between two cursors that the view shows. It is
signed by Standard Webhooks: HMAC-SHA256 over id, timestamp and body. 2xx confirms the batch; a response with ``ack``,
the cursor after one of its events, confirms it up to there. A cursor that does not verify sends a ``gap`` batch (I8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from passerelle.channels.cursor_check import end_of
from passerelle.channels.services import FOLLOW, FOLLOW_INBOX
from passerelle.channels.views import PlainView, TaskView, UnpairedView, shows
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject
from passerelle.protocol.cursor import Cursor
from passerelle.webhooks.kinds import (
    DeliveryRequest,
    Opened,
    ReplayLimits,
    StateSnapshot,
    TargetDescription,
    may_follow,
)
from passerelle.webhooks.notifier import sign_request
from passerelle.webhooks.stream_webhooks import read_webhook_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.channels.views import View
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.log import Entry, EventLog
    from passerelle.core.principal import Principal
    from passerelle.webhooks.addresses import Address
    from passerelle.webhooks.stream_webhooks import StoredWebhook, StreamWebhooks, WebhookName

BATCH_EVENTS: Final = 100
BATCH_BYTES: Final = 262_144
_ANYTHING: Final = ReplayLimits(wanted=1 << 40, events=1 << 40)
_GONE: Final = "http_410"


@frozen
class StreamWebhookKind:
    """Opens stream webhooks from the store."""

    webhooks: StreamWebhooks
    log: EventLog
    clock: Clock
    find_principal: Callable[[str, str], Principal | None]
    """The current rights of a principal, by its id and tenant."""

    def may_follow(self, stored: StoredWebhook) -> bool:
        """Whether the principal that set a webhook could still follow its stream."""
        who = self.find_principal(stored.principal, stored.tenant)
        return may_follow(who, FOLLOW_INBOX if stored.follows_inbox else FOLLOW)

    async def open(self, name: str) -> Opened | None:
        """Opens the webhook as it is stored now."""
        known = read_webhook_name(name)
        if known is None:
            return None
        stored = (await self.webhooks.load(known)).get(known.field)
        if stored is not None and known.inbox is not None:
            await self.webhooks.start(known, stored)
        feed = StreamFeed(self, known, stored) if stored else None
        return Opened(known.stream, feed)

    async def describe(self, name: str) -> TargetDescription | None:
        """Describes it for its owner: without secrets, and without the URL query, which may contain one."""
        known = read_webhook_name(name)
        stored = (await self.webhooks.load(known)).get(known.field) if known else None
        if known is None or stored is None:
            return None
        members: JsonObject = {
            "kind": "stream",
            "subject": stored.stream,
            "webhookId": known.webhook_id,
            "channelId": stored.channel_id,
            "url": stored.url.partition("?")[0],
        }
        return TargetDescription(stored.owner.key, known.stream, members)


@frozen
class StreamFeed:
    """What one webhook gets."""

    kind: StreamWebhookKind
    name: WebhookName
    stored: StoredWebhook

    @property
    def address(self) -> Address:
        """The URL, checked against the current rules, and the rights of the principal that set it."""
        if not self.kind.may_follow(self.stored):
            raise InvalidInput("url", "who set it may not follow the stream any more")
        return self.kind.webhooks.rules.judge(self.stored.url)

    async def weigh(self, *, whole: bool) -> int:
        """Nothing: its requests are bounded."""
        del whole
        return 0

    @property
    def bounds(self) -> ReplayLimits:
        """No limits: it gets every event; events that are no longer kept are a gap."""
        return _ANYTHING

    def wants(self, entry: Entry) -> bool:
        """The entries that a device on the same stream sees."""
        return shows(self._view, entry)

    def ends_with(self, entry: Entry) -> bool:
        """Never: a session has no last event."""
        del entry
        return False

    def is_over(self, cursor: Cursor) -> bool:
        """Never, for the same reason."""
        del cursor
        return False

    def split(self, wanted: tuple[LinkedEntry, ...]) -> list[tuple[LinkedEntry, ...]]:
        """Batches of at most 100 events and 256 KiB, at least one event each."""
        batches: list[tuple[LinkedEntry, ...]] = []
        batch: list[LinkedEntry] = []
        size = 0
        for linked in wanted:
            length = len(linked.entry.data)
            if batch and (len(batch) == BATCH_EVENTS or size + length > BATCH_BYTES):
                batches.append(tuple(batch))
                batch, size = [], 0
            batch.append(linked)
            size += length
        return [*batches, tuple(batch)] if batch else batches

    async def compose(
        self, together: tuple[LinkedEntry, ...], since: Cursor, cursor: Cursor
    ) -> DeliveryRequest:
        """The batch with its envelopes byte for byte as stored."""
        events = b",".join(linked.entry.data for linked in together)
        body = b'{"kind":"events","stream":%b,"from":"%b","cursor":"%b","events":[%b]}' % (
            orjson.dumps(self.stored.stream),
            str(since).encode(),
            str(cursor).encode(),
            events,
        )
        return self._sign(body, f"{self.name.webhook_id}.{cursor}")

    async def compose_snapshot(self, why: str, since: Cursor) -> StateSnapshot:
        """A gap: the receiver fetches the state, and continues after the cursor."""
        head = await self.kind.log.read_head(self.name.stream)
        if head is None:
            return StateSnapshot(None, since, ends=True)
        cursor = end_of(head)
        gap: JsonObject = {
            "kind": "gap",
            "stream": self.stored.stream,
            "why": why,
            "from": str(since),
            "cursor": str(cursor),
            "snapshot": f"/v1/streams/{self.stored.stream}/snapshot",
        }
        request = self._sign(orjson.dumps(gap), f"{self.name.webhook_id}.gap.{cursor}")
        return StateSnapshot(request, cursor, ends=False)

    def find_acked(
        self, answer: bytes, together: tuple[LinkedEntry, ...], cursor: Cursor
    ) -> Cursor | None:
        """What the receiver confirms: everything, or up to the ``ack`` cursor; None: ``ack`` is unknown."""
        said = _read_ack(answer)
        if said is None or said == str(cursor):
            return cursor
        for linked in together:
            position = Cursor(cursor.epoch, linked.entry.sequence, linked.chain)
            if said == str(position):
                return position
        return None

    async def warn(self, reason: str, since_ms: int) -> None:
        """Records a status message for the webhook's owner; removes the webhook if the receiver answered 410."""
        webhooks = self.kind.webhooks
        await webhooks.warn(self.stored, reason, key=f"{self.name.target} {since_ms}")
        if reason == _GONE:
            await webhooks.remove(self.name, self.stored, gone=True)

    @property
    def _view(self) -> View:
        if self.name.inbox is not None:
            return UnpairedView()
        return TaskView(self.stored.task) if self.stored.task else PlainView()

    def _sign(self, body: bytes, delivery: str) -> DeliveryRequest:
        sent_s = self.kind.clock.now_ms() // 1000
        secret = self.kind.webhooks.open_secret(self.name, self.stored)
        return sign_request(secret, body, delivery, sent_s)


def _read_ack(answer: bytes) -> str | None:
    try:
        said: Json = orjson.loads(answer) if answer.strip() else None
    except orjson.JSONDecodeError:
        return None
    ack = said.get("ack") if isinstance(said, dict) else None
    return ack if isinstance(ack, str) else None
