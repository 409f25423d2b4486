"""The memory of this machine: how much of it this process may use, and how freed memory is returned to the system.

The process may use the machine's memory, or less if its control group sets a limit. The C library is asked from time
to time to return freed memory.

glibc adapts to freed blocks: after a block of 1 MB was allocated and freed, later ones are placed among small blocks,
and a small block that stays keeps all memory below it. Blocks in pages of their own would be returned at once, but each
copy of one would cost a page fault per page: an artifact in chunks of 1 MB took twice as long.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from passerelle.runtime.common.beat import BEAT_S, sleep_until_beat

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_PART: Final = 4
_MOST: Final = 1_073_741_824
_ENGINE_PART: Final = 2
_ENGINE_LEAST: Final = 268_435_456
LEAST: Final = 67_108_864
"""A smaller budget could not hold the largest requests and answers."""


def read_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Bytes of the machine, or of the control group if it has fewer."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in limits:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            found = min(found, int(text))
    return found


def choose_engine_limit(memory_bytes: int) -> int:
    """Half of the memory, at least 256 MiB: rewriting its log under load, the engine needs as much again."""
    return max(_ENGINE_LEAST, memory_bytes // _ENGINE_PART)


def choose_budget(memory_bytes: int) -> int:
    """A quarter of the memory, at most 1 GiB and at least 64 MiB."""
    return max(LEAST, min(_MOST, memory_bytes // _PART))


_REST: Final = 50
"""Trimming takes at most one part in this many of the time: 20 ms for 280 MB, below 1 ms if little is free."""
_SLACK_BYTES: Final = 33_554_432
"""Slack above the size at start. Free memory below that is soon used again."""
_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of ``malloc.h``."""
_STATM: Final = Path("/proc/self/statm")


def find_trim() -> Callable[[int], int] | None:
    """The function that returns free pages anywhere in the heap; None if the C library has none."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def use_one_arena() -> None:
    """Makes threads share the heap of the process; call it before threads start.

    glibc gives each thread an arena of up to 64 MiB, and never returns free memory at its end.
    """
    tune: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_ARENA_MAX, 1)


def read_resident() -> int:
    """Resident bytes of this process."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def give_back() -> None:
    """Loops forever: trims the heap whenever the process is larger than at the start by the slack.

    If trimming is not enough, a full collection runs: otherwise cyclic garbage is found late, with everything it
    references.
    """
    trim = find_trim()
    if trim is None:
        return
    least = read_resident()
    large = least + _SLACK_BYTES
    while True:
        await sleep_until_beat()
        resident = read_resident()
        if resident > large:
            began_s = time.monotonic()
            trim(0)
            resident = read_resident()
            if resident > least + _SLACK_BYTES and gc.isenabled():
                gc.collect()
                trim(0)
                least = resident = read_resident()
            await asyncio.sleep(_REST * (time.monotonic() - began_s) - BEAT_S)
        least = min(least, resident)
