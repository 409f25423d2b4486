"""Recent calls to an agent, over all instances. Contains no address, key or text of the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.wire.record import record

CardState: TypeAlias = Literal["ready", "stale", "unknown"]
"""``stale``: the agent is away, and its last card is used; ``unknown``: this instance never had one."""


@record
class AgentCalls:
    """Calls of the last hour, or since the first instance started: outcomes and answer times.

    ``p50_ms`` and ``p95_ms`` are upper bounds of the answer times at these percentiles. ``answered_at`` and
    ``failed_at`` are the times of the last answered call and of the last transport failure, within 10 s.
    """

    since: str
    outcomes: Mapping[str, int]
    p50_ms: int | None = None
    p95_ms: int | None = None
    answered_at: str | None = None
    failed_at: str | None = None


@record
class AgentLimits:
    """The configured limits over all instances, and their current use."""

    concurrency: int | None = None
    rate: int | None = None
    rate_s: float | None = None
    in_use: int | None = None
    used_up: bool = False


@record
class AgentShare:
    """An agent's statistics on one instance, as shared with the others. Times are in ms.

    ``times``: the count of answered messages for each bucket of the request histogram, the last one unbounded.
    """

    status: CardState
    since_ms: int
    outcomes: Mapping[str, int]
    times: tuple[int, ...] = ()
    answered_ms: int | None = None
    failed_ms: int | None = None
    rests: bool = False
    runs: int = 0
    links: int | None = None
    in_use: int | None = None
    used_up: bool = False


@record
class InstanceHealth:
    """An agent as one instance knew it at ``at``: the card, and whether it sends nothing for now (``rests``)."""

    instance: str
    at: str
    status: CardState
    rests: bool = False
    runs: int = 0
    links: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])


@record
class AgentHealth:
    """An agent over all instances; the others as they reported within the last seconds.

    ``calls``, ``runs``, ``links`` (the sockets of an agent that dials in) and the use of ``limits`` are sums over
    ``instances``. The card, its age and ``breakers`` (by used interface) are those of the answering ``instance``.
    ``alone``: the reports of the others could not be read.
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
    instances: tuple[InstanceHealth, ...] = ()
    alone: bool = False
