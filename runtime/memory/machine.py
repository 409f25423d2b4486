"""How much memory this process may count on: what the machine has, or less where its control group says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_PART: Final = 4
_MOST: Final = 1_073_741_824
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


def choose_budget(memory_bytes: int) -> int:
    """A quarter, at most 1 GiB and at least 64 MiB."""
    return max(LEAST, min(_MOST, memory_bytes // _PART))
