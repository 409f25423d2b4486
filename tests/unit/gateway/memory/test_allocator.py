"""Large blocks that are freed go back to the machine, also where small ones were made in between."""

from __future__ import annotations

import platform
import subprocess
import sys

# The first blocks teach glibc that blocks of their size come and go; those after them would stand among small ones.
_ROUND = """
import sys
from passerelle.gateway.memory.allocator import return_large_blocks

def read_rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "set":
    assert return_large_blocks()
for _ in range(20):
    b"x" * 2_000_000
before, kept, blocks = read_rss(), [], []
for number in range(100):
    blocks.append(b"x" * 1_000_000)
    kept.append(b"y" * 20_000)
blocks.clear()
print(read_rss() - before)
"""


def _measure(setting: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _ROUND, setting], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_what_was_freed_between_small_blocks_goes_back() -> None:
    if platform.libc_ver()[0] == "glibc":
        assert _measure("unset") > 50_000_000
    assert _measure("set") < 10_000_000
