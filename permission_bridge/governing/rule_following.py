"""Has the edited rules count at this instance."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from passerelle.permission_bridge.governing.policy_editing import HOME
from passerelle.permission_bridge.rules import UNCONDITIONAL
from passerelle.runtime.common.news_following import NewsFollowing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from structlog.typing import FilteringBoundLogger

    from passerelle.permission_bridge.governing.policy_editing import PolicyEditing


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
        self._told: str | None = None
        self._skipped: tuple[str, ...] = ()

    def follow(self) -> AbstractAsyncContextManager[None]:
        """The rules count from the first moment on, and are followed until the end.

        Raises:
            StoreUnavailable: they could not be read; what is not known is not gone by.
        """
        news = self._editing.news
        listen = partial(news.listen, HOME)
        return NewsFollowing("rules", self._read, listen, self._log).follow()

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
