"""Ports for signals between instances: to the driver of a run, and about edited rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable


@frozen
class Nudge:
    """The driver of a task should check for an answer to ``action``, if named, or for stored changes."""

    task: str
    action: str = ""
    called_back: bool = False
    """The agent sent a push notification; a driver that reads its stream gets the update there."""
    gives_way: bool = False
    """Nothing is stored yet: another instance lost an append to the driver and wants to go first."""


class Nudges(Protocol):
    """Signals between instances. A nudge may be lost or doubled, like any hint."""

    async def nudge(self, instance: str, nudge: Nudge) -> None:
        """Sends a nudge to an instance, which may be dead."""
        ...

    async def listen(self, instance: str, on_nudge: Callable[[Nudge], object]) -> None:
        """Returns once further nudges of the instance arrive here. At most one listener per instance."""
        ...


class RuleUpdates(Protocol):
    """Signals that the edited rules changed. They may be lost or doubled, like any hint."""

    async def publish(self, home: str) -> None:
        """Notifies every instance that the rules stored with this home session have changed."""
        ...

    async def listen(self, home: str, on_update: Callable[[], None]) -> None:
        """Returns once further signals arrive here; also called when some may have been lost. At most one listener."""
        ...
