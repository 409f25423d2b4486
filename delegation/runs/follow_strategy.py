"""How a run is followed, how long a driver waits for what, and how often all runs of an instance poll. Pure.

From best to worst: the answer or stream of the send; SubscribeToTask; GetTask at intervals, with the peer's callbacks
beside it where it has them. A mechanism that brings nothing is left, and subscribing is tried again at the next
reconnect, or later. Thousands of runs that poll every second would take the time of new runs and of callers: beyond a
hundred polls a second of an instance, polls become rarer.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Generator

    from passerelle.core.task.record import Attempt

Mechanism: TypeAlias = Literal["subscription", "polling", "push"]

_CLIMB_AFTER: Final = 4
"""Looks at a rung below, until subscribing is tried again."""
_SPREAD: Final = 0.5
"""Pauses differ by this share of them, so that runs which began together do not ask together for ever."""
LOOKS_PER_S: Final = 100


@dataclass(slots=True)
class FollowStrategy:
    """Where one run stands on it. ``calls_back``: the peer was told where to call."""

    timeouts: Timeouts
    calls_back: bool = False
    can_subscribe: bool = True
    """Whether the peer has subscriptions at all, as far as is known."""
    _pause_s: float = 0.0
    _fell: int = 0
    """How often subscribing has brought nothing, one after the other."""
    _looks: int = 0
    """Looks since the last try to subscribe."""
    _was_away: bool = False

    def subscribes(self, *, parked: bool) -> bool:
        """Whether subscribing is the next try. Peers differ on tasks that wait, so those are asked."""
        if parked or not self.can_subscribe:
            return False
        return not self._fell or self._looks >= _CLIMB_AFTER * self._fell

    def note_subscription(self, *, brought_news: bool) -> None:
        """A subscription has ended."""
        self._looks = 0
        self._fell = 0 if brought_news else self._fell + 1

    def note_look(self, *, reached: bool) -> None:
        """The peer was asked; one that is back is a reconnect, and the way up is open again."""
        self._looks += 1
        if reached and self._was_away:
            self._fell = 0
        self._was_away = not reached

    def reset(self) -> None:
        """Something happened: the next look comes soon."""
        self._pause_s = 0.0

    def rest(self, chance: float, *, changed: bool, parked: bool, least_s: float = 0.0) -> float:
        """Seconds until the next look: growing while nothing changes. ``chance`` is random, from 0 to 1.

        ``least_s`` is what others leave of the time that there is for looks; no rest grows beyond its limit for it.
        """
        timeouts = self.timeouts
        limit_s = timeouts.parked_poll_max_s if parked else timeouts.poll_max_s
        if changed or not self._pause_s:
            self._pause_s = timeouts.parked_poll_s if parked else timeouts.poll_s
        else:
            self._pause_s = min(self._pause_s * 2, limit_s)
        pause_s = max(self._pause_s, min(least_s, limit_s))
        return pause_s * (1 - _SPREAD / 2 + _SPREAD * chance)

    @property
    def longest_s(self) -> float:
        """No rest of a run that is under way is longer, in seconds."""
        return self.timeouts.poll_max_s * (1 + _SPREAD / 2)

    @property
    def below(self) -> Mechanism:
        """How a run is followed that is not subscribed to."""
        return "push" if self.calls_back else "polling"


@dataclass(frozen=True, slots=True)
class Timeouts:
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
    """How long a task whose stream broke may stand still until callers are told."""
    notify_after_s: float = 3.0
    """A wait for a busy peer that ends within this time is not told to callers."""
    refuses: bool = False
    """Whether a longer one is refused, in place of a task that waits."""
    busy_s: float | None = None
    """How long a message that the peer never took is tried; None: as long as its run may last."""
    crowd_s: float = 1.0
    """How long a send that meets one of our limits is tried again before callers are told that it waits."""
    cancel_s: float = 2.0
    """How long a cancel waits for the driver to see what became of it."""


def waits_long(run: Attempt, timeouts: Timeouts, until_ms: int | None = None) -> bool:
    """Whether a message is held back for so long that its caller is told; ``until_ms`` where that is not stored yet."""
    if until_ms is None:
        if run.send_after is None:
            return False
        until_ms = parse_ms(run.send_after)
    return until_ms - parse_ms(run.started_at) - run.held_ms > timeouts.notify_after_s * 1000


@dataclass(slots=True)
class PollThrottle:
    """Shared by all drivers of an instance. ``resting`` are between two looks."""

    resting: int = 0

    @property
    def pause_s(self) -> float:
        """The shortest rest that leaves each of them its turn, in seconds."""
        return self.resting / LOOKS_PER_S

    @contextmanager
    def rest(self) -> Generator[None]:
        """One more, for the time of the block."""
        self.resting += 1
        try:
            yield
        finally:
            self.resting -= 1
