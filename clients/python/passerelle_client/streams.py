"""All streams of a client: subscriptions, dispatch of frames, and pending acknowledgements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from passerelle.client.client_stream import ClientStream
from passerelle.client.items import StreamClosed
from passerelle.client.track import Track
from passerelle.protocol.frames import Ack, ClientFrame, Subscribe, Subscribed, Unsubscribe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.client.track import TrackedFrame
    from passerelle.protocol.cursor import Cursor
    from passerelle.protocol.frames import SnapshotPolicy, StartAt


class Streams:
    """Holds no socket: it returns the frames to send."""

    def __init__(self) -> None:
        self.ack_pending = asyncio.Event()
        self._followed: dict[str, ClientStream] = {}
        self._subscribed: set[str] = set()

    @property
    def replaying(self) -> frozenset[str]:
        """The streams that are not live yet."""
        return frozenset(name for name, one in self._followed.items() if not one.track.is_live)

    def open(
        self,
        name: str,
        saved: str | None,
        *,
        full: bool,
        start: StartAt | None,
        snapshot: SnapshotPolicy | None,
        volatile: bool = False,
    ) -> ClientStream:
        """Starts to follow a stream. ``ask`` or the next ``hello`` subscribes it.

        Raises:
            ValueError: it is already followed.
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
        """Returns the frame that subscribes to a stream over the current link."""
        followed.is_paused = False
        self._subscribed.add(followed.track.stream)
        return followed.track.ask()

    def ask_all(self) -> tuple[Subscribe, ...]:
        """Returns the subscriptions of a ``hello``: every stream, from its position."""
        self._subscribed = set()
        return self.ask_rest()

    def ask_rest(self) -> tuple[Subscribe, ...]:
        """Returns the subscriptions of streams that were opened after the ``hello`` was composed."""
        return tuple(
            self.ask(one)
            for name, one in self._followed.items()
            if name not in self._subscribed and (one.is_empty or not one.is_paused)
        )

    def close(self, followed: ClientStream) -> list[ClientFrame]:
        """Stops following a stream. Returns its last acknowledgement, then the unsubscription."""
        name = followed.track.stream
        if self._followed.get(name) is not followed:
            return []
        del self._followed[name]
        self._subscribed.discard(name)
        cursor = followed.take_ack()
        frames: list[ClientFrame] = [] if cursor is None else [Ack({name: cursor})]
        return [*frames, Unsubscribe(name)]

    def take(self, frame: TrackedFrame) -> list[ClientFrame]:
        """Passes a frame to its stream. A full stream is unsubscribed, and resumed when it is empty."""
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
        if followed.is_ack_pending:
            self.ack_pending.set()
        return [followed.track.ask()] if followed.track.resubscribe else []

    def pass_over(self, cursors: Mapping[str, Cursor]) -> None:
        """Moves filtered views past events that they do not show."""
        for stream, cursor in cursors.items():
            followed = self._followed.get(stream)
            if followed is not None:
                followed.pass_over(cursor)

    def end(self, stream: str, code: str) -> None:
        """Ends a stream that the server has closed."""
        followed = self._followed.get(stream)
        if followed is not None and not followed.is_paused:
            followed.end(StreamClosed(stream, code))

    def end_all(self, error: Exception) -> None:
        """Ends every stream: the client stops."""
        for followed in self._followed.values():
            followed.end(error)

    def take_acks(self) -> dict[str, Cursor]:
        """Returns the pending acknowledgements, each once."""
        owed = ((name, one.take_ack()) for name, one in self._followed.items())
        return {name: cursor for name, cursor in owed if cursor is not None}

    def _acknowledge(self, stream: str, cursor: str) -> None:
        followed = self._followed.get(stream)
        if followed is not None:
            followed.acknowledge(cursor)
            self.ack_pending.set()
