"""How long a driver waits for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from passerelle.core.times import parse_ms

if TYPE_CHECKING:
    from passerelle.core.task_record import Attempt


@dataclass(frozen=True, slots=True)
class Patience:
    """Times in seconds."""

    poll_s: float = 1.0
    poll_max_s: float = 30.0
    parked_poll_s: float = 2.0
    parked_poll_max_s: float = 60.0
    store_s: float = 0.5
    lease_s: float = 0.1
    replica_s: float = 0.1
    """Until a replica that has not confirmed what stands before a send is asked again, doubled each time."""
    replica_max_s: float = 5.0
    liveness_s: float = 120.0
    look_s: float = 10.0
    """How long a silent stream is followed without a look at what others have written."""
    heartbeat_s: float = 45.0
    """How old the last sign of life of a peer may become in the record, as long as it answers."""
    revive_s: float = 5.0
    """Until a run whose driver broke is taken up again, doubled each time."""
    doubt_s: float = 35.0
    """A send may still be on its way for this long, unless the terms of its peer say another time."""
    stalled_s: float = 15.0
    """How long a task may stand still whose stream broke, until whoever waits for it is told."""
    told_s: float = 3.0
    """A wait for a busy peer that ends within this time is no news to whoever waits for the answer."""
    refuses: bool = False
    """Whether a longer one is refused, in place of a task that waits."""
    busy_s: float | None = None
    """How long a message that the peer never took is tried; None: as long as its run may last."""
    crowd_s: float = 1.0
    """How long a send that meets a limit of ours is tried again before anybody is told that it waits."""
    cancel_s: float = 2.0
    """How long a cancel waits for the driver to see what became of it."""


def waits_long(run: Attempt, patience: Patience, until_ms: int | None = None) -> bool:
    """Whether a message is held back for so long that its caller is told; ``until_ms`` where that is not stored yet."""
    if until_ms is None:
        if run.send_after is None:
            return False
        until_ms = parse_ms(run.send_after)
    return until_ms - parse_ms(run.started_at) - run.held_ms > patience.told_s * 1000
