"""Has the edited rules count at this instance: read when it starts, when others say so, and every round."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import StoreUnavailable
from passerelle.gateway.control.policy_editing import HOME
from passerelle.permission_bridge.rules import UNCONDITIONAL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from structlog.typing import FilteringBoundLogger

    from passerelle.gateway.control.policy_editing import PolicyEditing

ROUND_S: Final = 5.0
"""For how long a hint that is lost can leave an instance with the rules of before."""
_AGAIN_S: Final = 0.5


class RuleFollowing:
    """Reads the rules of ``editing`` again and again. While the store is away those of before count."""

    def __init__(
        self,
        editing: PolicyEditing,
        log: FilteringBoundLogger,
        count_skipped: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._editing = editing
        self._count_skipped = count_skipped
        self._log = log
        self._news = asyncio.Event()
        self._told: str | None = None
        self._skipped: tuple[str, ...] = ()

    @asynccontextmanager
    async def follow(self) -> AsyncGenerator[None]:
        """The rules count from the first moment on, and are followed until the end.

        Raises:
            StoreUnavailable: they could not be read; what is not known is not gone by.
        """
        await self._read()
        running = asyncio.create_task(self._run(), name="rules.follow")
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listen(), name="rules.listen")
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_S):
                        await self._news.wait()
                self._news.clear()
                try:
                    await self._read()
                except StoreUnavailable as error:
                    self._log.info("rules.unread", reason=error.reason)
                except Exception:  # noqa: BLE001  an instance that stops looking would judge by old rules for good
                    self._log.exception("rules.failed")
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        while True:
            try:
                await self._editing.news.listen(HOME, self._news.set)
            except StoreUnavailable as error:
                self._log.info("rules.deaf", reason=error.reason)
                await asyncio.sleep(_AGAIN_S)
            else:
                # What came before anybody listened was told to nobody.
                self._news.set()
                return

    async def _read(self) -> None:
        await self._editing.refresh()
        self._tell_skipped(self._editing.rulebook.skipped)
        fault = self._editing.rulebook.fault
        if fault == self._told:
            return
        self._told = fault
        if fault is None:
            self._log.info("rules.sound")
        else:
            self._log.error("rules.unsound", fault=fault, effect="everything is denied")

    def _tell_skipped(self, skipped: tuple[str, ...]) -> None:
        if skipped != self._skipped:
            self._skipped = skipped
            self._count_skipped(len(skipped))
            self._log.warning("rules.skipped", rules=skipped, reason=UNCONDITIONAL)
