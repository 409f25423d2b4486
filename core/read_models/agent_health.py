"""How calls to an agent went lately, as one instance has seen it. No address, key or word of the agent is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.wire.record import record

CardState: TypeAlias = Literal["ready", "stale", "unknown"]
"""``stale``: it is away, and its last card serves; ``unknown``: this instance never had one."""


@record
class AgentCalls:
    """Calls of the last hour, or since the instance started: how they ended, and how long answers took.

    ``p50_ms`` and ``p95_ms`` are upper bounds: the time within which so many of a hundred messages were answered. The
    two times are of the last call that the agent has answered, and of the last that failed on the way, within 10 s.
    """

    since: str
    outcomes: Mapping[str, int]
    p50_ms: int | None = None
    p95_ms: int | None = None
    answered_at: str | None = None
    failed_at: str | None = None


@record
class AgentLimits:
    """What the configuration allows over all instances, and what of it is used here."""

    concurrency: int | None = None
    rate: int | None = None
    rate_s: float | None = None
    in_use: int | None = None
    used_up: bool = False


@record
class AgentHealth:
    """An agent as the instance that answers knows it.

    ``card_since``: since when it knows this card. ``breakers`` by the interfaces that were used. ``links`` are the
    sockets of an agent that dials in; ``runs`` those that this instance drives now.
    """

    name: str
    at: str
    instance: str
    status: CardState
    calls: AgentCalls
    limits: AgentLimits
    card_since: str | None = None
    version: str | None = None
    protocol: str | None = None
    signature: str | None = None
    breakers: Mapping[str, str] = field(default_factory=dict[str, str])
    rests: bool = False
    links: int | None = None
    runs: int = 0
