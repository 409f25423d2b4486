"""Webhooks on streams: fields of a session's hash with sealed secrets, and targets of its stream.

A webhook of a session or a task is stored in the hash of that session. A webhook of an inbox is stored in the home
session of the inbox's owner, because an inbox is a projection and stores nothing of its own (I10).

The caller must be allowed to follow the stream, and the address is checked as for any webhook. A webhook is a channel:
its connect and disconnect facts are recorded in its owner's home session, as for every other link (EXT-8).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.members import as_list
from passerelle.channels.cursor_check import end_of
from passerelle.channels.link_record import LinkRecord
from passerelle.channels.services import parse_stream_name
from passerelle.channels.views import TaskView
from passerelle.core.batch import DueChange, EntityKind, EntityRef, TargetChange
from passerelle.core.errors import InvalidInput, StoreUnavailable, UnsupportedOperation
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id
from passerelle.core.payloads.channel import ChannelConnected, ChannelDisconnected, ChannelMessage
from passerelle.core.ports.log import DERIVED, StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.read_models.channels import WebhookLink
from passerelle.core.session.webhook_requests import (
    DeleteStreamWebhook,
    SetStreamWebhook,
    StreamWebhookDeleted,
    StreamWebhookSet,
)
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import record
from passerelle.core.wire.times import format_ms
from passerelle.runtime.records.places import name_home, open_home
from passerelle.runtime.records.writes import AppendOptions
from passerelle.webhooks.deliveries import ROW

if TYPE_CHECKING:
    from passerelle.channels.services import StreamAccess, StreamGrant
    from passerelle.core.decision import Decision, Held
    from passerelle.core.events import AnyPayload
    from passerelle.core.ports.channels import Channels
    from passerelle.core.session.webhook_requests import (
        ListStreamWebhooks,
        WebhookAnswer,
        WebhookRequest,
    )
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.runtime.records.places import Home
    from passerelle.runtime.records.writes import Writes
    from passerelle.store.targets import RedisTargets
    from passerelle.webhooks.addresses import WebhookRules

KIND: Final = "stream"
FIELD: Final = "wh:"


@record
class StoredWebhook:
    """A webhook as stored in the session's hash. ``task``: the stream is the view of this task."""

    url: str
    stream: str
    channel_id: str
    principal: str
    tenant: str
    secret: str
    task: str | None = None

    @property
    def owner(self) -> Principal:
        """The principal that set it."""
        return Principal(self.principal, self.tenant)

    @property
    def follows_inbox(self) -> bool:
        """Whether it follows an inbox, which is always its owner's."""
        return self.stream.partition(":")[0] == StreamKind.INBOX


@frozen
class WebhookName:
    """Names one webhook: the session that stores it, its id, and the owner of the inbox that it follows."""

    session: str
    webhook_id: str
    inbox: str | None = None

    @property
    def target(self) -> str:
        """The name of its target on the stream."""
        inbox = "" if self.inbox is None else f":{self.inbox}"
        return f"{KIND}:{self.session}:{self.webhook_id}{inbox}"

    @property
    def stream(self) -> StreamRef:
        """The stream that it follows."""
        if self.inbox is None:
            return StreamRef(StreamKind.SESSION, self.session)
        return StreamRef(StreamKind.INBOX, self.inbox)

    @property
    def ref(self) -> EntityRef:
        """The session."""
        return EntityRef(EntityKind.SESSION, self.session)

    @property
    def field(self) -> str:
        """The field of the session's hash."""
        return f"{FIELD}{self.webhook_id}"


def read_webhook_name(target: str) -> WebhookName | None:
    """The webhook that a target name refers to; None for a target of another kind."""
    match target.split(":"):
        case [kind, session, webhook_id] if kind == KIND:
            return WebhookName(session, webhook_id)
        case [kind, session, webhook_id, inbox] if kind == KIND:
            return WebhookName(session, webhook_id, inbox)
        case _:
            return None


MOST_WEBHOOKS: Final = 10
PROTOCOL: Final = "passerelle.v1+webhook"
_SECRET: Final = "whsec_"  # noqa: S105  what secrets begin with
_SECRET_BITS: Final = 256


