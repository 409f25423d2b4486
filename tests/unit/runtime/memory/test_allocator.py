"""Freed memory returns to the system, also if small blocks were allocated in between."""

from __future__ import annotations

import platform
import subprocess
import sys

# The first blocks teach glibc that blocks of their size come and go; later ones lie among small blocks.
_ROUND = """
import asyncio, sys
from passerelle.runtime.memory.machine import give_back, read_resident

async def fill_and_free():
    giving = asyncio.create_task(give_back()) if sys.argv[1] == "given" else None
    await asyncio.sleep(0)
    before, kept, blocks = read_resident(), [], []
    for number in range(100):
        blocks.append(b"x" * 1_000_000)
        kept.append(b"y" * 20_000)
    blocks.clear()
    freed = read_resident() - before
    for _ in range(1000):
        if giving is None or giving.done() or read_resident() - before < 10_000_000:
            break
        await asyncio.sleep(0.01)
    print(freed, read_resident() - before)

for _ in range(20):
    b"x" * 2_000_000
asyncio.run(fill_and_free())
"""


# Four threads at once, each of which makes and frees a large block among its first ones.
_THREADS = """
import asyncio, sys, threading
from passerelle.runtime.memory.machine import give_back, read_resident, use_one_arena

async def fill_and_free():
    giving = asyncio.create_task(give_back())
    await asyncio.sleep(0)
    before, together = read_resident(), threading.Barrier(4)
    def make():
        together.wait()
        size = len(b"x" * 20_000_000)
        together.wait()
        return size
    await asyncio.gather(*(asyncio.to_thread(make) for _ in range(4)))
    freed = read_resident() - before
    await asyncio.sleep(2.5)
    print(freed, read_resident() - before)

if sys.argv[1] == "one":
    use_one_arena()
for _ in range(20):
    b"x" * 30_000_000
asyncio.run(fill_and_free())
"""


# What only a look of the collector finds, which is not due for long.
_CYCLES = """
import asyncio, gc, sys
from passerelle.runtime.memory.machine import give_back, read_resident

class Round:
    def __init__(self):
        self.itself, self.content = self, b"x" * 1_000_000

async def fill_and_free():
    giving = asyncio.create_task(give_back()) if sys.argv[1] == "given" else None
    await asyncio.sleep(0)
    before = read_resident()
    for _ in range(100):
        Round()
    freed = read_resident() - before
    await asyncio.sleep(3.5)
    print(freed, read_resident() - before)

gc.collect()
gc.set_threshold(1_000_000, 100, 100)
asyncio.run(fill_and_free())
"""


def _measure(program: str, mode: str) -> tuple[int, int]:
    """Bytes that are held over those before: as the blocks are freed, and some seconds later."""
    done = subprocess.run(
        [sys.executable, "-c", program, mode], capture_output=True, text=True, check=True
    )
    freed, later = done.stdout.split()
    return int(freed), int(later)


def test_memory_freed_between_small_blocks_returns_to_the_system() -> None:
    if platform.libc_ver()[0] == "glibc":
        assert min(_measure(_ROUND, "kept")) > 50_000_000
    _, later = _measure(_ROUND, "given")
    assert later < 10_000_000


def test_memory_freed_by_threads_returns_to_the_system() -> None:
    if platform.libc_ver()[0] == "glibc":
        assert min(_measure(_THREADS, "many")) > 50_000_000
    _, later = _measure(_THREADS, "one")
    assert later < 30_000_000


def test_memory_of_uncollected_cycles_returns_to_the_system() -> None:
    assert min(_measure(_CYCLES, "kept")) > 90_000_000
    _, later = _measure(_CYCLES, "given")
    assert later < 20_000_000
