"""Keeps stored settings current in an instance: read at start, on a hint, and in regular rounds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

ROUND_S: Final = 5.0
"""How long a lost hint can leave an instance with outdated values."""
_AGAIN_S: Final = 0.5


class HintFollower:
    """Calls ``read`` again and again. While the store is unavailable, the last values stay in effect.

    ``name`` prefixes its log events; ``listen`` returns once the subscription to hints is active (None: no hints);
    ``find_round_s`` returns the seconds until the next call without a hint.
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
        """Reads before the block starts, and keeps reading until it ends.

        Raises:
            StoreUnavailable: the first read failed; without values there is no safe default.
        """
        await self._read()
        async with self.repeat():
            yield

    @asynccontextmanager
    async def repeat(self) -> AsyncGenerator[None]:
        """The same without the first read."""
        loops = [asyncio.create_task(self._run(), name=f"{self._name}.follow")]
        if self._listen_source is not None:
            listening = self._listen(self._listen_source)
            loops.append(asyncio.create_task(listening, name=f"{self._name}.listen"))
        try:
            yield
        finally:
            await cancel_all(loops)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._find_round_s()):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._read()
            except StoreUnavailable as error:
                self._log.info(f"{self._name}.not_read", reason=error.reason)
            except Exception:  # noqa: BLE001  a loop that stopped would keep outdated values for good
                self._log.exception(f"{self._name}.failed")

    async def _listen(self, tell_me: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        while True:
            try:
                await tell_me(self._news.set)
            except StoreUnavailable as error:
                self._log.info(f"{self._name}.not_subscribed", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                # Hints sent before the subscription were missed.
                self._news.set()
                return
