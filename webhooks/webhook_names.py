"""A webhook of a stream as it is stored, and the name of its target.

A webhook of a session or a task stands in the hash of that session. One of an inbox stands in the home session of the
inbox's owner, as an inbox is a projection and holds nothing of its own (I10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.wire.record import record

KIND: Final = "stream"
FIELD: Final = "wh:"


@record
class StoredWebhook:
    """A webhook as it stands in the session's hash. ``task`` is that of a stream that is the view of one."""

    url: str
    stream: str
    channel_id: str
    principal: str
    tenant: str
    secret: str
    task: str | None = None

    @property
    def owner(self) -> Principal:
        """Who set it."""
        return Principal(self.principal, self.tenant)

    @property
    def follows_inbox(self) -> bool:
        """Whether it is on an inbox: its owner's, as nobody follows another one."""
        return self.stream.partition(":")[0] == StreamKind.INBOX


@dataclass(frozen=True, slots=True)
class WebhookName:
    """Names one webhook: the session that it stands in, its own id, and the owner of the inbox that it follows."""

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
    """The webhook that a target's name stands for; None for a target of another kind."""
    match target.split(":"):
        case [kind, session, webhook_id] if kind == KIND:
            return WebhookName(session, webhook_id)
        case [kind, session, webhook_id, inbox] if kind == KIND:
            return WebhookName(session, webhook_id, inbox)
        case _:
            return None
