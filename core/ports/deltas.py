"""Ports for streamed text, which is published and not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.events import EncodedEvent
    from passerelle.core.ports.log import StreamRef


@frozen
class TextDelta:
    """Streamed text. With ``at`` 0 it starts ``block`` again; otherwise it is appended to a block of ``at`` characters.

    Characters are Unicode code points. Text that cannot be appended is in the durable event that closes the block.
    ``block`` begins with the facade id of its task.
    """

    block: str
    at: int
    text: str

    @property
    def facade(self) -> str:
        """The facade id of its task."""
        return self.block.partition("/")[0]


class Deltas(Protocol):
    """Streamed text between instances: published to listeners, and not stored (I1)."""

    async def publish(self, stream: StreamRef, event: EncodedEvent) -> int:
        """Publishes one ``model.delta``, and returns how many instances listen. It may reach none of them."""
        ...

    async def listen(self, stream: StreamRef, on_delta: Callable[[TextDelta], None]) -> None:
        """Returns once further deltas of the stream arrive here. At most one listener per stream."""
        ...

    async def ignore(self, stream: StreamRef) -> None:
        """Ends ``listen``."""
        ...


class OpenText(Protocol):
    """The text of blocks that runs of this instance have opened and not closed."""

    def read_blocks(self, session: str) -> list[TextDelta]:
        """Each open block of a session as one delta from 0 on; an existing listener continues from there."""
        ...
