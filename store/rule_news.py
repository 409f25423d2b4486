"""News of edited rules: one channel, beside the home session that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import place
from passerelle.store import keys
from passerelle.store.connection import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes


class RedisRuleNews:
    """``core.ports.rule_news.RuleNews`` over a server or cluster."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def tell(self, home: str) -> None:
        """Tells every instance, once.

        Raises:
            StoreUnavailable: whether it was told is not known; nothing is tried again.
        """
        shard = place(home)
        await self._nodes.write(shard, pack("SPUBLISH", keys.rule_hints(shard, home), ""))

    async def listen(self, home: str, on_news: Callable[[], None]) -> None:
        """Returns once every further news is told here, and when some may have been lost.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is told then.
            ValueError: somebody listens already.
        """
        shard = place(home)
        await self._hints.listen(shard, keys.rule_hints(shard, home), lambda _raw: on_news())
        self._hints.on_loss(on_news)
