"""An HTTP request: its head by name, its body within a limit, and the notice that its caller has left.

ASGI reports by a message that a caller has closed its connection, and waiting for it takes a task. Our server calls
back instead; other servers, and frames of a socket, need the task.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qsl

from passerelle.a2a_mapping.version import HEADER, judge_version
from passerelle.core.errors import ContentTypeNotSupported, TooLarge
from passerelle.core.wire.headers import read_fields, refuse_encoding

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.types import Receive, Scope

    from passerelle.a2a_mapping.version import Version
    from passerelle.runtime.memory.room import MemoryDraw

JSON: Final = "application/json"
FREE_BYTES: Final = 1_048_576
"""Bytes that each body may have without drawing from the memory budget."""
A2A_JSON: Final = "application/a2a+json"
FRAMED: Final = "passerelle.framed"
"""The ASGI extension of a request whose answer is written as frames."""
_VERSION: Final = HEADER.lower()
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


class CallerLeftError(Exception):
    """The caller closed its connection, so there is no one to answer. It decides nothing about a run (I6)."""


class Incoming:
    """The head of a request. Header names are lower case, and lines with the same name are joined.

    ``is_framed``: each answer, and each event of a stream, is one frame, so it has to be in memory.
    """

    __slots__ = ("_scheme", "_server", "_version", "headers", "is_framed", "path", "query", "verb")

    def __init__(self, scope: Scope, proxied: str | None = None) -> None:
        self._scheme: str | None = scope.get("scheme")
        self._server: tuple[str, int | None] | None = scope.get("server")
        self._version: Version | None = None
        self.is_framed: bool = FRAMED in (scope.get("extensions") or {})
        self.verb: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: Mapping[str, str] = read_fields(scope["headers"], proxied)
        query: bytes = scope["query_string"]
        self.query: Mapping[str, str] = (
            dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)) if query else {}
        )

    @property
    def names_version(self) -> bool:
        """Whether the caller names a version."""
        return bool((self.headers.get(_VERSION) or self.query.get(HEADER) or "").strip())

    @property
    def version(self) -> Version:
        """The requested protocol version.

        Raises:
            VersionNotSupported: it is malformed or not served.
        """
        if self._version is None:
            self._version = judge_version(self.headers.get(_VERSION), self.query.get(HEADER))
        return self._version

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in lower case; empty when there is none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def own_url(self) -> str:
        """The URL under which the caller reached this server, without a path.

        An invalid Host header would end up on a card, so the address of the connection replaces it.
        """
        host = self.headers.get("host", "")
        if not _HOST.fullmatch(host):
            server = self._server or ("127.0.0.1", None)
            name = f"[{server[0]}]" if ":" in server[0] else server[0]
            host = name if server[1] is None else f"{name}:{server[1]}"
        return f"{self._scheme}://{host}"

    def require_media_type(self, served: Collection[str], *, optional: bool) -> None:
        """Checks the content type and encoding before anything is read.

        Raises:
            ContentTypeNotSupported: the type is not one of ``served``, or missing and not ``optional``; or the body is
                encoded.
        """
        if encoding := self.headers.get("content-encoding"):
            refuse_encoding(self.media_type, encoding)
        if self.headers.get("content-type") in served:
            return
        media_type = self.media_type
        if media_type in served or (optional and not media_type):
            return
        raise ContentTypeNotSupported(media_type)

    async def read_body(self, receive: Receive, limit_bytes: int, room: MemoryDraw) -> bytes:
        """The whole body. What it draws from ``room`` is held until ``room`` is closed, also after an error.

        Raises:
            TooLarge: it does not end within the limit; the rest is discarded.
            CallerLeftError: the connection closed before its end.
            Limited, InstanceFull: there is no ``room`` for a body over ``FREE_BYTES``.
        """
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > limit_bytes:
            raise TooLarge("the body", limit_bytes)
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CallerLeftError
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > limit_bytes:
                raise TooLarge("the body", limit_bytes)
            if (more := size - FREE_BYTES - room.amount) > 0:
                room.take(more)
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)


OnCallerLeft: TypeAlias = Callable[[], None]
Watch: TypeAlias = Callable[[OnCallerLeft], Callable[[], object]]
"""Takes a function to call once the caller has left, and returns one that stops watching."""


def watch_disconnect(receive: Receive) -> Watch:
    """Waits for the ASGI disconnect message in a task."""

    def watch(left: OnCallerLeft) -> Callable[[], object]:
        return asyncio.create_task(_wait(receive, left)).cancel

    return watch


def ignore_disconnect(_left: OnCallerLeft) -> Callable[[], object]:
    """Never calls back: for a caller whose disconnect cancels the call itself."""
    return _nothing


async def _wait(receive: Receive, left: OnCallerLeft) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    left()


def _nothing() -> None:
    return None
