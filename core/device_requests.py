"""What can be asked about the devices of a principal. Each is the form in which it is sent, too."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.json import JsonObject
from passerelle.core.payloads.approval import OptionKind, Risk
from passerelle.core.record import record

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
