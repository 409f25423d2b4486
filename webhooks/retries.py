"""The retry policy of webhook deliveries, as a table from response to next step. Pure.

| response | next step |
|---|---|
| 2xx | delivered |
| 410 | given up: the receiver reports that it is gone |
| 3xx, other 4xx except 408, 425, 429; a blocked address | refused; given up after the third refusal in a row |
| the rest, or no response | retried after 1 s, doubling to 5 min, for 24 h; then given up |
``Retry-After`` makes a pause longer, never shorter (RFC 9110 section 10.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from http import HTTPStatus
from typing import Final, TypeAlias, assert_never

from passerelle.core.back_off import find_pause
from passerelle.core.frozen import frozen

FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 300_000
LONGEST_MS: Final = 24 * 3_600_000
MOST_REFUSALS: Final = 3


class Reaction(StrEnum):
    """How a response is classified."""

    TAKEN = "taken"
    GONE = "gone"
    REFUSED = "refused"
    BUSY = "busy"


_BY_STATUS: Final[Mapping[int, Reaction]] = {
    HTTPStatus.GONE: Reaction.GONE,
    HTTPStatus.REQUEST_TIMEOUT: Reaction.BUSY,
    HTTPStatus.TOO_EARLY: Reaction.BUSY,
    HTTPStatus.TOO_MANY_REQUESTS: Reaction.BUSY,
}
_BY_CLASS: Final[Mapping[int, Reaction]] = {
    2: Reaction.TAKEN,
    3: Reaction.REFUSED,
    4: Reaction.REFUSED,
}


@frozen
class ReceiverAnswered:
    """The receiver answered; ``retry_after_ms`` is its Retry-After, ``body`` the beginning of its response body."""

    status: int
    retry_after_ms: int = 0
    body: bytes = field(default=b"", repr=False)


@frozen
class ReceiverUnreached:
    """No response; ``reason`` is one word."""

    reason: str


@frozen
class AddressBlocked:
    """The address may not be connected to (SSRF)."""

    reason: str = "address"


Outcome: TypeAlias = ReceiverAnswered | ReceiverUnreached | AddressBlocked


@frozen
class FailureStreak:
    """Failures since the last success; all zero when there are none."""

    tries: int = 0
    since_ms: int = 0
    refusals: int = 0
    reason: str = ""


@frozen
class Delivered:
    """The receiver has confirmed the request."""


@frozen
class Postponed:
    """To be retried in ``delay_ms``."""

    streak: FailureStreak
    delay_ms: int


@frozen
class GivenUp:
    """Not retried automatically."""

    streak: FailureStreak


DeliveryVerdict: TypeAlias = Delivered | Postponed | GivenUp


def read_reaction(outcome: Outcome) -> Reaction:
    """Classifies an outcome."""
    match outcome:
        case ReceiverAnswered(status=status):
            return _BY_STATUS.get(status) or _BY_CLASS.get(status // 100, Reaction.BUSY)
        case AddressBlocked():
            return Reaction.REFUSED
        case ReceiverUnreached():
            return Reaction.BUSY
        case _:
            assert_never(outcome)


def judge(streak: FailureStreak, outcome: Outcome, now_ms: int, chance: float) -> DeliveryVerdict:
    """Returns the next step after an outcome; ``chance`` in 0..1 adds jitter."""
    reaction = read_reaction(outcome)
    if reaction is Reaction.TAKEN:
        return Delivered()
    after = FailureStreak(
        tries=streak.tries + 1,
        since_ms=streak.since_ms or now_ms,
        refusals=streak.refusals + 1 if reaction is Reaction.REFUSED else 0,
        reason=_name(outcome),
    )
    if reaction is Reaction.GONE or after.refusals >= MOST_REFUSALS or is_over(after, now_ms):
        return GivenUp(after)
    wanted_ms = outcome.retry_after_ms if isinstance(outcome, ReceiverAnswered) else 0
    left_ms = after.since_ms + LONGEST_MS - now_ms
    return Postponed(after, min(max(pause_ms(after.tries, chance), wanted_ms), left_ms))


def postpone(streak: FailureStreak, delay_ms: int, reason: str, now_ms: int) -> Postponed | GivenUp:
    """Returns the next step if nothing was sent: the receiver's breaker is open, or no replica has confirmed."""
    after = replace(streak, since_ms=streak.since_ms or now_ms, reason=streak.reason or reason)
    return GivenUp(after) if is_over(after, now_ms) else Postponed(after, delay_ms)


def is_over(streak: FailureStreak, now_ms: int) -> bool:
    """Whether the retry period is over."""
    return streak.since_ms > 0 and now_ms - streak.since_ms >= LONGEST_MS


def pause_ms(tries: int, chance: float) -> int:
    """The pause after ``tries`` failures in a row: between half of it and the whole."""
    whole = find_pause(FIRST_PAUSE_MS, LONGEST_PAUSE_MS, tries)
    return round(whole * (0.5 + chance / 2))


def _name(outcome: Outcome) -> str:
    match outcome:
        case ReceiverAnswered(status=status):
            return f"http_{status}"
        case ReceiverUnreached(reason=reason) | AddressBlocked(reason=reason):
            return reason
        case _:
            assert_never(outcome)
