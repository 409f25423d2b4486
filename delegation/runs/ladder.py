"""The ladder by which a run is followed, and the pauses between two looks: which rung is next, and when.

Down: the answer or stream of the send; SubscribeToTask; GetTask again and again, with the peer's callbacks beside it
where it has them. A rung that brings nothing is left. The way up is tried again at the next reconnect, or later.
Pure: what happened, and randomness, come in as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from passerelle.delegation.runs.patience import Patience

Mechanism: TypeAlias = Literal["subscription", "polling", "push"]

_CLIMB_AFTER: Final = 4
"""Looks at a rung below, until subscribing is tried again."""
_SPREAD: Final = 0.5
"""Pauses differ by this share of them, so that runs which began together do not ask together for ever."""


@dataclass(slots=True)
class Ladder:
    """Where one run stands on it. ``calls_back``: the peer was told where to call."""

    patience: Patience
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
        patience = self.patience
        limit_s = patience.parked_poll_max_s if parked else patience.poll_max_s
        if changed or not self._pause_s:
            self._pause_s = patience.parked_poll_s if parked else patience.poll_s
        else:
            self._pause_s = min(self._pause_s * 2, limit_s)
        pause_s = max(self._pause_s, min(least_s, limit_s))
        return pause_s * (1 - _SPREAD / 2 + _SPREAD * chance)

    @property
    def longest_s(self) -> float:
        """No rest of a run that is under way is longer, in seconds."""
        return self.patience.poll_max_s * (1 + _SPREAD / 2)

    @property
    def below(self) -> Mechanism:
        """How a run is followed that is not subscribed to."""
        return "push" if self.calls_back else "polling"
