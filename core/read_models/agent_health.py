"""How calls to an agent went lately, over all instances. No address, key or word of the agent is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from passerelle.core.wire.record import record

CardState: TypeAlias = Literal["ready", "stale", "unknown"]
"""``stale``: it is away, and its last card serves; ``unknown``: this instance never had one."""


@record
class AgentCalls:
    """Calls of the last hour, or since the first instance started: how they ended, and how long answers took.

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
    """What the configuration allows over all instances, and what of it is used."""

    concurrency: int | None = None
    rate: int | None = None
    rate_s: float | None = None
    in_use: int | None = None
    used_up: bool = False


@record
class AgentShare:
    """What one instance has seen of an agent, as it tells the others. Times are in ms.

    ``times``: how many messages were answered within each bound of the histogram of requests, and above the last one.
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
    """What one instance knows of an agent, as of ``at``: the card, and whether it sends nothing for now (``rests``)."""

    instance: str
    at: str
    status: CardState
    rests: bool = False
    runs: int = 0
    links: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])


@record
class AgentHealth:
    """An agent as all instances know it, the others as they have said within the last seconds.

    ``calls``, ``runs``, ``links`` (the sockets of an agent that dials in) and what is used of ``limits`` are summed
    over ``instances``. The card, since when it is known, and ``breakers`` (by the interfaces that were used) are those
    of the ``instance`` that answers. ``alone``: the others could not be asked.
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
