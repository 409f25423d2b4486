"""Server-sent events: parses them incrementally, and escapes JSON for their data. Pure: no clock.

A2A uses only the data of an event; names, ids and retry times are ignored. The rules are those of the WHATWG
"server-sent events" chapter: a line ends with CR, LF or CRLF, a blank line ends an event, data lines are joined by a
newline, a line that begins with a colon is a comment, a leading BOM is dropped.
"""

from __future__ import annotations

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_DATA: Final = b"data: "
_BREAKS: Final = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
_BEGUN: Final = (b"\xe2\x80", b"\xe2", b"\xc2")
"""Possible prefixes of these characters at the end of a piece."""


def escape_breaks(json: bytes) -> bytes:
    """The same JSON with U+0085, U+2028 and U+2029 escaped; they can occur in its strings only.

    They do not end a line of an event, but many readers split with ``str.splitlines`` (the clients of a2a-sdk among
    them), and would get half a document. JSON itself escapes all other line ends.
    """
    if json.isascii():
        return json
    for raw, escaped in _BREAKS.items():
        if raw in json:
            json = json.replace(raw, escaped)
    return json


def hold_begun(piece: bytes) -> tuple[bytes, bytes]:
    """Splits a piece of JSON: the part for ``escape_breaks``, and an incomplete character that needs the next piece."""
    held = next((begun for begun in _BEGUN if piece.endswith(begun)), b"")
    return piece[: len(piece) - len(held)], held


class SseParser:
    """Bytes in, data payloads out; any split of the bytes gives the same payloads.

    A payload of more than ``limit_bytes``, or a line that could not be in a smaller one, sets ``overflowed``: earlier
    payloads have been returned, and nothing follows.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_data_bytes",
        "_limit",
        "_line",
        "_line_bytes",
        "_line_limit",
        "_started",
        "overflowed",
    )

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._line_limit = limit_bytes + len(_DATA)
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._started = False
        self._after_cr = False
        self.overflowed = False

    @property
    def in_event(self) -> bool:
        """Whether the input so far ends inside an event, so that the end of the stream would cut it."""
        return bool(self._data) or (self._line_bytes > 0 and not self._line[0].startswith(b":"))

    @property
    def held_bytes(self) -> int:
        """Buffered bytes of an incomplete event."""
        return self._data_bytes + self._line_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that this chunk completes, in order."""
        if self.overflowed or not chunk:
            return []
        if not self._started:
            chunk = self._drop_bom(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._take_lines(chunk)

    def _drop_bom(self, chunk: bytes) -> bytes:
        """Buffers up to two bytes until it is clear whether they begin a BOM."""
        head = b"".join(self._line) + chunk
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._line, self._line_bytes = [head], len(head)
            return b""
        self._line, self._line_bytes = [], 0
        self._started = True
        return head.removeprefix(_BOM)

    def _take_lines(self, chunk: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            line = b"".join([*self._line, part]) if self._line else part
            self._line, self._line_bytes = [], 0
            if line:
                self._take_line(line)
            elif self._data:
                payloads.append(b"\n".join(self._data))
                self._data, self._data_bytes = [], 0
            if self.overflowed:
                return payloads
        if rest:
            # Kept in pieces: joining at every chunk would make a long line quadratic.
            self._line.append(rest)
            self._line_bytes += len(rest)
            self.overflowed = self._line_bytes > self._line_limit
        return payloads

    def _take_line(self, line: bytes) -> None:
        name, colon, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ") if colon else b"")
            self._data_bytes += len(self._data[-1]) + 1
        self.overflowed = len(line) > self._line_limit or self._data_bytes - 1 > self._limit
