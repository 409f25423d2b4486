"""Sealed values of the runtime: browser tickets, the key pair for push services, the owner token.

A ticket is taken once. The key pair is written once, by the first instance that needs it. Each generation of the owner
token is written once, and the highest one is valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen
from passerelle.core.ids import Shard, derive_shard
from passerelle.store import keys
from passerelle.store.connection import pack
from passerelle.store.replies import as_bytes, as_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.store.hints import RedisHints
    from passerelle.store.nodes import Nodes


class RedisTickets:
    """Sealed values by name; each is removed when it is taken, or expires."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def put(self, name: str, value: bytes, keep_ms: int) -> None:
        """Stores a value for ``keep_ms``. Raises StoreUnavailable."""
        shard = derive_shard("ticket", name)
        command = pack("SET", keys.ticket(shard, name), value, "PX", keep_ms)
        await self._nodes.update(shard, command)

    async def take(self, name: str) -> bytes | None:
        """Returns the value to the first caller. Raises StoreUnavailable; the value may be gone then."""
        shard = derive_shard("ticket", name)
        return as_bytes(await self._nodes.write(shard, pack("GETDEL", keys.ticket(shard, name))))


class RedisPushKeys:
    """Stores one value that is written once."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def read(self) -> bytes | None:
        """The stored value. Raises StoreUnavailable."""
        return await self._nodes.query(Shard(0), pack("GET", keys.push_key()), as_bytes)

    async def keep(self, value: bytes) -> bytes:
        """Returns the stored value: this one, or that of a faster instance. Raises StoreUnavailable."""
        command = pack("SET", keys.push_key(), value, "NX")
        await self._nodes.update(Shard(0), command)
        return await self.read() or value


_HOME: Final = Shard(0)
_MOST: Final = 16
"""Generations removed at once: each rotation removes those before it."""


@frozen
class SealedToken:
    """The stored token of a generation, from 1 on."""

    generation: int
    sealed: bytes


class RedisOwnerTokens:
    """Stores the token in a server or cluster, and notifies every instance of a new one."""

    def __init__(self, nodes: Nodes, hints: RedisHints) -> None:
        self._nodes = nodes
        self._hints = hints

    async def read(self) -> SealedToken | None:
        """The valid token; None if there is none yet. Raises StoreUnavailable."""
        command = pack("HGETALL", keys.owner_token())
        found = await self._nodes.query(_HOME, command, as_hash)
        tokens = [SealedToken(int(generation), sealed) for generation, sealed in found.items()]
        return max(tokens, key=lambda one: one.generation, default=None)

    async def keep(self, token: SealedToken) -> SealedToken:
        """Returns the valid token: this one, unless another instance was faster with this or a later generation.

        Raises:
            StoreUnavailable: whether it is stored is not known.
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
        """Notifies every instance of a new token, once. Raises StoreUnavailable."""
        await self._nodes.write(_HOME, pack("SPUBLISH", keys.owner_hints(), ""))

    async def listen(self, on_news: Callable[[], None]) -> None:
        """Returns once ``on_news`` is called for every further token, and when some may have been lost.

        Raises:
            StoreUnavailable: not confirmed within 5 s; nothing is subscribed then.
            ValueError: it is subscribed already.
        """
        await self._hints.listen(_HOME, keys.owner_hints(), lambda _raw: on_news())
        self._hints.on_loss(on_news)
