"""News between instances that the edited rules are others by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class RuleNews(Protocol):
    """Says that there is something to be read. It may be lost or doubled, like any hint."""

    async def tell(self, home: str) -> None:
        """Tells every instance that the rules beside this home session have changed."""
        ...

    async def listen(self, home: str, on_news: Callable[[], None]) -> None:
        """Returns once every further news is told here, and when some may have been lost. At most one listener."""
        ...
