"""A push notification config: the webhook for events of a task, and how to authenticate there."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.wire.record import record

PushDialect: TypeAlias = Literal["1.0", "0.3"]


@record
class PushConfig:
    """The config from its owner. ``id`` None: one is assigned. ``dialect`` is the protocol version of the bodies.

    ``scheme`` and ``credentials`` make the ``Authorization`` header; ``token`` is sent in its own header.
    """

    url: str
    id: str | None = None
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
    dialect: PushDialect = "1.0"
