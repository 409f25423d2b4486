"""What instances tell each other of their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AgentReports(Protocol):
    """Keeps one report of each instance for a while. Raises StoreUnavailable where the store does not answer."""

    async def put(self, instance: str, report: bytes) -> None:
        """Takes the place of what the instance has said before."""
        ...

    async def read(self, instances: Sequence[str]) -> Mapping[str, bytes]:
        """What these have said by now; of those that have said nothing there is none."""
        ...
