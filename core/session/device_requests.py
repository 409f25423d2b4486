"""Requests about the devices of a principal, and of a device without an open link (CMD-25).

Such a device acknowledges events and fetches updates. Each class is also the wire form.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.payloads.approval import OptionKind, Risk
from passerelle.core.payloads.channel import NoticeKind, Recovery
from passerelle.core.session.webhook_requests import WebhookAnswer, WebhookRequest
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

DeviceId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
DeviceTitle: TypeAlias = Annotated[str, Field(min_length=1, max_length=60)]


@record
class PairDevice:
    """Offer a device a pairing code (CHN-8). Without ``scopes`` it gets those for deciding that the caller has."""

    name: DeviceTitle
    scopes: tuple[str, ...] | None = None
    options: tuple[OptionKind, ...] | None = None
    """The only allowing option kinds that it may choose; it may always reject."""
    risk_up_to: Risk | None = None
    """The highest risk that it may allow."""


@record
class ConfirmDevice:
    """Confirm a device by the six digits that it shows."""

    device_id: DeviceId
    digits: Annotated[str, Field(pattern=r"^[0-9]{6}$")]


@record
class RenameDevice:
    """Rename a device."""

    device_id: DeviceId
    name: DeviceTitle


@record
class RevokeDevice:
    """Revoke a device: its links end, its votes are withdrawn."""

    device_id: DeviceId


@record
class SetDevicePush:
    """The Web Push subscription of a device, as the browser gives it (``PushSubscription.toJSON()``)."""

    device_id: DeviceId
    subscription: JsonObject


@record
class RemoveDevicePush:
    """Stop Web Push to a device."""

    device_id: DeviceId


@record
class ListDevices:
    """The devices of the caller, revoked ones included."""


@record
class GetPushKey:
    """The public key for a browser's Web Push subscription."""


@record
class DevicePaired:
    """A device may pair with ``code``, once and until ``expires_at``; ``link`` contains all that it needs.

    The code is returned once and not stored: a ``repeated`` command gets neither code nor link.
    """

    device_id: str
    code: str | None
    link: str | None
    expires_at: str
    repeated: bool = False


@record
class DeviceChanged:
    """The device now; for a revoked one, its decisions of the last minute.

    ``repeated``: the command was executed before.
    """

    device: JsonObject
    decisions: tuple[JsonObject, ...] | None = None
    withdrawn: int | None = None
    """How many of its votes were withdrawn."""
    repeated: bool = False


DeviceRequest: TypeAlias = (
    PairDevice | ConfirmDevice | RenameDevice | RevokeDevice | SetDevicePush | RemoveDevicePush
)
DeviceQuery: TypeAlias = ListDevices | GetPushKey
DeviceAnswer: TypeAlias = DevicePaired | DeviceChanged


EVENTS_LIMIT = 256
StreamText: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
DeviceName: TypeAlias = Annotated[str, Field(min_length=1, max_length=128)]
CursorParam: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]


@record
class AckEvents:
    """A device has stored everything of a stream up to a cursor. An ack only moves forward (CHN-5)."""

    stream: StreamText
    device: DeviceName
    cursor: CursorParam
    tab: DeviceName | None = None


@record
class EventsAcked:
    """The acknowledged cursor, which may be later than the sent one."""

    stream: str
    cursor: str


@record
class ReconnectChannel:
    """Bring a device up to date in one stream: from ``cursor``, else from its stored ack."""

    stream: StreamText
    device: DeviceName
    tab: DeviceName | None = None
    cursor: CursorParam | None = None
    resume: Annotated[str, Field(max_length=255)] | None = None
    limit: Annotated[int, Field(ge=0, le=EVENTS_LIMIT)] = 100


@record
class ChannelReconnected:
    """The state first, as of ``snapshot.asOf``; then the events after the device's cursor, each once.

    ``cursor`` is the position after the last of ``events``; with ``more`` the next call continues there. A ``gap`` has
    its reason in ``why``, and the snapshot repairs it. ``continued``: the resume token is that of one of the last two
    connections.
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
    """The links of a session: devices, agents, and approvals in transit (SNAP-13)."""

    session_id: Annotated[str, Field(min_length=1, max_length=128)]


@record
class SendNotice:
    """A device sends something that is no turn: a notice, a status, or a protocol message (CHN-15)."""

    device: DeviceName
    kind: NoticeKind
    code: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_.-]+$")]
    text: Annotated[str, Field(max_length=2_000)] | None = None
    tab: DeviceName | None = None


@record
class NoticeSent:
    """The notice is stored in the home session of the caller, and shown in the inbox."""

    channel_id: str


LinkRequest: TypeAlias = AckEvents | ReconnectChannel | SendNotice | WebhookRequest
LinkAnswer: TypeAlias = EventsAcked | ChannelReconnected | NoticeSent | WebhookAnswer
