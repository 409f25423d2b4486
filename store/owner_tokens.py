"""The owner token of this runtime, sealed: each generation is written once, and the highest one counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.ids import Shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes

_HOME: Final = Shard(0)
_MOST: Final = 16
"""Generations that one removal reaches back: each rotation removes those before it."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """The token of a generation, from 1 on, as it is stored."""

    generation: int
    sealed: bytes


class RedisOwnerTokens:
    """Keeps the token over a server or cluster, and tells every instance of another one."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def read(self) -> SealedToken | None:
        """The one that counts; None where there is none yet. Raises StoreUnavailable."""
        command = pack("HGETALL", keys.owner_token())
        found = await self._nodes.query(_HOME, command, as_hash)
        tokens = [SealedToken(int(generation), sealed) for generation, sealed in found.items()]
        return max(tokens, key=lambda one: one.generation, default=None)

    async def keep(self, token: SealedToken) -> SealedToken:
        """The token that counts: this one, unless somebody was faster with its generation or is beyond it.

        Raises:
            StoreUnavailable: whether it is kept is not known.
        """
        command = pack("HSETNX", keys.owner_token(), token.generation, token.sealed)
        await self._nodes.update(_HOME, command)
        return await self.read() or token

    async def seal_anew(self, token: SealedToken) -> None:
        """Writes the same token under another seal. Raises StoreUnavailable."""
        command = pack("HSET", keys.owner_token(), token.generation, token.sealed)
        await self._nodes.update(_HOME, command)

    async def forget_before(self, generation: int) -> None:
        """Removes earlier generations. Raises StoreUnavailable."""
        earlier = range(max(1, generation - _MOST), generation)
        if earlier:
            command = pack("HDEL", keys.owner_token(), *earlier)
            await self._nodes.update(_HOME, command)

    async def tell(self) -> None:
        """Tells every instance that there is another one, once. Raises StoreUnavailable."""
        await self._nodes.write(_HOME, pack("SPUBLISH", keys.owner_hints(), ""))

    async def listen(self, on_news: Callable[[], None]) -> None:
        """Returns once every further news is told here, and when some may have been lost.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is told then.
            ValueError: somebody listens already.
        """
        await self._hints.listen(_HOME, keys.owner_hints(), lambda _raw: on_news())
        self._hints.on_loss(on_news)
