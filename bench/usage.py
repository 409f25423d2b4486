"""Resource usage of other processes: CPU time as the kernel counts it (Linux), and memory of processes and engines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.rows import MeasurementError
from passerelle.store.connection import Endpoint
from passerelle.store.info import parse_info
from passerelle.store.topology import ask_once

_PROC: Final = Path("/proc")
_PASSING: Final = ("mem_aof_buffer", "mem_clients_normal")
"""Memory of an engine that is not data: write buffers and connections."""
_FREEING_TRIES: Final = 100
_FREEING_LOOK_S: Final = 0.05
_PARENT: Final = 1
"""Index of the field after the name in ``/proc/<pid>/stat``; the name may contain spaces, so counting starts after
it.
"""
_REST_SHARE: Final = 0.1
_REST_TRIES: Final = 15


@dataclass(frozen=True, slots=True)
class CpuMeter:
    """Names processes and reads the CPU seconds that each has used since its start."""

    pids: Sequence[int]

    def read(self) -> list[float]:
        """CPU seconds in the order of ``pids``.

        Raises:
            MeasurementError: a process has ended.
        """
        return [read_cpu_s(pid) for pid in self.pids]

    async def await_rest(self, look_s: float) -> None:
        """Waits until each has used less than a tenth of a core between two samples, at most for some samples.

        Periodic work never lets a process rest completely.

        Raises:
            MeasurementError: a process has ended.
        """
        for _ in range(_REST_TRIES):
            before = self.read()
            await asyncio.sleep(look_s)
            used = max(late - early for early, late in zip(before, self.read(), strict=True))
            if used <= _REST_SHARE * look_s:
                return


def read_cpu_s(pid: int) -> float:
    """User and system time of a process and all its threads, to the nanosecond.

    Raises:
        MeasurementError: the process has ended.
    """
    try:
        # The clock that clock_getcpuclockid(3) returns for a process; Python has that function for threads only.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        raise MeasurementError(f"process {pid} is gone") from None


def read_resident_bytes(pid: int) -> int:
    """Resident memory of a process.

    Raises:
        MeasurementError: the process has ended, or this system has no /proc.
    """
    try:
        pages = (_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]
    except OSError:
        raise MeasurementError(f"process {pid} is gone, or there is no /proc to read") from None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def find_children(parent: int) -> list[int]:
    """Running child processes of ``parent``."""
    found: list[int] = []
    for entry in _PROC.iterdir():
        fields = _read_stat(int(entry.name)) if entry.name.isdecimal() else None
        if fields is not None and int(fields[_PARENT]) == parent:
            found.append(int(entry.name))
    return found


async def read_used_bytes(endpoint: Endpoint) -> int:
    """Memory that an engine uses for its data, after it has freed removed keys.

    Raises:
        MeasurementError: it is still busy freeing after some seconds.
        StoreUnavailable: it does not answer.
    """
    for _ in range(_FREEING_TRIES):
        info = parse_info(await ask_once(endpoint, "INFO", "memory"))
        # A large stream is freed by an engine thread after the command that removed it.
        if info.get("lazyfree_pending_objects", "0") == "0":
            return int(info["used_memory"]) - sum(int(info.get(name, "0")) for name in _PASSING)
        await asyncio.sleep(_FREEING_LOOK_S)
    raise MeasurementError("the engine does not come to an end of freeing memory")


async def read_logged_bytes(endpoint: Endpoint) -> int:
    """Bytes in the append-only file of an engine.

    Raises:
        StoreUnavailable: it does not answer.
    """
    return int(parse_info(await ask_once(endpoint, "INFO", "persistence"))["aof_current_size"])


def _read_stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
