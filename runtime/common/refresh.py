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


class HintFollower:
    """Calls ``read`` again and again. While the store is away, what was read before counts.

    ``name`` begins the names of its log events; ``listen`` returns once each further news is told, and None is told of
    nothing; ``find_round_s`` says after how many seconds the next call comes without news.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[None]],
        listen: Callable[[Callable[[], None]], Awaitable[None]] | None,
        log: FilteringBoundLogger,
        find_round_s: Callable[[], float] = lambda: ROUND_S,
    ) -> None:
        self._name = name
        self._read = read
        self._listen_source = listen
        self._log = log
        self._find_round_s = find_round_s
        self._news = asyncio.Event()

    @asynccontextmanager
    async def follow(self) -> AsyncGenerator[None]:
        """What is stored counts from the first moment on, and is followed until the end.

        Raises:
            StoreUnavailable: it could not be read; what is not known is not gone by.
        """
        await self._read()
        async with self.repeat():
            yield

    @asynccontextmanager
    async def repeat(self) -> AsyncGenerator[None]:
        """The same after a first round."""
        loops = [asyncio.create_task(self._run(), name=f"{self._name}.follow")]
        if self._listen_source is not None:
            listening = self._listen(self._listen_source)
            loops.append(asyncio.create_task(listening, name=f"{self._name}.listen"))
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            for loop in loops:
                with suppress(asyncio.CancelledError):
                    await loop

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._find_round_s()):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._read()
            except StoreUnavailable as error:
                self._log.info(f"{self._name}.unread", reason=error.reason)
            except Exception:  # noqa: BLE001  an instance that stops looking would go by what is old for good
                self._log.exception(f"{self._name}.failed")

    async def _listen(self, tell_me: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        while True:
            try:
                await tell_me(self._news.set)
            except StoreUnavailable as error:
                self._log.info(f"{self._name}.deaf", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                # What came before anybody listened was told to nobody.
                self._news.set()
                return
