"""Ports for content that is too large for a fact, and for uploads of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow


class Blobs(Protocol):
    """Content that is too large for a fact, by shard and SHA-256."""

    async def put(self, shard: Shard, content: bytes) -> str:
        """Stores content before a fact names it, and returns its SHA-256 in hex."""
        ...

    async def put_pieces(self, shard: Shard, sha256: str, pieces: Iterable[bytes]) -> None:
        """Stores content of a known hash piecewise; ``pieces`` may be consumed in another thread."""
        ...

    async def get(self, shard: Shard, sha256: str) -> bytes | None:
        """The content, or None if it is not here."""
        ...

    async def read(self, shard: Shard, sha256: str, start: int, size: int) -> bytes | None:
        """At most ``size`` bytes from ``start`` on, not verified against the hash; None if it is not here."""
        ...


class Copies(Blobs, Protocol):
    """Content that may expire, since no record is folded from it."""

    async def expire(self, shard: Shard, sha256: str, before_ms: int) -> bool:
        """Removes content that was not stored again since; returns whether it is gone."""
        ...


UPLOADED: Final = "urn:passerelle:blob:sha256:"
"""The address prefix of an agent's upload in an artifact; the hash follows."""


@frozen
class Uploaded:
    """An upload and its declared media type."""

    content: bytes
    media_type: str


class Uploads(Protocol):
    """Uploads, separate for each agent: the hash of another agent's content gives no access to it."""

    async def put(
        self, agent: str, sha256: str, content: bytes, media_type: str, room_bytes: int
    ) -> bool:
        """Keeps content for a day; False if the agent's quota is full. A repeat restarts the day."""
        ...

    async def get(self, agent: str, sha256: str) -> Uploaded | None:
        """The upload; None if there is none, or it is older than a day."""
        ...

    async def expire(self, row: DueRow) -> None:
        """Deletes uploads older than a day, and settles their due row."""
        ...
