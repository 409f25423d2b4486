"""The circuit breaker of one interface of an agent, or of one webhook origin: a step function without a clock.

::

    closed ──5 failures in 10 s, or more than half of the last 20──> open
    open   ──pause over, and a call is to be made──────────────────> trial
    trial  ──success──> closed          trial ──failure──> open, with a pause twice as long
    any    ──answer to a query sent while not closed───────────────> closed

While it is open no work is sent: it would only wait for the same failure. Queries about tasks pass, because their
callers can wait, and an answer shows that the interface is reachable again. Otherwise one send at a time passes as a
trial. A trial that never reports (its caller was cancelled) ends after 15 s.

Error responses are no failures: the breaker judges only whether the interface can be reached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal, TypeAlias, assert_never

from passerelle.core.frozen import frozen

FAILURES: Final = 5
WINDOW_MS: Final = 10_000
SAMPLE: Final = 20
PAUSE_MS: Final = 5_000
MAX_PAUSE_MS: Final = 60_000
TRIAL_MS: Final = 15_000

BreakerMode: TypeAlias = Literal["closed", "open", "trial"]
Signal: TypeAlias = Literal["asked", "answered", "succeeded", "failed"]


@frozen
class Breaker:
    """The state of one interface; ``failures`` are times, ``sample`` the last outcomes, newest last."""

    mode: BreakerMode = "closed"
    failures: tuple[int, ...] = ()
    sample: tuple[bool, ...] = ()
    until_ms: int = 0
    pause_ms: int = PAUSE_MS

    def admits(self, now_ms: int) -> bool:
        """Whether a send may be tried; while the breaker is not closed, signal ``asked`` before the send."""
        return self.mode == "closed" or now_ms >= self.until_ms

    def wait_ms(self, now_ms: int) -> int:
        """Milliseconds until it may admit a call; 0 if it admits one now."""
        return 0 if self.admits(now_ms) else self.until_ms - now_ms

    def wait_s(self, now_ms: int) -> int:
        """Whole seconds until it may admit a call, at least one."""
        return max(1, -(-self.wait_ms(now_ms) // 1000))


HEALTHY: Final = Breaker()
"""No failures recorded; an answer changes nothing."""


def step(breaker: Breaker, signal: Signal, now_ms: int) -> Breaker:
    """The breaker after a signal."""
    match signal:
        case "asked":
            if breaker.mode == "closed":
                return breaker
            return replace(breaker, mode="trial", until_ms=now_ms + TRIAL_MS)
        case "answered":
            return HEALTHY
        case "succeeded":
            # A call begun before the breaker opened may still succeed: only a trial closes it.
            return breaker if breaker.mode == "open" else _note_success(breaker)
        case "failed":
            return _note_failure(breaker, now_ms)
        case _:
            assert_never(signal)


def _note_success(breaker: Breaker) -> Breaker:
    if breaker.mode == "trial":
        return HEALTHY
    # Fast path for a healthy peer: without a failure in the sample there is nothing to update.
    if not breaker.failures and False not in breaker.sample:
        return breaker
    return replace(breaker, sample=(*breaker.sample[1 - SAMPLE :], True))


def _note_failure(breaker: Breaker, now_ms: int) -> Breaker:
    match breaker.mode:
        case "open":
            return breaker
        case "trial":
            pause_ms = min(breaker.pause_ms * 2, MAX_PAUSE_MS)
            return Breaker("open", until_ms=now_ms + pause_ms, pause_ms=pause_ms)
        case "closed":
            recent = tuple(at for at in breaker.failures if at > now_ms - WINDOW_MS)
            failures = (*recent[-FAILURES:], now_ms)
            sample = (*breaker.sample[1 - SAMPLE :], False)
            too_often = len(sample) == SAMPLE and sample.count(False) > SAMPLE // 2
            if len(failures) >= FAILURES or too_often:
                return Breaker("open", until_ms=now_ms + PAUSE_MS)
            return replace(breaker, failures=failures, sample=sample)
        case _:
            assert_never(breaker.mode)
