"""A push notification config: where the owner of a task wants to be told of it, and how to show oneself there."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.wire.record import record

PushDialect: TypeAlias = Literal["1.0", "0.3"]


@record
class PushConfig:
    """As its owner gave it. ``id`` None: one is made. ``dialect`` is the protocol version that bodies are written in.

    ``scheme`` and ``credentials`` make the ``Authorization`` header; ``token`` comes back in a header of its own.
    """

    url: str
    id: str | None = None
    token: str | None = field(default=None, repr=False)
    scheme: str | None = None
    credentials: str | None = field(default=None, repr=False)
    dialect: PushDialect = "1.0"
