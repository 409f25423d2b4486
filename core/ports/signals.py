"""Ports of news between instances: to the driver of a run from those that do not drive it, and of edited rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Nudge:
    """The driver of a task should look: at an answer to ``action``, if one is named, or at what was stored."""

    task: str
    action: str = ""
    called_back: bool = False
    """It is the agent that has news, which a driver that reads its stream hears there."""
    gives_way: bool = False
    """Nothing is stored yet: somebody who reads before it decides has lost an append to the driver."""


class Nudges(Protocol):
    """What one instance is told by others. A nudge may be lost or doubled, like any hint."""

    async def nudge(self, instance: str, nudge: Nudge) -> None:
        """Tells an instance; it may have died."""
        ...

    async def listen(self, instance: str, on_nudge: Callable[[Nudge], object]) -> None:
        """Returns once each further nudge of the instance is told here. At most one listener for an instance."""
        ...


class RuleUpdates(Protocol):
    """Says that there is something to be read. It may be lost or doubled, like any hint."""

    async def publish(self, home: str) -> None:
        """Tells every instance that the rules beside this home session have changed."""
        ...

    async def listen(self, home: str, on_update: Callable[[], None]) -> None:
        """Returns once every further news is told here, and when some may have been lost. At most one listener."""
        ...
