"""An event loop that outlives a test, with all of its threads started.

The default executor of a loop starts a thread whenever none is idle. On a loop shared by a module, some test would
leave one more thread, and which one depends on the order.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final, TypeAlias

_THREADS: Final = 4

Backend: TypeAlias = tuple[str, dict[str, object]]
"""The arguments of anyio's plugin: backend name and options."""


def open_shared_loop() -> asyncio.AbstractEventLoop:
    """Creates the loop; its threads are already running and end when it closes."""
    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(_THREADS, "shared-loop")
    together = Barrier(_THREADS + 1)
    for _ in range(_THREADS):
        executor.submit(together.wait)
    together.wait()
    loop.set_default_executor(executor)
    return loop


SHARED: Final[Backend] = ("asyncio", {"loop_factory": open_shared_loop})
