"""What approvals need from the runs in progress; the dispatcher provides it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.ports.chance import Clock
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.runtime.records.writes import Writes, Written


class Tagged(Protocol):
    """The terms of an agent, as far as rules use them."""

    @property
    def tags(self) -> frozenset[str]:
        """Tags that the operator configured."""
        ...


class RunAccess(Protocol):
    """Stores decisions together with runs, and notifies their drivers. Implemented by ``Dispatch``."""

    @property
    def writes(self) -> Writes:
        """The write path."""
        ...

    @property
    def blobs(self) -> Blobs:
        """The store for content over the size limit of a fact."""
        ...

    @property
    def clock(self) -> Clock:
        """The store's time."""
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
        """Notifies the driver of a task; returns whether it is on this instance. ``news`` is what was just stored."""
        ...

    async def refresh(self, task_id: str) -> None:
        """Makes the driver of a task read what was just stored."""
        ...
