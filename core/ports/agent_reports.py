"""Reports about agents that instances share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class AgentReports(Protocol):
    """Keeps one report per instance for a limited time. Raises StoreUnavailable if the store does not answer."""

    async def put(self, instance: str, report: bytes) -> None:
        """Replaces the last report of the instance."""
        ...

    async def read(self, instances: Sequence[str]) -> Mapping[str, bytes]:
        """The current reports of these instances; an instance without a report is left out."""
        ...
