"""Requests for webhooks of a stream: set, delete, list."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.wire.record import record

_Stream: TypeAlias = Annotated[str, Field(min_length=1, max_length=255)]
_Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@record
class SetStreamWebhook:
    """Deliver new events of a stream to ``url``. An existing webhook is revived and keeps its position.

    ``secret`` is ``whsec_`` and base64 of 24 to 64 bytes; without one the gateway makes it.
    """

    stream: _Stream
    webhook_id: _Name
    url: Annotated[str, Field(min_length=1, max_length=2_048)]
    secret: Annotated[str, Field(pattern=r"^whsec_[A-Za-z0-9+/]{32,88}={0,2}$")] | None = None


@record
class DeleteStreamWebhook:
    """Delete a webhook; deleting one that does not exist succeeds."""

    stream: _Stream
    webhook_id: _Name


@record
class ListStreamWebhooks:
    """The webhooks of a stream, their positions and their errors."""

    stream: _Stream


@record
class StreamWebhookSet:
    """The webhook. A generated ``secret`` is shown once."""

    webhook_id: str
    channel_id: str
    stream: str
    url: str
    secret: str | None = None


@record
class StreamWebhookDeleted:
    """The webhook is deleted."""

    webhook_id: str


WebhookRequest: TypeAlias = SetStreamWebhook | DeleteStreamWebhook
WebhookAnswer: TypeAlias = StreamWebhookSet | StreamWebhookDeleted
