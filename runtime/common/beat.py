"""Ticks shared by all loops of a process that poll now and then.

Waking a process costs more than the poll itself: its caches are cold. Loops that sleep until the next shared tick wake
it once together.
"""

from __future__ import annotations

import asyncio
from typing import Final

BEAT_S: Final = 1.0
_LEAST: Final = 0.1
"""A timer may fire a little early; the rest of its tick is no pause."""


def until_beat(now_s: float, beat_s: float = BEAT_S) -> float:
    """Seconds from ``now_s`` (monotonic clock) to the next multiple of ``beat_s``; at least a tenth of ``beat_s``."""
    left_s = beat_s - now_s % beat_s
    return left_s if left_s >= _LEAST * beat_s else left_s + beat_s


async def sleep_until_beat(beat_s: float = BEAT_S) -> None:
    """Sleeps until the next shared tick; ticks are ``beat_s`` apart."""
    await asyncio.sleep(until_beat(asyncio.get_running_loop().time(), beat_s))
