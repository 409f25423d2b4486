"""The seam between a connection and what carries it. Nothing in it awaits, so a back-end needs no task for each write.

A back-end is a ``Socket`` and tells its ``Receiver`` what comes in. There are two: ``channels/asgi.py`` for any ASGI
server, and ``channels/fast.py`` over picows. Everything that decides is behind the seam, and the same for both.
"""

from __future__ import annotations

from typing import Protocol


class SocketListener(Protocol):
    """Who is told what happens to a socket: its connection."""

    def take_message(self, message: str | bytes) -> None:
        """One whole message; text, or bytes where it was binary. It may come after ``pause``: what was read already."""
        ...

    def take_room(self) -> None:
        """The socket is writable again."""
        ...

    def take_end(self, *, left: bool) -> None:
        """The socket is gone; ``left``: the other side closed it, with a code that says so.

        Told once at the least, but to a receiver that has closed or aborted the socket: that one is told nothing more.
        """
        ...


class Socket(Protocol):
    """One accepted WebSocket."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes more now; it may be written to all the same, by who holds little."""
        ...

    @property
    def buffered(self) -> int:
        """Bytes that were written and not sent yet."""
        ...

    def write(self, message: bytes, /) -> None:
        """Sends one text message; one to a socket that is gone is dropped."""
        ...

    def pause(self) -> None:
        """Reads no more, so that the other side's writes wait."""
        ...

    def resume(self) -> None:
        """Reads again."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Closes it behind all that was written."""
        ...

    def abort(self) -> None:
        """Drops it, and what was written and not sent."""
        ...
