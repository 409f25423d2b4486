"""All streams of a client: what the server was asked for, where its frames go, what is owed to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passerelle.client.followed import ClientStream
from passerelle.client.items import StreamClosed
from passerelle.client.track import Track
from passerelle.protocol.frames import Ack, ClientFrame, Subscribe, Subscribed, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.client.track import TrackedFrame
    from passerelle.protocol.cursor import Cursor
    from passerelle.protocol.frames import SnapshotWish, StartAt


class Streams:
    """Knows no socket: it returns the frames that are to be sent."""

    def __init__(self) -> None:
        self.ack_owed = asyncio.Event()
        self._followed: dict[str, ClientStream] = {}
        self._asked: set[str] = set()

    @property
    def replaying(self) -> frozenset[str]:
        """The streams that have not caught up."""
        return frozenset(name for name, one in self._followed.items() if not one.track.is_live)

    def open(
        self,
        name: str,
        saved: str | None,
        *,
        full: bool,
        start: StartAt | None,
        snapshot: SnapshotWish | None,
        volatile: bool = False,
    ) -> ClientStream:
        """Begins to follow a stream; it is asked for by ``ask`` or with the next ``hello``.

        Raises:
            ValueError: it is followed already.
        """
        if name in self._followed:
            raise ValueError(
                f"{name} is followed already: two readers of one cursor steal from each other"
            )
        track = Track(
            name,
            self._acknowledge,
            saved,
            full=full,
            start=start,
            snapshot=snapshot,
            volatile=volatile,
        )
        self._followed[name] = ClientStream(track)
        return self._followed[name]

    def ask(self, followed: ClientStream) -> Subscribe:
        """The frame that asks for a stream over a link that is there."""
        followed.is_paused = False
        self._asked.add(followed.track.stream)
        return followed.track.ask()

    def ask_all(self) -> tuple[Subscribe, ...]:
        """What goes into a ``hello``: every stream, where we are."""
        self._asked = set()
        return self.ask_rest()

    def ask_rest(self) -> tuple[Subscribe, ...]:
        """What was opened since the ``hello`` was composed."""
        return tuple(
            self.ask(one)
            for name, one in self._followed.items()
            if name not in self._asked and (one.is_empty or not one.is_paused)
        )

    def close(self, followed: ClientStream) -> list[ClientFrame]:
        """Stops following; what is still acknowledged goes first."""
        name = followed.track.stream
        if self._followed.get(name) is not followed:
            return []
        del self._followed[name]
        self._asked.discard(name)
        cursor = followed.take_ack()
        frames: list[ClientFrame] = [] if cursor is None else [Ack({name: cursor})]
        return [*frames, Unsubscribe(name)]

    def take(self, frame: TrackedFrame) -> list[ClientFrame]:
        """Hands a frame to its stream. One that is full is left, and taken up again when it is empty."""
        followed = self._followed.get(frame.stream)
        if followed is None or followed.is_paused:
            return []
        if followed.is_full:
            followed.is_paused = True
            followed.track.pause()
            return [Unsubscribe(frame.stream)]
        followed.take(frame)
        if isinstance(frame, Subscribed):
            followed.repeat_ack(frame.cursor)
        if followed.owes_ack:
            self.ack_owed.set()
        return [followed.track.ask()] if followed.track.resubscribe else []

    def pass_over(self, cursors: Mapping[str, Cursor]) -> None:
        """Moves filtered views past events that they hide."""
        for stream, cursor in cursors.items():
            followed = self._followed.get(stream)
            if followed is not None:
                followed.pass_over(cursor)

    def end(self, stream: str, code: str) -> None:
        """The server sends no more of a stream."""
        followed = self._followed.get(stream)
        if followed is not None and not followed.is_paused:
            followed.end(StreamClosed(stream, code))

    def end_all(self, error: Exception) -> None:
        """The client ends."""
        for followed in self._followed.values():
            followed.end(error)

    def take_acks(self) -> dict[str, Cursor]:
        """The acknowledgements that are owed, each once."""
        owed = ((name, one.take_ack()) for name, one in self._followed.items())
        return {name: cursor for name, cursor in owed if cursor is not None}

    def _acknowledge(self, stream: str, cursor: str) -> None:
        followed = self._followed.get(stream)
        if followed is not None:
            followed.acknowledge(cursor)
            self.ack_owed.set()
