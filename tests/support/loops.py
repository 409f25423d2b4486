"""A loop that outlives a test, with the threads it will ever use.

The default executor of a loop starts a thread whenever none is idle. On a loop that a whole module shares that would
be a thread more after some test, and which one depends on the order.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, TypeAlias

_THREADS: Final = 4

Backend: TypeAlias = tuple[str, dict[str, object]]
"""What anyio's plugin takes: the name of the backend and its options."""


def open_shared_loop() -> asyncio.AbstractEventLoop:
    """Makes the loop; its threads run already and end when it closes."""
    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(_THREADS, "shared-loop")
    together = Barrier(_THREADS + 1)
    for _ in range(_THREADS):
        executor.submit(together.wait)
    together.wait()
    loop.set_default_executor(executor)
    return loop


SHARED: Final[Backend] = ("asyncio", {"loop_factory": open_shared_loop})
