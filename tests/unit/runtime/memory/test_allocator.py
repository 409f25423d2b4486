"""What is freed goes back to the machine, also where small blocks that stay were made in between."""

from __future__ import annotations

import platform
import subprocess
import sys

# The first blocks teach glibc that blocks of their size come and go; those after them stand among small ones.
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


def _measure(mode: str) -> tuple[int, int]:
    """Bytes that are held over those before: as the blocks are freed, and after ten seconds at most."""
    done = subprocess.run(
        [sys.executable, "-c", _ROUND, mode], capture_output=True, text=True, check=True
    )
    freed, later = done.stdout.split()
    return int(freed), int(later)


def test_what_was_freed_between_small_blocks_goes_back() -> None:
    if platform.libc_ver()[0] == "glibc":
        assert min(_measure("kept")) > 50_000_000
    _, later = _measure("given")
    assert later < 10_000_000
