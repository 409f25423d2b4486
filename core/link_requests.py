"""What a device can ask without a link that stays: to acknowledge, and to be brought up to date (CMD-25)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.json import JsonObject
from passerelle.core.payloads.channel import NoticeKind, Recovery
from passerelle.core.record import record
from passerelle.core.webhook_requests import WebhookAnswer, WebhookRequest

EVENTS_LIMIT = 256
StreamText: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
DeviceName: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]
CursorText: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]


@record
class AckEvents:
    """A device has everything of a stream up to a cursor for good. An ack moves forward only (CHN-5)."""

    stream: StreamText
    device: DeviceName
    cursor: CursorText
    tab: DeviceName | None = None


@record
class EventsAcked:
    """What is acknowledged by now, which may be further on."""

    stream: str
    cursor: str


@record
class ReconnectChannel:
    """Bring a device up to date in one stream: from ``cursor``, else from its stored ack."""

    stream: StreamText
    device: DeviceName
    tab: DeviceName | None = None
    cursor: CursorText | None = None
    resume: Annotated[str, Field(max_length=255)] | None = None
    limit: Annotated[int, Field(ge=0, le=EVENTS_LIMIT)] = 100


@record
class ChannelReconnected:
    """The state first, as of ``snapshot.asOf``; then the events after what the device has, each once.

    ``cursor`` is behind the last of ``events``; with ``more`` the next call goes on there. A ``gap`` says ``why``, and
    the snapshot is the repair. ``continued``: the resume token is that of one of the last two connections.
    """

    channel_id: str
    stream: str
    mode: Literal["resumed", "acked", "snap", "gap"]
    recovery: Recovery
    snapshot: JsonObject
    cursor: str
    events: tuple[JsonObject, ...] = ()
    more: bool = False
    why: str | None = None
    continued: bool = False


@record
class GetChannels:
    """The links of a session: devices, agents, and what is on its way between them (SNAP-13)."""

    session_id: Annotated[str, Field(min_length=1, max_length=128)]


@record
class SendNotice:
    """A device says something that is no turn: a notice, a state of its own, or a word about the protocol (CHN-15)."""

    device: DeviceName
    kind: NoticeKind
    code: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_.-]+$")]
    text: Annotated[str, Field(max_length=2_000)] | None = None
    tab: DeviceName | None = None


@record
class NoticeSent:
    """It stands in the home session of the caller, and goes to the inbox."""

    channel_id: str


LinkRequest: TypeAlias = AckEvents | ReconnectChannel | SendNotice | WebhookRequest
LinkAnswer: TypeAlias = EventsAcked | ChannelReconnected | NoticeSent | WebhookAnswer
