"""What all drivers of an instance work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.record import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.leases import Replicas
    from passerelle.delegation.runs.driver import ActiveRun
    from passerelle.delegation.runs.follow_strategy import PollThrottle
    from passerelle.delegation.runs.outputs import OutputPolicy
    from passerelle.delegation.runs.peer_profile import PeerBehaviour
    from passerelle.delegation.runs.run import Run
    from passerelle.delegation.runs.volume import ReadScheduler
    from passerelle.permission_bridge.hooks.consulting import Consulting
    from passerelle.runtime.records.references import References


@value
class DriverDeps:
    """Made once: every message has a driver."""

    clock: Clock
    log: FilteringBoundLogger
    may_send: Callable[[Run], bool]
    """Whether enough of the lease is left to begin something that cannot be undone.

    Raises:
        RunMovedError: it was lost, and what is held by now is another one.
    """
    replicas: Replicas
    """What a failover would leave of the store: nothing is sent on what it would not."""
    returns: Callable[[ActiveRun], Awaitable[bool]]
    """Carries answers of people back; whether something was done."""
    offer: Callable[[str, str], Awaitable[None]]
    """Tells whoever can drive a run that its driver has let go: agent and task."""
    habits: PeerBehaviour
    """What is known of peers."""
    references: References
    """What messages refer to."""
    consulting: Consulting
    """Who has a say in what the peer asks."""
    outputs: OutputPolicy
    crowd: PollThrottle
    """All runs of this instance that are followed by asking."""
    turns: ReadScheduler
    """All runs of this instance that bring much."""
