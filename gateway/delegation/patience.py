"""How long a driver waits for what."""

from __future__ import annotations

from dataclasses import dataclass


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
    crowd_s: float = 1.0
    """How long a send that meets a limit of ours is tried again before anybody is told that it waits."""
    cancel_s: float = 2.0
    """How long a cancel waits for the driver to see what became of it."""
