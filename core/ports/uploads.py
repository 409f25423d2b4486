"""Content that agents upload before a message of theirs names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from passerelle.core.ports.due import DueRow

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
