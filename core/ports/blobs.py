"""Ports of content that is too large for a fact, and of content that agents upload before a message names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.core.ids import Shard
    from passerelle.core.ports.due import DueRow


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


UPLOADED: Final = "urn:passerelle:blob:sha256:"
"""How an artifact begins the address of what its agent has uploaded; the hash follows."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an agent has uploaded, and what it says that this is."""

    content: bytes
    media_type: str


class Uploads(Protocol):
    """Uploads of agents, each agent's apart: knowing the hash of another one's content is of no use."""

    async def put(
        self, agent: str, sha256: str, content: bytes, media_type: str, room_bytes: int
    ) -> bool:
        """Keeps content for a day; False where the agent has no room for it. Said again, the day begins anew."""
        ...

    async def get(self, agent: str, sha256: str) -> Uploaded | None:
        """What the agent has uploaded; None where it has not, or longer than a day ago."""
        ...

    async def expire(self, row: DueRow) -> None:
        """Forgets what is older than a day, and settles the row by which that is owed."""
        ...
