"""How approvers are notified, and which decisions count: the section ``approvals`` of ``passerelle.yaml``."""

from __future__ import annotations

import base64
from typing import Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator
from yarl import URL

from passerelle.gateway.settings.section import Name, Section, WebUrl
from passerelle.permission_bridge.devices.assurance import Demand
from passerelle.permission_bridge.quiet import QuietHours
from passerelle.runtime.common.secret import Secret
from passerelle.webhooks.notifier import Notifier

_TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_PREFIX: Final = "whsec_"
_LEAST: Final = 24
_MOST: Final = 64


class NotifierSettings(Section):
    """A webhook that gets a message for each approval request, to forward it to other notification systems."""

    name: Name
    url: WebUrl = Field(description="Where messages are sent; the address is not screened.")
    people: tuple[str, ...] = Field(
        default=(), description="Principals whose approval requests are sent; empty: all."
    )
    secret: Secret | None = Field(
        default=None,
        description="`whsec_` and base64 of 24 to 64 bytes; messages are signed as in Standard Webhooks.",
    )

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, secret: Secret | None) -> Secret | None:
        if secret is not None and read_secret(secret) is None:
            raise ValueError("should be whsec_ and base64 of 24 to 64 bytes")
        return secret


def read_secret(secret: Secret) -> bytes | None:
    """The bytes of a secret; None if it is not valid."""
    text = secret.get_secret_value()
    try:
        raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:
        return None
    return raw if text.startswith(_PREFIX) and _LEAST <= len(raw) <= _MOST else None


class QuietSettings(Section):
    """Hours without pushes for low and medium risk. Inboxes, open connections and expiry are not affected."""

    begin: str = Field(pattern=_TIME, description="Time of day, such as `22:00`.")
    end: str = Field(
        pattern=_TIME, description="Time of day; one before `begin` is of the next day."
    )
    zone: str = Field(default="UTC", description="Time zone, such as `Europe/Berlin`.")
    people: tuple[str, ...] = Field(default=(), description="Principals they apply to; empty: all.")

    @field_validator("zone")
    @classmethod
    def _check_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ValueError, OSError, ZoneInfoNotFoundError):
            raise ValueError("is not a time zone known to this machine") from None
        return zone

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if self.begin == self.end:
            raise ValueError("begin and end are the same time")
        return self


class ApprovalSettings(Section):
    """Answers to approval requests, and pushes."""

    signatures: Demand = Field(
        default="paired",
        description="Which approvals of high or critical risk must be signed by a device: `paired`, those of people "
        "who have a paired device with a key; `always`; `never`.",
    )
    push_contact: str = Field(
        default="mailto:passerelle@localhost.invalid",
        pattern=r"^(mailto:[^\s@]+@[^\s@]+|https://\S+)$",
        description="Contact for the operators of push services; Web Push needs the extra `webpush`.",
    )
    buttons: Literal["low", "medium"] = Field(
        default="low",
        description="Highest risk at which a notification has buttons that answer it directly.",
    )
    pushes_per_minute: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="Requests a minute for which a person gets separate pushes. Further ones are combined into one "
        "push, a minute later, but are still decided separately.",
    )
    notifiers: tuple[NotifierSettings, ...] = ()
    quiet: tuple[QuietSettings, ...] = Field(
        default=(),
        description="Hours in which people get no push for requests of low and medium risk.",
    )


def read_notifiers(settings: ApprovalSettings) -> tuple[Notifier, ...]:
    """The notifiers of a section."""
    return tuple(
        Notifier(
            one.name,
            URL(one.url),
            frozenset(one.people),
            read_secret(one.secret) if one.secret else None,
        )
        for one in settings.notifiers
    )


def read_quiet_hours(settings: ApprovalSettings) -> tuple[QuietHours, ...]:
    """The quiet hours of a section."""
    return tuple(
        QuietHours(
            _read_minute(one.begin),
            _read_minute(one.end),
            ZoneInfo(one.zone),
            frozenset(one.people),
        )
        for one in settings.quiet
    )


def _read_minute(text: str) -> int:
    hour, minute = text.split(":")
    return 60 * int(hour) + int(minute)
