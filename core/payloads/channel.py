"""Links to devices, UIs and agents (EXT-8, CHN-1…CHN-15). A link that ends decides nothing (CHN-9).

Facts of one kind about a link within a minute are merged into one: ``times`` counts them.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal, TypeAlias

from passerelle.core.event_type import EventType
from passerelle.core.wire.record import record

TransportName: TypeAlias = Literal["ws", "sse", "webhook", "a2a", "stdio", "webpush"]
PeerRole: TypeAlias = Literal["device", "ui", "peer", "worker"]
Recovery: TypeAlias = Literal[
    "running", "idle", "waiting", "completed_undelivered", "archived_or_missing", "unreachable"
]
"""The six states that a reconnect can find (CHN-12); none of them is a failure."""
EndReason: TypeAlias = Literal[
    "left",
    "connection_lost",
    "heartbeat_lost",
    "superseded",
    "revoked",
    "slow",
    "refused",
    "drained",
]
"""Why an instance ended a link of its own."""

NoticeKind: TypeAlias = Literal["notice", "status", "protocol"]


@record
class NativeIds:
    """The other end's own ids for itself and its work (CHN-2)."""

    device_id: str | None = None
    remote_task_id: str | None = None
    remote_context_id: str | None = None
    acp_session_id: str | None = None


@record
class Resumption:
    """How one stream was resumed: events from ``from_sequence`` to ``to_sequence`` follow (CHN-3)."""

    stream: str
    mode: Literal["resumed", "acked", "snap", "live", "start", "gap"]
    from_sequence: int
    to_sequence: int


@record
class ChannelConnected:
    """A link is open for the first time, or again without anything to resume (EXT-8, CHN-1).

    ``resume_token_ref`` is a reference and grants nothing; ``last_seen_at`` is RFC 3339.
    """

    type: ClassVar = EventType.CHANNEL_CONNECTED
    channel_id: str
    transport: TransportName
    peer_role: PeerRole
    account_ref: str
    native_protocol: str
    generation: int
    last_seen_at: str
    capabilities: tuple[str, ...] = ()
    native: NativeIds = field(default_factory=NativeIds)
    client: str | None = None
    resume_token_ref: str | None = None
    times: int = 1


@record
class ChannelDisconnected:
    """A link ended; ``acked`` is the last acknowledged sequence of each stream (EXT-8, CHN-10)."""

    type: ClassVar = EventType.CHANNEL_DISCONNECTED
    channel_id: str
    generation: int
    reason: Literal[EndReason, "instance_lost"]
    close_code: int | None = None
    acked: dict[str, int] = field(default_factory=dict[str, int])
    times: int = 1


@record
class ChannelResumed:
    """A link was opened again with a cursor, an ack or a token (EXT-8, CHN-3, CHN-12)."""

    type: ClassVar = EventType.CHANNEL_RESUMED
    channel_id: str
    generation: int
    recovery: Recovery
    streams: tuple[Resumption, ...] = ()
    times: int = 1


@record
class ChannelMessage:
    """A notice or status on a link: no turn, no task (EXT-8, CHN-15). Long text is in ``refs.output``."""

    type: ClassVar = EventType.CHANNEL_MESSAGE
    channel_id: str
    kind: NoticeKind
    direction: Literal["in", "out"]
    code: str
    text: str | None = None


ChannelPayload: TypeAlias = ChannelConnected | ChannelDisconnected | ChannelResumed | ChannelMessage
