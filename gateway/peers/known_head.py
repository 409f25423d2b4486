"""The head of an answer that was read before. Pure.

A server writes the same head again and again, for as long as the second lasts that stands in it; only the length of the
body differs. What the parser has once read of it need not be read again.
"""

from __future__ import annotations

from typing import Final

from passerelle.core.record import value

_START: Final = b"HTTP/1.1 200 "
_END: Final = b"\r\n\r\n"


@value
class KnownHead:
    """A head of ``size`` bytes in two pieces, with the length of the body between them."""

    before: bytes
    after: bytes
    size: int

    def begins(self, data: bytes) -> bool:
        """Whether ``data`` is one whole answer with this head: its body is what stands behind ``size`` bytes.

        A length of fewer or more digits makes a head of another size, which is none of these.
        """
        size = self.size
        return data[:size] == b"%b%d%b" % (self.before, len(data) - size, self.after)


def learn_head(answer: bytes, body_bytes: int) -> KnownHead | None:
    """The head of an answer that a parser took for a whole one, with such a length; None where it is none that is kept.

    An interim answer before it, a trailer or a further answer behind it make up for no length.
    """
    end = answer.find(_END)
    size = end + len(_END)
    if size + body_bytes != len(answer) or not answer.startswith(_START):
        return None
    length = b"%d" % body_bytes
    at = answer[: end + 2].lower().find(b"\r\ncontent-length: %b\r\n" % length)
    if at < 0:
        return None
    at += len(b"\r\ncontent-length: ")
    return KnownHead(answer[:at], answer[at + len(length) : size], size)