@frozen
class StreamWebhooks:
    """Stores webhooks of streams. Without a sealer secrets cannot be stored, so webhooks are off."""

    writes: Writes
    targets: RedisTargets
    channels: Channels
    home: Home
    access: StreamAccess
    sealer: Sealer | None
    rules: WebhookRules

    async def execute(self, principal: Principal, command: WebhookRequest) -> WebhookAnswer:
        """Executes one command; commands may be repeated.

        Raises:
            NotFound: no such stream, or it is another owner's: the two look the same.
            InvalidInput: the address may not be called, or the stream has the maximum number of webhooks.
            UnsupportedOperation: there is no key to seal secrets with.
        """
        grant = await self._find(principal, command.stream)
        match command:
            case SetStreamWebhook():
                return await self._set(principal, command, grant)
            case DeleteStreamWebhook(webhook_id=webhook_id):
                name = _name(principal, grant, webhook_id)
                stored = (await self.load(name)).get(name.field)
                if stored is not None:
                    await self.remove(name, stored)
                return StreamWebhookDeleted(webhook_id)
            case _:
                assert_never(command)

    async def list_all(self, principal: Principal, query: ListStreamWebhooks) -> JsonObject:
        """The webhooks of a stream with their state, without secrets and without the query of their URLs."""
        grant = await self._find(principal, query.stream)
        stored = await self.load(_name(principal, grant, ""))
        targets = await self.targets.read(grant.stream)
        shown: list[JsonObject] = []
        for field, webhook in sorted(stored.items()):
            name = _name(principal, grant, field.removeprefix(FIELD))
            target = targets.get(name.target)
            if webhook.stream == query.stream and target is not None:
                shown.append(
                    {
                        "webhookId": name.webhook_id,
                        "channelId": webhook.channel_id,
                        "url": webhook.url.partition("?")[0],
                        "delivery": name.target,
                        "state": target.state,
                        "cursor": target.cursor,
                        "reason": target.reason,
                    }
                )
        return {"webhooks": as_list(shown)}

    async def list_links(self, session: str, owner: str) -> list[WebhookLink]:
        """The webhooks that an owner has on a session, for its channel summary (SNAP-13)."""
        stored = await self.load(WebhookName(session, ""))
        links: list[WebhookLink] = []
        for field, webhook in sorted(stored.items()):
            if webhook.owner.key != owner:
                continue
            inbox = webhook.owner.key if webhook.follows_inbox else None
            name = WebhookName(session, field.removeprefix(FIELD), inbox)
            target = await self.targets.find(name.stream, name.target)
            if target is not None:
                taken = int(target.cursor.split(".")[1])
                said = (webhook.channel_id, name.webhook_id, webhook.stream)
                links.append(WebhookLink(*said, target.state, target.cursor, taken))
        return links

    async def load(self, name: WebhookName) -> dict[str, StoredWebhook]:
        """All webhooks of a session by their fields."""
        return _list_stored(await self.writes.load_one(name.ref))

    def open_secret(self, name: WebhookName, stored: StoredWebhook) -> bytes:
        """The signing key of deliveries.

        Raises:
            ConfigInvalid: the key that sealed it is not known here.
        """
        text = self._require_sealer().unseal(stored.secret.encode(), name.target).decode()
        return base64.b64decode(text.removeprefix(_SECRET))

    async def remove(self, name: WebhookName, stored: StoredWebhook, *, gone: bool = False) -> None:
        """Deletes a webhook and its pending deliveries; ``gone``: its receiver answered 410."""

        def body(decision: Decision) -> AppendOptions:
            if name.field not in decision.fields(name.ref):
                return AppendOptions()
            decision.set_field(name.ref, name.field, None)
            if name.inbox is not None:  # its due row finds no webhook, and ends the target
                return AppendOptions(due=(DueChange(_row(name), 0),))
            return AppendOptions(targets=(TargetChange(name.target, None),))

        await self.writes.decide(name.session, [name.ref], body)
        ended = ChannelDisconnected(stored.channel_id, 1, "refused" if gone else "left")
        await self.record_status(stored, ended)

    def end_all(
        self, decision: Decision, session: EntityRef, task: str
    ) -> tuple[tuple[TargetChange, ...], tuple[StoredWebhook, ...]]:
        """Deletes the webhooks that see a task's events in a session's stream; the changes belong to that append."""
        ended: list[TargetChange] = []
        gone: list[StoredWebhook] = []
        fields = decision.fields(session)
        for field in [one for one in fields if one.startswith(FIELD)]:
            stored = from_bytes(StoredWebhook, fields[field], newer=True)
            if stored.follows_inbox or stored.task not in {None, task}:
                continue
            decision.set_field(session, field, None)
            name = WebhookName(session.id, field.removeprefix(FIELD))
            ended.append(TargetChange(name.target, None))
            gone.append(stored)
        return tuple(ended), tuple(gone)

    async def record_left(self, stored: StoredWebhook) -> None:
        """Records for the owner of a webhook that it has ended."""
        await self.record_status(stored, ChannelDisconnected(stored.channel_id, 1, "left"))

    async def record_status(
        self, stored: StoredWebhook, fact: AnyPayload, key: str | None = None
    ) -> None:
        """Records a fact about a webhook in its owner's home session."""
        await self.home.record(stored.owner, fact, key=key)

    async def warn(self, stored: StoredWebhook, reason: str, key: str) -> None:
        """Records that deliveries were given up, once for each key; they can be retried."""
        text = f"deliveries of {stored.stream} were given up: {reason}"
        given_up = ChannelMessage(stored.channel_id, "status", "out", "webhook_given_up", text)
        await self.record_status(stored, given_up, key)

    async def _find(self, principal: Principal, stream: str) -> StreamGrant:
        grant = await self.access.grant(principal, parse_stream_name(stream), full=False)
        if grant.stream.kind in DERIVED:
            message = (
                "this stream is followed or read, and not delivered: set a webhook on a session"
            )
            raise UnsupportedOperation(message, why="derived_stream")
        return grant

    async def _set(
        self, principal: Principal, command: SetStreamWebhook, grant: StreamGrant
    ) -> StreamWebhookSet:
        sealer = self._require_sealer()
        self.rules.judge(command.url)
        name = _name(principal, grant, command.webhook_id)
        known = (await self.load(name)).get(name.field)
        if known is not None and known.stream != command.stream:
            raise InvalidInput("webhookId", "is that of another stream of the session")
        made = None if command.secret or known else self._make_secret()
        secret = command.secret or made
        stored = StoredWebhook(
            url=command.url,
            stream=command.stream,
            channel_id=derive_id("ch", principal.home, principal.key, name.target),
            principal=principal.id,
            tenant=principal.tenant,
            secret=sealer.seal(secret.encode(), name.target).decode()
            if secret
            else (known.secret if known else ""),
            task=grant.view.task if isinstance(grant.view, TaskView) else None,
        )
        await self._store(principal, name, stored)
        if name.inbox is not None:
            await self.start(name, stored)
            await self.targets.revive(name.stream, name.target)
        if known is None:
            await self.record_status(stored, self._describe(principal, stored))
        return StreamWebhookSet(
            command.webhook_id, stored.channel_id, stored.stream, stored.url, made
        )

    async def start(self, name: WebhookName, stored: StoredWebhook) -> None:
        """Starts delivery of an inbox at its end, unless it is started; the due row resumes after a crash."""
        if await self.targets.find(name.stream, name.target) is not None:
            return
        owner, now = stored.owner, format_ms(self.writes.clock.now_ms())
        record = LinkRecord(
            channel_id=stored.channel_id,
            transport="webhook",
            peer_role="peer",
            account_ref=owner.key,
            tenant=owner.tenant,
            principal=owner.id,
            capabilities=(),
            last_seen_at=now,
            resume_token_ref=stored.channel_id,
            native_protocol=PROTOCOL,
            device_id="",
        )
        # A hello creates the inbox, if there is none.
        await self.channels.record_hello(owner.key, stored.channel_id, to_bytes(record), None)
        head = await self.writes.log.read_head(name.stream)
        if head is None:
            raise StoreUnavailable("the inbox has gone again", "unknown")
        await self.targets.make(name.stream, name.target, str(end_of(head)))

    async def _store(self, principal: Principal, name: WebhookName, stored: StoredWebhook) -> None:
        def body(decision: Decision) -> AppendOptions:
            fields = decision.fields(name.ref)
            others = [one for one in fields if one.startswith(FIELD) and one != name.field]
            if len(others) >= MOST_WEBHOOKS:
                raise InvalidInput("webhookId", f"a session has at most {MOST_WEBHOOKS} webhooks")
            if name.inbox is not None:
                open_home(decision, name.ref, principal)
            decision.set_field(name.ref, name.field, to_bytes(stored))
            if name.inbox is not None:
                return AppendOptions(due=(DueChange(_row(name), 0),))
            return AppendOptions(targets=(TargetChange(name.target, "*"),))

        await self.writes.decide(name.session, [name.ref], body)

    def _describe(self, principal: Principal, stored: StoredWebhook) -> ChannelConnected:
        return ChannelConnected(
            channel_id=stored.channel_id,
            transport="webhook",
            peer_role="peer",
            account_ref=principal.key,
            native_protocol=PROTOCOL,
            generation=1,
            last_seen_at=format_ms(self.writes.clock.now_ms()),
        )

    def _make_secret(self) -> str:
        drawn = self.writes.ids.draw(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        return _SECRET + base64.b64encode(drawn).decode()

    def _require_sealer(self) -> Sealer:
        if self.sealer is None:
            raise UnsupportedOperation("webhooks are off: there is no secret_key to seal with")
        return self.sealer


def _list_stored(held: Held) -> dict[str, StoredWebhook]:
    return {
        field: from_bytes(StoredWebhook, value, newer=True)
        for field, value in held.fields.items()
        if field.startswith(FIELD)
    }


def _name(principal: Principal, grant: StreamGrant, webhook_id: str) -> WebhookName:
    if grant.stream.kind is StreamKind.INBOX:
        return WebhookName(name_home(principal), webhook_id, grant.stream.id)
    return WebhookName(grant.stream.id, webhook_id)


def _row(name: WebhookName) -> str:
    return f"{ROW}:{name.target}"
