"""What can be asked about the devices of a principal, and what a device can ask without a link that stays (CMD-25).

Without a link a device acknowledges, and is brought up to date. Each request is the form in which it is sent, too.
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
    """Offer a device a code (CHN-8). Without ``scopes`` it gets what deciding takes, as far as the caller has it."""

    name: DeviceTitle
    scopes: tuple[str, ...] | None = None
    options: tuple[OptionKind, ...] | None = None
    """The only kinds of options that say yes which it may choose; a no it may always say."""
    risk_up_to: Risk | None = None
    """Up to which risk it may say yes."""


@record
class ConfirmDevice:
    """Trust a device, by the six digits that it shows."""

    device_id: DeviceId
    digits: Annotated[str, Field(pattern=r"^[0-9]{6}$")]


@record
class RenameDevice:
    """Call a device something else."""

    device_id: DeviceId
    name: DeviceTitle


@record
class RevokeDevice:
    """Trust a device no more: its links end, its votes are withdrawn."""

    device_id: DeviceId


@record
class SetDevicePush:
    """Where a device takes Web Push: its subscription as the browser gives it (``PushSubscription.toJSON()``)."""

    device_id: DeviceId
    subscription: JsonObject


@record
class RemoveDevicePush:
    """Send a device no Web Push any more."""

    device_id: DeviceId


@record
class ListDevices:
    """The devices of the caller, those that were revoked included."""


@record
class GetPushKey:
    """The public key that a browser subscribes to Web Push with."""


@record
class DevicePaired:
    """A device may come with ``code``, once and until ``expires_at``; ``link`` holds all that it needs.

    The code is told once and kept nowhere: a command that is ``repeated`` with its key has neither of them.
    """

    device_id: str
    code: str | None
    link: str | None
    expires_at: str
    repeated: bool = False


@record
class DeviceChanged:
    """The device as it is now; of one that was revoked, what it decided within the last minute.

    ``repeated``: the command had been carried out before.
    """

    device: JsonObject
    decisions: tuple[JsonObject, ...] | None = None
    withdrawn: int | None = None
    """How many votes of it were taken back."""
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
    """A device has everything of a stream up to a cursor for good. An ack moves forward only (CHN-5)."""

    stream: StreamText
    device: DeviceName
    cursor: CursorParam
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
    cursor: CursorParam | None = None
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
