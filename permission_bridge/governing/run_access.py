"""What approvals need of the runs under way, given by whoever drives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.chance import Clock
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.runtime.records.writes import Writes, Written


class Tagged(Protocol):
    """The terms of an agent, as far as rules speak about them."""

    @property
    def tags(self) -> frozenset[str]:
        """Words of the operator's own."""
        ...


class RunAccess(Protocol):
    """Stores decisions beside the runs, and tells their drivers. Implemented by ``Dispatch``."""

    @property
    def writes(self) -> Writes:
        """The write path."""
        ...

    @property
    def blobs(self) -> Blobs:
        """Where content over the cap of a fact goes."""
        ...

    @property
    def clock(self) -> Clock:
        """The time of the store."""
        ...

    @property
    def consulting(self) -> PolicyConsultation:
        """Grants, hooks and the classifier."""
        ...

    @property
    def find_terms(self) -> Callable[[str], Tagged]:
        """The terms of an agent by its name."""
        ...

    def wake(self, task_id: str, action_id: str | None = None, news: Written | None = None) -> bool:
        """Tells the driver of a task to look; whether it is on this instance. ``news`` is what was just stored."""
        ...

    async def refresh(self, task_id: str) -> None:
        """Lets the driver of a task read what was just stored."""
        ...
