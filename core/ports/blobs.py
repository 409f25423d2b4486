"""Content that is too large for a fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.ids import Shard


class Blobs(Protocol):
    """Content that is too large for a fact, named by shard and SHA-256."""

    async def put(self, shard: Shard, content: bytes) -> str:
        """Stores the content before a fact names it, and returns its SHA-256 in hex."""
        ...

    async def put_pieces(self, shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        """Stores content whose hash is known, piece by piece; ``pieces`` may be taken in another thread."""
        ...

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        """The content, or None when it is not here."""
        ...

    async def read(self, shard: Shard, sha256: str, start: int, size: int) -> bytes | None:
        """At most ``size`` bytes from ``start`` on, not compared with the hash; None when it is not here."""
        ...


class Copies(Blobs, Protocol):
    """Content that may expire, since what facts are made of does not stand in it."""

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        """Removes content that nobody has put since; whether it is not here any more."""
        ...
