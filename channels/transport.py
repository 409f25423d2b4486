"""The interface between a connection and its transport. Nothing in it awaits, so a write needs no task.

A transport is a ``Socket`` and calls its ``SocketListener``. There are two: ``channels/asgi.py`` for any ASGI server,
and ``channels/fast.py`` over picows. All decisions are made behind this interface, the same for both.
"""

from __future__ import annotations

from typing import Protocol


class SocketListener(Protocol):
    """Receives the events of a socket: its connection."""

    def take_message(self, message: str | bytes) -> None:
        """One whole message; text, or bytes if it was binary. It may arrive after ``pause``: it was read already."""
        ...

    def take_room(self) -> None:
        """The socket is writable again."""
        ...

    def take_end(self, *, left: bool) -> None:
        """The socket is closed; ``left``: the other side closed it, with a code for a normal close.

        Called at least once, except on a listener that has closed or aborted the socket: that one gets no more calls.
        """
        ...


class Socket(Protocol):
    """One accepted WebSocket."""

    @property
    def is_writable(self) -> bool:
        """Whether it accepts more data now; a writer with little data may ignore this."""
        ...

    @property
    def buffered(self) -> int:
        """Bytes that were written and not sent yet."""
        ...

    def write(self, message: bytes, /) -> None:
        """Sends one text message; on a closed socket it is dropped."""
        ...

    def pause(self) -> None:
        """Stops reading, so that the other side's writes wait."""
        ...

    def resume(self) -> None:
        """Reads again."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Closes it after everything that was written."""
        ...

    def abort(self) -> None:
        """Drops it, with unsent data."""
        ...
