"""Text on its way, which is told and not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ports.log import StreamRef


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is on its way. At 0 it begins ``block`` anew; else it goes behind a block of ``at`` characters.

    Characters are Unicode code points. What fits nowhere stands in the durable event that closes the block. ``block``
    begins with the facade id of its task.
    """

    block: str
    at: int
    text: str

    @property
    def facade(self) -> str:
        """The task whose text it is, as callers know it."""
        return self.block.partition("/")[0]


class Deltas(Protocol):
    """Text that is on its way, between instances: published to whoever listens, and stored nowhere (I1)."""

    async def publish(self, stream: StreamRef, event: EncodedEvent) -> int:
        """Publishes one ``model.delta`` once, and says how many instances listen. It may reach none of them."""
        ...

    async def listen(self, stream: StreamRef, on_delta: Callable[[TextDelta], None]) -> None:
        """Returns once each further delta of the stream is told. At most one listener for a stream."""
        ...

    async def ignore(self, stream: StreamRef) -> None:
        """Ends what ``listen`` began."""
        ...


class OpenText(Protocol):
    """The text of blocks that runs of this instance have begun and not closed."""

    def read_blocks(self, session: str) -> list[TextDelta]:
        """Each open block of a session as one delta from 0 on; whoever listens already goes on from there."""
        ...
