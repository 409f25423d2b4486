"""A breaker for each origin that webhooks go to: a dead receiver is not waited for once per target. Pure.

Closed, until five deliveries in a row found nobody there. Then open for 5 s, and twice as long each time up to a
minute; after that one delivery may try, and decides. A refusal is an answer: it closes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

THRESHOLD: Final = 5
FIRST_OPEN_MS: Final = 5_000
LONGEST_OPEN_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ReceiverBreaker:
    """``failures`` in a row; ``open_until_ms`` and ``opened_ms`` (for how long) once there were too many.

    ``trying_until_ms``: one delivery is on its way to find out; it is waited for until then at most.
    """

    failures: int = 0
    open_until_ms: int = 0
    opened_ms: int = 0
    trying_until_ms: int = 0


CLOSED: Final = ReceiverBreaker()


def wait_ms(breaker: ReceiverBreaker, now_ms: int) -> int:
    """How long deliveries have to wait, 0 for those that may go."""
    return max(0, breaker.open_until_ms - now_ms, breaker.trying_until_ms - now_ms)


def begin(breaker: ReceiverBreaker, now_ms: int, within_ms: int) -> ReceiverBreaker:
    """A delivery goes; while the breaker was open, it is the only one until it has come to an end."""
    if breaker.opened_ms == 0:
        return breaker
    return replace(breaker, trying_until_ms=now_ms + within_ms)


def end(breaker: ReceiverBreaker, now_ms: int, *, reached: bool) -> ReceiverBreaker:
    """A delivery has found somebody there, or nobody."""
    if reached:
        return CLOSED
    failures = breaker.failures + 1
    if failures < THRESHOLD:
        return replace(breaker, failures=failures, trying_until_ms=0)
    if breaker.trying_until_ms == 0 and now_ms < breaker.open_until_ms:
        # It left before the breaker opened, and says nothing new.
        return replace(breaker, failures=failures)
    opened = min(breaker.opened_ms * 2 or FIRST_OPEN_MS, LONGEST_OPEN_MS)
    return ReceiverBreaker(failures, now_ms + opened, opened)
