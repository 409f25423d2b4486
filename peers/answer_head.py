"""The head of an answer that was read before. Pure.

A server writes the same head again and again, for as long as the second lasts that stands in it; only the length of the
body differs. What the parser has once read of it need not be read again.
"""

from __future__ import annotations

from typing import Final

from passerelle.core.wire.record import value

_START: Final = b"HTTP/1.1 200 "
_LENGTH: Final = b"\r\ncontent-length: "
_END: Final = b"\r\n\r\n"


@value
class AnswerHead:
    """A head of ``size`` bytes in two pieces, with the length of the body from ``at`` to ``end`` between them."""

    before: bytes
    after: bytes
    at: int
    end: int
    size: int

    def read_length(self, data: bytes) -> int:
        """The length of the body in an answer that begins with this head; -1 where it begins otherwise.

        A length of fewer or more digits makes a head of another size, which is none of these.
        """
        at, end = self.at, self.end
        if data[:at] != self.before or data[end : self.size] != self.after:
            return -1
        length = data[at:end]
        return int(length) if length.isdigit() else -1


def learn_head(first: bytes, body_bytes: int, read_bytes: int) -> AnswerHead | None:
    """The head of an answer out of its first piece; None where it is not known again.

    A parser took ``read_bytes`` for a whole answer with a body of ``body_bytes``. An interim answer before it, a
    trailer or a further answer behind it make up for no length.
    """
    size = first.find(_END) + len(_END)
    if size + body_bytes != read_bytes or not first.startswith(_START):
        return None
    length = b"%d" % body_bytes
    found = first[: size - 2].lower().find(b"%b%b\r\n" % (_LENGTH, length))
    if found < 0:
        return None
    at = found + len(_LENGTH)
    end = at + len(length)
    return AnswerHead(first[:at], first[end:size], at, end, size)
