"""Has something that is stored count at this instance: read when it starts, when others say so, and every round."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

ROUND_S: Final = 5.0
"""For how long a hint that is lost can leave an instance with what counted before."""
_AGAIN_S: Final = 0.5


class NewsFollowing:
    """Calls ``read`` again and again. While the store is away, what was read before counts.

    ``name`` begins the names of its log events; ``listen`` returns once each further news is told.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[None]],
        listen: Callable[[Callable[[], None]], Awaitable[None]],
        log: FilteringBoundLogger,
    ) -> None:
        self._name = name
        self._read = read
        self._tell_me = listen
        self._log = log
        self._news = asyncio.Event()

    @asynccontextmanager
    async def follow(self) -> AsyncGenerator[None]:
        """What is stored counts from the first moment on, and is followed until the end.

        Raises:
            StoreUnavailable: it could not be read; what is not known is not gone by.
        """
        await self._read()
        running = asyncio.create_task(self._run(), name=f"{self._name}.follow")
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listen(), name=f"{self._name}.listen")
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_S):
                        await self._news.wait()
                self._news.clear()
                try:
                    await self._read()
                except StoreUnavailable as error:
                    self._log.info(f"{self._name}.unread", reason=error.reason)
                except Exception:  # noqa: BLE001  an instance that stops looking would go by what is old for good
                    self._log.exception(f"{self._name}.failed")
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        while True:
            try:
                await self._tell_me(self._news.set)
            except StoreUnavailable as error:
                self._log.info(f"{self._name}.deaf", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                # What came before anybody listened was told to nobody.
                self._news.set()
                return
