"""Decoders of replies: from RESP 2, where everything is a byte string, a number or a list, to Python types."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from passerelle.store.connection import RespValue


def as_int(reply: RespValue) -> int:
    """A number, also as text; 0 if missing."""
    return int(cast("bytes | int | None", reply) or 0)


def as_bytes(reply: RespValue) -> bytes | None:
    """A byte string; None if missing."""
    return reply if isinstance(reply, bytes) else None


def as_text(reply: RespValue) -> str:
    """A text."""
    return cast("bytes", reply).decode()


def as_list(reply: RespValue) -> list[bytes]:
    """Byte strings, none missing."""
    return cast("list[bytes]", reply)


def as_sparse_list(reply: RespValue) -> list[bytes | None]:
    """Byte strings, as HMGET returns them: None for missing fields."""
    return cast("list[bytes | None]", reply)


def as_texts(reply: RespValue) -> list[str]:
    """Texts."""
    return [text.decode() for text in as_list(reply)]


def as_ms(reply: RespValue) -> int:
    """Milliseconds of TIME, which replies in seconds and microseconds."""
    seconds, micros = as_list(reply)
    return int(seconds) * 1000 + int(micros) // 1000


def as_hash(reply: RespValue) -> dict[str, bytes]:
    """Fields of HGETALL."""
    flat = as_list(reply)
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def as_scores(reply: RespValue) -> list[tuple[str, int]]:
    """Members and scores of ZRANGE WITHSCORES."""
    flat = as_list(reply)
    return [
        (member.decode(), int(float(score)))
        for member, score in zip(flat[::2], flat[1::2], strict=True)
    ]
