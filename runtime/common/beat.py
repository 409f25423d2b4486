"""Moments that all loops of a process share which look for something now and then.

A process that wakes up pays for that more than for the look: its caches are cold. Loops that sleep until the next beat
wake it once together.
"""

from __future__ import annotations

import asyncio
from typing import Final

BEAT_S: Final = 1.0
_LEAST: Final = 0.1
"""A timer may fire a little early; what is left of its beat is no pause."""


def until_beat(now_s: float, beat_s: float = BEAT_S) -> float:
    """Seconds from ``now_s``, of a monotonic clock, until the next multiple of ``beat_s``; a tenth of it at least."""
    left_s = beat_s - now_s % beat_s
    return left_s if left_s >= _LEAST * beat_s else left_s + beat_s


async def sleep_until_beat(beat_s: float = BEAT_S) -> None:
    """Sleeps until the next shared moment, ``beat_s`` after the last one."""
    await asyncio.sleep(until_beat(asyncio.get_running_loop().time(), beat_s))
