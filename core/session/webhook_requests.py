"""Streams that are delivered to an HTTP address: set, taken back, listed."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.wire.record import record

_Stream: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@record
class SetStreamWebhook:
    """Deliver what comes from now on of a stream to ``url``. One that exists lives again, and goes on where it was.

    ``secret`` begins with ``whsec_``, then base64 of 24 to 64 bytes; without one we make it.
    """

    stream: _Stream
    webhook_id: _Name
    url: Annotated[str, Field(min_length=1, max_length=2_048)]
    secret: Annotated[str, Field(pattern=r"^whsec_[A-Za-z0-9+/]{32,88}={0,2}$")] | None = None


@record
class DeleteStreamWebhook:
    """Deliver nothing more there. One that is not there is as good as deleted."""

    stream: _Stream
    webhook_id: _Name


@record
class ListStreamWebhooks:
    """The webhooks of a stream, how far they have come, and what is wrong with them."""

    stream: _Stream


@record
class StreamWebhookSet:
    """The webhook. ``secret`` is shown when we have made it, and never again."""

    webhook_id: str
    channel_id: str
    stream: str
    url: str
    secret: str | None = None


@record
class StreamWebhookDeleted:
    """It gets nothing any more."""

    webhook_id: str


WebhookRequest: TypeAlias = SetStreamWebhook | DeleteStreamWebhook
WebhookAnswer: TypeAlias = StreamWebhookSet | StreamWebhookDeleted
