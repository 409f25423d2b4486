"""How a run is followed, the timeouts of a driver, and how often all runs of an instance poll. Pure.

From best to worst: the answer or stream of the send; SubscribeToTask; GetTask at intervals, with callbacks of the peer
if it has them. A mechanism that brings nothing is left, and subscribing is tried again at the next reconnect, or later.
Thousands of runs that poll every second would take time from new runs and callers: beyond a hundred polls a second of
an instance, polls become rarer.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from passerelle.core.frozen import frozen
from passerelle.core.wire.times import parse_ms

if TYPE_CHECKING:
    from collections.abc import Generator

    from passerelle.core.task.record import Attempt

Mechanism: TypeAlias = Literal["subscription", "polling", "push"]

_POLLS_PER_FAILURE: Final = 4
"""Polls after a failed subscription until the next one is tried."""
_SPREAD: Final = 0.5
"""Pauses vary by this share, so that runs which began together do not poll together for ever."""
LOOKS_PER_S: Final = 100


@dataclass(slots=True)
class FollowStrategy:
    """How one run is followed now. ``calls_back``: the peer was given an address to call."""

    timeouts: Timeouts
    calls_back: bool = False
    can_subscribe: bool = True
    """Whether the peer supports subscriptions, as far as is known."""
    _pause_s: float = 0.0
    _failed_subscriptions: int = 0
    """Number of subscriptions in a row that brought nothing."""
    _polls: int = 0
    """Polls since the last subscription."""
    _was_away: bool = False

    def subscribes(self, *, parked: bool) -> bool:
        """Whether to subscribe next. Peers differ for tasks that wait, so those are polled."""
        if parked or not self.can_subscribe:
            return False
        return (
            not self._failed_subscriptions
            or self._polls >= _POLLS_PER_FAILURE * self._failed_subscriptions
        )

    def note_subscription(self, *, brought_news: bool) -> None:
        """A subscription has ended."""
        self._polls = 0
        self._failed_subscriptions = 0 if brought_news else self._failed_subscriptions + 1

    def note_look(self, *, reached: bool) -> None:
        """The peer was polled; after an outage its first answer is a reconnect, so subscribing is allowed again."""
        self._polls += 1
        if reached and self._was_away:
            self._failed_subscriptions = 0
        self._was_away = not reached

    def reset(self) -> None:
        """Something happened: the next poll comes soon."""
        self._pause_s = 0.0

    def rest(
        self,
        chance: float,
        *,
        changed: bool,
        parked: bool,
        at_login: bool = False,
        least_s: float = 0.0,
    ) -> float:
        """Seconds until the next poll, growing while nothing changes. ``chance`` is random, from 0 to 1.

        ``at_login``: the peer may go on at any moment, so the pause grows less. ``least_s`` is the shortest pause at
        the present load; it raises no pause above its limit.
        """
        timeouts = self.timeouts
        limit_s = timeouts.parked_poll_max_s if parked else timeouts.poll_max_s
        first_s = timeouts.parked_poll_s if parked else timeouts.poll_s
        if changed or not self._pause_s:
            self._pause_s = first_s
        else:
            most_s = max(first_s, timeouts.login_poll_max_s) if at_login else limit_s
            self._pause_s = min(self._pause_s * 2, most_s, limit_s)
        pause_s = max(self._pause_s, min(least_s, limit_s))
        return pause_s * (1 - _SPREAD / 2 + _SPREAD * chance)

    @property
    def longest_s(self) -> float:
        """Longest pause of a run in progress, in seconds."""
        return self.timeouts.poll_max_s * (1 + _SPREAD / 2)

    @property
    def below(self) -> Mechanism:
        """How a run without a subscription is followed."""
        return "push" if self.calls_back else "polling"


@frozen
class Timeouts:
    """Timeouts and pauses, in seconds."""

    poll_s: float = 1.0
    poll_max_s: float = 30.0
    parked_poll_s: float = 2.0
    parked_poll_max_s: float = 60.0
    login_poll_max_s: float = 4.0
    """Longest pause while the peer waits for a credential that a person may be giving it elsewhere."""
    login_s: float = 600.0
    """How long after its request that is likely."""
    store_s: float = 0.5
    lease_s: float = 0.1
    replica_s: float = 0.1
    """Pause until a replica that has not confirmed the writes before a send is asked again, doubled each time."""
    replica_max_s: float = 5.0
    liveness_s: float = 120.0
    look_s: float = 10.0
    """How long a silent stream is followed without reading what other instances have written."""
    heartbeat_s: float = 45.0
    """How old the last sign of life in the record may become while the peer answers."""
    revive_s: float = 5.0
    """Pause until a run with a broken driver is adopted again, doubled each time."""
    doubt_s: float = 35.0
    """How long a send may still be on its way, unless the terms of its peer set another time."""
    stalled_s: float = 15.0
    """How long a task whose stream broke may stay unchanged until callers are notified."""
    notify_after_s: float = 3.0
    """Callers are not notified of a wait for a busy peer that ends within this time."""
    refuses: bool = False
    """Whether a longer wait is refused instead of having the task wait."""
    busy_s: float | None = None
    """How long a message that the peer never took is retried; None: as long as its run may last."""
    crowd_s: float = 1.0
    """How long a send at one of our limits is retried before callers are notified that it waits."""
    cancel_s: float = 2.0
    """How long a cancel waits for the driver to see its result."""


def waits_long(run: Attempt, timeouts: Timeouts, until_ms: int | None = None) -> bool:
    """Whether callers are notified that a message is held back; ``until_ms`` where that is not stored yet."""
    if until_ms is None:
        if run.send_after is None:
            return False
        until_ms = parse_ms(run.send_after)
    return until_ms - parse_ms(run.started_at) - run.held_ms > timeouts.notify_after_s * 1000


@dataclass(slots=True)
class PollThrottle:
    """Shared by all drivers of an instance. ``resting`` counts those between two polls."""

    resting: int = 0

    @property
    def pause_s(self) -> float:
        """The shortest pause that keeps all of them within ``LOOKS_PER_S``, in seconds."""
        return self.resting / LOOKS_PER_S

    @contextmanager
    def rest(self) -> Generator[None]:
        """Counts one more pausing driver for the duration of the block."""
        self.resting += 1
        try:
            yield
        finally:
            self.resting -= 1
