"""The memory of this machine: how much of it this process may count on, and how what was freed goes back.

It may count on what the machine has, or less where its control group says so. The C library is asked from time to time
to give back what was freed.

glibc learns from what is freed: after a block of 1 MB has come and gone, the next ones stand among the small ones, and
a small one that stays keeps all the memory below it. Blocks that have pages of their own would go back at once, but
each copy of one would cost a fault for each of its pages: an artifact in chunks of 1 MB took twice as long.
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
"""A budget under this would not take what requests and answers may be."""


def read_memory(limits: tuple[Path, ...] = _LIMITS) -> int:
    """Bytes of the machine, or of the control group where that has fewer."""
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
    """Half of it, at least 256 MiB: the engine needs as much again while it writes its log anew under load."""
    return max(_ENGINE_LEAST, memory_bytes // _ENGINE_PART)


def choose_budget(memory_bytes: int) -> int:
    """A quarter, at most 1 GiB and at least 64 MiB."""
    return max(LEAST, min(_MOST, memory_bytes // _PART))


_REST: Final = 50
"""Giving back takes so small a part of the time, at most: 20 ms for 280 MB, and less than one where little is free."""
_SLACK_BYTES: Final = 33_554_432
"""Over what the process began with. What is free below that is soon taken again."""
_ARENA_MAX: Final = -8
"""``M_ARENA_MAX`` of ``malloc.h``."""
_STATM: Final = Path("/proc/self/statm")


def find_trim() -> Callable[[int], int] | None:
    """Gives free pages back, wherever they stand; None where the C library has no such function."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


def use_one_arena() -> None:
    """Has threads share the heap of the process; to be called before there are any.

    glibc gives each thread an arena of up to 64 MiB, and never gives back what is free at the end of one.
    """
    tune: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_ARENA_MAX, 1)


def read_resident() -> int:
    """Bytes of this process that are in memory."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def give_back() -> None:
    """Gives back what is free whenever the process is larger than it is now, without an end.

    Where that does not do, the collector looks at all objects: what is garbage in a circle is found late otherwise, and
    whatever it holds on to with it.
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
